"""Attention over the cache of keys and values: softmax(q kᵀ · scale) v, online in blocks of keys.

Heads that share keys and values go through a block together, with as many tokens as make the block worth unpacking. A
single token's keys are shared out among the threads in parts, whose results the last one to finish puts together.
The layouts of the cache are those of `cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..variants import Variant
from .arithmetic import exp32, half_at, has_half
from .memory import as_float, atomic_add, atomic_store, floats, longs
from .tiles import tile_product, vectors_of
from .vectors import (
    LANES,
    add16,
    exp16,
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

FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
ROWS = 4  # rows of a small product
BLOCK = 64  # keys of a block: four tiles
BLOCK_ROWS = 96  # rows, of tokens and heads, that go through a block of keys together
# A single token's keys: at least so many to a part, and so many parts to a thread.
PART_KEYS, PARTS_PER_THREAD = 128, 2
_LOWEST = np.float32(-1e30)

# Arguments. The atomic counter comes behind them.
(
    STATE,
    Q,
    Q_ROW,
    OUT,
    OUT_ROW,
    K,
    K_HEAD,
    V,
    V_HEAD,
    N_HEAD,
    N_KV,
    WIDTH,
    PADDED,
    SCALE,
    WINDOW,
    SCRATCH,
    SCRATCH_BYTES,
    PARTS,
    FINISHED,
    COUNTER,
) = range(20)


def scratch_floats(padded: int, group: int) -> int:
    """Floats of scratch memory that a thread needs."""
    rows = max_rows(group)
    return 2 * rows * padded + 2 * rows + ROWS * BLOCK + 2 * BLOCK * padded


def max_rows(group: int) -> int:
    """Most rows of a block, a multiple of `ROWS`."""
    return -(-max(BLOCK_ROWS, group) // ROWS) * ROWS


def part_floats(padded: int, group: int) -> int:
    """Floats of one part's result: the sums, their weights, the largest scores."""
    return group * (padded + 2)


