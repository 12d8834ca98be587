"""MtpBlob: the draft layers, a small container of its own inside one section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..container.payload import Range, Segment
from ..generated.constants import CACHE_LINE, PAGE
from ..generated.rules import align_up
from ..generated.structs import MtpHeaderV1, MtpRowV1
from .blob import Blob, lay_out
from .experts import ExpertLayer
from .table import build_table
from .tensors import padded_dims

SECTION = "MtpBlob"


@dataclass(frozen=True)
class DraftTensor:
    """An ordinary tensor of a draft layer; `dims` has the contiguous axis first."""

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    source: Range


@dataclass(frozen=True)
class MtpSection:
    """The payload: header, rows and names, then tensors, then experts.

    Attributes:
        offsets: Tensor name to the first byte, from the start of the section.
        rows: Tensor name to its row.
    """

    head: bytes
    blob: Blob
    layers: tuple[ExpertLayer, ...]
    offsets: dict[str, int]
    rows: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.head) + self.blob.size + sum(layer.size for layer in self.layers)

    def segments(self) -> Iterator[Segment]:
        """The bytes, in order."""
        yield self.head
        yield from self.blob.segments()
        for layer in self.layers:
            yield from layer.segments()


def build_mtp(tensors: Sequence[DraftTensor], layers: Sequence[ExpertLayer]) -> MtpSection:
    """The section; tensors in any order, layers sorted by number."""
    ordered = sorted(tensors, key=lambda tensor: tensor.name.encode("utf-8"))
    places, end = lay_out((tensor.source.size for tensor in ordered), CACHE_LINE)
    # Experts are whole pages, so the ordinary tensors before them end at one.
    blob_size = align_up(end, PAGE) if layers else end
    entries = [_tensor_row(tensor, place) for tensor, place in zip(ordered, places, strict=True)]
    at = blob_size
    for layer in layers:
        entries += _expert_rows(layer, at)
        at += layer.size
    entries.sort(key=lambda entry: entry[0])
    header = MtpHeaderV1(row_size=MtpRowV1.SIZE, len_data=at)
    names = sum(len(name) for name, _ in entries)
    header.ofs_data = align_up(header.SIZE + len(entries) * header.row_size + names, PAGE)
    head = build_table(header, [(row, [name]) for name, row in entries]).ljust(header.ofs_data, b"\0")
    return MtpSection(
        head,
        Blob([(place, tensor.source) for tensor, place in zip(ordered, places, strict=True)], blob_size),
        tuple(layers),
        offsets={name.decode(): header.ofs_data + row.offset for name, row in entries},
        rows={name.decode(): index for index, (name, _) in enumerate(entries)},
    )


def _tensor_row(tensor: DraftTensor, place: int) -> tuple[bytes, MtpRowV1]:
    row = MtpRowV1(
        ggml_type=tensor.ggml_type,
        n_dims=len(tensor.dims),
        dims=padded_dims(tensor.dims),
        offset=place,
        byte_size=tensor.source.size,
    )
    return tensor.name.encode("utf-8"), row


def _expert_rows(layer: ExpertLayer, at: int) -> Iterator[tuple[bytes, MtpRowV1]]:
    for matrix in layer.matrices:
        row = MtpRowV1(
            ggml_type=matrix.ggml_type,
            n_dims=len(matrix.dims),
            dims=padded_dims(matrix.dims),
            offset=at + layer.offset_of(matrix.role),
            byte_size=matrix.source.size,
            stride=layer.stride,
            role=matrix.role,
        )
        yield matrix.name.encode("utf-8"), row
