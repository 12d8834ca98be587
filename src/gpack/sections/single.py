"""EmbedBlob, HeadBlob and PleBlob: a 64-byte header, then one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..container.payload import Range, Segment, whole
from ..generated.structs import GPackSingleTensorHeaderV1


@dataclass(frozen=True)
class SingleTensor:
    """A payload of one tensor, copied from its source."""

    header: GPackSingleTensorHeaderV1
    source: Range

    @classmethod
    def plan(cls, ggml_type: int, ne0: int, ne1: int, source: Range) -> SingleTensor:
        """The section of a tensor of `ne1` rows of `ne0` elements."""
        header = GPackSingleTensorHeaderV1(
            ggml_type=ggml_type, ne0=ne0, ne1=ne1, byte_size=source.size, data_offset=GPackSingleTensorHeaderV1.SIZE
        )
        return cls(header, source)

    @property
    def size(self) -> int:
        """Bytes of header and tensor."""
        return self.header.data_offset + self.header.byte_size

    def segments(self) -> Iterator[Segment]:
        """Header, then tensor."""
        yield self.header.encode()
        yield from whole(self.source)
