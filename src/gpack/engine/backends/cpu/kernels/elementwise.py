"""Steps on rows of activations: RMS norm, gated products, sums, scales, the cap of logits, rows picked out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..layout import PICK_LIST, PICK_ROWS, Q8_VALUES
from ..variants import Variant
from .arithmetic import FAST, exp32, root32, sigmoid32
from .memory import as_float, atomic_store, floats, ints, longs
from .vectors import fma16, load16, mul16, sigmoid16, splat16, store16

_ONE, _TWO = np.float32(1), np.float32(2)
_GELU_SLOPE, _GELU_CUBE = np.float32(1.5957691216057308), np.float32(0.044715)  # 2 √(2/π)


def rms_norm(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, weights, out, its row bytes, width, epsilon, 1 to add, rows of a token.

    out (+)= x / sqrt(mean(x²) + epsilon) · weights. Threads share groups of 32 elements as `quantize_q8` does, so that
    it can follow at once; a row that is cut is summed by each of its threads.
    """
    n, width, epsilon = longs(args[0])[0] * args[9], args[6], as_float(np.int32(args[7]))
    w = floats(args[3])
    groups = (width + Q8_VALUES - 1) // Q8_VALUES
    begin, end = n * groups * ith // nth, n * groups * (ith + 1) // nth
    for row in range(begin // groups, (end + groups - 1) // groups):
        first = max(0, begin - row * groups) * Q8_VALUES
        last = min(width, (end - row * groups) * Q8_VALUES)
        x, out = floats(args[1] + row * args[2]), floats(args[4] + row * args[5])
        total = np.float32(0)
        for i in range(width):
            total += x[i] * x[i]
        scale = _ONE / root32(total / np.float32(width) + epsilon)
        if args[8] != 0:
            for i in range(first, last):
                out[i] += x[i] * scale * w[i]
        else:
            for i in range(first, last):
                out[i] = x[i] * scale * w[i]


@njit(error_model="numpy", fastmath=FAST)
def _columns(width: Any, piece: Any, n_pieces: Any) -> Any:
    """A piece of a row, in whole cache lines."""
    lines = (width + 15) // 16
    return min(width, lines * piece // n_pieces * 16), min(width, lines * (piece + 1) // n_pieces * 16)


@njit(error_model="numpy", fastmath=FAST)
def _silu_row(gate: Any, up: Any, out: Any, first: Any, last: Any) -> None:
    for at in range(first * 4, last // 16 * 64, 64):
        x = load16(gate + at)
        store16(out + at, mul16(mul16(x, sigmoid16(x)), load16(up + at)))
    g, u, o = floats(gate), floats(up), floats(out)
    for i in range(max(first, last // 16 * 16), last):
        o[i] = g[i] * sigmoid32(g[i]) * u[i]


@njit(error_model="numpy", fastmath=FAST)
def _gelu_row(gate: Any, up: Any, out: Any, first: Any, last: Any) -> None:
    # 0.5 x (1 + tanh(y)) = x σ(2 y)
    slope, cube = splat16(_GELU_SLOPE), splat16(_GELU_SLOPE * _GELU_CUBE)
    for at in range(first * 4, last // 16 * 64, 64):
        x = load16(gate + at)
        y = mul16(x, fma16(cube, mul16(x, x), slope))
        store16(out + at, mul16(mul16(x, sigmoid16(y)), load16(up + at)))
    g, u, o = floats(gate), floats(up), floats(out)
    for i in range(max(first, last // 16 * 16), last):
        o[i] = g[i] * sigmoid32(_GELU_SLOPE * g[i] * (_ONE + _GELU_CUBE * g[i] * g[i])) * u[i]


@njit(error_model="numpy", fastmath=FAST)
def _sigmoid_row(gate: Any, up: Any, out: Any, first: Any, last: Any) -> None:
    for at in range(first * 4, last // 16 * 64, 64):
        store16(out + at, mul16(sigmoid16(load16(gate + at)), load16(up + at)))
    g, u, o = floats(gate), floats(up), floats(out)
    for i in range(max(first, last // 16 * 16), last):
        o[i] = sigmoid32(g[i]) * u[i]


def sigmoid_scale(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, gate, its row bytes, up, its row bytes, out, its row bytes, width: out = σ(gate[0]) · up."""
    n, width = longs(args[0])[0], args[7]
    first, last = _columns(width, ith, nth)
    for r in range(n):
        factor = sigmoid32(floats(args[1] + r * args[2])[0])
        up, out = floats(args[3] + r * args[4]), floats(args[5] + r * args[6])
        for i in range(first, last):
            out[i] = factor * up[i]


def columns(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, out, its row bytes, first, size, step, count: pieces of rows side by side."""
    n, count = longs(args[0])[0], args[8]
    for piece in range(n * count * ith // nth, n * count * (ith + 1) // nth):
        row, number = piece // count, piece % count
        x = floats(args[1] + row * args[2] + 4 * (args[5] + number * args[7]))
        out = floats(args[3] + row * args[4] + 4 * number * args[6])
        for i in range(args[6]):
            out[i] = x[i]


def _gated(row: Any) -> Callable[..., None]:
    def kernel(args: Any, ith: int, nth: int) -> None:
        """Arguments: state, gate, its row bytes, up, its row bytes, out, its row bytes, width, rows of a token.

        Threads share groups as in `rms_norm`.
        """
        n, width = longs(args[0])[0] * args[8], args[7]
        groups = (width + Q8_VALUES - 1) // Q8_VALUES
        begin, end = n * groups * ith // nth, n * groups * (ith + 1) // nth
        for r in range(begin // groups, (end + groups - 1) // groups):
            first = max(0, begin - r * groups) * Q8_VALUES
            last = min(width, (end - r * groups) * Q8_VALUES)
            row(args[1] + r * args[2], args[3] + r * args[4], args[5] + r * args[6], first, last)

    return kernel


def add(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, row bytes, y, row bytes, width, factor, 1 to keep x: x = x + factor y, or factor y."""
    n, width, factor = longs(args[0])[0], args[5], as_float(np.int32(args[6]))
    for r in range(n):
        x, y = floats(args[1] + r * args[2]), floats(args[3] + r * args[4])
        first, last = _columns(width, ith, nth)
        if args[7] != 0:
            for i in range(first, last):
                x[i] += factor * y[i]
        else:
            for i in range(first, last):
                x[i] = factor * y[i]


def add_vector(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, vector, width: x = x + vector in each row."""
    y = floats(args[3])
    for r in range(longs(args[0])[0]):
        x = floats(args[1] + r * args[2])
        first, last = _columns(args[4], ith, nth)
        for i in range(first, last):
            x[i] += y[i]


def soft_cap(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, width, c: x = c tanh(x / c)."""
    n, width, cap = longs(args[0])[0], args[3], as_float(np.int32(args[4]))
    for r in range(n):
        x = floats(args[1] + r * args[2])
        first, last = _columns(width, ith, nth)
        for i in range(first, last):
            x[i] = cap * (_ONE - _TWO / (exp32(_TWO * (x[i] / cap)) + _ONE))


def pick_rows(args: Any, ith: int, nth: int) -> None:
    """Arguments: state of the result (rows, address of their numbers, int32), x, its row bytes, out, its, width.

    Copies the rows with these numbers.
    """
    n, numbers, width = longs(args[0])[PICK_ROWS], ints(longs(args[0])[PICK_LIST]), args[5]
    for r in range(n):
        x, out = floats(args[1] + np.int64(numbers[r]) * args[2]), floats(args[3] + r * args[4])
        first, last = _columns(width, ith, nth)
        for i in range(first, last):
            out[i] = x[i]


def check_finite(args: Any, ith: int, nth: int) -> None:
    """Arguments: state, x, its row bytes, width, address of an int64 that becomes 1 where a value is not finite."""
    exponent, found = np.int32(0x7F800000), False
    first, last = _columns(args[3], ith, nth)
    for r in range(longs(args[0])[0]):
        x = ints(args[1] + r * args[2])
        for i in range(first, last):
            found |= (x[i] & exponent) == exponent
    if found:
        atomic_store(args[4], 1)


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "rms_norm": lambda _variant: rms_norm,
    "silu_gate": lambda _variant: _gated(_silu_row),
    "gelu_gate": lambda _variant: _gated(_gelu_row),
    "sigmoid_gate": lambda _variant: _gated(_sigmoid_row),
    "sigmoid_scale": lambda _variant: sigmoid_scale,
    "columns": lambda _variant: columns,
    "add": lambda _variant: add,
    "add_vector": lambda _variant: add_vector,
    "soft_cap": lambda _variant: soft_cap,
    "pick_rows": lambda _variant: pick_rows,
    "check_finite": lambda _variant: check_finite,
}
