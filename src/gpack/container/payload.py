"""What sections are made of: bytes in memory, zeros, and ranges that are fetched or computed when they are written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from .. import errors
from .place import Place, check_part
from .streaming import CHUNK, read_into

_ZEROS = bytes(CHUNK)


class Range(Protocol):
    """Bytes whose number is known and whose parts can be asked for in any order; a `Place` is one."""

    @property
    def size(self) -> int:
        """Bytes."""

    def part(self, offset: int, length: int) -> Iterator[Segment]:
        """The segments of `length` bytes from byte `offset` on."""


@dataclass(frozen=True)
class Joined:
    """Several ranges, one after the other."""

    ranges: tuple[Range, ...]

    @cached_property
    def _ends(self) -> list[int]:
        """Where each range ends."""
        return list(accumulate(inner.size for inner in self.ranges))

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self._ends[-1] if self._ends else 0

    def part(self, offset: int, length: int) -> Iterator[Segment]:
        """The segments of those ranges that the part touches."""
        check_part(self.size, offset, length)
        index = bisect_right(self._ends, offset)
        end = offset + length
        while offset < end:
            inner = self.ranges[index]
            start = self._ends[index] - inner.size
            take = min(end, self._ends[index]) - offset
            if take:
                yield from inner.part(offset - start, take)
            offset += take
            index += 1


@dataclass(frozen=True)
class Computed:
    """Rows of bytes that are made when they are written, a few at a time.

    Attributes:
        rows: Number of rows.
        row_bytes: Bytes of a row.
        make: (first row, number of rows) to their bytes; the same each time.
        batch_bytes: About how many bytes are made at a time; at least one row is.
    """

    rows: int
    row_bytes: int
    make: Callable[[int, int], bytes]
    batch_bytes: int = CHUNK

    @property
    def size(self) -> int:
        """Bytes."""
        return self.rows * self.row_bytes

    def part(self, offset: int, length: int) -> Iterator[Segment]:
        """The bytes, batch by batch; a part need not begin or end with a row."""
        check_part(self.size, offset, length)
        if not length:
            return
        batch = max(self.batch_bytes // self.row_bytes, 1)
        end = offset + length
        row, last = offset // self.row_bytes, -(-end // self.row_bytes)
        while row < last:
            count = min(batch, last - row)
            made = self.make(row, count)
            start = row * self.row_bytes
            if len(made) != count * self.row_bytes:
                raise errors.InternalError(f"{count} rows came as {len(made)} bytes", code="internal")
            yield memoryview(made)[max(offset - start, 0) : end - start]
            row += count


@dataclass(frozen=True)
class Zeros:
    """A run of zero bytes."""

    length: int


Segment = bytes | memoryview | Place | Zeros


def whole(source: Range) -> Iterator[Segment]:
    """All segments of a range."""
    return source.part(0, source.size)


def read_part(source: Range, offset: int, length: int) -> bytearray:
    """The bytes of a part, read or computed now."""
    made = bytearray(length)
    view, at = memoryview(made), 0
    for segment in source.part(offset, length):
        for take in _split(segment):
            take.fill(view[at : at + take.length], 0)
            at += take.length
    return made


class Payload(Protocol):
    """What a section is made of: its size is known before its bytes."""

    @property
    def size(self) -> int:
        """Bytes."""

    def segments(self) -> Iterator[Segment]:
        """The bytes, in order."""


@dataclass(frozen=True)
class Block:
    """Bytes in memory: a `Payload` and a `Range`."""

    data: bytes | memoryview

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def segments(self) -> Iterator[Segment]:
        """The bytes, in one segment."""
        yield self.data

    def part(self, offset: int, length: int) -> Iterator[Segment]:
        """The bytes of a part, in one segment."""
        check_part(self.size, offset, length)
        yield self.data[offset : offset + length]


@dataclass(frozen=True)
class Unmade:
    """A payload of which only the size is known yet."""

    size: int

    def segments(self) -> Iterator[Segment]:
        """Nothing is there yet.

        Raises:
            InternalError: Always.
        """
        raise errors.InternalError(f"{self.size} bytes were not made yet", code="internal")


def read_payload(payload: Payload, offset: int, length: int) -> bytearray:
    """Bytes of a payload; what lies before them is skipped, and read only where it has to be computed."""
    made = bytearray(length)
    view, at, end = memoryview(made), 0, offset + length
    for segment in payload.segments():
        for source in _split(segment):
            start, stop = max(offset, at), min(end, at + source.length)
            if start < stop:
                source.fill(view[start - offset : stop - offset], start - at)
            at += source.length
        if at >= end:
            return made
    raise errors.InternalError(f"{length} bytes from {offset} on, of {at}", code="internal")


def gather_chunks(segments: Iterator[Segment], lend: Callable[[], memoryview]) -> Iterator[tuple[memoryview, int]]:
    """The segments, gathered into full buffers of CHUNK bytes that `lend` gives: (buffer, bytes used)."""
    buffer, used = lend(), 0
    for segment in segments:
        for take in _split(segment):
            # A segment may need several buffers, and several segments may share one.
            done = 0
            while done < take.length:
                if used == CHUNK:
                    yield buffer, used
                    buffer, used = lend(), 0
                count = min(take.length - done, CHUNK - used)
                take.fill(buffer[used : used + count], done)
                used += count
                done += count
    yield buffer, used


@dataclass(frozen=True)
class _Source:
    """A segment in one shape: so many bytes, and a way to fetch a part of them."""

    length: int
    fill: Callable[[memoryview, int], None]


def _split(segment: Segment) -> Iterator[_Source]:
    if isinstance(segment, Zeros):

        def fill_zeros(view: memoryview, _: int) -> None:
            view[:] = _ZEROS[: len(view)]

        yield _Source(segment.length, fill_zeros)
    elif isinstance(segment, Place):
        for run in segment.part(0, segment.size):

            def fill_run(view: memoryview, done: int, run: Place = run) -> None:
                read_into(run.descriptor, run.offset + done, view, run.path)

            yield _Source(run.length, fill_run)
    else:
        data = memoryview(segment).cast("B")

        def fill_data(view: memoryview, done: int) -> None:
            view[:] = data[done : done + len(view)]

        yield _Source(len(data), fill_data)
