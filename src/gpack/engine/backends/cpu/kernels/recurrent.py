"""Layers that carry a state from token to token: a convolution's window, and the gated delta rule's matrices.

A segment reads its state at one address and writes it at another, which may be the same; where it reads at 0 the state
is zeros. A segment of any length goes token by token with the arithmetic of single tokens, in the same order, so a
row's bits depend on its text alone; as in `attention` nothing may be reordered by the compiler.

The state of a layer, float32:

    window     [d_conv - 1, n_channels]: the latest inputs of the convolution, oldest first
    matrices   [n_head, d_value / 32, d_key, 32]: columns lie together as threads share them; the last are padded
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..layout import SEGMENT_COUNT, SEGMENT_ROW, STATE_COLUMNS, STEP_N_SEGMENTS, STEP_SEGMENT_WORDS, STEP_SEGMENTS
from ..variants import Variant
from .arithmetic import exp32, root32, sigmoid32, softplus32
from .memory import as_float, atomic_add, floats, longs
from .vectors import LANES, add16, div16, exp16_of, fma16_of, load16, mul16, splat16, store16, sub16, sum16

_ZERO, _ONE = np.float32(0), np.float32(1)

# Arguments of `conv_silu`. TAPS: float32 [d_conv, n_channels], the last for the token itself; WORD: the word of a
# segment that has the address of the state to read, after it is that to write; WINDOW: where the layer's begins.
(C_STATE, C_X, C_X_ROW, C_OUT, C_OUT_ROW, C_TAPS, C_CHANNELS, C_D_CONV, C_WORD, C_WINDOW, C_DILATION) = range(11)

# Arguments of `delta_rule`. DECAY, MIX: float32 [rows, n_head], what comes before softplus and before the sigmoid;
# DECAY_BIAS, DECAY_FACTOR: float32 [n_head]; TILED: whether head h takes the key of h mod n_head_k, not of
# h // (n_head / n_head_k); MATRICES: where the layer's begin in a state.
(
    STATE,
    Q,
    Q_ROW,
    K,
    K_ROW,
    V,
    V_ROW,
    DECAY,
    DECAY_ROW,
    MIX,
    MIX_ROW,
    DECAY_BIAS,
    DECAY_FACTOR,
    OUT,
    OUT_ROW,
    N_HEAD,
    N_HEAD_K,
    D_KEY,
    D_VALUE,
    TILED,
    EPSILON,
    SCALE,
    WORD,
    MATRICES,
    SCRATCH,
    SCRATCH_BYTES,
    COUNTER,
) = range(27)

_plain = njit(error_model="numpy", fastmath=False)


def _convolution(variant: Variant) -> Callable[..., None]:
    lanes = LANES
    fma16, exp16 = fma16_of(variant), exp16_of(variant)

    @_plain
    def row_before(args: Any, x: Any, window: Any, token: Any) -> Any:
        """The address of a segment's input: of token -1 and before, the window has it; 0 for zeros."""
        if token >= 0:
            return x + token * args[C_X_ROW]
        if window == 0:
            return 0
        return window + (token + (args[C_D_CONV] - 1) * args[C_DILATION]) * args[C_CHANNELS] * 4

    @_plain
    def convolve(args: Any, x: Any, window: Any, token: Any, out: Any, first: Any, last: Any) -> None:
        """Channels first..last of one token."""
        d_conv, n_channels, dilation = args[C_D_CONV], args[C_CHANNELS], args[C_DILATION]
        whole = first + (last - first) // lanes * lanes
        one, zero = splat16(_ONE), splat16(_ZERO)
        for channel in range(first, whole, lanes):
            total = zero
            for tap in range(d_conv):
                source = row_before(args, x, window, token - (d_conv - 1 - tap) * dilation)
                if source != 0:
                    weights = load16(args[C_TAPS] + (tap * n_channels + channel) * 4)
                    total = fma16(weights, load16(source + channel * 4), total)
            store16(out + channel * 4, div16(total, add16(one, exp16(sub16(zero, total)))))
        for channel in range(whole, last):
            sum_ = _ZERO
            for tap in range(d_conv):
                source = row_before(args, x, window, token - (d_conv - 1 - tap) * dilation)
                if source != 0:
                    sum_ += floats(args[C_TAPS])[tap * n_channels + channel] * floats(source)[channel]
            floats(out)[channel] = sum_ * sigmoid32(sum_)

    @_plain
    def slide(args: Any, x: Any, window: Any, target: Any, count: Any, first: Any, last: Any) -> None:
        """The window after a segment. The oldest come first: so it may be written where it is read."""
        kept = (args[C_D_CONV] - 1) * args[C_DILATION]
        for number in range(kept):
            source = row_before(args, x, window, count - kept + number)
            made = floats(target + number * args[C_CHANNELS] * 4)
            for channel in range(first, last):
                made[channel] = floats(source)[channel] if source != 0 else _ZERO

    def conv_silu(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top. Threads share channels, in whole cache lines."""
        state = longs(args[C_STATE])
        lines = (args[C_CHANNELS] + lanes - 1) // lanes
        first = min(args[C_CHANNELS], lines * ith // nth * lanes)
        last = min(args[C_CHANNELS], lines * (ith + 1) // nth * lanes)
        if first == last:
            return
        for number in range(state[STEP_N_SEGMENTS]):
            segment = longs(state[STEP_SEGMENTS] + 8 * number * state[STEP_SEGMENT_WORDS])
            row, count = segment[SEGMENT_ROW], segment[SEGMENT_COUNT]
            window = segment[args[C_WORD]]
            if window != 0:
                window += args[C_WINDOW]
            x = args[C_X] + row * args[C_X_ROW]
            for token in range(count):
                convolve(args, x, window, token, args[C_OUT] + (row + token) * args[C_OUT_ROW], first, last)
            slide(args, x, window, segment[args[C_WORD] + 1] + args[C_WINDOW], count, first, last)

    return conv_silu


def _delta_rule(variant: Variant) -> Callable[..., None]:
    lanes, columns = LANES, STATE_COLUMNS
    fma16 = fma16_of(variant)
    row_bytes = 4 * columns

    @_plain
    def unit(source: Any, target: Any, n: Any, epsilon: Any, scale: Any) -> None:
        """A head divided by its length, and scaled; what fills up the last vector is 0."""
        total = splat16(_ZERO)
        x, made = floats(source), floats(target)
        whole = n // lanes * lanes
        for at in range(0, whole * 4, 64):
            part = load16(source + at)
            total = fma16(part, part, total)
        sum_ = sum16(total)
        for i in range(whole, n):
            sum_ += x[i] * x[i]
        factor = scale / root32(sum_ + epsilon)
        factors = splat16(factor)
        for at in range(0, whole * 4, 64):
            store16(target + at, mul16(load16(source + at), factors))
        for i in range(whole, n):
            made[i] = x[i] * factor

    @_plain
    def advance(source: Any, target: Any, d_key: Any, q: Any, k: Any, v: Any, out: Any, decay: Any, beta: Any) -> None:
        """One token's turn of 32 columns: M = decay M; M += k (beta (v - Mᵀ k))ᵀ; out = Mᵀ q. Two chains to a sum."""
        keys, queries, decays = floats(k), floats(q), splat16(decay)
        zero = splat16(_ZERO)
        a, b, c, d = zero, zero, zero, zero
        even = d_key // 2 * 2
        for i in range(0, even, 2):
            at = source + i * row_bytes
            one, two = splat16(keys[i]), splat16(keys[i + 1])
            a = fma16(mul16(load16(at), decays), one, a)
            b = fma16(mul16(load16(at + 64), decays), one, b)
            c = fma16(mul16(load16(at + 128), decays), two, c)
            d = fma16(mul16(load16(at + 192), decays), two, d)
        if even < d_key:
            at = source + even * row_bytes
            one = splat16(keys[even])
            a = fma16(mul16(load16(at), decays), one, a)
            b = fma16(mul16(load16(at + 64), decays), one, b)
        betas = splat16(beta)
        left = mul16(betas, sub16(load16(v), add16(a, c)))
        right = mul16(betas, sub16(load16(v + 64), add16(b, d)))
        a, b, c, d = zero, zero, zero, zero
        for i in range(0, even, 2):
            at, to = source + i * row_bytes, target + i * row_bytes
            one, two = splat16(keys[i]), splat16(keys[i + 1])
            first = fma16(one, left, mul16(load16(at), decays))
            second = fma16(one, right, mul16(load16(at + 64), decays))
            third = fma16(two, left, mul16(load16(at + 128), decays))
            fourth = fma16(two, right, mul16(load16(at + 192), decays))
            store16(to, first)
            store16(to + 64, second)
            store16(to + 128, third)
            store16(to + 192, fourth)
            one, two = splat16(queries[i]), splat16(queries[i + 1])
            a, b = fma16(first, one, a), fma16(second, one, b)
            c, d = fma16(third, two, c), fma16(fourth, two, d)
        if even < d_key:
            at, to = source + even * row_bytes, target + even * row_bytes
            one = splat16(keys[even])
            first = fma16(one, left, mul16(load16(at), decays))
            second = fma16(one, right, mul16(load16(at + 64), decays))
            store16(to, first)
            store16(to + 64, second)
            one = splat16(queries[even])
            a, b = fma16(first, one, a), fma16(second, one, b)
        store16(out, add16(a, c))
        store16(out + 64, add16(b, d))

    @_plain
    def turn(args: Any, segment: Any, head: Any, part: Any, scratch: Any) -> None:
        """All tokens of a segment for 32 columns of a head."""
        d_key, d_value, n_head_k = args[D_KEY], args[D_VALUE], args[N_HEAD_K]
        epsilon, scale = as_float(np.int32(args[EPSILON])), as_float(np.int32(args[SCALE]))
        n_parts = (d_value + columns - 1) // columns
        place = args[MATRICES] + (head * n_parts + part) * d_key * row_bytes
        source, target = segment[args[WORD]], segment[args[WORD] + 1] + place
        if source == 0:
            for at in range(target, target + d_key * row_bytes, 64):
                store16(at, splat16(_ZERO))
            source = target
        else:
            source += place
        head_k = head % n_head_k if args[TILED] != 0 else head // (args[N_HEAD] // n_head_k)
        # Scratch: v, out, then q and k.
        q = scratch + 2 * row_bytes
        k = q + d_key * 4
        first, n = part * columns, min(columns, d_value - part * columns)
        v, made = floats(scratch), floats(scratch + row_bytes)
        for i in range(n, columns):
            v[i] = _ZERO
        for token in range(segment[SEGMENT_ROW], segment[SEGMENT_ROW] + segment[SEGMENT_COUNT]):
            unit(args[Q] + token * args[Q_ROW] + head_k * d_key * 4, q, d_key, epsilon, scale)
            unit(args[K] + token * args[K_ROW] + head_k * d_key * 4, k, d_key, epsilon, _ONE)
            given = floats(args[V] + token * args[V_ROW] + (head * d_value + first) * 4)
            for i in range(n):
                v[i] = given[i]
            before = floats(args[DECAY] + token * args[DECAY_ROW])[head] + floats(args[DECAY_BIAS])[head]
            decay = exp32(floats(args[DECAY_FACTOR])[head] * softplus32(before))
            beta = sigmoid32(floats(args[MIX] + token * args[MIX_ROW])[head])
            advance(source, target, d_key, q, k, scratch, scratch + row_bytes, decay, beta)
            source = target
            out = floats(args[OUT] + token * args[OUT_ROW] + (head * d_value + first) * 4)
            for i in range(n):
                out[i] = made[i]

    def delta_rule(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top."""
        state = longs(args[STATE])
        n_parts = (args[D_VALUE] + columns - 1) // columns
        each = args[N_HEAD] * n_parts
        scratch = args[SCRATCH] + ith * args[SCRATCH_BYTES]
        while True:
            task = atomic_add(args[COUNTER], 1)
            if task >= each * state[STEP_N_SEGMENTS]:
                break
            segment = longs(state[STEP_SEGMENTS] + 8 * (task // each) * state[STEP_SEGMENT_WORDS])
            turn(args, segment, task % each // n_parts, task % n_parts, scratch)

    return delta_rule


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {"conv_silu": _convolution, "delta_rule": _delta_rule}
