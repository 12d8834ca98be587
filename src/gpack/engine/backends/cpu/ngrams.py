"""Rows of a table of n-grams: read beside the first layers, by a thread of their own, and put where they are needed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ...graph.weights import NgramTable
from ..base import Step

Floats = npt.NDArray[np.float32]


class NgramReader:
    """Reads the rows that the tokens of a step touch, which follow from their numbers alone."""

    def __init__(self, table: NgramTable, out: Floats, thread: ThreadPoolExecutor) -> None:
        """Puts rows into `out`, [max_rows, rows of a token · width]."""
        self._table, self._out, self._thread = table, out, thread
        self._reading: Future[Floats] | None = None

    def begin(self, step: Step) -> None:
        """Begins to read. What an interrupted step began is nobody's: each read has memory of its own."""
        self._reading = self._thread.submit(self._read, step)

    def finish(self) -> None:
        """Waits for the rows.

        Raises:
            GpackError: They cannot be read.
        """
        assert self._reading is not None  # a run begins before it comes here
        rows = self._reading.result()
        self._out[: len(rows)] = rows

    def _read(self, step: Step) -> Floats:
        hashed = [
            self._table.hash.rows(step.tokens[item.first_row : item.first_row + item.count], item.previous)
            for item in sorted(step.segments, key=lambda item: item.first_row)
        ]
        return self._table.source.values(np.concatenate(hashed)).reshape(len(step.tokens), -1)
