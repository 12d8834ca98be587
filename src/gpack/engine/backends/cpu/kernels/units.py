"""What a format's unpacking yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .lanes import Lanes, Rows

# Groups of 16 in the order in which Q2_K, Q3_K and Q6_K yield each 128 weights: those that share bytes follow each
# other. All other types yield their groups as they lie in the row.
SIDES = (0, 4, 2, 6, 1, 5, 3, 7)


@dataclass(frozen=True)
class Level:
    """A scale or minimum that is a float32 of each row times a byte of each row.

    Attributes:
        unit: The floats, a lane for each row.
        packed: Four bytes in each lane.
        number: Which of them.
        signed: They are int8, else uint8.
    """

    unit: Any
    packed: Any
    number: int
    signed: bool = False

    def byte(self, lanes: Lanes) -> Any:
        """The bytes as floats."""
        return lanes.byte(self.packed, self.number, signed=self.signed)

    def value(self, lanes: Lanes) -> Any:
        """The product."""
        return lanes.builder.fmul(self.unit, self.byte(lanes))


@dataclass(frozen=True)
class Group:
    """One group of all rows.

    Attributes:
        place: Number of the group in its block.
        codes: Vectors of four codes for each row, in order, or those of `paired.PairedRows`; unsigned bytes unless
            `signed`; where `whole`, a vector for each row.
        offset: What is taken from each code.
        scale: float32, a lane for each row; or a `Level`, whose unit is that of the whole block.
        minimum: What is added, likewise, or None.
    """

    place: int
    codes: list[Any]
    offset: int
    scale: Any
    minimum: Any = None
    signed: bool = False
    whole: bool = False

    def floats(self, lanes: Lanes) -> tuple[Any, Any]:
        """Scale and minimum as float32, a lane for each row."""
        found = (self.scale, self.minimum)
        scale, minimum = (item.value(lanes) if isinstance(item, Level) else item for item in found)
        return scale, minimum


@dataclass(frozen=True)
class Format:
    """How a type's blocks are unpacked.

    Attributes:
        elements, size: Weights and bytes of a block.
        group: Weights that share a scale.
        top: The highest code; 255 where codes may be signed bytes (see `wide_codes`).
        groups: Yields the groups of a block.
        pairs: Codes may be those of `paired.PairedRows`: unsigned ones are at most 64, so that four products fit into
            16 bits.
    """

    elements: int
    size: int
    group: int
    top: int
    groups: Callable[[Lanes, Rows], Iterator[Group]]
    pairs: bool = False
