"""The dense tables and blobs: DenseIndexBin, DensePackBlob, NativeDenseIndexBin, NativeDenseBlob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..container.payload import Range
from ..generated.constants import ARENA_ALIGNMENT, CACHE_LINE, FOREIGN_TYPES, DenseFlags, DenseKind, GgmlType
from ..generated.rules import align_up
from ..generated.structs import DenseIndexHeaderV1, GPackDenseRowV1, NativeDenseIndexHeaderV1, NativeDenseRowV1
from .blob import Blob, lay_out
from .table import build_table
from .tensors import padded_dims

# Types that the load-time pool holds as F32, and how they get there.
WIDENED = {GgmlType.BF16: DenseKind.BF16_TO_F32, GgmlType.F16: DenseKind.F16_TO_F32}


@dataclass(frozen=True)
class CodePlanes:
    """A tensor stored as planes of codes, scales and offsets, one after the other.

    Attributes:
        pool_bytes: Bytes in the load-time pool, where half-precision scales are widened.
        scales_fp16: Scales are half precision.
    """

    pool_bytes: int
    code_bits: int
    code_bias: int
    group_elems: int
    codebook: int
    codes_bytes: int
    scales_bytes: int
    offset_bytes: int
    scales_fp16: bool

    @property
    def flags(self) -> int:
        """Of DenseFlags."""
        return (
            DenseFlags.CODE_PLANES
            | (DenseFlags.HAS_OFFSET if self.offset_bytes else 0)
            | (DenseFlags.SCALES_FP16 if self.scales_fp16 else 0)
        )


@dataclass(frozen=True)
class DenseColumns:
    """What a pack directory says of a dense tensor.

    Attributes:
        kind: Of DenseKind.
        pool_type: Type in the load-time pool.
        act_kind: Activation kind of a version 3 directory.
        planes: The code planes, where the tensor is stored so.
    """

    kind: int
    pool_type: int
    act_kind: int = 0
    planes: CodePlanes | None = None


@dataclass(frozen=True)
class DenseTensor:
    """A tensor with a place to copy it from.

    Attributes:
        dims: Extents, contiguous axis first.
        native: It goes into the native arena.
        columns: What a pack directory says of it; None where the type decides.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    source: Range
    native: bool
    columns: DenseColumns | None = None

    @property
    def pool_type(self) -> int:
        """Type in the load-time pool."""
        return self.columns.pool_type if self.columns else pool_type(self.ggml_type)

    @property
    def pool_bytes(self) -> int:
        """Bytes in the load-time pool."""
        if self.columns and self.columns.planes:
            return self.columns.planes.pool_bytes
        return byte_count(self.pool_type, self.dims)


@dataclass(frozen=True)
class DenseSections:
    """What the dense sections hold.

    Attributes:
        offsets: Tensor name to the offset in its blob.
        rows: Tensor name to the row of its own table (dense or native index).
    """

    dense_index: bytes
    dense_blob: Blob
    native_index: bytes
    native_blob: Blob
    offsets: dict[str, int]
    rows: dict[str, int]


def is_native(ggml_type: int, rank: int) -> bool:
    """Whether the format has a native matrix-vector kernel for it: 2-D, of ggml, a block of more than one element."""
    return rank == 2 and ggml_type < FOREIGN_TYPES and GgmlType.BLOCK[ggml_type] > 1


def pool_type(ggml_type: int) -> int:
    """Type of a dense tensor in the load-time pool."""
    return GgmlType.F32 if ggml_type in WIDENED else ggml_type


def byte_count(ggml_type: int, dims: Sequence[int]) -> int:
    """Bytes of a tensor of this type and shape."""
    return prod(dims) // GgmlType.BLOCK[ggml_type] * GgmlType.BYTES[ggml_type]


