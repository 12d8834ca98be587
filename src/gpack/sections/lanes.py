"""Arrays and runs of bytes that lie in memory or in a file, for checks that take little memory whatever their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..container.pieces import Pieces

Octets = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

# Bytes of a blob that is kept in memory: runs all over it are then taken without a read.
_KEPT = 8 << 20
_SPAN = 1 << 20  # bytes of one read
_GAP = 1 << 12  # bytes between runs that are read along
_ROWS, _BYTES = 1 << 15, 1 << 19  # runs that are looked at at a time, and their bytes


class Lane:
    """An array whose slices are read when they are asked for."""

    def __init__(self, data: memoryview | Pieces, dtype: np.dtype[Any]) -> None:
        self._data, self.dtype = data, dtype
        self.stride = dtype.itemsize

    def __len__(self) -> int:
        return len(self._data) // self.stride

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        start, stop, _ = wanted.indices(len(self))
        return np.frombuffer(self._data[start * self.stride : max(stop, start) * self.stride], self.dtype)

    def batches(self, size: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Slices of that many elements, each with the number of its first."""
        for first in range(0, len(self), size):
            yield first, self[first : first + size]


class Blob:
    """The bytes that tokens lie in."""

    def __init__(self, data: memoryview | Pieces) -> None:
        self.data = data
        self._whole = np.frombuffer(data[:], np.uint8) if len(data) <= _KEPT or isinstance(data, memoryview) else None

    def gather(self, starts: Positions, lengths: Positions) -> Octets:
        """The runs of bytes at these places, one after the other; `batches` says how many are few enough."""
        ends = np.cumsum(lengths)
        if self._whole is not None:
            index = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
            found: Octets = self._whole[index]
            return found
        return self._read(starts, lengths, ends)

    def _read(self, starts: Positions, lengths: Positions, ends: Positions) -> Octets:
        made = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        read, first, last = np.empty(0, np.uint8), 0, 0  # what was read, and where it lies
        order = np.argsort(starts, kind="stable")
        from_, to, into = starts[order].tolist(), (starts + lengths)[order].tolist(), (ends - lengths)[order].tolist()
        for number, (start, end, place) in enumerate(zip(from_, to, into, strict=True)):
            if end > last:
                first, last = start, end
                for after in range(number + 1, len(from_)):
                    if from_[after] > last + _GAP or max(to[after], last) - first > _SPAN:
                        break
                    last = max(last, to[after])
                read = np.frombuffer(self.data[first:last], np.uint8)
            made[place : place + end - start] = read[start - first : end - first]
        return made

    def chunks(self, start: int, length: int) -> Iterator[memoryview]:
        """A range of any length, piece by piece."""
        for at in range(0, length, _SPAN):
            yield self.data[start + at : start + min(at + _SPAN, length)]

    def same(self, one: int, other: int, length: int) -> bool:
        """Whether two ranges hold the same bytes."""
        pairs = zip(self.chunks(one, length), self.chunks(other, length), strict=True)
        return all(left == right for left, right in pairs)

    def compare(self, one: tuple[int, int], other: tuple[int, int]) -> int:
        """-1, 0 or 1: how two ranges, each from a byte to a byte, are ordered."""
        (start, end), (first, last) = one, other
        for at in range(0, min(end - start, last - first), _SPAN):
            stop = min(at + _SPAN, end - start, last - first)
            left, right = bytes(self.data[start + at : start + stop]), bytes(self.data[first + at : first + stop])
            if left != right:
                return -1 if left < right else 1
        return (end - start > last - first) - (end - start < last - first)


def batches(sizes: Positions) -> Iterator[slice]:
    """Cuts rows into runs of few rows with few bytes together; a row of many bytes stands alone."""
    first, count = 0, len(sizes)
    while first < count:
        sums = np.cumsum(sizes[first : first + _ROWS])
        taken = max(int(np.searchsorted(sums, _BYTES, side="right")), 1)
        yield slice(first, first + taken)
        first += taken
