"""Temporary files beside an output: made so that no other run takes them for abandoned, removed where their run died.

A file is first made without a name (O_TMPFILE), locked, and only then named `<output>.tmp.<pid>`, so a file of such a
name that nobody has locked belongs to a run that died. Where the file system makes no files without names there is
a moment between creating and locking; there a file is abandoned only if its process is gone as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NUMBER = re.compile(r"\.tmp\.([1-9][0-9]{0,18})(?:\.[0-9]+)?")
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o666  # less what the user's mask takes away


def create_locked(destination: Path) -> tuple[Path, int]:
    """Makes an empty file beside the destination, locked by its descriptor.

    Returns:
        Its path, `<destination>.tmp.<pid>`, or `<destination>.tmp.<pid>.<n>` where that name is taken, for instance by
        another thread; and its descriptor, open for reading and writing.

    Raises:
        OSError: The system refuses.
    """
    descriptor = _open_nameless(destination.parent)
    if descriptor >= 0:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = _link(descriptor, _names(destination))
            if path is not None:
                return path, descriptor
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)
    return _create_named(_names(destination))


def remove_abandoned(destination: Path) -> list[Path]:
    """Removes temporary files that killed runs left beside the destination; returns which."""
    found = []
    for path in destination.parent.iterdir():
        name = path.name
        match = _NUMBER.fullmatch(name, len(destination.name)) if name.startswith(destination.name) else None
        if match is not None and path.is_file() and not path.is_symlink():
            found.append((path, int(match[1])))
    if not found:
        return []
    descriptor = _open_nameless(destination.parent)
    if descriptor >= 0:
        _close(descriptor)
    return [path for path, pid in found if _remove_unlocked(path, pid, named_first=descriptor < 0)]


def _names(destination: Path) -> Iterator[Path]:
    """The names that a file may have, of which the first free one is taken."""
    first = destination.with_name(f"{destination.name}.tmp.{os.getpid()}")
    yield first
    yield from (first.with_name(f"{first.name}.{n}") for n in range(2, 1000))


def _open_nameless(folder: Path) -> int:
    """A file without a name in the folder; -1 where the file system, or the system, has no such files."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, _MODE)
    except OSError as error:
        # Kernels and file systems that do not know the flag see a folder that is opened for writing.
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            return -1
        raise


def _link(descriptor: int, names: Iterator[Path]) -> Path | None:
    """Gives a nameless file the first name that is free; None where files cannot be named by their descriptor."""
    for path in names:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Only with a folder's descriptor does Python ask the system to follow the link in /proc.
            os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            return None  # /proc is not mounted, or the system forbids it
        finally:
            _close(folder)
        return path
    raise FileExistsError(errno.EEXIST, "all names of temporary files are taken")


def _create_named(names: Iterator[Path]) -> tuple[Path, int]:
    """Makes a file by its name and locks it, again where another run removed it in between."""
    for path in names:
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
        except FileExistsError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
        except BlockingIOError:
            pass  # somebody who looks for abandoned files has it, and may remove it
        except BaseException:
            _unlink(path)
            _close(descriptor)
            raise
        _unlink(path)
        _close(descriptor)
    raise FileExistsError(errno.EEXIST, "all names of temporary files are taken")


def _remove_unlocked(path: Path, pid: int, *, named_first: bool) -> bool:
    """Removes a file that no writer has locked; it stays locked meanwhile, so that nobody else believes in it.

    Args:
        named_first: Files get their names before they are locked here, so the process must be gone too.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # What was opened may meanwhile have been renamed into place, and the name may mean another file.
        if (named_first and _is_running(pid)) or not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        _close(descriptor)
    return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True


def _close(descriptor: int) -> None:
    with suppress(OSError):  # nothing was written to it yet
        os.close(descriptor)


def _unlink(path: Path) -> None:
    with suppress(OSError):  # the fault that led here is the one to tell; the next run removes the file
        path.unlink(missing_ok=True)
