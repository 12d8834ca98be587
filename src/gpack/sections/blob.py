"""Blobs: many tensors in one section, each at the next multiple of an alignment, zeros between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..container.payload import Range, Segment, Zeros, whole
from ..generated.rules import align_up


@dataclass(frozen=True)
class Blob:
    """A payload of ranges at given places; what lies between them is zero.

    Attributes:
        places: (offset, source), by rising offset.
        size: Bytes of the whole, zeros at the end included.
    """

    places: Iterable[tuple[int, Range]]
    size: int

    def segments(self) -> Iterator[Segment]:
        """The ranges and the gaps between them."""
        end = 0
        for offset, source in self.places:
            if offset > end:
                yield Zeros(offset - end)
            yield from whole(source)
            end = offset + source.size
        if self.size > end:
            yield Zeros(self.size - end)


def lay_out(sizes: Iterable[int], alignment: int) -> tuple[list[int], int]:
    """Places for runs of these sizes, one after the other: their offsets, and where the last ends."""
    offsets = []
    end = 0
    for size in sizes:
        start = align_up(end, alignment)
        offsets.append(start)
        end = start + size
    return offsets, end
