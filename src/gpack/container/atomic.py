"""A file that appears whole or not at all: written beside its destination, synced, then renamed."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from .. import errors
from .held import HoldsFile
from .lost_pages import lost
from .structure import close_read
from .temporary import create_locked, remove_abandoned

LOG = logging.getLogger("gpack")
_STEP = 8 << 20  # bytes that are claimed at a time
# What file systems answer that cannot sync a folder, and folders that may be written and not read.
_UNSYNCED_FOLDERS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM})


class _Renamed:
    """A file that is, or is about to be, renamed: what stands at its destination tells whether it was."""

    def __init__(self, destination: Path, descriptor: int) -> None:
        self.destination = destination
        self._status = os.fstat(descriptor)

    @property
    def in_place(self) -> bool:
        """Whether the destination is the file. An interrupt can fall between the renaming and any note of it."""
        try:
            return os.path.samestat(self._status, os.stat(self.destination))
        except OSError:
            return False


_renamed: list[_Renamed] = []  # by this process, for those who must tell what was changed


def count_renamed() -> int:
    """A mark for `files_in_place`: what is renamed from now on."""
    return len(_renamed)


def files_in_place(mark: int = 0) -> list[Path]:
    """Outputs that stand at their destinations, of those that this process renamed since the mark was taken."""
    return [entry.destination for entry in _renamed[mark:] if entry.in_place]


class AtomicFile(HoldsFile):
    """`<output>.tmp.<pid>` beside the destination, as a context manager.

    `commit` renames it into place; leaving the block without it removes it, whatever happened. The temporary file is
    locked while it is written, so that a later run can tell an abandoned one and remove it.

    Attributes:
        path: The temporary file.
        descriptor: Open for reading and writing.
    """

    def __init__(self, destination: str | os.PathLike[str], size: int) -> None:
        """Reserves `size` bytes. Of a link, the file that it leads to is replaced.

        Raises:
            PathError: The destination is there and no regular file, the folder is missing or not writable, or the disk
                has not enough space.
        """
        # Before the link is resolved, for an empty path means the current folder.
        if not os.fspath(destination) or os.path.isdir(destination):
            raise errors.PathError("the output is a directory", code="io.not_a_file", path=destination or os.curdir)
        self.destination = Path(os.path.realpath(destination))
        if self.destination.exists() and not self.destination.is_file():
            raise errors.PathError("the output is a device or a pipe", code="io.not_a_file", path=destination)
        self._size, self._reserved = size, 0
        try:
            remove_abandoned(self.destination)
            check_space(self.destination, size)
            self.path, self.descriptor = create_locked(self.destination)
        except OSError as error:
            raise write_error(error, self.destination, size) from error
        self._renamed = _Renamed(self.destination, self.descriptor)
        try:
            os.ftruncate(self.descriptor, size)
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise write_error(error, self.destination, size) from error
            raise

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Writes all of the data at a byte offset.

        Raises:
            PathError: The disk is full or failed.
        """
        view = memoryview(data)
        try:
            self._reserve(offset + len(view))
            while view:
                count = os.pwrite(self.descriptor, view, offset)
                view = view[count:]
                offset += count
        except OSError as error:
            # What was claimed already is the file's own, and no longer free; where nothing can be claimed, it is all.
            held = offset if self._reserved >= self._size else max(offset, self._reserved)
            raise write_error(error, self.destination, self._size - held) from error

    def _reserve(self, end: int) -> None:
        """Claims space up to `end` and a little beyond, which makes the writes cheaper.

        In steps, for on some file systems claiming costs as much as writing, and hashing goes on meanwhile.
        """
        if end <= self._reserved:
            return
        upto = min(max(end, self._reserved + _STEP), max(end, self._size))
        try:
            os.posix_fallocate(self.descriptor, self._reserved, upto - self._reserved)
            self._reserved = upto
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._reserved = max(end, self._size)  # this file system cannot; writing claims space as well

    def sync(self) -> None:
        """Waits until the file's bytes are on the disk."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise write_error(error, self.destination, 0) from error

    def commit(self) -> None:
        """Renames the file to its destination, and waits until the folder is on the disk too.

        Raises:
            PathError: It could not be renamed, and the destination is as it was; or `io.not_durable`: it is in place,
                and the system reports a fault of the disk when the folder is to be written.
        """
        fault = lost()
        if fault is not None:
            raise fault  # what was read of a file that was cut meanwhile may be zeros
        _renamed.append(self._renamed)  # before, so that there is no moment in which nobody knows of it
        try:
            os.rename(self.path, self.destination)
        except FileNotFoundError as error:
            raise errors.PathError(
                "the temporary file was removed by another program", code="io.write", path=self.path
            ) from error
        except OSError as error:
            raise write_error(error, self.destination, 0) from error
        make_durable(self.destination)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard()

    def _discard(self) -> None:
        # What is to be reported is why the file goes, or that it is in place: what fails here is only logged.
        if not self._renamed.in_place:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                LOG.warning("%s: the temporary file cannot be removed: %s", self.path, error.strerror)
        try:
            os.close(self.descriptor)
        except OSError as error:
            LOG.debug("%s: closing: %s", self.destination, error.strerror)


def sync_folder(folder: Path) -> None:
    """Waits until a folder's entries are on the disk.

    Raises:
        OSError: The file system cannot, or the disk failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        close_read(descriptor)


