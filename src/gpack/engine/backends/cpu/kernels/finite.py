"""Looks through stored weights for scales and floats that are not finite, as fast as memory gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..variants import Variant
from .memory import atomic_add, atomic_store, longs

# Words of the arguments.
TABLE, PIECES, LENGTH, STRIDE, OFFSET, MASK, ADD, TEST, FOUND, COUNTER = range(10)
_CHUNK = 1 << 18  # bytes that a thread takes at a time


def find_not_finite(args: Any, ith: int, nth: int) -> None:
    """Arguments: addresses of pieces, their number, bytes of a piece, then what a unit is, and where to report.

    A piece is units of STRIDE bytes. Of each the 8 bytes at OFFSET are read: those with (bytes & MASK) + ADD carrying
    into a bit of TEST are reported by a 1 at FOUND. A STRIDE of 8 is for floats: the last units may overlap.
    """
    table = longs(args[TABLE])
    length, stride, mask, add, test = args[LENGTH], args[STRIDE], args[MASK], args[ADD], args[TEST]
    units = length // stride
    size = _CHUNK // stride
    n_chunks = (units + size - 1) // size
    while True:
        turn = atomic_add(args[COUNTER], 1)
        if turn >= n_chunks * args[PIECES]:
            break
        first = turn % n_chunks * size
        stop = min(first + size, units)
        start = table[turn // n_chunks]
        found = 0
        if stride == 8:
            words = longs(start)
            for unit in range(first, stop):
                found |= (words[unit] & mask) + add
            if stop == units:
                found |= (longs(start + length - 8)[0] & mask) + add
        else:
            at = start + args[OFFSET]
            for unit in range(first, stop):
                found |= (longs(at + unit * stride)[0] & mask) + add
        if found & test != 0:
            atomic_store(args[FOUND], 1)


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {"find_not_finite": lambda _variant: find_not_finite}
