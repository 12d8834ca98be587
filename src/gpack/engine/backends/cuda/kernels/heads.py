"""Queries, keys and values: norms of heads, rotation, and how keys and values are kept in the pool's blocks.

A pool is addressed from its first unit: tables hold addresses in bytes, which count from where the pool's pointer
points to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..layout import BLOCK_POSITIONS, BLOCK_SHIFT, MOST_HEAD_DIM, SEGMENT_TABLES
from .dialect import device, from_half, kernel, to_half


@device
def block_address(positions: Any, segment_of: Any, segments: Any, words: Any, group: Any, tables: Any, row: Any) -> Any:
    """The address of the block that a row's position is in."""
    table = segments[np.int64(segment_of[row]) * words + SEGMENT_TABLES + group]
    return tables[table + (positions[row] >> BLOCK_SHIFT)]


@device
def read_f32(pool: Any, at: Any, i: Any) -> Any:
    return pool[at + i]


@device
def read_f16(pool: Any, at: Any, i: Any) -> Any:
    return from_half(pool[at + i])


@device
def read_q8_0(pool: Any, at: Any, i: Any) -> Any:
    """Groups of 32 are a scale and sixteen words of two codes each."""
    group = at + (i >> 5) * 17
    code = (np.int64(pool[group + 1 + ((i & 31) >> 1)]) >> (8 * (i & 1))) & 255
    return np.float32((code ^ 128) - 128) * from_half(pool[group])


@device
def write_f32(pool: Any, at: Any, values: Any, size: Any, t: Any, threads: Any) -> None:
    for i in range(t, size, threads):
        pool[at + i] = values[i]


@device
def write_f16(pool: Any, at: Any, values: Any, size: Any, t: Any, threads: Any) -> None:
    for i in range(t, size, threads):
        pool[at + i] = to_half(values[i])


@device
def write_q8_0(pool: Any, at: Any, values: Any, size: Any, t: Any, threads: Any) -> None:
    rounder = np.float32(12582912.0)
    for group in range(t, (size + 31) // 32, threads):
        largest = np.float32(0)
        broken = np.float32(0)
        for i in range(32 * group, min(32 * group + 32, size)):
            broken += values[i] * np.float32(0)
            if abs(values[i]) > largest:
                largest = np.float32(abs(values[i]))
        scale = largest / np.float32(127) + broken
        kept = to_half(scale)
        inverse = np.float32(0)
        if from_half(kept) != np.float32(0):
            inverse = np.float32(1) / scale
        pool[at + group * 17] = kept
        for w in range(16):
            packed = 0
            for k in range(2):
                i = 32 * group + 2 * w + k
                if i < size:
                    value = values[i] * inverse
                    if abs(value) < np.float32(256):
                        packed |= (int((value + rounder) - rounder) & 255) << (8 * k)
            pool[at + group * 17 + 1 + w] = packed


# Type of a cache to how elements are read and written, and the word of a signature that its units are.
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., None], str]] = {
    "F32": (read_f32, write_f32, "f32"),
    "F16": (read_f16, write_f16, "u16"),
    "Q8_0": (read_q8_0, write_q8_0, "u16"),
}


@device
def turn(
    x: Any,
    at: Any,
    head_dim: Any,
    weight: Any,
    has_norm: Any,
    epsilon: Any,
    angles: Any,
    n_rotated: Any,
    interleaved: Any,
    position: Any,
    head: Any,
    t: Any,
    threads: Any,
) -> None:
    """A head, normed and rotated, in shared memory; of two elements that turn together one thread has both."""
    divisor = np.float32(1)
    if has_norm:
        total = np.float32(0)
        for i in range(head_dim):
            total += x[at + i] * x[at + i]
        divisor = np.float32(math.sqrt(total / np.float32(head_dim) + epsilon))
    for i in range(t, head_dim, threads):
        value = x[at + i]
        if has_norm:
            value = value / divisor * weight[i]
        head[i] = value
    half = n_rotated >> 1
    cuda.syncthreads()
    for j in range(t, half, threads):
        a, b = j, j + half
        if interleaved:
            a, b = 2 * j, 2 * j + 1
        cosine, sine = angles[(position * half + j) * 2], angles[(position * half + j) * 2 + 1]
        first, second = head[a], head[b]
        head[a] = first * cosine - second * sine
        head[b] = first * sine + second * cosine
    cuda.syncthreads()


_TURN = "f32* i32 i32 i32 f32* i32 f32 f32* i32 i32 i32*"


@kernel("turn_heads", f"{_TURN} f32*")
def turn_heads(
    x: Any,
    x_width: Any,
    x_first: Any,
    head_dim: Any,
    weight: Any,
    has_norm: Any,
    epsilon: Any,
    angles: Any,
    n_rotated: Any,
    interleaved: Any,
    positions: Any,
    out: Any,
) -> None:
    """Queries: a block for each row and head."""
    values = cuda.shared.array(MOST_HEAD_DIM, np.float32)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    row, h = cuda.blockIdx.x, cuda.blockIdx.y
    at = np.int64(row) * x_width + x_first + h * head_dim
    turn(
        x,
        at,
        head_dim,
        weight,
        has_norm,
        epsilon,
        angles,
        n_rotated,
        interleaved,
        np.int64(positions[row]),
        values,
        t,
        threads,
    )
    to = (np.int64(row) * cuda.gridDim.y + h) * head_dim
    for i in range(t, head_dim, threads):
        out[to + i] = values[i]


def _keep_heads(write: Callable[..., None]) -> Callable[..., None]:
    def keep_heads(
        x: Any,
        x_width: Any,
        x_first: Any,
        head_dim: Any,
        weight: Any,
        has_norm: Any,
        epsilon: Any,
        angles: Any,
        n_rotated: Any,
        interleaved: Any,
        positions: Any,
        segment_of: Any,
        segments: Any,
        words: Any,
        group: Any,
        tables: Any,
        pool: Any,
        unit_shift: Any,
        offset: Any,
        head_units: Any,
        first_row: Any,
    ) -> None:
        """Keys or values, into the blocks of their texts: a block of threads for each row and head."""
        values = cuda.shared.array(MOST_HEAD_DIM, np.float32)
        t, threads = cuda.threadIdx.x, cuda.blockDim.x
        row, h = first_row + cuda.blockIdx.x, cuda.blockIdx.y
        at = np.int64(row) * x_width + x_first + h * head_dim
        position = np.int64(positions[row])
        turn(x, at, head_dim, weight, has_norm, epsilon, angles, n_rotated, interleaved, position, values, t, threads)
        block = block_address(positions, segment_of, segments, words, group, tables, row) >> unit_shift
        place = (position & (BLOCK_POSITIONS - 1)) * cuda.gridDim.y + h
        write(pool, block + offset + place * head_units, values, head_dim, t, threads)

    return keep_heads


for _name, (_, _write, _unit) in KINDS.items():
    kernel(f"keep_heads_{_name}", f"{_TURN} i32* i64* i32 i32 i64* {_unit}* i32 i32 i32 i32")(_keep_heads(_write))