def make_durable(path: Path) -> None:
    """Waits until the folder of a file that was put in place is on the disk, as far as the system can.

    Raises:
        PathError: `io.not_durable`: it is in place, and the system reports a fault of the disk.
    """
    try:
        sync_folder(path.parent)
    except OSError as error:
        fault = errors.PathError(
            f"the file is in place, perhaps not yet durable: its folder cannot be synced ({error.strerror})",
            code="io.not_durable",
            path=path,
            hint="`sync` makes it durable",
        )
        if error.errno not in _UNSYNCED_FOLDERS:
            raise fault from error
        LOG.warning("%s", fault)


def check_space(destination: Path, size: int) -> None:
    """Refuses to start where the disk cannot hold the file.

    The file that will be replaced stays until the rename, so its bytes do not count as free.

    Raises:
        PathError: `io.no_space`, with how much is missing.
    """
    free = free_space(destination)
    if size > free:
        raise errors.PathError(
            f"the output needs {size} bytes, the disk has {free} free: {size - free} are missing",
            code="io.no_space",
            path=destination,
            hint="free space, or choose another disk",
        )


def free_space(destination: Path) -> int:
    """Bytes that the disk of the destination's folder has left for this user."""
    status = os.statvfs(destination.parent)
    return status.f_bavail * status.f_frsize


def _missing(destination: Path, size: int) -> str:
    """How much of what is still to be written a disk does not hold; a quota's limit is not known."""
    if not size:
        return "what was written cannot be kept"
    try:
        free = free_space(destination)
    except OSError:
        free = size
    shortage = f", and {free} are free: {size - free} are missing" if free < size else ""
    return f"{size} more bytes were to be written{shortage}"


def write_error(error: OSError, destination: str | os.PathLike[str], size: int) -> errors.PathError:
    """An operating system's error while writing, as ours.

    Args:
        size: Bytes that were still to be written; 0 where all were.
    """
    if isinstance(error, errors.PathError):
        return error
    if error.errno == errno.EFBIG:
        return errors.PathError(
            "the file would be larger than the system allows",
            code="io.write",
            path=destination,
            hint="see `ulimit -f` and what the file system can hold",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return errors.PathError(
            f"the disk is full ({error.strerror}): {_missing(Path(os.fspath(destination)), size)}",
            code="io.no_space",
            path=destination,
            hint="free space, or choose another disk",
        )
    if isinstance(error, FileNotFoundError):
        return errors.PathError("the output's folder does not exist", code="io.not_found", path=destination)
    return errors.PathError(f"cannot be written: {error.strerror}", code="io.write", path=destination)
