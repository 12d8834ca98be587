"""The router of a mixture of experts, and the sum of what its experts give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..variants import Variant
from .arithmetic import exp32
from .memory import as_float, floats, ints, longs

_SMALLEST = np.float32(2.0**-14)  # the smallest normal 16-bit float: a sum is never divided by less
_TAKEN = np.float32(-1)


def route(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, scores, their row bytes, experts, experts of a token, chosen, weights, scale.

    Softmax over all experts' scores, in place; the most likely go to `chosen` (int32), the lower number first where
    two are equal, and their probabilities, divided by their sum and times `scale`, to `weights` (float32).
    """
    n, n_expert, n_used, scale = longs(args[0])[0], args[3], args[4], as_float(np.int32(args[7]))
    for row in range(n * ith // nth, n * (ith + 1) // nth):
        p = floats(args[1] + row * args[2])
        chosen, weights = ints(args[5] + row * n_used * 4), floats(args[6] + row * n_used * 4)
        largest = p[0]
        for i in range(1, n_expert):
            largest = max(largest, p[i])
        total = np.float32(0)
        for i in range(n_expert):
            p[i] = exp32(p[i] - largest)
            total += p[i]
        kept = np.float32(0)
        for k in range(n_used):
            best, most = 0, _TAKEN
            for i in range(n_expert):
                if p[i] > most:
                    best, most = i, p[i]
            chosen[k] = np.int32(best)
            weights[k] = p[best] / total
            kept += weights[k]
            p[best] = _TAKEN
        factor = scale / max(kept, _SMALLEST)
        for k in range(n_used):
            weights[k] *= factor


def mix(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, results, their row bytes, experts of a token, weights, width, 1 to keep x.

    x (+)= Σ weight · result of a token's experts, in the order they were chosen.
    """
    n, n_used, width = longs(args[0])[0], args[5], args[7]
    lines = (width + 15) // 16
    first, last = min(width, lines * ith // nth * 16), min(width, lines * (ith + 1) // nth * 16)
    for row in range(n):
        x, weights = floats(args[1] + row * args[2]), floats(args[6] + row * n_used * 4)
        if args[8] == 0:
            for i in range(first, last):
                x[i] = np.float32(0)
        for k in range(n_used):
            y, weight = floats(args[3] + (row * n_used + k) * args[4]), weights[k]
            for i in range(first, last):
                x[i] += weight * y[i]


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "route": lambda _variant: route,
    "mix": lambda _variant: mix,
}
