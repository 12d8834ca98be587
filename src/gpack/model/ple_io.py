"""How rows of a table are read, and what was read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..errors import UsageError


class PleIo(Enum):
    """How rows are read."""

    Direct = "direct"  # 4 KiB-aligned reads past the page cache, and a cache of rows of our own
    Mmap = "mmap"  # the mapped file, and the system's page cache


def ple_mode(io: PleIo | str) -> PleIo:
    """The mode, also by its name.

    Raises:
        UsageError: There is no such mode.
    """
    try:
        return PleIo(io)
    except ValueError as error:
        names = ", ".join(mode.value for mode in PleIo)
        raise UsageError(f"there is no mode {io!r}", code="usage", hint=f"the modes are {names}") from error


@dataclass(frozen=True)
class PleCounts:
    """What a table did so far.

    Attributes:
        hits, misses: Rows that the row cache had, and had not; 0 in Mmap mode.
        reads, read_bytes: Reads of the file.
    """

    hits: int
    misses: int
    reads: int
    read_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of the rows that needed no read."""
        return self.hits / max(self.hits + self.misses, 1)
