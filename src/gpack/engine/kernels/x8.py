"""The 8-bit form of activations: groups of 32 values, each with its scale and the sums that offsets and minima need."""

from __future__ import annotations

from typing import Any

from .lanes import F32, Lanes

# A group as it lies in memory: float32 scale; float32 sums of the values as rounded, of all 32 and of each 16; 32 int8.
SCALE, SUM, HALF_SUMS, CODES, SIZE, VALUES = 0, 4, 8, 16, 48, 32


class Group8:
    """A group of 16 or 32 activations that meet a group of weights."""

    def __init__(self, lanes: Lanes, row: Any, first: int, count: int) -> None:
        """Takes the address of a row (of a block's part of it), and which of its values."""
        self.lanes, self.row = lanes, row
        self._start = first // VALUES * SIZE
        self._inside, self._count = first % VALUES, count

    def scale(self) -> Any:
        """In all lanes."""
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + SCALE), F32)

    def sum(self) -> Any:
        """The sum of the group's values, in all lanes."""
        place = SUM if self._count == VALUES else HALF_SUMS + 4 * (self._inside // self._count)
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + place), F32)

    def codes(self, number: int) -> Any:
        """Four codes, in all lanes."""
        from .lanes import I32

        return self.lanes.broadcast(self.lanes.at(self.row, self._start + CODES + self._inside + 4 * number), I32)