def build_dense(tensors: Sequence[DenseTensor]) -> DenseSections:
    """All four sections; the order of the tensors does not matter."""
    ordered = sorted(tensors, key=lambda tensor: tensor.name.encode("utf-8"))
    packed = [tensor for tensor in ordered if not tensor.native]
    native = [tensor for tensor in ordered if tensor.native]
    places, packed_end = lay_out((tensor.source.size for tensor in packed), CACHE_LINE)
    arena, arena_end = lay_out((tensor.source.size for tensor in native), ARENA_ALIGNMENT)
    arena_bytes = align_up(arena_end, ARENA_ALIGNMENT)
    offsets = {tensor.name: offset for tensor, offset in zip(packed, places, strict=True)}
    offsets |= {tensor.name: offset for tensor, offset in zip(native, arena, strict=True)}
    rows = {tensor.name: row for row, tensor in enumerate(ordered) if not tensor.native}
    rows |= {tensor.name: row for row, tensor in enumerate(native)}
    return DenseSections(
        dense_index=_dense_index(ordered, offsets),
        dense_blob=Blob([(offsets[t.name], t.source) for t in packed], packed_end),
        native_index=_native_index(native, offsets, arena_bytes),
        native_blob=Blob([(offsets[t.name], t.source) for t in native], arena_bytes),
        offsets=offsets,
        rows=rows,
    )


def _dense_index(ordered: Sequence[DenseTensor], offsets: dict[str, int]) -> bytes:
    sizes = [tensor.pool_bytes for tensor in ordered]
    pool, pool_end = lay_out(sizes, ARENA_ALIGNMENT)
    kept = [size for size, tensor in zip(sizes, ordered, strict=True) if not tensor.native]
    compacted, compacted_end = lay_out(kept, ARENA_ALIGNMENT)
    following = iter(compacted)
    rows = []
    for tensor, size, place in zip(ordered, sizes, pool, strict=True):
        row = GPackDenseRowV1(
            ggml_type=tensor.ggml_type,
            pool_type=tensor.pool_type,
            kind=WIDENED.get(tensor.ggml_type, DenseKind.VERBATIM),
            n_dims=len(tensor.dims),
            dims=padded_dims(tensor.dims),
            offset=0 if tensor.native else offsets[tensor.name],
            byte_size=0 if tensor.native else tensor.source.size,
            pool_offset=place,
            pool_bytes=size,
            compacted_offset=0 if tensor.native else next(following),
            flags=DenseFlags.SKIP_IN_NATIVE if tensor.native else 0,
        )
        if tensor.columns:
            _fill_columns(row, tensor.columns)
        rows.append((row, [tensor.name.encode("utf-8")]))
    header = DenseIndexHeaderV1(
        row_size=GPackDenseRowV1.SIZE,
        dense_pool_bytes=align_up(pool_end, ARENA_ALIGNMENT),
        dense_compacted_pool_bytes=align_up(compacted_end, ARENA_ALIGNMENT),
    )
    return build_table(header, rows)


def _fill_columns(row: GPackDenseRowV1, columns: DenseColumns) -> None:
    row.kind, row.act_kind = columns.kind, columns.act_kind
    planes = columns.planes
    if planes is None:
        return
    row.flags |= planes.flags
    row.code_bits, row.code_bias = planes.code_bits, planes.code_bias
    row.group_elems, row.codebook = planes.group_elems, planes.codebook
    row.codes_bytes, row.scales_bytes, row.offset_bytes = planes.codes_bytes, planes.scales_bytes, planes.offset_bytes


def _native_index(native: Sequence[DenseTensor], offsets: dict[str, int], arena_bytes: int) -> bytes:
    rows = []
    for tensor in native:
        ne0, ne1 = tensor.dims
        row = NativeDenseRowV1(
            ggml_type=tensor.ggml_type, ne0=ne0, ne1=ne1, offset=offsets[tensor.name], byte_size=tensor.source.size
        )
        rows.append((row, [tensor.name.encode("utf-8")]))
    header = NativeDenseIndexHeaderV1(row_size=NativeDenseRowV1.SIZE, native_dense_arena_bytes=arena_bytes)
    return build_table(header, rows)
