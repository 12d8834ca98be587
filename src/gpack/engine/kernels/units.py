"""What a format's unpacking yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .lanes import Lanes, Rows


@dataclass(frozen=True)
class Group:
    """One group of all rows.

    Attributes:
        place: Number of the group in its block.
        codes: Vectors of four codes for each row, in order, or folded; unsigned bytes unless `signed`.
        offset: What is taken from each code.
        scale: float32, a lane for each row.
        minimum: What is added, or None.
        folded: The codes are 32 of `lanes.FoldedRows`.
    """

    place: int
    codes: list[Any]
    offset: int
    scale: Any
    minimum: Any = None
    signed: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Format:
    """How a type's blocks are unpacked.

    Attributes:
        elements, size: Weights and bytes of a block.
        group: Weights that share a scale.
        top: The highest code; 255 where codes may be signed bytes (see `wide_codes`).
        groups: Yields the groups of a block.
        folds: Rows are best folded where codes are 8 bits wide with AVX2.
    """

    elements: int
    size: int
    group: int
    top: int
    groups: Callable[[Lanes, Rows], Iterator[Group]]
    folds: bool = False
