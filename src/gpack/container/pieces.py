"""A range of an open file that is read when it is asked for, piece by piece, so that it takes no memory of its own.

Unlike a map it cannot lose pages: a file that was cut meanwhile is an error of the read.
"""

from __future__ import annotations

import os

from .structure import close_read, read_at


class Handle:
    """A descriptor of its own for an open file; it is closed with the last that holds it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            close_read(self.descriptor)


class Pieces:
    """Sliced it gives bytes, as a memoryview does, but read for each slice: ask for no more than memory should hold."""

    def __init__(self, descriptor: int, path: object, offset: int, size: int, keep: Handle | None = None) -> None:
        self._descriptor, self._path, self._offset, self._size, self._keep = descriptor, path, offset, size, keep

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice) -> memoryview:
        """The bytes of a slice.

        Raises:
            PathError: The read failed, or the file was cut (`io.short_read`).
        """
        start, stop, _ = wanted.indices(self._size)
        data = read_at(self._descriptor, self._offset + start, max(stop - start, 0), self._path)
        return memoryview(data)

    def part(self, start: int, length: int) -> Pieces:
        """A range of it, not read yet."""
        return Pieces(self._descriptor, self._path, self._offset + start, length, self._keep)


def part_of(data: memoryview | Pieces, start: int, length: int) -> memoryview | Pieces:
    """A range of bytes that are here or in a file."""
    return data.part(start, length) if isinstance(data, Pieces) else data[start : start + length]
