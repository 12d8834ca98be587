"""Rows of an open chunk that recurrent states depend on, kept in memory of their text and taken out again.

Arguments of both kernels: STATE; X: rows of a step; X_ROW: bytes of each; WIDTH: float32 values that are kept of it;
WORD: the word of a segment that has the address of its memory, where a 0 says that nothing is kept; KEPT: bytes from
there to the values of the segment's first row; KEPT_ROW: bytes from these to those of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from ..layout import SEGMENT_COUNT, SEGMENT_ROW, STEP_N_SEGMENTS, STEP_SEGMENT_WORDS, STEP_SEGMENTS
from ..variants import Variant
from .memory import floats, longs

STATE, X, X_ROW, WIDTH, WORD, KEPT, KEPT_ROW = range(7)

_plain = njit(error_model="numpy", fastmath=False)


@_plain
def _copy(source: Any, target: Any, first: Any, last: Any) -> None:
    given, made = floats(source), floats(target)
    for i in range(first, last):
        made[i] = given[i]


def _rows(keeps: bool) -> Callable[..., None]:
    def kernel(args: Any, ith: int, nth: int) -> None:
        """Arguments: see above. Threads share columns."""
        state = longs(args[STATE])
        lines = (args[WIDTH] + 15) // 16
        first, last = min(args[WIDTH], lines * ith // nth * 16), min(args[WIDTH], lines * (ith + 1) // nth * 16)
        for number in range(state[STEP_N_SEGMENTS]):
            segment = longs(state[STEP_SEGMENTS] + 8 * number * state[STEP_SEGMENT_WORDS])
            if segment[args[WORD]] == 0:
                continue
            for row in range(segment[SEGMENT_COUNT]):
                x = args[X] + (segment[SEGMENT_ROW] + row) * args[X_ROW]
                kept = segment[args[WORD]] + args[KEPT] + row * args[KEPT_ROW]
                if keeps:
                    _copy(x, kept, first, last)
                else:
                    _copy(kept, x, first, last)

    return kernel


def keep_rows(_variant: Variant) -> Callable[..., None]:
    """Puts rows aside."""
    return _rows(True)


def take_rows(_variant: Variant) -> Callable[..., None]:
    """Brings them back."""
    return _rows(False)


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {"keep_rows": keep_rows, "take_rows": take_rows}
