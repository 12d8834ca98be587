"""Rows of a table of n-grams: read beside the first layers, by a thread of their own, and put where they are needed."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from ...graph.weights import NgramTable
from ..base import Step

Floats = npt.NDArray[np.float32]


class Reading:
    """One read, under way or done. Who asked for it may be interrupted and never come back for it."""

    def __init__(self, table: NgramTable, step: Step) -> None:
        self._table, self._step = table, step
        self._answer: SimpleQueue[Floats | BaseException] = SimpleQueue()

    def read(self) -> None:
        """Reads the rows that the tokens of the step touch, in the order of the tokens."""
        try:
            hashed = [
                self._table.hash.rows(self._step.tokens[item.first_row : item.first_row + item.count], item.previous)
                for item in sorted(self._step.segments, key=lambda item: item.first_row)
            ]
            rows = self._table.source.values(np.concatenate(hashed))
            self._answer.put(rows.reshape(len(self._step.tokens), -1))
        except BaseException as error:
            self._answer.put(error)

    def wait(self) -> Floats:
        """The rows.

        Raises:
            GpackError: They could not be read.
        """
        answer = self._answer.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class RowThread:
    """The thread that reads; it is started when there is something to read.

    Ctrl-C may come wherever a call ends. So who asks takes no lock that Python code guards, as those of futures are: it
    could keep one for ever. A thread whose start was interrupted is left alone, and another one started.
    """

    def __init__(self) -> None:
        self._orders: SimpleQueue[Reading | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it was."""
        if self._thread is None:
            made = threading.Thread(target=_read_all, args=(self._orders,), daemon=True, name="gpack-rows")
            made.start()
            self._thread = made

    def begin(self, table: NgramTable, step: Step) -> Reading:
        """Begins to read."""
        reading = Reading(table, step)
        self._orders.put(reading)
        return reading

    def close(self) -> None:
        """Ends the thread when it has read what it was asked for."""
        self._orders.put(None)


def _read_all(orders: SimpleQueue[Reading | None]) -> None:
    while (reading := orders.get()) is not None:
        reading.read()
    orders.put(None)  # for another thread, where there is one


class NgramReader:
    """Reads the rows that the tokens of a step touch, which follow from their numbers alone."""

    def __init__(self, table: NgramTable, out: Floats, thread: RowThread) -> None:
        """Puts rows into `out`, [max_rows, rows of a token · width]."""
        thread.start()
        self._table, self._out, self._thread = table, out, thread
        self._reading: Reading | None = None

    def begin(self, step: Step) -> None:
        """Begins to read. What an interrupted step began is nobody's: each read has memory of its own."""
        self._reading = self._thread.begin(self._table, step)

    def finish(self) -> None:
        """Waits for the rows.

        Raises:
            GpackError: They cannot be read.
        """
        assert self._reading is not None  # a run begins before it comes here
        rows = self._reading.wait()
        self._out[: len(rows)] = rows
