"""The table of per-layer embeddings: rows by number out of a file that may be much larger than memory."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..container.structure import close_read, open_file
from ..container.workers import Workers
from ..errors import BoundsError, ClosedError, MissingError, PathError, UsageError
from ..generated.constants import PAGE, GgmlType, SectionKind
from ..pack import Pack
from ..pack import open as open_pack
from ..quants import dequantize
from ..sections.placement import PLE
from .aio import ReadQueue, open_queue
from .direct import RangeFile
from .lazy import LazyCheck
from .located import Located, is_number
from .ple_io import PleCounts, PleIo, ple_mode
from .row_cache import RowCache

__all__ = ["PleCounts", "PleIo", "PleTable", "ple_mode"]
LOG = logging.getLogger("gpack")
Ids = Sequence[Any] | npt.NDArray[np.integer[Any]]
Rows = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
CACHE_BYTES = 64 << 20
READS_IN_FLIGHT = 64
_BATCH_PAGES = 4096  # pages that one round of reads may take: 16 MiB
_LEAST = {"cache_bytes": 0, "reads_in_flight": 1}  # of arguments; what a place may be depends on the file
_RUN_PAGES = 32  # pages next to each other that one read takes at most


class PleTable:
    """Rows of a table in a file, from any thread. Use it as a context manager, or call `close`.

    Attributes:
        ggml_type, ne0, ne1: Type, length of a row, number of rows.
        row_bytes: Bytes of a row.
        io: The mode that was asked for.
        direct: Reads really go past the page cache.
        fallback: Why the mode is not what was asked for; empty where it is.
    """

    def __init__(
        self,
        descriptor: int,
        path: object,
        offset: int,
        *,
        ggml_type: int,
        ne0: int,
        ne1: int,
        io: PleIo | str,
        cache_bytes: int,
        reads_in_flight: int,
    ) -> None:
        """`open_gpack` and `open_raw` are the ways to make one."""
        self.ggml_type, self.ne0, self.ne1, self.io = ggml_type, ne0, ne1, ple_mode(io)
        self._closed = False
        numbers = {
            "offset": offset,
            "ggml_type": ggml_type,
            "ne0": ne0,
            "ne1": ne1,
            "cache_bytes": cache_bytes,
            "reads_in_flight": reads_in_flight,
        }
        for field, value in numbers.items():
            if not is_number(value, least=_LEAST.get(field)):
                raise UsageError(f"{field} is {value!r}", code="usage", path=path, field=field)
        self.row_bytes = _row_bytes(ggml_type, ne0)
        self._offset, self._path, self._cache_bytes = offset, path, cache_bytes
        self._lock = threading.Lock()
        self._reads = self._read_bytes = 0
        self._view: Rows | None = None
        self._threads = Workers(reads_in_flight)
        self._queue: ReadQueue | None = None
        self._asked_queue = False
        self._arena: mmap.mmap | None = None
        self._file = RangeFile(descriptor, path, direct=self.io is PleIo.Direct)
        self.fallback = self._file.refusal
        try:
            if offset < 0 or ne1 < 0 or offset + ne1 * self.row_bytes > self._file.size:
                raise BoundsError(
                    f"{ne1} rows of {self.row_bytes} bytes from byte {offset} on leave the file of "
                    f"{self._file.size} bytes",
                    code="ple.bounds",
                    path=path,
                    offset=offset,
                )
            if self.io is PleIo.Mmap:
                self._map()
        except BaseException:
            self._file.close()
            raise
        self._in_flight = reads_in_flight
        self._cache = RowCache(self.row_bytes, cache_bytes if self._view is None else 0)

    @classmethod
    def open_raw(
        cls,
        path: str | os.PathLike[str],
        offset: int,
        *,
        ggml_type: int,
        ne0: int,
        ne1: int,
        io: PleIo | str = PleIo.Direct,
        cache_bytes: int = CACHE_BYTES,
        reads_in_flight: int = READS_IN_FLIGHT,
    ) -> Self:
        """The table of `ne1` rows of `ne0` elements that begins at byte `offset` of a file.

        Args:
            io: Where the file system refuses it, rows are read through the page cache, and the log says so.
            cache_bytes: Memory for the row cache of Direct mode; 0 for none.
            reads_in_flight: Reads that are under way at a time.

        Raises:
            PathError: The file is missing or unreadable.
            BoundsError: `ple.bounds`: the table does not lie inside the file.
            UsageError: `ple.shape`: the type is not known, or a row is not made of whole blocks.
        """
        descriptor, _ = open_file(path)
        try:
            return cls(
                descriptor,
                path,
                offset,
                ggml_type=ggml_type,
                ne0=ne0,
                ne1=ne1,
                io=io,
                cache_bytes=cache_bytes,
                reads_in_flight=reads_in_flight,
            )
        finally:
            close_read(descriptor)

    @classmethod
    def open_gpack(
        cls,
        pack: Pack | str | os.PathLike[str],
        *,
        io: PleIo | str = PleIo.Direct,
        cache_bytes: int = CACHE_BYTES,
        reads_in_flight: int = READS_IN_FLIGHT,
    ) -> Self:
        """The table of a pack's PleBlob, at its exact offset in the file. The pack may be closed afterwards.

        Raises:
            MissingError: `ple.missing`: the pack has no such table.
            GpackError: As `gpack.open` and `open_raw`.
        """
        if not isinstance(pack, Pack):
            with open_pack(pack) as opened:
                return cls.open_gpack(opened, io=io, cache_bytes=cache_bytes, reads_in_flight=reads_in_flight)
        if pack.container.find(SectionKind.PLE_BLOB) is None:
            raise MissingError(
                "there is no table of per-layer embeddings", code="ple.missing", path=pack.container.path
            )
        row = pack.info(PLE)
        table = Located(PLE, row.ggml_type, row.dims[: row.n_dims], row.role, pack.place_of(PLE, row))
        return cls.open_located(table, io=io, cache_bytes=cache_bytes, reads_in_flight=reads_in_flight)

    @classmethod
    def open_located(
        cls,
        table: Located,
        *,
        io: PleIo | str = PleIo.Direct,
        cache_bytes: int = CACHE_BYTES,
        reads_in_flight: int = READS_IN_FLIGHT,
    ) -> Self:
        """A table whose place in an open file is known; the arguments are those of `open_raw`.

        Raises:
            UsageError: `ple.shape`: it is no matrix that lies in a file.
        """
        if table.place is None or len(table.dims) != 2:
            raise UsageError(f"{table.name} is no matrix that lies in a file", code="ple.shape")
        ne0, ne1 = table.dims
        return cls(
            table.place.descriptor,
            table.place.path,
            table.place.offset,
            ggml_type=table.ggml_type,
            ne0=ne0,
            ne1=ne1,
            io=io,
            cache_bytes=cache_bytes,
            reads_in_flight=reads_in_flight,
        )

    def again(self) -> Self:
        """Another table of the same rows, in the same mode, which stays open when this one is closed.

        Raises:
            ClosedError: This one was closed.
        """
        with self._file.use() as descriptor:
            return type(self)(
                descriptor,
                self._path,
                self._offset,
                ggml_type=self.ggml_type,
                ne0=self.ne0,
                ne1=self.ne1,
                io=self.io,
                cache_bytes=self._cache_bytes,
                reads_in_flight=self._in_flight,
            )

    # ------------------------------------------------------------ rows

    def rows(self, ids: Ids) -> Rows:
        """uint8 [..., row bytes]: the stored bytes of rows, in the shape of `ids`.

        Raises:
            BoundsError: `ple.row`: there is no such row.
            UsageError: `ids` are no integers.
            ClosedError: The table was closed.
            PathError: The file was cut, or the disk failed.
        """
        self._check_open()
        asked = self._numbers(ids)
        if asked.size and not (asked.min() >= 0 and asked.max() < self.ne1):
            wrong = asked[(asked < 0) | (asked >= self.ne1)].flat[0]
            raise BoundsError(f"there is no row {wrong}, the table has {self.ne1}", code="ple.row", path=self._path)
        view = self._view
        if view is not None:
            self._file.check_length()
            self._look(np.unique(asked))
            mapped: Rows = view[asked]
            return mapped
        single, back = np.unique(asked.ravel(), return_inverse=True)
        out = np.empty((len(single), self.row_bytes), np.uint8)
        try:
            with self._lock:
                self._check_open()
                missing = self._cache.look_up(single, out)
                if len(missing):
                    self._fetch(single[missing], out, missing)
                    self._cache.insert(single[missing], out[missing])
        finally:
            if self._closed:
                self.close()  # once more: this thread may have put something back
        gathered: Rows = out[back].reshape(*asked.shape, self.row_bytes)
        return gathered

    def watch(self, check: LazyCheck) -> None:
        """Has the bytes of rows checked before they are given out."""
        self._file.watch(check)

    def _look(self, ids: npt.NDArray[np.int64]) -> None:
        if self._file.check is not None:
            for row in ids.tolist():
                self._file.look(self._offset + row * self.row_bytes, self.row_bytes)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the table was closed", code="pack.closed", path=self._path)

    def _numbers(self, ids: Ids) -> Numbers:
        try:
            given = np.asarray(ids)
        except (ValueError, TypeError) as error:  # lists of different lengths
            raise UsageError(f"rows are asked for by integers: {error}", code="usage", path=self._path) from error
        if given.size and given.dtype.kind not in "iu":
            raise UsageError(f"rows are asked for by integers, not {given.dtype}", code="usage", path=self._path)
        return given.astype(np.int64)

    def values(self, ids: Ids) -> npt.NDArray[np.float32]:
        """float32 [..., ne0]: the values of rows.

        Raises:
            UnsupportedError: The type has no dequantiser.
            GpackError: As `rows`.
        """
        return dequantize(self.rows(ids), self.ggml_type)

    @property
    def direct(self) -> bool:
        """Whether reads go past the page cache."""
        return self._view is None and self._file.direct

    @property
    def counts(self) -> PleCounts:
        """What the table did so far."""
        return PleCounts(self._cache.hits, self._cache.misses, self._reads, self._read_bytes)

    # ------------------------------------------------------------ mapped

    def _map(self) -> None:
        try:
            view = self._file.map(self._offset, self.ne1 * self.row_bytes)
        except PathError as error:
            self.fallback = error.message
            LOG.warning("%s: reading rows through the page cache instead", error)
            return
        owner = view.obj
        if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            owner.madvise(mmap.MADV_RANDOM)  # a row is needed alone: what follows it is not
        self._view = np.frombuffer(view, np.uint8).reshape(self.ne1, self.row_bytes)

    # ------------------------------------------------------------ read

    def _fetch(self, ids: npt.NDArray[np.int64], out: Rows, places: npt.NDArray[np.int64]) -> None:
        """Reads rows, sorted by number, into `out[places]`: whole pages, many at a time."""
        self._look(ids)
        starts = self._offset + ids * self.row_bytes
        first, last = starts // PAGE, (starts + self.row_bytes - 1) // PAGE
        spans = last - first + 1
        at = 0
        while at < len(ids):
            # As many rows as the arena has pages for; one row may be larger than a batch.
            total = np.cumsum(spans[at:])
            count = max(int(np.searchsorted(total, _BATCH_PAGES, side="right")), 1)
            part = slice(at, at + count)
            pages = np.unique(np.concatenate([first[part] + step for step in range(int(spans[part].max()))]))
            pages = pages[pages <= last[part].max()]
            octets = self._read_pages(pages)
            begin = np.searchsorted(pages, first[part]) * PAGE + starts[part] % PAGE
            out[places[part]] = octets[begin[:, None] + np.arange(self.row_bytes)]
            at += count
        self.fallback = self._file.refusal or self.fallback

    def _read_pages(self, pages: npt.NDArray[np.int64]) -> Rows:
        """The pages of these numbers, one after the other; those next to each other with one read."""
        size = len(pages) * PAGE
        # Nobody else's meanwhile: what an error or an interrupt leaves under way goes on writing into it.
        arena, self._arena = self._arena, None
        if arena is None or len(arena) < size:
            arena = mmap.mmap(-1, max(size, _BATCH_PAGES * PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        places = np.arange(len(pages))
        # A read begins where a page does not follow the one before, and after so many pages.
        begins = np.flatnonzero(np.diff(pages, prepend=pages[0] - 2) != 1)
        after = places - np.repeat(begins, np.diff(begins, append=len(pages)))
        starts = np.flatnonzero(after % _RUN_PAGES == 0)
        ends = np.append(starts[1:], len(pages))
        self._read_runs(arena, pages[starts] * PAGE, starts * PAGE, (ends - starts) * PAGE)
        self._reads += len(starts)
        self._read_bytes += size
        self._arena = arena
        return np.frombuffer(arena, np.uint8, size)

    def _read_runs(self, arena: mmap.mmap, offsets: Numbers, places: Numbers, lengths: Numbers) -> None:
        """Reads ranges of the file into places of the arena, several at a time."""
        left = np.arange(len(offsets))
        if self._file.direct and len(offsets) > 1 and (queue := self._open_queue()):
            with self._file.use() as descriptor:
                try:
                    found = queue.read(descriptor, offsets, lengths, arena, places)
                    needed = np.minimum(lengths, self._file.size - offsets)
                    # What failed is read once more, alone, which tells why.
                    left = np.flatnonzero(found < needed)
                except OSError as error:
                    LOG.debug("%s: reads are no longer queued: %s", self._path, error)
                    self._queue = None
        if len(left):
            self._read_threaded(
                memoryview(arena), offsets[left].tolist(), places[left].tolist(), lengths[left].tolist()
            )

    def _open_queue(self) -> ReadQueue | None:
        if not self._asked_queue:
            self._asked_queue, self._queue = True, open_queue(self._in_flight)
        return self._queue

    def _read_threaded(self, arena: memoryview, offsets: list[int], places: list[int], lengths: list[int]) -> None:
        def read(share: int, shares: int) -> None:
            for index in range(share, len(offsets), shares):
                place = places[index]
                self._file.read_into(arena[place : place + lengths[index]], offsets[index])

        shares = min(self._in_flight, len(offsets))
        self._threads.run([partial(read, share, shares) for share in range(shares)])

    def close(self) -> None:
        """Closes the file; arrays that were given out stay valid.

        It waits for no read that is under way: who reads holds what the read needs, and it goes with the last holder.
        """
        self._closed = True
        self._file.close()
        self._view = self._arena = self._queue = None
        self._threads = Workers(self._in_flight)  # which has started none

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _row_bytes(ggml_type: int, ne0: int) -> int:
    block = GgmlType.BLOCK.get(ggml_type)
    if block is None or ne0 < 1 or ne0 % block:
        name = GgmlType.NAMES.get(ggml_type, str(ggml_type))
        raise UsageError(f"rows of {ne0} elements of type {name} are not made of whole blocks", code="ple.shape")
    return ne0 // block * GgmlType.BYTES[ggml_type]
