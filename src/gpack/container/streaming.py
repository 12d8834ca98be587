"""Moving many bytes with little memory: reading and hashing overlap, through a few reused buffers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from hashlib import sha256
from queue import SimpleQueue

from .. import errors
from .structure import path_error

CHUNK = 1 << 20  # bytes of one buffer
BUFFERS = 4

Progress = Callable[[int], None]
Watch = Callable[[memoryview], object]  # sees the bytes that are read, in order


def read_into(descriptor: int, offset: int, view: memoryview, path: object) -> None:
    """Fills the view from the file.

    Raises:
        PathError: The read failed, or the file ends before the view is full.
    """
    while len(view):
        try:
            count = os.preadv(descriptor, [view], offset)
        except OSError as error:
            raise path_error(error, path) from error
        if count == 0:
            raise errors.PathError(
                "the file ended while it was being read", code="io.short_read", path=path, offset=offset
            )
        view = view[count:]
        offset += count


def hash_streamed(
    descriptor: int,
    offset: int,
    length: int,
    path: object,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> bytes:
    """SHA-256 of a range of a file; the next chunk is read, and shown to `watch`, while one is hashed.

    Raises:
        PathError: The read failed, or the file ends before the range does.
    """
    with Hasher() as hasher:
        end = offset + length
        while offset < end:
            buffer = hasher.buffer()
            view = buffer[: min(CHUNK, end - offset)]
            read_into(descriptor, offset, view, path)
            if watch:
                watch(view)  # before the buffer is given away
            hasher.feed(buffer, len(view))
            offset += len(view)
            if progress:
                progress(len(view))
        return hasher.digest()


class Hasher:
    """A thread that hashes what it is fed, in order, and gives the buffers back.

    `buffer()` lends a free buffer, `feed(buffer, n)` has its first n bytes hashed, `digest()` ends one digest and
    starts the next. hashlib lets other threads run while it works.
    """

    def __init__(self) -> None:
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._work: SimpleQueue[tuple[memoryview | None, int] | None] = SimpleQueue()
        self._digests: SimpleQueue[bytes] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(memoryview(bytearray(CHUNK)))
        self._thread = threading.Thread(target=self._run, name="gpack-sha256", daemon=True)

    def __enter__(self) -> Hasher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._work.put(None)
        self._thread.join()

    def buffer(self) -> memoryview:
        """A free buffer of CHUNK bytes; waits until the thread gives one back."""
        return self._free.get()

    def feed(self, buffer: memoryview, length: int) -> None:
        """Hashes the first `length` bytes of a lent buffer, then frees it."""
        self._work.put((buffer, length))

    def end(self) -> None:
        """Ends a digest without waiting for it; `take` fetches it later."""
        self._work.put((None, 0))

    def take(self) -> bytes:
        """The oldest digest that was ended and not yet taken."""
        return self._digests.get()

    def digest(self) -> bytes:
        """Ends the digest and waits for it."""
        self.end()
        return self.take()

    def _run(self) -> None:
        digest = sha256()
        while (item := self._work.get()) is not None:
            buffer, length = item
            if buffer is None:
                self._digests.put(digest.digest())
                digest = sha256()
            else:
                digest.update(buffer[:length])
                self._free.put(buffer)
