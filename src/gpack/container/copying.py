"""Bytes of one file into another, by the kernel where it can."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from .atomic import AtomicFile, write_error
from .place import Place
from .structure import read_at

_STEP, _PIECE = 64 << 20, 1 << 20
# How a system or a file system says that it cannot.
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)


def copy_range(place: Place, output: AtomicFile, at: int, tell: Callable[[int], None]) -> None:
    """Copies one run of bytes; file systems that can share the bytes on the disk instead.

    Args:
        at: Where they go.
        tell: Called with the number of bytes copied since the last call.

    Raises:
        PathError: The source was cut, or the disk is full.
    """
    done, by_kernel = 0, hasattr(os, "copy_file_range")
    while done < place.length:
        want, count = min(_STEP, place.length - done), 0
        if by_kernel:
            try:
                count = os.copy_file_range(place.descriptor, output.descriptor, want, place.offset + done, at + done)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise write_error(error, output.destination, want) from error
                by_kernel = False
        if not count:  # also at the end of a file that was cut, which reading then says
            data = read_at(place.descriptor, place.offset + done, min(want, _PIECE), place.path)
            output.write_at(data, at + done)
            count = len(data)
        done += count
        tell(count)
