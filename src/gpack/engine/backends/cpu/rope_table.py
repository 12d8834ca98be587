"""Cosines and sines of positions, as kernels read them."""

from __future__ import annotations

import numpy as np

from ...graph.rope import Rope
from .buffers import aligned

_STEP = 256  # positions that are worked out together


class RopeTable:
    """Cosines and sines of positions: float32 rows of n_rotated / 2 cosines, then as many sines.

    Attributes:
        cell: int64 [1]; the address of the row of position 0, which changes when the table grows.
    """

    def __init__(self, rope: Rope) -> None:
        self.n_rotated = rope.n_rotated
        self.cell = aligned((1,), np.int64)
        self._frequencies = rope.frequencies()
        self._magnitude = rope.magnitude()
        self._rows = aligned((0, rope.n_rotated), np.float32)

    def reach(self, end: int) -> None:
        """Works out the rows of all positions below `end`, and some more; no program may be running.

        Raises:
            MemoryError: There is not enough memory.
        """
        done = len(self._rows)
        if end <= done:
            return
        rows = aligned((max(_STEP, 1 << (end - 1).bit_length()), self.n_rotated), np.float32)
        rows[:done] = self._rows
        for first in range(done, len(rows), _STEP):
            positions = np.arange(first, min(first + _STEP, len(rows)), dtype=np.float64)
            angles = np.outer(positions, self._frequencies)
            half = angles.shape[1]
            rows[first : first + _STEP, :half] = np.cos(angles) * self._magnitude
            rows[first : first + _STEP, half:] = np.sin(angles) * self._magnitude
        # An interrupt may come wherever a call ends: here are none, so that the address is always that of the rows.
        address = int(rows.ctypes.data)
        self.cell[0] = address
        self._rows = rows
