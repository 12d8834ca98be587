"""Products of matrices of floats, element by element; sums go as `products` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..layout import COLUMNS, PRODUCT_THREADS
from .dialect import device, float_bits, from_half, kernel


@device
def read_f32(w: Any, at: Any) -> Any:
    return w[at]


@device
def read_f16(w: Any, at: Any) -> Any:
    return from_half(w[at])


@device
def read_bf16(w: Any, at: Any) -> Any:
    return float_bits(np.int64(w[at]) << 16)


PLAIN: dict[str, tuple[Callable[..., Any], str]] = {
    "F32": (read_f32, "f32"),
    "F16": (read_f16, "u16"),
    "BF16": (read_bf16, "u16"),
}


def _matmul(read: Callable[..., Any], columns: int) -> Callable[..., None]:
    memory = columns * PRODUCT_THREADS

    def matmul(
        w: Any, n_out: Any, n_in: Any, shift: Any, x: Any, count: Any, bias: Any, has_bias: Any, out: Any
    ) -> None:
        """Rows of weights times up to `columns` rows of activations at once."""
        sums = cuda.shared.array(memory, np.float32)
        acc = cuda.local.array(columns, np.float32)
        t, lanes = cuda.threadIdx.x, 1 << shift
        lane = t & (lanes - 1)
        row = cuda.blockIdx.x * (cuda.blockDim.x >> shift) + (t >> shift)
        base = cuda.blockIdx.y * columns
        for c in range(columns):
            acc[c] = np.float32(0)
        if row < n_out:
            for i in range(lane, n_in, lanes):
                weight = read(w, np.int64(row) * n_in + i)
                for c in range(columns):
                    if base + c < count:
                        acc[c] += weight * x[np.int64(base + c) * n_in + i]
        for c in range(columns):
            sums[c * PRODUCT_THREADS + t] = acc[c]
        half = lanes >> 1
        while half > 0:
            cuda.syncthreads()
            if lane < half:
                for c in range(columns):
                    sums[c * PRODUCT_THREADS + t] += sums[c * PRODUCT_THREADS + t + half]
            half >>= 1
        if row < n_out and lane == 0:
            for c in range(columns):
                if base + c < count:
                    total = sums[c * PRODUCT_THREADS + t]
                    if has_bias:
                        total += bias[row]
                    out[np.int64(base + c) * n_out + row] = total

    return matmul


def _expert_matmul(read: Callable[..., Any]) -> Callable[..., None]:
    def expert_matmul(
        w: Any, first_row: Any, rows: Any, n_out: Any, n_in: Any, shift: Any, x: Any, chosen: Any, per_x: Any, out: Any
    ) -> None:
        """Each row of activations times the matrix of the expert that was chosen for it."""
        sums = cuda.shared.array(PRODUCT_THREADS, np.float32)
        t, lanes = cuda.threadIdx.x, 1 << shift
        lane = t & (lanes - 1)
        row = cuda.blockIdx.x * (cuda.blockDim.x >> shift) + (t >> shift)
        number = cuda.blockIdx.y
        acc = np.float32(0)
        if row < n_out:
            start = (np.int64(chosen[number]) * rows + first_row + row) * n_in
            for i in range(lane, n_in, lanes):
                acc += read(w, start + i) * x[np.int64(number // per_x) * n_in + i]
        sums[t] = acc
        half = lanes >> 1
        while half > 0:
            cuda.syncthreads()
            if lane < half:
                sums[t] += sums[t + half]
            half >>= 1
        if row < n_out and lane == 0:
            out[np.int64(number) * n_out + row] = sums[t]

    return expert_matmul


def _embed(read: Callable[..., Any]) -> Callable[..., None]:
    def embed(w: Any, n_in: Any, tokens: Any, count: Any, out: Any) -> None:
        """The rows of tokens, a thread for each element."""
        number = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if number < count * n_in:
            out[number] = read(w, np.int64(tokens[number // n_in]) * n_in + number % n_in)

    return embed


for _name, (_read, _unit) in PLAIN.items():
    for _columns in COLUMNS:
        kernel(f"matmul_{_name}_{_columns}", f"{_unit}* i32 i32 i32 f32* i32 f32* i32 f32*")(_matmul(_read, _columns))
    kernel(f"expert_matmul_{_name}", f"{_unit}* i32 i32 i32 i32 i32 f32* i32* i32 f32*")(_expert_matmul(_read))
    kernel(f"embed_{_name}", f"{_unit}* i32 i32* i32 f32*")(_embed(_read))
