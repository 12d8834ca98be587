"""TensorIndexBin: one row for every tensor, wherever its bytes are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..generated.constants import MAX_RANK, SectionKind
from ..generated.structs import TensorIndexHeaderV1, TensorIndexRowV1
from .table import Table, build_table

SECTION = "TensorIndexBin"


def padded_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """The extents, filled up with ones to the fixed number of the format."""
    return (*dims, *(1,) * (MAX_RANK - len(dims)))


def read_tensor_index(data: memoryview | bytes) -> Table[TensorIndexHeaderV1, TensorIndexRowV1]:
    """The section, read.

    Raises:
        FormatError: It is no tensor index.
    """
    return Table(SectionKind.TENSOR_INDEX_BIN, data)


def build_tensor_index(rows: Sequence[tuple[str, TensorIndexRowV1]]) -> bytes:
    """The section's bytes, from names and rows in any order."""
    named = sorted(((name.encode("utf-8"), row) for name, row in rows), key=lambda item: item[0])
    header = TensorIndexHeaderV1(
        row_size=TensorIndexRowV1.SIZE,
        parameter_count=sum(prod(row.dims) for _, row in named),
        tensor_bytes=sum(row.byte_size for _, row in named),
    )
    return build_table(header, [(row, [name]) for name, row in named])
