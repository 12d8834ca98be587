"""Attention over one part of the positions: what is worked out there depends on the part and the rows alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..layout import BLOCK_POSITIONS, PRODUCT_ROWS
from ..variants import Variant
from .cached import code_for
from .memory import as_float, floats, longs
from .softmax import softmax_code
from .tiles import vectors_of
from .vectors import LANES, splat16, store16

_LOWEST, _ZERO = np.float32(-1e30), np.float32(0)

# Arguments. TABLE: the word of a segment that has the address of the group's block table; KEYS, VALUES: where the
# layer's begin in a block; HEAD_BYTES: of one key/value head, of either; FINISHED: counts of finished parts.
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
    WINDOW,
    TABLE,
    KEYS,
    VALUES,
    HEAD_BYTES,
    SCRATCH,
    SCRATCH_BYTES,
    FINISHED,
    COUNTER,
) = range(19)


class PartCode(NamedTuple):
    """Compiled code for a part.

    Attributes:
        load_queries: Scaled queries of some heads and tokens, padded.
        padded_rows: Rows as products take them, and the bytes of a number for each.
        over_part: Sums, largest scores and weights of some rows over a part.
    """

    load_queries: Any
    padded_rows: Any
    over_part: Any


def part_code(variant: Variant, kind: str) -> PartCode:
    """The code for a cache of a type: F32, F16 or Q8_0."""
    many = vectors_of(variant)
    stored, softmax = code_for(variant, kind), softmax_code(variant)
    multiply, multiply_row, ask = stored.multiply, stored.multiply_row, stored.ask
    unpack_keys, unpack_value = stored.unpack_keys, stored.unpack_value
    soften = softmax.soften
    is_f32, is_read_direct, item = kind == "F32", stored.is_read_direct, stored.item
    tile_bytes_per, value_bytes_per, per_block = stored.tile_bytes, stored.value_bytes, stored.scale_bytes
    block, rows_at_once, lanes = BLOCK_POSITIONS, PRODUCT_ROWS, LANES
    plain = njit(error_model="numpy", fastmath=False)

    @plain
    def load_queries(args: Any, row_at: Any, kv: Any, queries: Any, n_rows: Any) -> None:
        """Scaled queries of some heads and tokens, padded with zeros."""
        padded, head_dim, group = args[PADDED], args[HEAD_DIM], args[N_HEAD] // args[N_HEAD_KV]
        scale = as_float(np.int32(args[SCALE]))
        n_padded = (n_rows + rows_at_once - 1) // rows_at_once * rows_at_once
        for row in range(n_padded):
            query = floats(queries + row * padded * 4)
            source = floats(args[Q] + (row_at + row // group) * args[Q_ROW] + (kv * group + row % group) * head_dim * 4)
            n_copied = head_dim if row < n_rows else 0
            for i in range(n_copied):
                query[i] = source[i] * scale
            for i in range(n_copied, padded):
                query[i] = _ZERO

    @plain
    def add_values(
        scores: Any, v_at: Any, v_row: Any, v_item: Any, sums: Any, padded: Any, first: Any, last: Any, is_stored: Any
    ) -> None:
        """Values of one row's positions first..last, with their weights, to its sums."""
        if last > first:
            multiply_row(
                scores + first * 4,
                block * 4,
                v_at + first * v_row,
                v_row,
                v_item,
                sums,
                padded * 4,
                last - first,
                padded // lanes,
                1,
                is_stored,
                v_at,
            )

    @plain
    def padded_rows(n_rows: Any) -> Any:
        """Rows as products take them, and the bytes of a number for each in whole cache lines."""
        n_padded = (n_rows + rows_at_once - 1) // rows_at_once * rows_at_once
        return n_padded, (n_padded + lanes - 1) // lanes * lanes * 4

    @plain
    def over_part(
        args: Any,
        table: Any,
        queries: Any,
        sums_at: Any,
        work: Any,
        kv: Any,
        position: Any,
        n_rows: Any,
        begin: Any,
        end: Any,
        following: Any,
    ) -> None:
        """Rows of one key/value head over the positions begin..end, which one part holds: their sums and weights.

        `position` is that of the first row. At `sums_at` are the sums, the largest scores and the weights, at `work`
        is memory for scores, keys and values. `following`: where the next task's keys and values are.
        """
        padded, head_dim, window = args[PADDED], args[HEAD_DIM], args[WINDOW]
        group = args[N_HEAD] // args[N_HEAD_KV]
        row_bytes = padded * 4
        n_padded, each = padded_rows(n_rows)
        most = sums_at + n_padded * row_bytes
        weights = most + each
        scores = work
        keys = scores + rows_at_once * block * 4
        values = keys + block * row_bytes
        for at in range(sums_at, most, 64):
            store16(at, splat16(_ZERO))
        for row in range(n_padded):
            floats(most)[row], floats(weights)[row] = _LOWEST, _ZERO
        tile_bytes = padded * tile_bytes_per + per_block * padded
        value_bytes = padded * value_bytes_per + per_block * padded // 16
        # Few rows are multiplied with what the cache holds, many with what is unpacked once.
        direct = is_f32 or (is_read_direct and n_rows == group)
        size = item if direct else 4
        for start in range(begin // block * block, end, block):
            n = min(block, end - start)
            held = longs(table)[start // block]
            k_at, k_tile = held + args[KEYS] + kv * args[HEAD_BYTES], tile_bytes
            v_at, v_row = held + args[VALUES] + kv * args[HEAD_BYTES], value_bytes
            # While a block is worked on the next one is asked for, the next task's after the last.
            # Products ask for the first half and weights for the other: all at once would wait for one another.
            after = longs(table)[start // block + 1] + kv * args[HEAD_BYTES] if start + block < end else following
            half_bytes = args[HEAD_BYTES] // 2
            if not direct:
                skipped = max(0, begin - start)
                for tile in range(skipped // lanes, (n + lanes - 1) // lanes):
                    ask(after + args[KEYS] + tile * tile_bytes, tile_bytes)
                    unpack_keys(k_at + tile * tile_bytes, keys + tile * lanes * row_bytes, padded)
                for i in range(skipped, n):
                    ask(after + args[VALUES] + i * value_bytes, value_bytes)
                    unpack_value(v_at + i * value_bytes, values + i * row_bytes, padded)
                k_at, k_tile, v_at, v_row = keys, lanes * row_bytes, values, row_bytes
            for row in range(0, n_padded, rows_at_once):
                # Of the rows of a product the last sees most, the first the oldest. A position is anything but
                # hidden to all of them from `common` on, and up to `shared`.
                top = position + (min(row + rows_at_once, n_rows) - 1) // group
                bottom = position + row // group
                low = max(begin, bottom - window + 1) - start if window > 0 else begin - start
                common = max(begin, top - window + 1) - start if window > 0 else begin - start
                low, common = max(0, low), max(0, common)
                high, shared = min(n, top + 1 - start), min(n, bottom + 1 - start)
                if high <= low:
                    continue
                # Four tiles at once take no longer than two, one after the other.
                first_tile, last_tile = low // lanes, (high + lanes - 1) // lanes
                if many > 1 and last_tile - first_tile > 1:
                    first_tile, last_tile = 0, block // lanes
                here = min(rows_at_once, n_rows - row)
                multiply(
                    here,
                    queries + row * row_bytes,
                    row_bytes,
                    k_at + first_tile * k_tile,
                    lanes * size,
                    k_tile,
                    scores + first_tile * lanes * 4,
                    block * 4,
                    head_dim,
                    last_tile - first_tile,
                    0,
                    direct,
                    after + args[KEYS],
                )
                is_even = low == common and high == shared  # to all rows: mostly, so that nothing is divided
                for i in range(rows_at_once):
                    first, last = low, high
                    if not is_even:
                        at = position + (row + i) // group
                        first = max(0, (max(begin, at - window + 1) if window > 0 else begin) - start)
                        last = min(n, at + 1 - start)
                    if row + i < n_rows and first < last:
                        row_at = row + i
                        sums = sums_at + row_at * row_bytes
                        mine = scores + i * block * 4
                        if direct:
                            piece = half_bytes // here // 64 * 64
                            for keys_or_values in (args[KEYS], args[VALUES]):
                                ask(after + keys_or_values + half_bytes + i * piece, piece)
                        soften(mine, first, last, sums, padded, most + row_at * 4, weights + row_at * 4)
                        # What not all rows of the product see is added row by row.
                        if first < common or common >= shared:
                            add_values(
                                mine,
                                v_at,
                                v_row,
                                lanes * size,
                                sums,
                                padded,
                                first,
                                min(common, last) if common < shared else last,
                                direct,
                            )
                if common < shared:
                    multiply(
                        here,
                        scores + common * 4,
                        block * 4,
                        v_at + common * v_row,
                        v_row,
                        lanes * size,
                        sums_at + row * row_bytes,
                        row_bytes,
                        shared - common,
                        padded // lanes,
                        1,
                        direct,
                        after + args[VALUES],
                    )
                    for i in range(rows_at_once if high > shared else 0):
                        last = min(n, position + (row + i) // group + 1 - start)
                        if row + i < n_rows and shared < last:
                            add_values(
                                scores + i * block * 4,
                                v_at,
                                v_row,
                                lanes * size,
                                sums_at + (row + i) * row_bytes,
                                padded,
                                shared,
                                last,
                                direct,
                            )

    return PartCode(load_queries, padded_rows, over_part)
