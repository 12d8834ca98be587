"""How a tensor of the pack is made from tensors of the source: joined, reordered, computed; a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..container.payload import Computed, Joined, Range, Segment, read_part
from ..container.place import Place
from ..generated.constants import GgmlType
from ..quants import dequantize
from ..sections.dense import byte_count
from .safetensors import StoredTensor

Order = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """A part of a range, as a range of its own."""

    inner: Range
    offset: int
    size: int

    @classmethod
    def of(cls, inner: Range, offset: int, size: int) -> Range:
        """`size` bytes from byte `offset` on; of a place in a file again one."""
        if isinstance(inner, Place) and inner.runs == 1:
            return Place(inner.path, inner.descriptor, inner.offset + offset, size)
        return cls(inner, offset, size)

    def part(self, offset: int, length: int) -> Iterator[Segment]:
        """The segments of `length` bytes from byte `offset` on."""
        return self.inner.part(self.offset + offset, length)


@dataclass(frozen=True)
class HfTensor:
    """A tensor and how its bytes come about.

    Attributes:
        ggml_type: Number of the type that the pack stores.
        dims: Extents, contiguous axis first.
        parts: The source's bytes, one after the other.
        stored_type: Number of the type of those bytes.
        sources: The tensors that the parts are of.
        steps: What is done, in words, for reports.
        row_order: For each row, the row of the parts that it is.
        column_order: The same for the elements of each row.
        value: What is done to the values, which then are stored as F32.
        position: Place among the model's tensors.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    parts: tuple[Range, ...]
    stored_type: int
    sources: tuple[StoredTensor, ...]
    steps: tuple[str, ...] = ()
    row_order: Order | None = None
    column_order: Order | None = None
    value: Callable[[Floats], Floats] | None = None
    position: int = 0

    @property
    def byte_size(self) -> int:
        """Bytes of the tensor in the pack."""
        return byte_count(self.ggml_type, self.dims)

    def range(self) -> Range:
        """The tensor's bytes."""
        joined = self.parts[0] if len(self.parts) == 1 else Joined(self.parts)
        plain = self.row_order is None and self.column_order is None and self.value is None
        if plain and self.ggml_type == self.stored_type:
            return joined
        rows = prod(self.dims[1:])
        if not prod(self.dims):
            return Joined(())
        width = self.dims[0] if self.dims else 1
        return Computed(
            rows, byte_count(self.ggml_type, (width,)), lambda first, count: self._make(joined, first, count)
        )

    def _make(self, joined: Range, first: int, count: int) -> bytes:
        width = self.dims[0] if self.dims else 1
        row_bytes = byte_count(self.stored_type, (width,))
        if self.row_order is None:
            rows = np.frombuffer(read_part(joined, first * row_bytes, count * row_bytes), np.uint8)
        else:
            rows = read_rows(joined, self.row_order[first : first + count], row_bytes)
        rows = rows.reshape(count, row_bytes)
        if self.column_order is not None:
            size = GgmlType.BYTES[self.stored_type]
            rows = np.ascontiguousarray(rows.reshape(count, width, size)[:, self.column_order]).reshape(count, -1)
        if self.value is None and self.ggml_type == self.stored_type:
            return rows.tobytes()
        values = dequantize(rows, self.stored_type)
        if self.value is not None:
            values = self.value(values)
        return values.astype("<f4").tobytes()


def read_rows(source: Range, order: Order, row_bytes: int) -> NDArray[np.uint8]:
    """Rows in any order, uint8 [rows, row bytes]: neighbours are read at once."""
    low, high = int(order.min()), int(order.max()) + 1
    if high - low <= 2 * len(order):
        span = np.frombuffer(read_part(source, low * row_bytes, (high - low) * row_bytes), np.uint8)
        return span.reshape(-1, row_bytes)[order - low]
    made = np.empty((len(order), row_bytes), np.uint8)
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist(), len(order)]
    for start, end in pairwise(starts):
        part = read_part(source, int(order[start]) * row_bytes, (end - start) * row_bytes)
        made[start:end] = np.frombuffer(part, np.uint8).reshape(-1, row_bytes)
    return made


def plus_one(values: Floats) -> Floats:
    """Norms that are stored around 0."""
    return values + np.float32(1)


def minus_exp(values: Floats) -> Floats:
    """The decay of a gated delta net from its logarithm."""
    made: Floats = -np.exp(values)
    return made
