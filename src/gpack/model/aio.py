"""Many direct reads with one system call: the kernel's asynchronous I/O (io_submit, io_getevents).

Python threads cost more than a fast disk takes for a page; here the requests are rows of one numpy array. Where the
system has no such calls, or a sandbox refuses them, `open_queue` gives None and threads do the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import platform
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

# io_setup, io_destroy, io_submit, io_getevents
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
# include/uapi/linux/aio_abi.h; the two halves of `key` are swapped on big-endian machines, which are not supported.
_REQUEST = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("file", "<u4"),
        ("address", "<u8"),
        ("length", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("event", "<u4"),
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("result2", "<i8")])
_READ = 0  # IOCB_CMD_PREAD

Numbers = npt.NDArray[np.int64]


class ReadQueue:
    """A queue of reads that are under way at a time; for one thread at a time.

    An interrupt (Ctrl-C) may end `read` between any two steps. What is under way then goes on writing into the target,
    so the queue keeps the target, and the next call gets a queue of the kernel that knows nothing of those reads.

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
        self._target: mmap.mmap | None = None  # while reads into it may be under way
        if self._calls is None:
            raise OSError(errno.ENOSYS, "no numbers of system calls for this machine")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._set_up()

    def _set_up(self) -> None:
        assert self._calls is not None
        self._call(self._calls[0], ctypes.c_long(self.depth), ctypes.byref(self._context))

    def _call(self, number: int, *arguments: Any) -> int:
        answer = int(self._libc.syscall(ctypes.c_long(number), *arguments))
        if answer < 0:
            fault = ctypes.get_errno()
            raise OSError(fault, errno.errorcode.get(fault, "?"))
        return answer

    def read(self, descriptor: int, offsets: Numbers, lengths: Numbers, target: mmap.mmap, places: Numbers) -> Numbers:
        """Reads ranges of a file into places of `target`; returns the bytes of each, or a negative error number.

        Raises:
            OSError: The kernel refuses the requests; the queue is of no more use.
        """
        if self._target is not None:
            self.close()
            self._set_up()
        self._target = target
        addresses = np.frombuffer(target, np.uint8).ctypes.data + places
        results = np.zeros(len(offsets), np.int64)
        for start in range(0, len(offsets), self.depth):
            part = slice(start, start + self.depth)
            self._wave(descriptor, offsets[part], lengths[part], addresses[part], results[part])
        self._target = None
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
        """Gives the queue back, and waits for no read that is under way; a second call does nothing."""
        if not self._context.value:
            return
        if self._target is None:
            self._destroy(self._context, None)
        else:
            # The kernel keeps whoever asks for it until the last read has ended; the target has to live as long.
            threading.Thread(target=self._destroy, args=(self._context, self._target), daemon=True).start()
        self._context, self._target = ctypes.c_ulong(0), None

    def _destroy(self, context: ctypes.c_ulong, _target: mmap.mmap | None) -> None:
        assert self._calls is not None
        with contextlib.suppress(OSError):  # it is gone already: an interrupt came before `close` could note that
            self._call(self._calls[1], context)

    def __del__(self) -> None:
        if getattr(self, "_libc", None) is not None:
            self.close()


def open_queue(depth: int) -> ReadQueue | None:
    """A queue, or None where the system has none."""
    try:
        return ReadQueue(depth)
    except (OSError, AttributeError):
        return None
