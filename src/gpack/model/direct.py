"""Reading ranges of a file past the page cache (O_DIRECT), or through it where the file system refuses.

O_DIRECT wants offset, length and address aligned to the disk's blocks; whole pages satisfy every disk.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..container.held import HoldsFile
from ..container.mapped import check_uncut, map_range
from ..container.structure import close_read
from ..errors import ClosedError, PathError
from ..generated.constants import PAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .lazy import LazyCheck

LOG = logging.getLogger("gpack")
# What file systems and kernels answer where they have no direct reads.
_REFUSALS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def pages_before(offset: int) -> int:
    """The last page boundary that is not after `offset`."""
    return offset // PAGE * PAGE


class RangeFile(HoldsFile):
    """An open file of its own, read at any place by many threads; any of them may close it at any time.

    Attributes:
        path: For messages.
        size: Bytes when it was opened.
        direct: Reads go past the page cache.
        refusal: Why they do not, where they should; empty where nothing was refused.
        check: Checks bytes before they are used for the first time, where that is wanted.
    """

    def __init__(self, descriptor: int, path: object, *, direct: bool) -> None:
        """Opens the file of a descriptor once more, so that both can be closed by themselves.

        Raises:
            PathError: The file cannot be opened.
        """
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.direct, self.refusal = direct, ""
        self.check: LazyCheck | None = None
        self._lock = threading.Lock()
        self._users, self._closed = 0, False
        self._descriptor = -1
        if direct:
            try:
                # By its descriptor: the path may by now name another file.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT
                self._descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError as error:
                self._refuse(error)
        if self._descriptor < 0:
            self._descriptor = os.dup(descriptor)

    @contextmanager
    def use(self) -> Iterator[int]:
        """The descriptor. It stays open to the end of the block, even where another thread closes the file meanwhile.

        Raises:
            ClosedError: The file was closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the file was closed", code="pack.closed", path=self.path)
            self._users += 1
        try:
            yield self._descriptor
        finally:
            with self._lock:
                self._users -= 1
                self._close_unused()

    def _refuse(self, error: OSError) -> None:
        """Direct reads do not work here: says so once, and why."""
        self.direct = False
        self.refusal = error.strerror or str(error)
        LOG.warning("%s: direct reads are refused (%s): reading through the page cache", self.path, self.refusal)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fills `target` from byte `offset` on.

        While reads are direct, `offset` and the target's address are multiples of a page, and so is its length
        unless the file ends there.

        Raises:
            PathError: `io.short_read`: the file was cut since it was opened; `io.read`: the system reports a fault.
            ClosedError: The file was closed.
        """
        self.look(offset, len(target))
        with self.use() as descriptor:
            self._read_into(descriptor, target, offset)

    def watch(self, check: LazyCheck) -> None:
        """Has bytes checked before their first use, where the file is the one that the check is of."""
        with self.use() as descriptor:
            if check.covers(descriptor):
                self.check = check

    def look(self, offset: int, length: int) -> None:
        """To be called before mapped bytes are used; what is read is looked at anyway.

        Raises:
            DigestError: `chunks.digest`: they are damaged.
        """
        if self.check is not None:
            self.check.look(offset, length)

    def _read_into(self, descriptor: int, target: memoryview, offset: int) -> None:
        # A whole page may be asked for where the file ends; what must come is what the file had.
        needed = min(len(target), self.size - offset)
        done = 0
        while done < needed:
            # After a part that is no whole page the next place would not be aligned: the page is read again.
            start = pages_before(done) if self.direct else done
            try:
                count = os.preadv(descriptor, [target[start:]], offset + start)
            except OSError as error:
                if not (self.direct and error.errno in _REFUSALS):
                    raise PathError(
                        f"cannot read: {error.strerror}", code="io.read", path=self.path, offset=offset + start
                    ) from error
                self._reopen(descriptor, error)
                continue
            if start + count <= done:
                raise PathError(
                    f"the file ended while it was being read; it had {self.size} bytes when it was opened",
                    code="io.short_read",
                    path=self.path,
                    offset=offset + done,
                    hint="do not change a file while it is used",
                )
            done = start + count

    def _reopen(self, descriptor: int, error: OSError) -> None:
        """Turns direct reads off for the open file; other threads see a descriptor of the same number."""
        import fcntl

        self._refuse(error)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def check_length(self) -> None:
        """Makes sure that the file was not cut: touching lost pages of a map ends the process.

        Raises:
            PathError: `io.short_read`.
            ClosedError: The file was closed.
        """
        with self.use() as descriptor:
            check_uncut(descriptor, self.size, self.path)

    def map(self, offset: int, length: int) -> memoryview:
        """A range of the file, mapped; the map is unmapped with the last view of it.

        Raises:
            PathError: `io.mmap`: the file system refuses.
        """
        self.check_length()
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with self.use() as descriptor:
            mapped = map_range(descriptor, start, offset - start + length, self.path)
        return memoryview(mapped)[offset - start :]

    def close(self) -> None:
        """Closes the file, and waits for nobody: a read that is under way ends first. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._close_unused()

    def _close_unused(self) -> None:
        if self._closed and not self._users and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            close_read(descriptor)
