"""What the compiled tokenisers share: how functions are compiled and kept, and a binary heap."""

from __future__ import annotations

from typing import Any

import numba


def keep(function: Any, sources: str) -> Any:
    """Compiles at the first call; what is kept has the fingerprint of its sources in its name."""
    function.__qualname__ += "_" + sources
    try:
        return numba.njit(function, cache=True, nogil=True)
    except RuntimeError:  # no place for a cache
        return numba.njit(function, nogil=True)


def inline(function: Any) -> Any:
    """Compiles into its callers: a call would count references to every array that it is given."""
    return numba.njit(function, nogil=True, inline="always")


@inline
def push(heap: Any, size: Any, value: Any) -> Any:
    """Adds to a binary heap, the lowest first; returns its new size."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if heap[parent] <= value:
            break
        heap[child] = heap[parent]
        child = parent
    heap[child] = value
    return size + 1


@inline
def pop(heap: Any, size: Any) -> Any:
    """Removes the lowest, which stands first; returns the new size."""
    size -= 1
    value = heap[size]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = value
    return size