def build(variant: Variant, kind: str) -> Callable[..., None]:
    """The kernel for a cache of a kind: F32, F16 or Q8_0."""
    many = vectors_of(variant)
    product, product_one = tile_product(variant, ROWS, many, half=False), tile_product(variant, ROWS, 1, half=False)
    product_half, product_half_one = (
        tile_product(variant, ROWS, many, half=True),
        tile_product(variant, ROWS, 1, half=True),
    )
    half, halves = half_at(variant), load_halves16(variant)
    is_f32, is_f16, is_native = kind == "F32", kind == "F16", has_half(variant)
    size = 4 if is_f32 else 2
    block, rows_at_once, lanes = BLOCK, ROWS, LANES

    @njit(error_model="numpy", fastmath=FAST)
    def multiply(
        a: Any,
        a_row: Any,
        b: Any,
        b_row: Any,
        b_vector: Any,
        c: Any,
        c_row: Any,
        n: Any,
        n_vectors: Any,
        add: Any,
        halves: Any,
    ) -> None:
        """C[4, 16 n_vectors] (+)= A[4, n] B[n, 16 n_vectors]; B is of 16-bit floats where `halves`."""
        done = 0
        while done + many <= n_vectors:
            if is_f16 and is_native and halves:
                product_half(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add)
            else:
                product(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add)
            done += many
        while done < n_vectors:
            if is_f16 and is_native and halves:
                product_half_one(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add)
            else:
                product_one(a, a_row, b + done * b_vector, b_row, b_vector, c + done * 64, c_row, n, add)
            done += 1

    @njit(error_model="numpy", fastmath=FAST)
    def unpack_keys(tile: Any, to: Any, padded: Any) -> None:
        """A tile of 16 keys as float32 [padded, 16]."""
        if is_f16:
            for i in range(0, padded * lanes, lanes):
                store16(to + i * 4, halves(tile + i * 2))
        else:
            for part in range(padded // 32):
                scales = halves(tile + padded * lanes + part * lanes * 2)
                for i in range(part * 32 * lanes, (part + 1) * 32 * lanes, lanes):
                    store16(to + i * 4, mul16(load_codes16(tile + i), scales))

    @njit(error_model="numpy", fastmath=FAST)
    def unpack_value(row: Any, to: Any, padded: Any) -> None:
        """A value row as float32."""
        if is_f16:
            for i in range(0, padded, lanes):
                store16(to + i * 4, halves(row + i * 2))
        else:
            for part in range(padded // 32):
                scale = splat16(half(row + padded + 2 * part))
                store16(to + part * 128, mul16(load_codes16(row + part * 32), scale))
                store16(to + part * 128 + 64, mul16(load_codes16(row + part * 32 + 16), scale))

    @njit(error_model="numpy", fastmath=FAST)
    def soften(scores: Any, first: Any, last: Any, sums: Any, padded: Any, most: Any, weight: Any) -> None:
        """One row's scores to weights, 0 outside of first..last; earlier sums are scaled to the new maximum."""
        row = floats(scores)
        for i in range(first):
            row[i] = _LOWEST
        for i in range(last, block):
            row[i] = _LOWEST
        a, b, c, d = load16(scores), load16(scores + 64), load16(scores + 128), load16(scores + 192)
        before = floats(most)[0]
        largest = most16(max16(max16(a, b), max16(c, d)))
        largest = max(before, largest)
        shift = splat16(largest)
        a, b, c, d = exp16(sub16(a, shift)), exp16(sub16(b, shift)), exp16(sub16(c, shift)), exp16(sub16(d, shift))
        store16(scores, a)
        store16(scores + 64, b)
        store16(scores + 128, c)
        store16(scores + 192, d)
        weights = sum16(add16(add16(a, b), add16(c, d)))
        if largest > before:
            factor = exp32(before - largest)
            factors = splat16(factor)
            for at in range(sums, sums + padded * 4, 64):
                store16(at, mul16(load16(at), factors))
            floats(weight)[0] = floats(weight)[0] * factor + weights
            floats(most)[0] = largest
        else:
            floats(weight)[0] += weights

    if is_f32:
        tile_bytes_per, value_bytes_per, per_block = 64, 4, 0
    elif is_f16:
        tile_bytes_per, value_bytes_per, per_block = 32, 2, 0
    else:
        tile_bytes_per, value_bytes_per, per_block = 16, 1, 1

    @njit(error_model="numpy", fastmath=FAST)
    def over_keys(args: Any, scratch: Any, kv: Any, token: Any, n_rows: Any, begin: Any, end: Any) -> None:
        """Rows of one key/value head over the keys begin..end: fills sums, largest scores and weights."""
        padded, width, window = args[PADDED], args[WIDTH], args[WINDOW]
        group = args[N_HEAD] // args[N_KV]
        position = longs(args[STATE])[1] + token
        row_bytes = padded * 4
        n_padded = (n_rows + rows_at_once - 1) // rows_at_once * rows_at_once
        queries = scratch
        sums = queries + n_padded * row_bytes
        most = sums + n_padded * row_bytes
        weights = most + n_padded * 4
        scores = weights + n_padded * 4
        keys = scores + rows_at_once * block * 4
        values = keys + block * row_bytes
        scale = as_float(np.int32(args[SCALE]))
        for row in range(n_padded):
            query = floats(queries + row * row_bytes)
            source = floats(args[Q] + (token + row // group) * args[Q_ROW] + (kv * group + row % group) * width * 4)
            n_copied = width if row < n_rows else 0
            for i in range(n_copied):
                query[i] = source[i] * scale
            for i in range(n_copied, padded):
                query[i] = np.float32(0)
            total = floats(sums + row * row_bytes)
            for i in range(padded):
                total[i] = np.float32(0)
            floats(most)[row] = _LOWEST
            floats(weights)[row] = np.float32(0)
        tile_bytes = padded * tile_bytes_per + per_block * padded
        value_bytes = padded * value_bytes_per + per_block * padded // 16
        # Few rows are multiplied with what the cache holds, many with what is unpacked once.
        direct = is_f32 or (is_f16 and is_native and n_rows == group)
        item = size if direct else 4
        k_head, v_head = args[K] + kv * args[K_HEAD], args[V] + kv * args[V_HEAD]
        for start in range(begin // block * block, end, block):
            n = min(block, end - start)
            n_tiles = (n + lanes - 1) // lanes
            k_at, k_tile = k_head + start // lanes * tile_bytes, tile_bytes
            v_at, v_row = v_head + start * value_bytes, value_bytes
            if not direct:
                for tile in range(n_tiles):
                    unpack_keys(k_at + tile * tile_bytes, keys + tile * lanes * row_bytes, padded)
                for i in range(n):
                    unpack_value(v_at + i * value_bytes, values + i * row_bytes, padded)
                k_at, k_tile, v_at, v_row = keys, lanes * row_bytes, values, row_bytes
            for row in range(0, n_padded, rows_at_once):
                newest = position + min(row + rows_at_once - 1, n_rows - 1) // group
                oldest = position + row // group - window + 1 if window > 0 else 0
                if start > newest or start + n <= oldest:
                    continue
                multiply(
                    queries + row * row_bytes,
                    row_bytes,
                    k_at,
                    lanes * item,
                    k_tile,
                    scores,
                    block * 4,
                    padded,
                    n_tiles,
                    0,
                    direct,
                )
                for i in range(rows_at_once):
                    at = position + (row + i) // group
                    first = max(0, (max(begin, at - window + 1) if window > 0 else begin) - start)
                    last = min(n, at + 1 - start)
                    if row + i >= n_rows or last <= first:
                        for at in range(scores + i * block * 4, scores + (i + 1) * block * 4, 64):
                            store16(at, splat16(np.float32(0)))
                    else:
                        soften(
                            scores + i * block * 4,
                            first,
                            last,
                            sums + (row + i) * row_bytes,
                            padded,
                            most + (row + i) * 4,
                            weights + (row + i) * 4,
                        )
                multiply(
                    scores,
                    block * 4,
                    v_at,
                    v_row,
                    lanes * item,
                    sums + row * row_bytes,
                    row_bytes,
                    n,
                    padded // lanes,
                    1,
                    direct,
                )

    @njit(error_model="numpy", fastmath=FAST)
    def write(args: Any, scratch: Any, kv: Any, token: Any, n_rows: Any) -> None:
        """Sums divided by their weights, to where they belong."""
        padded, width = args[PADDED], args[WIDTH]
        group = args[N_HEAD] // args[N_KV]
        n_padded = (n_rows + rows_at_once - 1) // rows_at_once * rows_at_once
        sums = scratch + n_padded * padded * 4
        weights = floats(sums + n_padded * padded * 4 + n_padded * 4)
        for row in range(n_rows):
            total = floats(sums + row * padded * 4)
            out = floats(args[OUT] + (token + row // group) * args[OUT_ROW] + (kv * group + row % group) * width * 4)
            inverse = np.float32(1) / weights[row]
            for i in range(width):
                out[i] = total[i] * inverse

    @njit(error_model="numpy", fastmath=FAST)
    def keep_part(args: Any, scratch: Any, part: Any) -> None:
        """A part's sums, largest scores and weights, to where `merge` finds them."""
        padded, group = args[PADDED], args[N_HEAD] // args[N_KV]
        n_padded = (group + rows_at_once - 1) // rows_at_once * rows_at_once
        source = floats(scratch + n_padded * padded * 4)
        target = floats(args[PARTS] + part * group * (padded + 2) * 4)
        for i in range(group * padded):
            target[i] = source[i]
        for row in range(group):
            target[group * padded + row] = source[n_padded * padded + row]
            target[group * padded + group + row] = source[n_padded * padded + n_padded + row]

    @njit(error_model="numpy", fastmath=FAST)
    def merge(args: Any, kv: Any, n_parts: Any) -> None:
        """The results of all parts of a key/value head, put together in the order of the keys."""
        padded, width, group = args[PADDED], args[WIDTH], args[N_HEAD] // args[N_KV]
        part_bytes = group * (padded + 2) * 4
        base = args[PARTS] + kv * n_parts * part_bytes
        for row in range(group):
            largest = _LOWEST
            for part in range(n_parts):
                score = floats(base + part * part_bytes)[group * padded + row]
                largest = max(largest, score)
            out = floats(args[OUT] + (kv * group + row) * width * 4)
            for i in range(width):
                out[i] = np.float32(0)
            weight = np.float32(0)
            for part in range(n_parts):
                found = floats(base + part * part_bytes)
                factor = exp32(found[group * padded + row] - largest)
                weight += found[group * padded + group + row] * factor
                for i in range(width):
                    out[i] += found[row * padded + i] * factor
            inverse = np.float32(1) / weight
            for i in range(width):
                out[i] *= inverse

    def attention(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top."""
        scratch = args[SCRATCH] + ith * args[SCRATCH_BYTES]
        n_tokens, first = longs(args[STATE])[0], longs(args[STATE])[1]
        n_kv, group, window = args[N_KV], args[N_HEAD] // args[N_KV], args[WINDOW]
        tokens = max(1, BLOCK_ROWS // group)
        n_blocks = (n_tokens + tokens - 1) // tokens
        n_parts, length = 1, first + n_tokens
        if n_tokens == 1 and nth > 1:
            visible = min(first + 1, window) if window > 0 else first + 1
            n_parts = max(1, min(visible // PART_KEYS, PARTS_PER_THREAD * nth))
            length = ((visible + n_parts - 1) // n_parts + block - 1) // block * block
            n_parts = (visible + length - 1) // length
        while True:
            task = atomic_add(args[COUNTER], 1)
            if task >= n_kv * n_blocks * n_parts:
                break
            unit, part = task // n_parts, task % n_parts
            # The last tokens have the most keys: they go first.
            kv, token = unit % n_kv, (n_blocks - 1 - unit // n_kv) * tokens
            n = min(tokens, n_tokens - token)
            position = first + token
            begin = (max(0, position - window + 1) if window > 0 else 0) + part * length
            over_keys(args, scratch, kv, token, n * group, begin, min(begin + length, position + n))
            if n_parts == 1:
                write(args, scratch, kv, token, n * group)
                continue
            keep_part(args, scratch, task)
            finished = args[FINISHED] + kv * 128
            if atomic_add(finished, 1) == n_parts - 1:
                merge(args, kv, n_parts)
                atomic_store(finished, 0)

    return attention


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "attention_f32": lambda variant: build(variant, "F32"),
    "attention_f16": lambda variant: build(variant, "F16"),
    "attention_q8_0": lambda variant: build(variant, "Q8_0"),
}
