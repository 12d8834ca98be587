"""What kernels read of a step: tokens, positions, segments, and where the blocks of their texts are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base import Segment
from .driver import Driver
from .layout import SEGMENT_TABLES


class StepMemory:
    """Device memory for the numbers of a step.

    Attributes:
        tokens, positions, segment_of: Addresses of int32 [rows].
        segments: Address of int64 [segments, words].
        words: Of a segment.
        tables: Address of all block tables, int64; it may change from step to step.
    """

    def __init__(self, driver: Driver, rows: int, n_groups: int) -> None:
        """Memory for steps of so many rows."""
        self._driver, self._rows = driver, rows
        self.words = SEGMENT_TABLES + n_groups
        self._row_bytes = -(-4 * rows // 256) * 256
        self._start = driver.allocate(3 * self._row_bytes + 8 * self.words * rows)
        self.tokens, self.positions, self.segment_of = (self._start + n * self._row_bytes for n in range(3))
        self.segments = self._start + 3 * self._row_bytes
        self._room = 64
        self.tables = driver.allocate(8 * self._room)

    def fill(self, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], segments: Sequence[Segment]) -> None:
        """Brings a step to the device, in two copies."""
        rows = np.zeros((3, self._row_bytes // 4), np.int32)
        rows[0, : len(tokens)] = tokens
        table: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        words = np.zeros((len(segments), self.words), np.int64)
        end = 0
        for number, item in enumerate(segments):
            of = slice(item.first_row, item.first_row + item.count)
            rows[1, of] = np.arange(item.position, item.position + item.count)
            rows[2, of] = number
            words[number, :SEGMENT_TABLES] = (
                item.first_row,
                item.count,
                item.position,
                item.read,
                item.write,
                item.keep,
            )
            for group, ids in enumerate(item.tables):
                words[number, SEGMENT_TABLES + group] = end
                table.append(ids)
                end += len(ids)
        together = np.concatenate([rows.reshape(-1).view(np.uint8), words.reshape(-1).view(np.uint8)])
        self._driver.upload(self._start, together)
        if table:
            if end > self._room:
                self._driver.free(self.tables)
                self._room = 2 * end
                self.tables = self._driver.allocate(8 * self._room)
            self._driver.upload(self.tables, np.concatenate(table))

    def close(self) -> None:
        """Frees it."""
        self._driver.free(self._start)
        self._driver.free(self.tables)
