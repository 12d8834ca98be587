"""What a text's numbers are when nothing else is there: the values that every step is held against, bit for bit."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpack.engine.engine import Chunk, Engine

Row = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # hidden state and logits after a token


class Alone:
    """The rows of texts that are alone in an engine of one thread, remembered by what precedes them.

    Every third short text is fed token by token, all others in chunks as large as the engine takes.
    """

    def __init__(self, engine: Engine, n_ctx: int) -> None:
        self.engine, self.n_ctx = engine, n_ctx
        self._rows: dict[tuple[str, bytes], Row] = {}

    def rows(self, tokens: Sequence[int], cache_type: str, first: int) -> list[Row]:
        """The rows of the tokens from number `first` on."""
        keys = [(cache_type, array("h", tokens[:end]).tobytes()) for end in range(first + 1, len(tokens) + 1)]
        if any(key not in self._rows for key in keys):
            self._compute(list(tokens), cache_type)
        return [self._rows[key] for key in keys]

    def forget(self) -> None:
        """Everything is computed anew."""
        self._rows.clear()

    def _compute(self, tokens: list[int], cache_type: str) -> None:
        size = 1 if len(tokens) < 40 and sum(tokens) % 3 == 0 else self.engine.batch
        with self.engine.sequence(n_ctx=self.n_ctx, cache_type=cache_type) as text:
            for first in range(0, len(tokens), size):
                chunk = Chunk(text, tokens[first : first + size], "all")
                result = self.engine.step([chunk], hidden=True)
                result.raise_error()
                for number, row in enumerate(rows_of(result[0].hidden, result.logits), start=first + 1):
                    self._rows[cache_type, array("h", tokens[:number]).tobytes()] = row


def rows_of(hidden: npt.NDArray[Any], logits: npt.NDArray[Any]) -> list[Row]:
    """The rows of a step; copies."""
    return list(zip(hidden.copy(), logits.copy(), strict=True))


def is_same(made: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> bool:
    """Whether all bits are equal; in float64, in which numpy's sums depend on shapes, all but a few of them."""
    if made.dtype == np.float64:
        return np.allclose(made, wanted, rtol=1e-9, atol=1e-9)
    return made.tobytes() == wanted.tobytes()
