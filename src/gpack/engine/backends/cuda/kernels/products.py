"""Products of matrices in blocks and rows of activations, which are rounded to 8 bits.

A row of weights is shared out among `1 << shift` lanes, which depends on the row's length alone; lane l takes the
groups l, l + lanes, ... and the lanes' sums are added in pairs. So a product has the same bits whatever else is
computed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..layout import COLUMNS, PRODUCT_THREADS
from .dialect import device, dot4, kernel
from .formats import FORMATS, Format

_TOPS = (127.0, 127.45, 126.5, 126.0)
_SMALLEST = 2.0**-121


@kernel("quantize_q8", "f32* i32* f32* i32")
def quantize_q8(x: Any, codes: Any, scales: Any, count: Any) -> None:
    """Rounds groups of 32 as the CPU's kernels do: of four scales the one that leaves least.

    Args:
        x: [count, 32].
        codes: [count, 8], four to a word.
        scales: [count, 3]: the scale, and the sums of each half's rounded values.
        count: Groups.
    """
    group = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if group < count:
        largest = np.float32(0)
        broken = np.float32(0)
        for i in range(32):
            value = x[group * 32 + i]
            broken += value * np.float32(0)  # NaN where one is not finite
            if abs(value) > largest:
                largest = np.float32(abs(value))
        usable = largest >= np.float32(_SMALLEST)
        inverse = np.float32(0)
        if usable:
            inverse = np.float32(127) / largest
        best = np.float32(-1)
        factor = np.float32(1)
        fitted = np.float32(0)
        for trial in range(4):
            top = np.float32(1)
            if trial == 1:
                top = np.float32(_TOPS[1] / 127)
            elif trial == 2:
                top = np.float32(_TOPS[2] / 127)
            elif trial == 3:
                top = np.float32(_TOPS[3] / 127)
            product, square = fit(x, group * 32, inverse, top)
            if square > np.float32(0):
                closeness = product * product / square
                if closeness > best:
                    best, factor, fitted = closeness, top, product / square
        scale = largest * np.float32(1 / 127) * fitted + broken
        for half in range(2):
            total = 0
            for w in range(4):
                packed = 0
                for k in range(4):
                    code = 0
                    value = x[group * 32 + half * 16 + w * 4 + k] * inverse * factor
                    if abs(value) < np.float32(256):  # not where it is no number
                        code = nearest(value)
                    total += code
                    packed |= (code & 255) << (8 * k)
                codes[group * 8 + half * 4 + w] = (packed ^ 0x80000000) - 0x80000000
            scales[group * 3 + 1 + half] = np.float32(total) * scale
        scales[group * 3] = scale


@device
def nearest(value: Any) -> Any:
    """The nearest integer of a number up to 2^22 in magnitude, of equally near ones the even."""
    rounder = np.float32(12582912.0)
    return int((value + rounder) - rounder)


@device
def fit(x: Any, at: Any, inverse: Any, top: Any) -> Any:
    """Σxc and Σc² of 32 values and their codes; sums go by halves, as the CPU's do."""
    product = np.float32(0)
    square = np.float32(0)
    for a in range(2):
        for b in range(2):
            for c in range(2):
                for d in range(2):
                    i = at + 8 * d + 4 * c + 2 * b + a
                    p0, s0 = _fit_one(x[i] * inverse, top)
                    p1, s1 = _fit_one(x[i + 16] * inverse, top)
                    p0, s0 = p0 + p1, s0 + s1
                    if d == 0:
                        p3, s3 = p0, s0
                    else:
                        p3, s3 = p3 + p0, s3 + s0
                if c == 0:
                    p4, s4 = p3, s3
                else:
                    p4, s4 = p4 + p3, s4 + s3
            if b == 0:
                p5, s5 = p4, s4
            else:
                p5, s5 = p5 + p4, s5 + s4
        product, square = product + p5, square + s5
    return product, square


@device
def _fit_one(scaled: Any, top: Any) -> Any:
    rounder = np.float32(12582912.0)
    code = np.float32((scaled * top + rounder) - rounder)
    return scaled * code, code * code


@device
def meet(c0: Any, c1: Any, c2: Any, c3: Any, c4: Any, c5: Any, c6: Any, c7: Any, x: Any, at: Any) -> Any:
    """The products of both halves of a group with codes of activations."""
    first = dot4(c3, x[at + 3], dot4(c2, x[at + 2], dot4(c1, x[at + 1], dot4(c0, x[at], np.int32(0)))))
    second = dot4(c7, x[at + 7], dot4(c6, x[at + 6], dot4(c5, x[at + 5], dot4(c4, x[at + 4], np.int32(0)))))
    return np.float32(first), np.float32(second)


