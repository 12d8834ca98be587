"""Ranges of an open file: views of its map, or copies where the file system refuses to map it.

Standard library only, and light: a quick open uses it.
"""

from __future__ import annotations

import os

from .. import errors
from .lost_pages import note
from .structure import read_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

IO_MODES = ("auto", "mmap", "read")


def check_uncut(descriptor: int, size: int, path: object) -> None:
    """Makes sure that a file still has its bytes: touching lost pages of a map would end the process.

    Args:
        size: Bytes when the file was opened.

    Raises:
        PathError: `io.short_read`: it was cut since.
    """
    found = os.fstat(descriptor).st_size
    if found < size:
        raise errors.PathError(
            f"the file was cut to {found} bytes while it was in use, it had {size}",
            code="io.short_read",
            path=path,
            hint="do not change a file while it is used",
        )


def map_range(descriptor: int, offset: int, length: int, path: object) -> mmap.mmap:
    """Maps bytes of a file, read-only.

    Args:
        offset: A multiple of `mmap.ALLOCATIONGRANULARITY`.

    Raises:
        PathError: `io.mmap`: the file system refuses.
    """
    import mmap

    note(descriptor, path)
    try:
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=offset)
    except (OSError, ValueError) as error:
        raise errors.PathError(
            f"the file cannot be mapped: {error}", code="io.mmap", path=path, hint="copy it to a local disk"
        ) from error


class MappedFile:
    """The map of a file, made when it is first needed.

    Attributes:
        path: For messages.
        size: Bytes when the file was opened.
        io: `mmap`, `read`, or `auto`: mapped, and read where mapping is refused, which the log then says.
    """

    __slots__ = ("_map", "io", "path", "size")

    def __init__(self, path: object, size: int, io: str) -> None:
        """Touches nothing.

        Raises:
            UsageError: There is no such mode.
        """
        if io not in IO_MODES:
            raise errors.UsageError(f"io is {io!r}, not one of {', '.join(IO_MODES)}", code="usage", field="io")
        self.path, self.size, self.io = path, size, io
        self._map: mmap.mmap | None = None

    def span(self, descriptor: int, offset: int, length: int) -> memoryview:
        """A range of the file, read-only: a view of the map, or a copy.

        Raises:
            PathError: The file was cut since it was opened (`io.short_read`), cannot be read (`io.read`), or must be
                mapped and cannot be (`io.mmap`).
        """
        if self.io != "read":
            try:
                return memoryview(self.map(descriptor))[offset : offset + length]
            except errors.PathError as error:
                if error.code != "io.mmap" or self.io == "mmap":
                    raise
                import logging

                self.io = "read"
                logging.getLogger("gpack").warning("%s: reading it instead", error)
        return memoryview(read_at(descriptor, offset, length, self.path))

    def map(self, descriptor: int) -> mmap.mmap:
        """The mapped file.

        Raises:
            PathError: `io.mmap`: the file system refuses; `io.short_read`: the file was cut since it was opened.
        """
        check_uncut(descriptor, self.size, self.path)
        if self._map is None:
            self._map = map_range(descriptor, 0, self.size, self.path)
        return self._map

    def close(self) -> None:
        """Unmaps the file; where views of it are still alive, the map goes with the last of them."""
        mapped, self._map = self._map, None
        if mapped is not None:
            # Closing fails while somebody holds a view; the map is freed with the last of them.
            try:  # noqa: SIM105 - contextlib would have to be imported
                mapped.close()
            except BufferError:
                pass
