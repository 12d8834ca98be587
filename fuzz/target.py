"""What a target is: how it is run, and what it may answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .mutate import Mutate


class FindingError(Exception):
    """The program answered what it must not answer: a property does not hold."""


@dataclass(frozen=True)
class Target:
    """Something that reads what strangers wrote.

    Attributes:
        seeds: Inputs to begin with.
        run: Reads an input; returns whether it was taken for good. A `GpackError` refuses the input, which is right;
            any other exception is a finding, and so is a `FindingError`.
        header: Whether an input is so far sound that what comes after its header is reached.
        mutate: Changes an input.
        limit: Bytes of the longest input.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], bool]
    header: Callable[[bytes], bool]
    mutate: Mutate
    limit: int = 1 << 14


class Scratch:
    """A folder for what readers open by path, in the folder for temporary files, which `running` removes."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gpack-fuzz-"))

    def write(self, name: str, data: bytes) -> Path:
        """A file with these bytes."""
        path = self.path / name
        path.write_bytes(data)
        return path