def _matmul(form: Format, columns: int) -> Callable[..., None]:
    unpack, per_block, units = form.unpack, form.groups, form.units
    memory = columns * PRODUCT_THREADS

    def matmul(
        w: Any,
        n_out: Any,
        groups: Any,
        shift: Any,
        codes: Any,
        scales: Any,
        count: Any,
        bias: Any,
        has_bias: Any,
        out: Any,
        tables: Any,
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
            start = np.int64(row) * (groups // per_block) * units
            for g in range(lane, groups, lanes):
                block = start + (g // per_block) * units
                c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m0, m1 = unpack(w, block, g % per_block, tables)
                for c in range(columns):
                    if base + c < count:
                        at = np.int64(base + c) * groups + g
                        d0, d1 = meet(c0, c1, c2, c3, c4, c5, c6, c7, codes, at * 8)
                        first = scales[at * 3] * (s0 * d0 + s1 * d1)
                        acc[c] += first + (m0 * scales[at * 3 + 1] + m1 * scales[at * 3 + 2])
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


def _expert_matmul(form: Format) -> Callable[..., None]:
    unpack, per_block, units = form.unpack, form.groups, form.units

    def expert_matmul(
        w: Any,
        first_row: Any,
        rows: Any,
        n_out: Any,
        groups: Any,
        shift: Any,
        codes: Any,
        scales: Any,
        chosen: Any,
        per_x: Any,
        out: Any,
        tables: Any,
    ) -> None:
        """Each row of activations times the matrix of the expert that was chosen for it.

        Args:
            first_row, rows: Of an expert's rows the first that counts, and how many there are.
            chosen: Numbers of experts, one for each row of `out`.
            per_x: So many of these share a row of activations.
        """
        sums = cuda.shared.array(PRODUCT_THREADS, np.float32)
        t, lanes = cuda.threadIdx.x, 1 << shift
        lane = t & (lanes - 1)
        row = cuda.blockIdx.x * (cuda.blockDim.x >> shift) + (t >> shift)
        number = cuda.blockIdx.y
        acc = np.float32(0)
        if row < n_out:
            stored = np.int64(chosen[number]) * rows + first_row + row
            start = stored * (groups // per_block) * units
            for g in range(lane, groups, lanes):
                block = start + (g // per_block) * units
                c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m0, m1 = unpack(w, block, g % per_block, tables)
                at = np.int64(number // per_x) * groups + g
                d0, d1 = meet(c0, c1, c2, c3, c4, c5, c6, c7, codes, at * 8)
                first = scales[at * 3] * (s0 * d0 + s1 * d1)
                acc += first + (m0 * scales[at * 3 + 1] + m1 * scales[at * 3 + 2])
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


def _embed(form: Format) -> Callable[..., None]:
    unpack, per_block, units = form.unpack, form.groups, form.units

    def embed(w: Any, groups: Any, tokens: Any, count: Any, out: Any, tables: Any) -> None:
        """The rows of tokens, a thread for each group of 32."""
        number = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if number < count * groups:
            row, g = number // groups, number % groups
            block = np.int64(tokens[row]) * (groups // per_block) * units + (g // per_block) * units
            c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m0, m1 = unpack(w, block, g % per_block, tables)
            at = np.int64(number) * 32
            put(out, at, c0, s0, m0)
            put(out, at + 4, c1, s0, m0)
            put(out, at + 8, c2, s0, m0)
            put(out, at + 12, c3, s0, m0)
            put(out, at + 16, c4, s1, m1)
            put(out, at + 20, c5, s1, m1)
            put(out, at + 24, c6, s1, m1)
            put(out, at + 28, c7, s1, m1)

    return embed


@device
def put(out: Any, at: Any, codes: Any, scale: Any, minimum: Any) -> None:
    """Four weights of a word of codes."""
    for k in range(4):
        code = (((codes >> (8 * k)) & 255) ^ 128) - 128
        out[at + k] = scale * np.float32(code) + minimum


for _name, _form in FORMATS.items():
    for _columns in COLUMNS:
        kernel(f"matmul_{_name}_{_columns}", f"{_form.unit}* i32 i32 i32 i32* f32* i32 f32* i32 f32* i32*")(
            _matmul(_form, _columns)
        )
    kernel(f"expert_matmul_{_name}", f"{_form.unit}* i32 i32 i32 i32 i32 i32* f32* i32* i32 f32* i32*")(
        _expert_matmul(_form)
    )
    kernel(f"embed_{_name}", f"{_form.unit}* i32 i32* i32 f32* i32*")(_embed(_form))
