"""Kernels for rows, element by element or with one sum for each row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from ..layout import MOST_SUM_THREADS
from .dialect import device, kernel

SILU, GELU, SIGMOID = range(3)


@device
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), which no x overflows."""
    small = np.float32(math.exp(-abs(x)))
    if x >= np.float32(0):
        return np.float32(1) / (np.float32(1) + small)
    return small / (np.float32(1) + small)


@device
def activate_one(x: Any, kind: Any) -> Any:
    """silu, gelu in its form with tanh, or sigmoid."""
    if kind == GELU:
        inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
        return x * np.float32(0.5) * (np.float32(1) + np.float32(math.tanh(inner)))
    s = sigmoid(x)
    if kind == SILU:
        return x * s
    return s


@kernel("rms_norm", "f32* f32* i32 f32 f32*", most_threads=MOST_SUM_THREADS)
def rms_norm(x: Any, weight: Any, width: Any, epsilon: Any, out: Any) -> None:
    """A block for each piece; its threads are a power of two that depends on the width alone."""
    sums = cuda.shared.array(MOST_SUM_THREADS, np.float32)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    at = np.int64(cuda.blockIdx.x) * width
    total = np.float32(0)
    for i in range(t, width, threads):
        total += x[at + i] * x[at + i]
    sums[t] = total
    half = threads >> 1
    while half > 0:
        cuda.syncthreads()
        if t < half:
            sums[t] += sums[t + half]
        half >>= 1
    cuda.syncthreads()
    divisor = np.float32(math.sqrt(sums[0] / np.float32(width) + epsilon))
    for i in range(t, width, threads):
        out[at + i] = x[at + i] / divisor * weight[i]


@kernel("add", "f32* f32* f32* i32")
def add(x: Any, y: Any, out: Any, count: Any) -> None:
    """x + y."""  # noqa: D403
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        out[i] = x[i] + y[i]


@kernel("scale", "f32* f32 f32* i32")
def scale(x: Any, factor: Any, out: Any, count: Any) -> None:
    """Factor · x."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        out[i] = x[i] * factor


@kernel("gate", "f32* i32 f32* i32 i32 f32* i32")
def gate(gates: Any, gate_width: Any, up: Any, width: Any, kind: Any, out: Any, count: Any) -> None:
    """activation(gate) · up; gates of one element are for the whole row."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        at = i
        if gate_width != width:
            at = i // width
        out[i] = activate_one(gates[at], kind) * up[i]


@kernel("activate", "f32* i32 f32 f32 f32* i32")
def activate(x: Any, kind: Any, factor: Any, scale: Any, out: Any, count: Any) -> None:
    """Scale · activation(factor · x)."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        out[i] = scale * activate_one(factor * x[i], kind)


@kernel("soft_cap", "f32* f32 f32* i32")
def soft_cap(x: Any, cap: Any, out: Any, count: Any) -> None:
    """Cap · tanh(x / cap)."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        out[i] = cap * np.float32(math.tanh(x[i] / cap))


@kernel("columns", "f32* i32 i32 i32 i32 i32 f32* i32")
def columns(x: Any, x_width: Any, first: Any, size: Any, step: Any, width: Any, out: Any, count: Any) -> None:
    """Columns side by side: `size` from `first` on, and again every `step`."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        row, column = i // width, i % width
        out[i] = x[np.int64(row) * x_width + first + (column // size) * step + column % size]


@kernel("concat", "f32* i32 f32* i32 f32* i32")
def concat(x: Any, x_width: Any, y: Any, y_width: Any, out: Any, count: Any) -> None:
    """The columns of x, then those of y."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        width = x_width + y_width
        row, column = i // width, i % width
        if column < x_width:
            out[i] = x[np.int64(row) * x_width + column]
        else:
            out[i] = y[np.int64(row) * y_width + column - x_width]


@kernel("pick_rows", "f32* i32* i32 f32* i32")
def pick_rows(x: Any, rows: Any, width: Any, out: Any, count: Any) -> None:
    """Rows by their numbers."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < count:
        out[i] = x[np.int64(rows[i // width]) * width + i % width]
