"""Many direct reads with one system call: the kernel's asynchronous I/O (io_submit, io_getevents).

Python threads cost more than a fast disk takes for a page; here the requests are rows of one numpy array. Where the
system has no such calls, or a sandbox refuses them, `open_queue` gives None and threads do the work.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from typing import Any, Self

import numpy as np
import numpy.typing as npt

# io_setup, io_destroy, io_submit, io_getevents
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
# include/uapi/linux/aio_abi.h; the two halves of `key` are swapped on big-endian machines, which are not supported.
_REQUEST = np.dtype(
    [
        ("data", "<u8"), ("key", "<u4"), ("rw_flags", "<u4"), ("opcode", "<u2"), ("priority", "<i2"), ("file", "<u4"),
        ("address", "<u8"), ("length", "<u8"), ("offset", "<i8"), ("reserved", "<u8"), ("flags", "<u4"),
        ("event", "<u4"),
    ]
)  # fmt: skip
_EVENT = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("result2", "<i8")])
_READ = 0  # IOCB_CMD_PREAD

Numbers = npt.NDArray[np.int64]


class ReadQueue:
    """A queue of reads that are under way at a time; for one thread at a time.

    Attributes:
        depth: Most reads under way.
    """

    def __init__(self, depth: int) -> None:
        """Asks the kernel for a queue.

        Raises:
            OSError: There is none.
        """
        self.depth = depth
        self._calls = _NUMBERS.get(platform.machine())
        self._context = ctypes.c_ulong(0)
        if self._calls is None:
            raise OSError(errno.ENOSYS, "no numbers of system calls for this machine")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._call(self._calls[0], ctypes.c_long(depth), ctypes.byref(self._context))

    def _call(self, number: int, *arguments: Any) -> int:
        answer = int(self._libc.syscall(ctypes.c_long(number), *arguments))
        if answer < 0:
            fault = ctypes.get_errno()
            raise OSError(fault, errno.errorcode.get(fault, "?"))
        return answer

    def read(self, descriptor: int, offsets: Numbers, lengths: Numbers, addresses: Numbers) -> Numbers:
        """Reads ranges of a file into memory; returns the bytes of each, or a negative error number.

        Args:
            addresses: Where to; they stay valid until this returns.

        Raises:
            OSError: The kernel refuses the requests.
        """
        results = np.zeros(len(offsets), np.int64)
        for start in range(0, len(offsets), self.depth):
            part = slice(start, start + self.depth)
            self._wave(descriptor, offsets[part], lengths[part], addresses[part], results[part])
        return results

    def _wave(self, descriptor: int, offsets: Numbers, lengths: Numbers, addresses: Numbers, results: Numbers) -> None:
        assert self._calls is not None
        count = len(offsets)
        requests = np.zeros(count, _REQUEST)
        requests["data"] = np.arange(count)
        requests["opcode"], requests["file"] = _READ, descriptor
        requests["offset"], requests["length"], requests["address"] = offsets, lengths, addresses
        pointers = requests.ctypes.data + _REQUEST.itemsize * np.arange(count, dtype=np.uint64)
        events = np.zeros(count, _EVENT)
        submitted = done = 0
        while done < count:
            # Nothing may be left under way: the kernel would write into memory that is no longer ours.
            fault: OSError | None = None
            if submitted < count:
                at = ctypes.c_void_p(pointers.ctypes.data + 8 * submitted)
                try:
                    submitted += self._call(self._calls[2], self._context, ctypes.c_long(count - submitted), at)
                except OSError as error:
                    fault = error
            if submitted == done:
                raise fault or OSError(errno.EIO, "the kernel took no request")
            left = submitted - done
            done += self._wait(left, events[done:])
            if fault is not None and fault.errno != errno.EAGAIN:
                raise fault
        results[events["data"].astype(np.int64)] = events["result"]

    def _wait(self, count: int, events: Any) -> int:
        """Waits until so many reads are done."""
        assert self._calls is not None
        done = 0
        while done < count:
            at = ctypes.c_void_p(events.ctypes.data + _EVENT.itemsize * done)
            left = ctypes.c_long(count - done)
            try:
                done += self._call(self._calls[3], self._context, left, left, at, ctypes.c_void_p(None))
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
        return done

    def close(self) -> None:
        """Gives the queue back; a second call does nothing."""
        if self._context.value and self._calls is not None:
            context, self._context = self._context, ctypes.c_ulong(0)
            self._call(self._calls[1], context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_queue(depth: int) -> ReadQueue | None:
    """A queue, or None where the system has none."""
    try:
        return ReadQueue(depth)
    except (OSError, AttributeError):
        return None
