"""A file that someone else made, opened for reading at any position.

Files are read with `pread` and never mapped: a mapped file that another program truncates kills the process
that touches the lost pages, while a short read is an error like any other.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Self

from gpack.container.held import HoldsFile
from gpack.container.structure import close_read
from gpack.errors import ClosedError, PathError

_NO_SUCH_FILE = {errno.ENOENT, errno.ENOTDIR}
_NO_REGULAR_FILE = {errno.ENXIO, errno.ENODEV, errno.EISDIR}


class SourceFile(HoldsFile):
    """A regular file, open for reading; links are followed, devices and pipes refused.

    Attributes:
        path: The path as it was given.
        size: Size in bytes when the file was opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file.

        Raises:
            PathError: `io.not_found`, `io.not_a_file` or `io.read`.
        """
        self.path = Path(path)
        self._fd = _open(self.path)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise PathError("this is not a regular file", code="io.not_a_file", path=self.path)
        except BaseException:
            self.close()
            raise
        self.size = status.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_read(fd)

    def fileno(self) -> int:
        """The file descriptor.

        Raises:
            ClosedError: If the file was closed.
        """
        if self._fd < 0:
            raise ClosedError("the file was closed", code="pack.closed", path=self.path)
        return self._fd

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads `length` bytes from byte `offset` on.

        Raises:
            PathError: `io.short_read` if the file ends before, `io.read` if the system reports an error.
        """
        self._check_span(offset, length)
        first = self._pread(offset, length)
        if len(first) == length:
            return first
        # The system reads at most 2 GiB at once: what is missing is fetched into one buffer.
        data = bytearray(length)
        data[: len(first)] = first
        self.read_into(memoryview(data)[len(first) :], offset + len(first))
        return bytes(data)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fills `target` (bytes) from byte `offset` on.

        Raises:
            PathError: `io.short_read` if the file ends before, `io.read` if the system reports an error.
        """
        self._check_span(offset, len(target))
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self.fileno(), [target[done:]], offset + done)
            except OSError as error:
                raise self._read_error(error, offset + done) from error
            if not count:
                raise self._short_read(offset + done, len(target) - done)
            done += count

    def _pread(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self.fileno(), length, offset)
        except OSError as error:
            raise self._read_error(error, offset) from error

    def _check_span(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self._short_read(offset, length)

    def _short_read(self, offset: int, length: int) -> PathError:
        return PathError(
            f"the file ends before the {length} bytes asked for; it had {self.size} bytes when it was opened",
            code="io.short_read",
            path=self.path,
            offset=offset,
            hint="do not change a file while it is read",
        )

    def _read_error(self, error: OSError, offset: int) -> PathError:
        return PathError(f"cannot read: {error.strerror}", code="io.read", path=self.path, offset=offset)


def _open(path: Path) -> int:
    # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever; regular files ignore it.
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a zero byte in the path
        raise PathError(f"no path: {error}", code="io.not_found", path=path) from error
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            # Caches of models are made of links, and what they lead to gets cleared away.
            message = "the link leads to no file" if path.is_symlink() else "there is no such file"
            raise PathError(message, code="io.not_found", path=path) from error
        if error.errno in _NO_REGULAR_FILE:
            raise PathError("this is not a regular file", code="io.not_a_file", path=path) from error
        hint = (
            "`ulimit -n` tells how many; a model of many shards needs one each" if error.errno == errno.EMFILE else None
        )
        raise PathError(f"cannot open: {error.strerror}", code="io.read", path=path, hint=hint) from error
