"""A recipe of bytes: so many zeros, or another recipe's bytes, with runs written over them.

In JSON `{"size": N, "sha256": HEX or null, "base": ID or null, "runs": [[offset, "hex"], ...]}`: N zero bytes, or the
base's bytes cut or extended with zeros to N, then the runs. A recipe without a digest describes a file that is too
large to hash by the way; such files are written sparse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from ..errors import FormatError, PathError

# Runs that are nearer than this are joined: another run costs about as much as these zeros.
_JOIN = 12


@dataclass(frozen=True)
class Recipe:
    """How to make a file.

    Attributes:
        size: Bytes of the file.
        sha256: Its digest as hex; None for a large one.
        base: Id of the vector whose bytes come first.
        runs: (offset, bytes), rising, written over the base or over zeros.
    """

    size: int
    sha256: str | None
    base: str | None
    runs: tuple[tuple[int, bytes], ...]

    @classmethod
    def of(cls, data: bytes, *, base: str | None = None, below: bytes = b"") -> Self:
        """The recipe of some bytes.

        Args:
            base: Id of the vector whose bytes `below` are.
        """
        ground = below[: len(data)].ljust(len(data), b"\0")
        return cls(len(data), sha256(data).hexdigest(), base, _differences(ground, data))

    @classmethod
    def sparse(cls, size: int, runs: Iterable[tuple[int, bytes]]) -> Self:
        """The recipe of a file that is too large for memory; later runs are written over earlier ones."""
        return cls(size, None, None, tuple((start, data) for start, data in runs if data))

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Self:
        """Reads a recipe from parsed JSON.

        Raises:
            FormatError: `conformance.recipe` where it is none.
        """
        try:
            runs = tuple((int(offset), bytes.fromhex(octets)) for offset, octets in said["runs"])
            made = cls(int(said["size"]), said.get("sha256"), said.get("base"), runs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"this is no recipe: {error!r}", code="conformance.recipe") from error
        if any(offset < 0 or offset + len(octets) > made.size for offset, octets in runs):
            raise FormatError("a run leaves the file", code="conformance.recipe")
        return made

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready values."""
        made: dict[str, Any] = {"size": self.size, "sha256": self.sha256}
        if self.base is not None:
            made["base"] = self.base
        return made | {"runs": [[offset, octets.hex()] for offset, octets in self.runs]}

    @property
    def large(self) -> bool:
        """The file is too large for memory."""
        return self.sha256 is None

    def data(self, fetch: Callable[[str], bytes]) -> bytes:
        """The bytes; `fetch` gives those of another recipe by its id.

        Raises:
            FormatError: `conformance.recipe` where the file is a large one, or its digest is another.
        """
        if self.large:
            raise FormatError(f"a file of {self.size} bytes is only written", code="conformance.recipe")
        made = bytearray(fetch(self.base) if self.base is not None else b"")[: self.size]
        made.extend(bytes(self.size - len(made)))
        for offset, octets in self.runs:
            made[offset : offset + len(octets)] = octets
        if sha256(made).hexdigest() != self.sha256:
            raise FormatError("the bytes have another digest than the recipe says", code="conformance.recipe")
        return bytes(made)

    def write(self, path: Path, fetch: Callable[[str], bytes]) -> None:
        """Writes the file, with holes where it is large.

        Raises:
            PathError: It cannot be written.
        """
        try:
            if not self.large:
                path.write_bytes(self.data(fetch))
                return
            with path.open("wb") as out:
                out.write(fetch(self.base)[: self.size] if self.base is not None else b"")
                os.ftruncate(out.fileno(), self.size)
                for offset, octets in self.runs:
                    out.seek(offset)
                    out.write(octets)
        except OSError as error:
            raise PathError(f"cannot be written: {error.strerror}", code="io.write", path=path) from error


def _differences(ground: bytes, data: bytes) -> tuple[tuple[int, bytes], ...]:
    """Where `data` differs from as many bytes of `ground`, near ones joined."""
    if ground == data:
        return ()
    runs: list[tuple[int, int]] = []
    for start, end in _unequal(ground, data, 0, len(data)):
        if runs and start - runs[-1][1] < _JOIN:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return tuple((start, data[start:end]) for start, end in runs)


def _unequal(ground: bytes, data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of unequal bytes; equal halves are passed over whole."""
    if ground[start:end] == data[start:end]:
        return []
    if end - start > 64:
        middle = (start + end) // 2
        return _unequal(ground, data, start, middle) + _unequal(ground, data, middle, end)
    return [(at, at + 1) for at in range(start, end) if ground[at] != data[at]]
