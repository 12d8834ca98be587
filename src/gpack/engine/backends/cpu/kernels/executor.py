"""Runs a program: every thread runs every step's kernel for its share, and waits for the others before the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from ..variants import Variant
from .memory import atomic_add, atomic_load, atomic_store, call_kernel, longs, yield_processor
from .program_layout import ABORT, ARRIVED, GENERATION, STEP_WORDS, STOPPED_AT

_SPINS = 4096  # tries before a waiting thread lets others run


@njit(error_model="numpy")
def reset_counters(steps: Any, first: Any, last: Any) -> None:
    """Of the steps since the threads last waited for one another."""
    for step in range(first, last + 1):
        counter = steps[step * STEP_WORDS + 2]
        if counter != 0:
            atomic_store(counter, 0)


def execute(args: Any, ith: int, nth: int) -> None:
    """Arguments: steps, number of steps, first step, synchronisation block.

    Ends at a step of the host (its number goes to STOPPED_AT), at the end, or early where ABORT is not 0.
    """
    steps = longs(args[0])
    n_steps = args[1]
    sync = args[3]
    arrived = sync + 8 * ARRIVED
    generation = sync + 8 * GENERATION
    stop = n_steps
    first = args[2]
    for step in range(args[2], n_steps):
        kernel = steps[step * STEP_WORDS]
        if kernel == 0:
            stop = step
            break
        call_kernel(kernel, steps[step * STEP_WORDS + 1], ith, nth)
        if steps[step * STEP_WORDS + 3] != 0:
            continue
        aborted = atomic_load(sync + 8 * ABORT)
        if nth == 1:
            reset_counters(steps, first, step)
            first = step + 1
            if aborted != 0:
                break
            continue
        # ABORT may be set while threads arrive: all must see the same, so the last one decides.
        turn = atomic_load(generation)
        if atomic_add(arrived, 1) == nth - 1:
            reset_counters(steps, first, step)
            atomic_store(arrived, 0)
            atomic_store(generation, -1 if aborted != 0 else turn + 1)
        else:
            spins = 0
            while atomic_load(generation) == turn:
                spins += 1
                if spins >= _SPINS:
                    spins = 0
                    yield_processor()
        first = step + 1
        if atomic_load(generation) < 0:
            break
    if ith == 0:
        atomic_store(sync + 8 * STOPPED_AT, stop)


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {"execute": lambda _variant: execute}
