"""A router's choice of experts, and the sum of their results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from ..layout import MOST_EXPERTS, ROUTE_THREADS
from .dialect import kernel

_LEAST_SUM = 2.0**-14


@kernel("route", "f32* i32 i32 f32 i32* f32*", most_threads=ROUTE_THREADS)
def route(scores: Any, n_expert: Any, n_used: Any, scale: Any, chosen: Any, weights: Any) -> None:
    """A block of 32 threads for each row; of equal probabilities the lower number is first."""
    values = cuda.shared.array(MOST_EXPERTS, np.float32)
    best = cuda.shared.array(ROUTE_THREADS, np.float32)
    places = cuda.shared.array(ROUTE_THREADS, np.int32)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    top = scores[np.int64(row) * n_expert]
    for i in range(n_expert):
        if not scores[np.int64(row) * n_expert + i] <= top:
            top = scores[np.int64(row) * n_expert + i]
    cuda.syncthreads()
    for i in range(t, n_expert, ROUTE_THREADS):
        values[i] = np.float32(math.exp(scores[np.int64(row) * n_expert + i] - top))
    cuda.syncthreads()
    total = np.float32(0)
    for i in range(n_expert):
        total += values[i]
    taken = np.float32(0)
    for used in range(n_used):
        cuda.syncthreads()
        best[t], places[t] = np.float32(-2), np.int32(0)
        for i in range(t, n_expert, ROUTE_THREADS):
            if values[i] > best[t]:
                best[t], places[t] = values[i], np.int32(i)
        half = ROUTE_THREADS >> 1
        while half > 0:
            cuda.syncthreads()
            if t < half:
                other = best[t + half]
                if other > best[t] or (other == best[t] and places[t + half] < places[t]):
                    best[t], places[t] = other, places[t + half]
            half >>= 1
        cuda.syncthreads()
        share = best[0] / total
        if not total > np.float32(0):
            share = total  # no number
        taken += share
        if t == 0:
            chosen[np.int64(row) * n_used + used] = places[0]
            weights[np.int64(row) * n_used + used] = share
            values[places[0]] = np.float32(-1)
    cuda.syncthreads()
    taken = max(taken, np.float32(_LEAST_SUM))
    if t == 0:
        for used in range(n_used):
            at = np.int64(row) * n_used + used
            weights[at] = weights[at] / taken * scale


@kernel("mix", "f32* f32* i32 i32 f32* i32")
def mix(x: Any, weights: Any, n_used: Any, width: Any, out: Any, count: Any) -> None:
    """The sum of each row's experts' results times their weights, in the order in which they were chosen."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        row, column = np.int64(i // width), i % width
        total = np.float32(0)
        for used in range(n_used):
            total += weights[row * n_used + used] * x[(row * n_used + used) * width + column]
        out[i] = total
