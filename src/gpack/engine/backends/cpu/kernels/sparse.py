"""Attention over chosen blocks of positions and the tail: softmax(q kᵀ · scale) v over what a row's indexer chose.

Rows that see all positions are left to the kernel of dense attention. Of the others, the keys and values that a row
sees are put side by side as floats, 64 positions at a time in ascending order, for all heads that share them. A row's
bits depend on its own query, its choice and what it sees alone: one thread makes a row's sums of a key/value head, in
one order. Nothing here may be reordered by the compiler, so no function has its fast mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..layout import (
    BLOCK_POSITIONS,
    CACHE_TYPES,
    PRODUCT_ROWS,
    STEP_POSITIONS,
    STEP_SEGMENT_OF,
    STEP_SEGMENT_WORDS,
    STEP_SEGMENTS,
    STEP_TYPES,
)
from ..variants import Variant
from .arithmetic import exp32, half_at, has_half, widen_half
from .memory import as_float, atomic_add, floats, ints, longs, signed_bytes
from .tiles import tile_product, vectors_of
from .vectors import (
    LANES,
    add16,
    exp16_of,
    load16,
    load_codes16,
    load_halves16,
    max16,
    most16,
    mul16,
    splat16,
    store16,
    sub16,
    sum16,
)

_LOWEST, _HIDDEN = np.float32(-1e30), np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)

# Arguments. Up to HEAD_BYTES as those of `attention`. SIZE: positions of a block of positions; CHOSEN: int32 [rows,
# n_blocks], ascending; LIMIT: rows at positions below it see all.
(
    STATE,
    Q,
    Q_ROW,
    OUT,
    OUT_ROW,
    N_HEAD,
    N_HEAD_KV,
    HEAD_DIM,
    PADDED,
    SCALE,
    TABLE,
    KEYS,
    VALUES,
    HEAD_BYTES,
    SIZE,
    N_BLOCKS,
    CHOSEN,
    LIMIT,
    SCRATCH,
    SCRATCH_BYTES,
    COUNTER,
) = range(21)


@cache
def _copy4(variant: Variant, *, half: bool) -> Any:
    """Compiled code's function that copies four floats, `half`: that lie there as 16-bit floats."""

    @intrinsic
    def copy(_typing: Any, source: Any, target: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            wide = ir.VectorType(ir.FloatType(), 4)
            element = ir.FloatType() if not half else ir.HalfType() if has_half(variant) else ir.IntType(16)
            pointer = builder.inttoptr(arguments[0], ir.VectorType(element, 4).as_pointer())
            value = builder.load(pointer, align=2 if half else 4)
            if half:
                value = builder.fpext(value, wide) if has_half(variant) else widen_half(builder, value)
            builder.store(value, builder.inttoptr(arguments[1], wide.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    return copy


def build(variant: Variant, kind: str) -> Callable[..., None]:
    """The kernel for a cache of a type: F32, F16 or Q8_0."""
    many, half, exp16 = vectors_of(variant), half_at(variant), exp16_of(variant)
    is_f32, is_f16, is_q8, lanes, block = kind == "F32", kind == "F16", kind == "Q8_0", LANES, BLOCK_POSITIONS
    item, copy4, halves16 = 4 if kind == "F32" else 2, _copy4(variant, half=kind == "F16"), load_halves16(variant)
    rows_at_once, chunk_row = PRODUCT_ROWS, 4 * BLOCK_POSITIONS
    type_word = STEP_TYPES + 4 * CACHE_TYPES.index(kind)
    product, product_one = (tile_product(variant, PRODUCT_ROWS, count, half=False) for count in (many, 1))
    plain = njit(error_model="numpy", fastmath=False)

    @plain
    def multiply(a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, n: Any, n_vectors: Any, add: Any) -> None:
        """C[4, 16 n_vectors] = or += A[4, n] B[n, 16 n_vectors]."""
        done = 0
        while done + many <= n_vectors:
            product(a, a_row, b + done * 64, b_row, 64, c + done * 64, c_row, n, add, 0)
            done += many
        while done < n_vectors:
            product_one(a, a_row, b + done * 64, b_row, 64, c + done * 64, c_row, n, add, 0)
            done += 1

    @plain
    def gather_keys(tile: Any, padded: Any, head_dim: Any, lane: Any, run: Any, to: Any) -> None:
        """Some neighbouring keys of a tile as columns of float32 [head_dim, 64]."""
        if not is_q8:
            source = tile + lane * item
            if run == 4:  # the usual size of a block
                for i in range(head_dim):
                    copy4(source + i * lanes * item, to + i * chunk_row)
                return
            for i in range(head_dim):
                made = floats(to + i * chunk_row)
                for j in range(run):
                    at = source + (i * lanes + j) * item
                    made[j] = floats(at)[0] if is_f32 else half(at)
        else:
            codes, scales = signed_bytes(tile + lane), tile + padded * lanes + lane * 2
            for j in range(run):
                for begin in range(0, head_dim, 32):
                    scale = half(scales + (begin // 32 * lanes + j) * 2)
                    for i in range(begin, min(begin + 32, head_dim)):
                        floats(to + i * chunk_row)[j] = np.float32(codes[i * lanes + j]) * scale

    @plain
    def gather_value(row: Any, padded: Any, to: Any) -> None:
        """A value as float32, with its padding, which may be anything."""
        if is_q8:
            for part in range(padded // 32):
                scale = splat16(half(row + padded + 2 * part))
                store16(to + part * 128, mul16(load_codes16(row + part * 32), scale))
                store16(to + part * 128 + 64, mul16(load_codes16(row + part * 32 + 16), scale))
            return
        for i in range(0, padded, lanes):
            store16(to + i * 4, load16(row + i * 4) if is_f32 else halves16(row + i * 2))

    value_bytes_per, per_block = (4, 0) if is_f32 else (2, 0) if is_f16 else (1, 1)

    @plain
    def gather(
        args: Any, table: Any, chosen: Any, tail: Any, kv: Any, first: Any, n: Any, keys: Any, values: Any
    ) -> None:
        """The positions first..first + n of those that a row sees: keys [head_dim, 64], values [n, padded]."""
        padded, head_dim, size = args[PADDED], args[HEAD_DIM], args[SIZE]
        tile_bytes = padded * lanes * value_bytes_per + per_block * padded
        value_bytes = padded * value_bytes_per + per_block * padded // 16
        n_chosen = args[N_BLOCKS] * size
        j = 0
        while j < n:
            seen = first + j
            if seen < n_chosen:
                position, run = np.int64(chosen[seen // size]) * size + seen % size, size - seen % size
            else:
                position, run = tail + seen - n_chosen, n - j
            place = position % block
            run = min(run, n - j, lanes - place % lanes)
            held = longs(table)[position // block] + kv * args[HEAD_BYTES]
            tile = held + args[KEYS] + place // lanes * tile_bytes
            gather_keys(tile, padded, head_dim, place % lanes, run, keys + j * 4)
            for number in range(run):
                row = held + args[VALUES] + (place + number) * value_bytes
                gather_value(row, padded, values + (j + number) * padded * 4)
            j += run

    @plain
    def soften(scores: Any, n: Any, sums: Any, padded: Any, most: Any, weight: Any) -> None:
        """One row's scores to weights, 0 beyond n; earlier sums are scaled to the new maximum."""
        row = floats(scores)
        for i in range(n, block):
            row[i] = _HIDDEN
        a, b, c, d = load16(scores), load16(scores + 64), load16(scores + 128), load16(scores + 192)
        before = floats(most)[0]
        largest = max(before, most16(max16(max16(a, b), max16(c, d))))
        shift = splat16(largest)
        a, b, c, d = exp16(sub16(a, shift)), exp16(sub16(b, shift)), exp16(sub16(c, shift)), exp16(sub16(d, shift))
        store16(scores, a)
        store16(scores + 64, b)
        store16(scores + 128, c)
        store16(scores + 192, d)
        weights = sum16(add16(add16(a, b), add16(c, d)))
        factor = exp32(before - largest)
        factors = splat16(factor)
        for at in range(sums, sums + padded * 4, 64):
            store16(at, mul16(load16(at), factors))
        floats(weight)[0] = floats(weight)[0] * factor + weights
        floats(most)[0] = largest

    @plain
    def attend(args: Any, state: Any, row: Any, kv: Any, scratch: Any) -> None:
        """The heads of one row that share keys and values."""
        padded, head_dim, group = args[PADDED], args[HEAD_DIM], args[N_HEAD] // args[N_HEAD_KV]
        scale = as_float(np.int32(args[SCALE]))
        n_padded = (group + rows_at_once - 1) // rows_at_once * rows_at_once
        row_bytes = padded * 4
        sums = scratch + n_padded * row_bytes
        most = sums + n_padded * row_bytes
        weights = most + (n_padded + lanes - 1) // lanes * 64
        scores = weights + (n_padded + lanes - 1) // lanes * 64
        keys = scores + n_padded * chunk_row
        values = keys + padded * chunk_row
        for head in range(n_padded):
            query = floats(scratch + head * row_bytes)
            source = floats(args[Q] + row * args[Q_ROW] + (kv * group + head) * head_dim * 4)
            n_copied = head_dim if head < group else 0
            for i in range(n_copied):
                query[i] = source[i] * scale
            for i in range(n_copied, padded):
                query[i] = _ZERO
            for at in range(0, row_bytes, 64):
                store16(sums + head * row_bytes + at, splat16(_ZERO))
            floats(most)[head], floats(weights)[head] = _LOWEST, _ZERO
        segment = state[STEP_SEGMENTS] + 8 * np.int64(ints(state[STEP_SEGMENT_OF])[row]) * state[STEP_SEGMENT_WORDS]
        table, position = longs(segment)[args[TABLE]], longs(state[STEP_POSITIONS])[row]
        chosen, size = ints(args[CHOSEN] + row * args[N_BLOCKS] * 4), args[SIZE]
        tail = (position + 1) // size * size
        n_seen = args[N_BLOCKS] * size + position + 1 - tail
        for first in range(0, n_seen, block):
            n = min(block, n_seen - first)
            gather(args, table, chosen, tail, kv, first, n, keys, values)
            for head in range(0, n_padded, rows_at_once):
                mine, total = scores + head * chunk_row, sums + head * row_bytes
                multiply(
                    scratch + head * row_bytes, row_bytes, keys, chunk_row, mine, chunk_row, head_dim, block // lanes, 0
                )
                for i in range(rows_at_once):
                    at = (head + i) * 4
                    soften(mine + i * chunk_row, n, total + i * row_bytes, padded, most + at, weights + at)
                multiply(mine, chunk_row, values, row_bytes, total, row_bytes, n, padded // lanes, 1)
        for head in range(group):
            inverse = _ONE / floats(weights)[head]
            total = floats(sums + head * row_bytes)
            out = floats(args[OUT] + row * args[OUT_ROW] + (kv * group + head) * head_dim * 4)
            for i in range(head_dim):
                out[i] = total[i] * inverse

    def sparse(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top."""
        state = longs(args[STATE])
        first_row, n_rows, n_kv = state[type_word + 2], state[type_word + 3] - state[type_word + 2], args[N_HEAD_KV]
        scratch = args[SCRATCH] + ith * args[SCRATCH_BYTES]
        while True:
            task = atomic_add(args[COUNTER], 1)
            if task >= n_rows * n_kv:
                break
            row = first_row + task // n_kv
            if longs(state[STEP_POSITIONS])[row] >= args[LIMIT]:
                attend(args, state, row, task % n_kv, scratch)

    return sparse


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "sparse_f32": lambda variant: build(variant, "F32"),
    "sparse_f16": lambda variant: build(variant, "F16"),
    "sparse_q8_0": lambda variant: build(variant, "Q8_0"),
}
