"""Layers that keep one state of a text: the convolution and the gated delta rule, position after position.

A step of many rows does what as many steps of one do, so a state's bits do not depend on how a text was cut.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from ..layout import DELTA_THREADS, MOST_HEAD_DIM, SEGMENT_COUNT, SEGMENT_KEEP, SEGMENT_READ, SEGMENT_ROW, SEGMENT_WRITE
from .dialect import device, kernel
from .rows import sigmoid


@device
def _input(x: Any, row: Any, t: Any, width: Any, channel: Any, pool: Any, old: Any, kept: Any) -> Any:
    """The input of a segment's position t; of earlier ones from the state, which is zeros where there is none."""
    if t >= 0:
        return x[(row + t) * width + channel]
    if old == 0:
        return np.float32(0)
    return pool[old + (kept + t) * width + channel]


@kernel("conv_silu", "f32* i32 f32* i32 i32 i64* i32 f32* i32 f32*")
def conv_silu(
    x: Any,
    width: Any,
    weight: Any,
    taps: Any,
    dilation: Any,
    segments: Any,
    words: Any,
    pool: Any,
    offset: Any,
    out: Any,
) -> None:
    """A thread for each channel of a segment."""
    channel = np.int64(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    if channel < width:
        segment = np.int64(cuda.blockIdx.y) * words
        row, count = segments[segment + SEGMENT_ROW], segments[segment + SEGMENT_COUNT]
        old, new = segments[segment + SEGMENT_READ] // 4, segments[segment + SEGMENT_WRITE] // 4 + offset
        if old != 0:
            old += offset
        kept = (taps - 1) * dilation
        for t in range(count):
            total = np.float32(0)
            for j in range(taps):
                value = _input(x, row, t - (taps - 1 - j) * dilation, width, channel, pool, old, kept)
                total += weight[channel * taps + j] * value
            out[(row + t) * width + channel] = total * sigmoid(total)
        for j in range(kept):
            pool[new + j * width + channel] = _input(x, row, count - kept + j, width, channel, pool, old, kept)


@kernel(
    "delta_rule",
    "f32* i32 i32 f32* i32 i32 f32* i32 i32 f32* f32* f32* f32* i32 i32 i32 i32 f32 i64* i32 f32* i32 f32*",
    most_threads=DELTA_THREADS,
)
def delta_rule(
    q: Any,
    q_width: Any,
    q_first: Any,
    k: Any,
    k_width: Any,
    k_first: Any,
    v: Any,
    v_width: Any,
    v_first: Any,
    alpha: Any,
    beta: Any,
    a: Any,
    dt_bias: Any,
    n_head: Any,
    n_head_k: Any,
    key_dim: Any,
    value_dim: Any,
    epsilon: Any,
    segments: Any,
    words: Any,
    pool: Any,
    offset: Any,
    out: Any,
) -> None:
    """A block for each head of a segment; a thread has a column of the head's matrix."""
    key = cuda.shared.array(MOST_HEAD_DIM, np.float32)
    query = cuda.shared.array(MOST_HEAD_DIM, np.float32)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    h = cuda.blockIdx.x
    segment = np.int64(cuda.blockIdx.y) * words
    first_row, count = segments[segment + SEGMENT_ROW], segments[segment + SEGMENT_COUNT]
    head_at = offset + np.int64(h) * key_dim * value_dim
    old, new = segments[segment + SEGMENT_READ] // 4, segments[segment + SEGMENT_WRITE] // 4 + head_at
    for j in range(t, value_dim, threads):
        for i in range(key_dim):
            begun = np.float32(0)
            if old != 0:
                begun = pool[old + head_at + i * value_dim + j]
            pool[new + i * value_dim + j] = begun
    key_head = h % n_head_k
    for row in range(first_row, first_row + count):
        cuda.syncthreads()
        for i in range(t, key_dim, threads):
            key[i] = k[row * k_width + k_first + key_head * key_dim + i]
            query[i] = q[row * q_width + q_first + key_head * key_dim + i]
        cuda.syncthreads()
        key_sum, query_sum = np.float32(0), np.float32(0)
        for i in range(key_dim):
            key_sum += key[i] * key[i]
            query_sum += query[i] * query[i]
        key_by = np.float32(1) / np.float32(math.sqrt(key_sum + epsilon))
        query_by = np.float32(1) / np.float32(math.sqrt(query_sum + epsilon))
        query_by = query_by / np.float32(math.sqrt(np.float32(key_dim)))
        raised = alpha[row * n_head + h] + dt_bias[h]
        soft = np.float32(math.log1p(math.exp(-abs(raised))))
        if raised > np.float32(0):
            soft += raised
        fade = np.float32(math.exp(a[h] * soft))
        share = sigmoid(beta[row * n_head + h])
        for j in range(t, value_dim, threads):
            known = np.float32(0)
            for i in range(key_dim):
                faded = pool[new + i * value_dim + j] * fade
                pool[new + i * value_dim + j] = faded
                known += faded * (key[i] * key_by)
            missing = share * (v[row * v_width + v_first + h * value_dim + j] - known)
            made = np.float32(0)
            for i in range(key_dim):
                value = pool[new + i * value_dim + j] + key[i] * key_by * missing
                pool[new + i * value_dim + j] = value
                made += value * (query[i] * query_by)
            out[(row * n_head + h) * value_dim + j] = made


@kernel("keep_rows", "f32* i32 i32 i32 i64* i32 i32* f32* i32 i32 i32")
def keep_rows(
    x: Any,
    x_width: Any,
    first: Any,
    size: Any,
    segments: Any,
    words: Any,
    segment_of: Any,
    pool: Any,
    column: Any,
    kept_width: Any,
    count: Any,
) -> None:
    """Puts columns of rows aside, where their segment keeps them."""
    number = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if number < count:
        row, i = np.int64(number // size), number % size
        segment = np.int64(segment_of[row]) * words
        kept = segments[segment + SEGMENT_KEEP] // 4
        if kept != 0:
            place = (row - segments[segment + SEGMENT_ROW]) * kept_width + column + i
            pool[kept + place] = x[row * x_width + first + i]


@kernel("take_rows", "f32* i32 i32 i32 i64* i32 i32* f32* i32 i32 i32")
def take_rows(
    x: Any,
    x_width: Any,
    first: Any,
    size: Any,
    segments: Any,
    words: Any,
    segment_of: Any,
    pool: Any,
    column: Any,
    kept_width: Any,
    count: Any,
) -> None:
    """Brings columns of rows back from where `keep_rows` put them."""
    number = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if number < count:
        row, i = np.int64(number // size), number % size
        segment = np.int64(segment_of[row]) * words
        place = (row - segments[segment + SEGMENT_ROW]) * kept_width + column + i
        x[row * x_width + first + i] = pool[segments[segment + SEGMENT_KEEP] // 4 + place]
