"""Queries, keys and values of a step: norm of each head, rotary position embedding, and into the cache.

A block of the cache has, for each layer and key/value head, the keys of 64 positions in 4 tiles of 16 and their values
in rows. A tile is [padded, 16]: attention multiplies 16 keys at once without turning anything. `padded` is head_dim,
rounded up; what is beyond head_dim, or at positions that were not written, is never made use of and may be anything.

    kind   key tile                                                   value row
    F32    float32 [padded, 16]                                       float32 [padded]
    F16    float16 [padded, 16]                                       float16 [padded]
    Q8_0   int8 [padded, 16], then float16 scales [padded / 32, 16]   int8 [padded], then float16 scales [padded / 32]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..layout import (
    BLOCK_POSITIONS,
    CACHE_TYPES,
    STEP_POSITIONS,
    STEP_SEGMENT_OF,
    STEP_SEGMENT_WORDS,
    STEP_SEGMENTS,
    STEP_TYPES,
)
from ..variants import Variant
from .arithmetic import FAST, half_at, put_half, root32, round32
from .memory import as_float, floats, ints, longs, signed_bytes
from .vectors import LANES

# Arguments. ROPE: the address of a cell that has the address of the table of cosines and sines; TABLE: the word of a
# segment that has the address of the group's block table; KEYS, VALUES: where the layer's begin in a block;
# HEAD_BYTES: of one key/value head, of either.
(
    STATE,
    Q,
    Q_ROW,
    K,
    K_ROW,
    V,
    V_ROW,
    N_HEAD,
    N_HEAD_KV,
    HEAD_DIM,
    PADDED,
    N_ROTATED,
    INTERLEAVED,
    ROPE,
    Q_NORM,
    K_NORM,
    EPSILON,
    TABLE,
    KEYS,
    VALUES,
    HEAD_BYTES,
) = range(21)


@njit(error_model="numpy", fastmath=FAST)
def norm_head(head: Any, head_dim: Any, weight: Any, epsilon: Any) -> None:
    """RMS norm of one head, in place."""
    x, w = floats(head), floats(weight)
    total = np.float32(0)
    for i in range(head_dim):
        total += x[i] * x[i]
    scale = np.float32(1) / root32(total / np.float32(head_dim) + epsilon)
    for i in range(head_dim):
        x[i] = x[i] * scale * w[i]


@njit(error_model="numpy", fastmath=FAST)
def rotate(head: Any, n: Any, interleaved: Any, table: Any) -> None:
    """Rotates pairs of the first n elements, in place; the table has n/2 cosines and n/2 sines."""
    x, cosines, sines = floats(head), floats(table), floats(table + n * 2)
    pairs = n // 2
    if interleaved:
        for j in range(pairs):
            a, b = x[2 * j], x[2 * j + 1]
            x[2 * j] = a * cosines[j] - b * sines[j]
            x[2 * j + 1] = a * sines[j] + b * cosines[j]
    else:
        for j in range(pairs):
            a, b = x[j], x[j + pairs]
            x[j] = a * cosines[j] - b * sines[j]
            x[j + pairs] = a * sines[j] + b * cosines[j]


def build(variant: Variant, kind: str) -> Callable[..., None]:
    """The kernel for a cache of a type: F32, F16 or Q8_0."""
    half, put = half_at(variant), put_half(variant)
    is_f32, is_f16, lanes, block = kind == "F32", kind == "F16", LANES, BLOCK_POSITIONS
    type_word = STEP_TYPES + 4 * CACHE_TYPES.index(kind)

    @njit(error_model="numpy", fastmath=FAST)
    def scale_of(head: Any, begin: Any, end: Any, place: Any) -> Any:
        """The factor for the codes of a block; its scale is put into its place."""
        x = floats(head)
        most = mark = np.float32(0)
        for i in range(begin, end):
            most = max(most, abs(x[i]))
            mark += x[i] * np.float32(0)  # what is not finite must show: a code cannot say so
        scale = most / np.float32(127) + mark
        put(place, scale)
        return np.float32(1) / scale if half(place) > np.float32(0) else np.float32(0)

    @njit(error_model="numpy", fastmath=FAST)
    def store_key(head: Any, head_dim: Any, padded: Any, keys: Any, position: Any) -> None:
        x = floats(head)
        tile, lane = position // lanes, position % lanes
        if is_f32:
            target = floats(keys + (tile * padded * lanes + lane) * 4)
            for i in range(head_dim):
                target[i * lanes] = x[i]
        elif is_f16:
            to = keys + (tile * padded * lanes + lane) * 2
            for i in range(head_dim):
                put(to + i * lanes * 2, x[i])
        else:
            start = keys + tile * (padded * lanes + padded)
            codes = signed_bytes(start + lane)
            for begin in range(0, head_dim, 32):
                end = min(begin + 32, head_dim)
                scales = start + padded * lanes + begin // 32 * lanes * 2
                factor = scale_of(head, begin, end, scales + lane * 2)
                for i in range(begin, end):
                    codes[i * lanes] = np.int8(round32(x[i] * factor))

    @njit(error_model="numpy", fastmath=FAST)
    def store_value(head: Any, head_dim: Any, padded: Any, values: Any, position: Any) -> None:
        x = floats(head)
        if is_f32:
            target = floats(values + position * padded * 4)
            for i in range(head_dim):
                target[i] = x[i]
        elif is_f16:
            for i in range(head_dim):
                put(values + (position * padded + i) * 2, x[i])
        else:
            start = values + position * (padded + padded // 16)
            codes = signed_bytes(start)
            for begin in range(0, head_dim, 32):
                end = min(begin + 32, head_dim)
                factor = scale_of(head, begin, end, start + padded + begin // 16)
                for i in range(begin, end):
                    codes[i] = np.int8(round32(x[i] * factor))

    @njit(error_model="numpy", fastmath=FAST)
    def prepare(args: Any, head: Any, norm: Any, position: Any) -> None:
        """Norm and rotation of one head, in place."""
        n_rotated = args[N_ROTATED]
        if norm != 0:
            norm_head(head, args[HEAD_DIM], norm, as_float(np.int32(args[EPSILON])))
        if n_rotated > 0:
            rotate(head, n_rotated, args[INTERLEAVED], longs(args[ROPE])[0] + position * n_rotated * 4)

    def store(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top."""
        state = longs(args[STATE])
        first_row, n_rows = state[type_word + 2], state[type_word + 3] - state[type_word + 2]
        n_head, n_kv, head_dim, padded = args[N_HEAD], args[N_HEAD_KV], args[HEAD_DIM], args[PADDED]
        n_units = n_head + 2 * n_kv
        total = n_rows * n_units
        positions, segment_of = longs(state[STEP_POSITIONS]), ints(state[STEP_SEGMENT_OF])
        for unit in range(total * ith // nth, total * (ith + 1) // nth):
            row, number = first_row + unit // n_units, unit % n_units
            position = positions[row]
            if number < n_head:
                prepare(args, args[Q] + row * args[Q_ROW] + number * head_dim * 4, args[Q_NORM], position)
                continue
            segment = state[STEP_SEGMENTS] + 8 * np.int64(segment_of[row]) * state[STEP_SEGMENT_WORDS]
            held = longs(longs(segment)[args[TABLE]])[position // block]
            place = position % block
            if number < n_head + n_kv:
                kv = number - n_head
                head = args[K] + row * args[K_ROW] + kv * head_dim * 4
                prepare(args, head, args[K_NORM], position)
                store_key(head, head_dim, padded, held + args[KEYS] + kv * args[HEAD_BYTES], place)
            else:
                kv = number - n_head - n_kv
                head = args[V] + row * args[V_ROW] + kv * head_dim * 4
                store_value(head, head_dim, padded, held + args[VALUES] + kv * args[HEAD_BYTES], place)

    return store


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "heads_f32": lambda variant: build(variant, "F32"),
    "heads_f16": lambda variant: build(variant, "F16"),
    "heads_q8_0": lambda variant: build(variant, "Q8_0"),
}
