"""Queries, keys and values of a batch: norm of each head, rotary position embedding, and into the cache.

The cache of one layer has, for each key/value head, keys in tiles of 16 positions and values in rows. A tile is
[width, 16]: attention multiplies 16 keys at once without turning anything. Heads are padded with zeros to `padded`.

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

from ..variants import Variant
from .arithmetic import half_at, put_half, root32, round32
from .attention import FAST
from .memory import as_float, floats, longs, signed_bytes
from .vectors import LANES

# Arguments.
(
    STATE,
    Q,
    Q_ROW,
    K,
    K_ROW,
    V,
    V_ROW,
    N_HEAD,
    N_KV,
    WIDTH,
    PADDED,
    N_ROTATED,
    NEIGHBOURS,
    TABLE,
    Q_NORM,
    K_NORM,
    EPSILON,
    KEYS,
    KEYS_HEAD,
    VALUES,
    VALUES_HEAD,
) = range(21)


@njit(error_model="numpy", fastmath=FAST)
def norm_head(head: Any, width: Any, weight: Any, epsilon: Any) -> None:
    """RMS norm of one head, in place."""
    x, w = floats(head), floats(weight)
    total = np.float32(0)
    for i in range(width):
        total += x[i] * x[i]
    scale = np.float32(1) / root32(total / np.float32(width) + epsilon)
    for i in range(width):
        x[i] = x[i] * scale * w[i]


@njit(error_model="numpy", fastmath=FAST)
def rotate(head: Any, n: Any, neighbours: Any, table: Any) -> None:
    """Rotates pairs of the first n elements, in place; the table has n/2 cosines and n/2 sines."""
    x, cosines, sines = floats(head), floats(table), floats(table + n * 2)
    pairs = n // 2
    if neighbours:
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
    """The kernel for a cache of a kind: F32, F16 or Q8_0."""
    half, put = half_at(variant), put_half(variant)
    is_f32, is_f16, lanes = kind == "F32", kind == "F16", LANES

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
    def store_key(head: Any, width: Any, padded: Any, keys: Any, position: Any) -> None:
        x = floats(head)
        tile, lane = position // lanes, position % lanes
        if is_f32:
            target = floats(keys + (tile * padded * lanes + lane) * 4)
            for i in range(width):
                target[i * lanes] = x[i]
        elif is_f16:
            to = keys + (tile * padded * lanes + lane) * 2
            for i in range(width):
                put(to + i * lanes * 2, x[i])
        else:
            start = keys + tile * (padded * lanes + padded)
            codes = signed_bytes(start + lane)
            for begin in range(0, width, 32):
                end = min(begin + 32, width)
                scales = start + padded * lanes + begin // 32 * lanes * 2
                factor = scale_of(head, begin, end, scales + lane * 2)
                for i in range(begin, end):
                    codes[i * lanes] = np.int8(round32(x[i] * factor))

    @njit(error_model="numpy", fastmath=FAST)
    def store_value(head: Any, width: Any, padded: Any, values: Any, position: Any) -> None:
        x = floats(head)
        if is_f32:
            target = floats(values + position * padded * 4)
            for i in range(width):
                target[i] = x[i]
        elif is_f16:
            for i in range(width):
                put(values + (position * padded + i) * 2, x[i])
        else:
            start = values + position * (padded + padded // 16)
            codes = signed_bytes(start)
            for begin in range(0, width, 32):
                end = min(begin + 32, width)
                factor = scale_of(head, begin, end, start + padded + begin // 16)
                for i in range(begin, end):
                    codes[i] = np.int8(round32(x[i] * factor))

    def store(args: Any, ith: int, nth: int) -> None:
        n_tokens, first = longs(args[STATE])[0], longs(args[STATE])[1]
        n_head, n_kv, width, padded = args[N_HEAD], args[N_KV], args[WIDTH], args[PADDED]
        epsilon = as_float(np.int32(args[EPSILON]))
        n_rotated = args[N_ROTATED]
        n_units = n_head + 2 * n_kv
        total = n_tokens * n_units
        for unit in range(total * ith // nth, total * (ith + 1) // nth):
            token, number = unit // n_units, unit % n_units
            position = first + token
            table = args[TABLE] + position * n_rotated * 4
            if number < n_head:
                head = args[Q] + token * args[Q_ROW] + number * width * 4
                if args[Q_NORM] != 0:
                    norm_head(head, width, args[Q_NORM], epsilon)
                rotate(head, n_rotated, args[NEIGHBOURS], table)
            elif number < n_head + n_kv:
                kv = number - n_head
                head = args[K] + token * args[K_ROW] + kv * width * 4
                if args[K_NORM] != 0:
                    norm_head(head, width, args[K_NORM], epsilon)
                rotate(head, n_rotated, args[NEIGHBOURS], table)
                store_key(head, width, padded, args[KEYS] + kv * args[KEYS_HEAD], position)
            else:
                kv = number - n_head - n_kv
                head = args[V] + token * args[V_ROW] + kv * width * 4
                store_value(head, width, padded, args[VALUES] + kv * args[VALUES_HEAD], position)

    return store


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "heads_f32": lambda variant: build(variant, "F32"),
    "heads_f16": lambda variant: build(variant, "F16"),
    "heads_q8_0": lambda variant: build(variant, "Q8_0"),
}
