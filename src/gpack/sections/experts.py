"""ExpertLayoutBin and ExpertBlobs: routed experts, layer by layer, each expert one run [gate | up | down]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..container.payload import Range, Segment, Zeros
from ..generated.constants import PAGE, ExpertFlags, ExpertRole, ShardFlags
from ..generated.rules import align_up
from ..generated.structs import ExpertLayoutHeaderV1, ExpertLayoutRowV1, ExpertShardRowV1
from .table import Heap, finish_table

SECTION = "ExpertLayoutBin"


@dataclass(frozen=True)
class ExpertMatrix:
    """The slices of one role, stacked over the experts in one tensor of the source.

    Attributes:
        role: Of ExpertRole.
        dims: ne0, ne1, number of experts.
        source: All slices, one after the other.
    """

    name: str
    role: int
    ggml_type: int
    dims: tuple[int, int, int]
    source: Range

    @property
    def slice_bytes(self) -> int:
        """Bytes of one expert's slice."""
        return self.source.size // self.dims[2]


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of one layer: gate, up, down in this order; or gate_up and down; or up and down."""

    layer: int
    matrices: tuple[ExpertMatrix, ...]

    @property
    def n_expert(self) -> int:
        """Number of experts."""
        return self.matrices[0].dims[2]

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert, without the zeros after it."""
        return sum(matrix.slice_bytes for matrix in self.matrices)

    @property
    def stride(self) -> int:
        """Distance between experts: whole pages."""
        return align_up(self.expert_bytes, PAGE)

    @property
    def size(self) -> int:
        """Bytes of the layer in the blob."""
        return self.n_expert * self.stride

    def offset_of(self, role: int) -> int:
        """Where a role's slice begins inside an expert."""
        at = 0
        for matrix in self.matrices:
            if matrix.role == role:
                return at
            at += matrix.slice_bytes
        raise KeyError(role)

    def segments(self) -> Iterator[Segment]:
        """The layer's bytes, expert by expert."""
        gap = self.stride - self.expert_bytes
        for expert in range(self.n_expert):
            for matrix in self.matrices:
                length = matrix.slice_bytes
                yield from matrix.source.part(expert * length, length)
            if gap:
                yield Zeros(gap)


@dataclass(frozen=True)
class ExpertBlobs:
    """The payload of all layers, without gaps between them."""

    layers: Sequence[ExpertLayer]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(layer.size for layer in self.layers)

    def offsets(self) -> dict[int, int]:
        """Layer number to the place of its first expert."""
        places = {}
        end = 0
        for layer in self.layers:
            places[layer.layer] = end
            end += layer.size
        return places

    def segments(self) -> Iterator[Segment]:
        """The bytes, in order."""
        for layer in self.layers:
            yield from layer.segments()


@dataclass(frozen=True)
class ExpertShard:
    """A file in which external experts stay.

    Attributes:
        name: Its file name.
        size: Bytes.
        header_size: Bytes before its tensors.
        header_sha256: Digest of those.
        sha256: Digest of the whole file, where it was asked for.
    """

    name: str
    size: int
    header_size: int
    header_sha256: bytes
    sha256: bytes | None = None

    def row(self) -> ExpertShardRowV1:
        """The row, without the place of the name."""
        return ExpertShardRowV1(
            file_size=self.size,
            header_size=self.header_size,
            header_sha256=self.header_sha256,
            sha256=self.sha256 or bytes(len(self.header_sha256)),
            flags=ShardFlags.HAS_SHA256 if self.sha256 else 0,
        )

    def summary(self) -> dict[str, str | int]:
        """What the manifest says of it."""
        info: dict[str, str | int] = {"name": self.name, "size": self.size, "header_sha256": self.header_sha256.hex()}
        return info | {"sha256": self.sha256.hex()} if self.sha256 else info


def build_expert_layout(layers: Sequence[ExpertLayer]) -> bytes:
    """ExpertLayoutBin of embedded experts, from layers sorted by number."""
    offsets = ExpertBlobs(layers).offsets()
    rows = [_row(layer) for layer in layers]
    for row, layer in zip(rows, layers, strict=True):
        row.offset, row.stride = offsets[layer.layer], layer.stride
    return finish_table(_header(layers), rows, Heap())


def expert_summary(layers: Sequence[ExpertLayer], mode: str) -> dict[str, Any]:
    """What the manifest says of routed experts; of external ones the shards are still to be added."""
    return {
        "mode": mode,
        "layer_count": len(layers),
        "blob_count": sum(layer.n_expert for layer in layers),
        "bytes": sum(layer.n_expert * layer.expert_bytes for layer in layers),
    }


def build_external_layout(
    layers: Sequence[ExpertLayer], shards: Sequence[ExpertShard], place: Callable[[ExpertMatrix], tuple[int, int, int]]
) -> bytes:
    """ExpertLayoutBin of external experts, from layers sorted by number.

    Args:
        shards: The files, in the order of first use.
        place: A matrix's shard, the offset of its first slice in it, and the distance to the next.
    """
    rows = [_row(layer) for layer in layers]
    for row, layer in zip(rows, layers, strict=True):
        row.flags |= ExpertFlags.EXTERNAL
        for matrix in layer.matrices:
            shard, at, stride = place(matrix)
            for name, _, length in _columns(matrix):
                setattr(row, f"{name}_shard", shard)
                setattr(row, f"{name}_offset", at)
                setattr(row, f"{name}_stride", stride)
                at += length
    heap = Heap()
    table = b"".join(heap.place(shard.row(), [shard.name.encode("utf-8")]).encode() for shard in shards)
    header = _header(layers)
    header.num_shards = len(shards)
    return finish_table(header, rows, heap, between=table)


def _header(layers: Sequence[ExpertLayer]) -> ExpertLayoutHeaderV1:
    return ExpertLayoutHeaderV1(
        row_size=ExpertLayoutRowV1.SIZE,
        shard_row_size=ExpertShardRowV1.SIZE,
        ofs_shards=ExpertLayoutHeaderV1.SIZE + len(layers) * ExpertLayoutRowV1.SIZE,
        expert_bytes=sum(layer.n_expert * layer.expert_bytes for layer in layers),
    )


def _row(layer: ExpertLayer) -> ExpertLayoutRowV1:
    """A layer's row without the place of its bytes."""
    row = ExpertLayoutRowV1(layer=layer.layer, n_expert=layer.n_expert)
    roles = {matrix.role for matrix in layer.matrices}
    if ExpertRole.GATE_UP in roles:
        row.flags |= ExpertFlags.FUSED_GATE_UP
    elif ExpertRole.GATE not in roles:
        row.flags |= ExpertFlags.NO_GATE
    for matrix in layer.matrices:
        for name, rows, length in _columns(matrix):
            setattr(row, f"{name}_type", matrix.ggml_type)
            setattr(row, f"{name}_ne0", matrix.dims[0])
            setattr(row, f"{name}_ne1", rows)
            setattr(row, f"{name}_bytes", length)
    return row


def _columns(matrix: ExpertMatrix) -> list[tuple[str, int, int]]:
    """Which columns of a row a matrix fills: name, rows and bytes; a fused matrix is gate rows, then up rows."""
    rows, length = matrix.dims[1], matrix.slice_bytes
    if matrix.role == ExpertRole.GATE_UP:
        return [("gate", rows // 2, length // 2), ("up", rows // 2, length // 2)]
    return [(ExpertRole.NAMES[matrix.role].lower(), rows, length)]
