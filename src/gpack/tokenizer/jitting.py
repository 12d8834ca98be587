"""What the compiled tokenisers share: how functions are compiled and kept, and a binary heap."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numba

from ..machine import cache_folder


def keep(function: Any, sources: str) -> Any:
    """Compiles at the first call; what is kept has the fingerprint of its sources in its name."""
    function.__qualname__ += "_" + sources
    if _has_place(function.__code__.co_filename):
        with suppress(RuntimeError):  # numba finds no place after all
            return numba.njit(function, cache=True, nogil=True)
    return numba.njit(function, nogil=True)


def _has_place(source: str) -> bool:
    """Whether numba has a folder for its cache: where there is none beside the source, it makes one in the home.

    It makes that where there is no home too, and calls it `~`.
    """
    beside = os.path.dirname(source)
    return bool(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() or os.access(beside, os.W_OK))


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
