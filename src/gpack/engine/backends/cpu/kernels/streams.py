"""Steps on rows that are several pieces side by side, and activations alone.

Each element is worked out in the same way whoever shares out the rows: sixteen at once where sixteen are left in its
piece, and alone at a piece's end. Nothing may be reordered by the compiler, so no function has its fast mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..variants import Variant
from .arithmetic import root32, sigmoid32
from .memory import as_float, floats, longs
from .vectors import LANES, add16, div16, exp16_of, fma16_of, load16, mul16, splat16, store16, sub16, sum16

_ZERO, _ONE, _LEAST = np.float32(0), np.float32(1), np.float32(1e-6)
_plain = njit(error_model="numpy", fastmath=False)


@_plain
def _columns(width: Any, piece: Any, n_pieces: Any) -> Any:
    """A share of a row, in whole cache lines."""
    lines = (width + 15) // 16
    return min(width, lines * piece // n_pieces * 16), min(width, lines * (piece + 1) // n_pieces * 16)


def _activate(variant: Variant, kind: str) -> Callable[..., None]:
    exp16, is_silu, lanes = exp16_of(variant), kind == "silu", LANES

    @_plain
    def activate_row(x: Any, first: Any, last: Any, factor: Any, scale: Any) -> None:
        factors, scales, one, zero = splat16(factor), splat16(scale), splat16(_ONE), splat16(_ZERO)
        whole = first + (last - first) // lanes * lanes
        for at in range(x + first * 4, x + whole * 4, 64):
            y = mul16(factors, load16(at))
            made = div16(one, add16(one, exp16(sub16(zero, y))))
            if is_silu:
                made = mul16(y, made)
            store16(at, mul16(scales, made))
        row = floats(x)
        for i in range(whole, last):
            y = factor * row[i]
            row[i] = scale * (y * sigmoid32(y) if is_silu else sigmoid32(y))

    def activate(args: Any, ith: int, nth: int) -> None:
        """Arguments: state, x, its row bytes, width, factor, scale: x = scale · activation(factor · x)."""
        factor, scale = as_float(np.int32(args[4])), as_float(np.int32(args[5]))
        first, last = _columns(args[3], ith, nth)
        for row in range(longs(args[0])[0]):
            activate_row(args[1] + row * args[2], first, last, factor, scale)

    return activate


def _dot(variant: Variant) -> Any:
    fma16, lanes = fma16_of(variant), LANES

    @_plain
    def dot(a: Any, b: Any, n: Any) -> Any:
        """The sum of n products."""
        total, whole = splat16(_ZERO), n // lanes * lanes
        for at in range(0, whole * 4, 64):
            total = fma16(load16(a + at), load16(b + at), total)
        sum_, x, y = sum16(total), floats(a), floats(b)
        for i in range(whole, n):
            sum_ += x[i] * y[i]
        return sum_

    return dot


def _piece_norm(variant: Variant) -> Callable[..., None]:
    dot, lanes = _dot(variant), LANES

    @_plain
    def norm(x: Any, weights: Any, out: Any, size: Any, epsilon: Any) -> None:
        scale = _ONE / root32(dot(x, x, size) / np.float32(size) + epsilon)
        scales, whole = splat16(scale), size // lanes * lanes
        for at in range(0, whole * 4, 64):
            store16(out + at, mul16(mul16(load16(x + at), scales), load16(weights + at)))
        source, weight, made = floats(x), floats(weights), floats(out)
        for i in range(whole, size):
            made[i] = source[i] * scale * weight[i]

    def piece_norm(args: Any, ith: int, nth: int) -> None:
        """Arguments: state, x, its row bytes, weights, out, its row bytes, size of a piece, pieces, epsilon."""
        size, count, epsilon = args[6], args[7], as_float(np.int32(args[8]))
        n = longs(args[0])[0] * count
        for unit in range(n * ith // nth, n * (ith + 1) // nth):
            row, place = unit // count, unit % count * size * 4
            norm(args[1] + row * args[2] + place, args[3] + place, args[4] + row * args[5] + place, size, epsilon)

    return piece_norm


def _mean_pieces(_variant: Variant) -> Callable[..., None]:
    lanes = LANES

    @_plain
    def mean_row(x: Any, out: Any, size: Any, count: Any, first: Any, last: Any) -> None:
        share = _ONE / np.float32(count)
        shares, whole = splat16(share), first + (last - first) // lanes * lanes
        for at in range(first * 4, whole * 4, 64):
            total = load16(x + at)
            for piece in range(1, count):
                total = add16(total, load16(x + piece * size * 4 + at))
            store16(out + at, mul16(total, shares))
        source, made = floats(x), floats(out)
        for i in range(whole, last):
            sum_ = source[i]
            for piece in range(1, count):
                sum_ += source[piece * size + i]
            made[i] = sum_ * share

    def mean_pieces(args: Any, ith: int, nth: int) -> None:
        """Arguments: state, x, its row bytes, out, its row bytes, size of a piece, pieces."""
        first, last = _columns(args[5], ith, nth)
        for row in range(longs(args[0])[0]):
            mean_row(args[1] + row * args[2], args[3] + row * args[4], args[5], args[6], first, last)

    return mean_pieces


def _add_to_pieces(variant: Variant) -> Callable[..., None]:
    fma16, lanes = fma16_of(variant), LANES

    @_plain
    def add_row(x: Any, y: Any, weight: Any, first: Any, last: Any) -> None:
        weights, whole = splat16(weight), first + (last - first) // lanes * lanes
        for at in range(first * 4, whole * 4, 64):
            store16(x + at, fma16(weights, load16(y + at), load16(x + at)))
        made, added = floats(x), floats(y)
        for i in range(whole, last):
            made[i] += weight * added[i]

    def add_to_pieces(args: Any, ith: int, nth: int) -> None:
        """Arguments: state, x, its row bytes, y, its row bytes, weights, their row bytes, size of a piece, pieces."""
        size, count = args[7], args[8]
        first, last = _columns(size, ith, nth)
        for row in range(longs(args[0])[0]):
            weights = floats(args[5] + row * args[6])
            for piece in range(count):
                x = args[1] + row * args[2] + piece * size * 4
                add_row(x, args[3] + row * args[4], weights[piece], first, last)

    return add_to_pieces


def _piece_gate(variant: Variant) -> Callable[..., None]:
    dot, lanes = _dot(variant), LANES

    @_plain
    def scale_row(v: Any, out: Any, size: Any, factor: Any) -> None:
        factors, whole = splat16(factor), size // lanes * lanes
        for at in range(0, whole * 4, 64):
            store16(out + at, mul16(load16(v + at), factors))
        source, made = floats(v), floats(out)
        for i in range(whole, size):
            made[i] = source[i] * factor

    def piece_gate(args: Any, ith: int, nth: int) -> None:
        """Arguments: state; k, q, v, out, each with its row bytes; size of a piece, pieces, scale."""
        size, count, scale = args[9], args[10], as_float(np.int32(args[11]))
        n = longs(args[0])[0] * count
        for unit in range(n * ith // nth, n * (ith + 1) // nth):
            row, place = unit // count, unit % count * size * 4
            s = dot(args[1] + row * args[2] + place, args[3] + row * args[4] + place, size) * scale
            root = root32(max(abs(s), _LEAST))
            if s < _ZERO:
                root = -root
            elif s == _ZERO:
                root = _ZERO
            gate = sigmoid32(root + s * _ZERO)  # what is not finite must show
            scale_row(args[5] + row * args[6], args[7] + row * args[8] + place, size, gate)

    return piece_gate


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "activate_silu": lambda variant: _activate(variant, "silu"),
    "activate_sigmoid": lambda variant: _activate(variant, "sigmoid"),
    "piece_norm": _piece_norm,
    "mean_pieces": _mean_pieces,
    "add_to_pieces": _add_to_pieces,
    "piece_gate": _piece_gate,
}
