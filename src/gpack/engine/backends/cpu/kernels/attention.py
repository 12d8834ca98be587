"""Attention over the cache of keys and values: softmax(q kᵀ · scale) v, online in blocks of 64 positions.

Heads that share keys and values go through a block together, with as many tokens as make the block worth unpacking.

A row's bits depend on its own query, keys and values alone. Positions are cut at multiples of `PART_POSITIONS`; each
part begins from nothing, and the parts are folded in their order, by the same code whether one thread goes through all
of them or many threads share them. What a row may not see takes no part in its sums, not even with the weight 0: it
may be anything. Sums are chains of fused multiplications and additions in the order of positions, and nothing here may
be reordered by the compiler, so no function has its fast mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..layout import (
    ATTENTION_ROWS,
    BLOCK_POSITIONS,
    CACHE_TYPES,
    FINISHED_BYTES,
    PART_POSITIONS,
    PRODUCT_ROWS,
    SEGMENT_COUNT,
    SEGMENT_POSITION,
    SEGMENT_ROW,
    SEGMENT_SLOT,
    SPLIT_ROWS,
    STEP_PARTS,
    STEP_SEGMENT_WORDS,
    STEP_SEGMENTS,
    STEP_SLOT_BYTES,
    STEP_TYPES,
)
from ..variants import Variant
from .cached import code_for
from .memory import as_float, atomic_add, atomic_store, floats, longs
from .softmax import softmax_code
from .tiles import vectors_of
from .vectors import LANES, load16, splat16, store16

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


def build(variant: Variant, kind: str) -> Callable[..., None]:
    """The kernel for a cache of a type: F32, F16 or Q8_0."""
    many = vectors_of(variant)
    stored, softmax = code_for(variant, kind), softmax_code(variant)
    multiply, multiply_row, ask = stored.multiply, stored.multiply_row, stored.ask
    unpack_keys, unpack_value = stored.unpack_keys, stored.unpack_value
    soften, fold, write_row = softmax.soften, softmax.fold, softmax.write_row
    is_f32, is_read_direct, item = kind == "F32", stored.is_read_direct, stored.item
    tile_bytes_per, value_bytes_per, per_block = stored.tile_bytes, stored.value_bytes, stored.scale_bytes
    block, part_positions, rows_at_once, lanes = BLOCK_POSITIONS, PART_POSITIONS, PRODUCT_ROWS, LANES
    rows_together, split_rows = ATTENTION_ROWS, SPLIT_ROWS
    type_word = STEP_TYPES + 4 * CACHE_TYPES.index(kind)
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

    @plain
    def parts_of(args: Any, segment: Any) -> Any:
        """The first part that a segment sees, and how many there are."""
        first, last = segment[SEGMENT_POSITION], segment[SEGMENT_POSITION] + segment[SEGMENT_COUNT] - 1
        oldest = max(0, first - args[WINDOW] + 1) if args[WINDOW] > 0 else 0
        return oldest // part_positions, last // part_positions + 1 - oldest // part_positions

    @plain
    def oldest_of(args: Any, position: Any) -> Any:
        return max(0, position - args[WINDOW] + 1) if args[WINDOW] > 0 else 0

    @plain
    def kept(args: Any, state: Any, segment: Any, part: Any, token: Any, kv: Any) -> Any:
        """Where the results of a part are kept: sums, largest scores and weights of the heads of one token."""
        slot = segment[SEGMENT_SLOT] + part * segment[SEGMENT_COUNT] + token
        group = args[N_HEAD] // args[N_HEAD_KV]
        return state[STEP_PARTS] + slot * state[STEP_SLOT_BYTES] + kv * group * (args[PADDED] + 2) * 4

    @plain
    def stored_at(args: Any, segment: Any, position: Any, kv: Any) -> Any:
        """Where the block of a position holds keys and values of a head, but for KEYS and VALUES."""
        return longs(segment[args[TABLE]])[position // block] + kv * args[HEAD_BYTES]

    @plain
    def over_parts(
        args: Any,
        state: Any,
        segment: Any,
        scratch: Any,
        kv: Any,
        token: Any,
        n: Any,
        only: Any,
        first_part: Any,
        following: Any,
    ) -> None:
        """Some tokens of a segment over all parts that they see, folded and written; or over one, which is kept.

        `only`: the number of that part among those that the segment sees, or -1. `following`: see `over_part`.
        """
        padded, head_dim, group = args[PADDED], args[HEAD_DIM], args[N_HEAD] // args[N_HEAD_KV]
        row_bytes, n_rows = padded * 4, n * group
        n_padded, each = padded_rows(n_rows)
        sums = scratch + n_padded * row_bytes
        most = sums + n_padded * row_bytes
        weights = most + each
        part_sums = weights + each
        part_most = part_sums + n_padded * row_bytes
        part_weights = part_most + each
        work = part_weights + each
        position, row_at = segment[SEGMENT_POSITION] + token, segment[SEGMENT_ROW] + token
        load_queries(args, row_at, kv, scratch, n_rows)
        oldest, end = oldest_of(args, position), position + n
        number, stop = oldest // part_positions, (end - 1) // part_positions + 1
        # The first part is worked out where the sums of all will be, if it is the first to all rows.
        in_place = oldest_of(args, end - 1) // part_positions if only < 0 else -1
        if only >= 0:
            number = first_part + only
            stop = number + 1
        elif in_place != number:
            in_place = -1
        while number < stop:
            first_seen, part_end = number * part_positions, (number + 1) * part_positions
            over_part(
                args,
                segment[args[TABLE]],
                scratch,
                sums if number == in_place else part_sums,
                work,
                kv,
                position,
                n_rows,
                max(oldest, first_seen),
                min(end, part_end),
                following if number + 1 == stop else stored_at(args, segment, part_end, kv),
            )
            if only >= 0:
                for row in range(n_rows):
                    target = kept(args, state, segment, only, token + row // group, kv)
                    for at in range(0, row_bytes, 64):
                        store16(target + row % group * row_bytes + at, load16(part_sums + row * row_bytes + at))
                    rest = floats(target + group * row_bytes)
                    rest[row % group], rest[group + row % group] = floats(part_most)[row], floats(part_weights)[row]
            elif number != in_place:
                for at in range(max(position, first_seen), end):
                    first = oldest_of(args, at)
                    if first < part_end:
                        for row in range((at - position) * group, (at - position + 1) * group):
                            fold(
                                number == first // part_positions,
                                sums + row * row_bytes,
                                most + row * 4,
                                weights + row * 4,
                                part_sums + row * row_bytes,
                                part_most + row * 4,
                                part_weights + row * 4,
                                padded,
                            )
            number += 1
        if only < 0:
            for row in range(n_rows):
                out = args[OUT] + (row_at + row // group) * args[OUT_ROW] + (kv * group + row % group) * head_dim * 4
                write_row(sums + row * row_bytes, weights + row * 4, out, head_dim)

    @plain
    def fold_kept(
        args: Any, state: Any, segment: Any, scratch: Any, kv: Any, token: Any, n: Any, first_part: Any
    ) -> None:
        """Puts together what all threads kept of some tokens."""
        padded, head_dim, group = args[PADDED], args[HEAD_DIM], args[N_HEAD] // args[N_HEAD_KV]
        row_bytes = padded * 4
        most = scratch + row_bytes
        weight = most + 4
        for row in range(n * group):
            at, member = token + row // group, row % group
            position = segment[SEGMENT_POSITION] + at
            first = oldest_of(args, position) // part_positions - first_part
            for part in range(first, position // part_positions - first_part + 1):
                source = kept(args, state, segment, part, at, kv)
                stats = source + group * row_bytes
                fold(
                    part == first,
                    scratch,
                    most,
                    weight,
                    source + member * row_bytes,
                    stats + member * 4,
                    stats + group * 4 + member * 4,
                    padded,
                )
            out = args[OUT] + (segment[SEGMENT_ROW] + at) * args[OUT_ROW] + (kv * group + member) * head_dim * 4
            write_row(scratch, weight, out, head_dim)

    @plain
    def next_task(args: Any, state: Any, nth: Any, number: Any, base: Any) -> Any:
        """Takes the next task; they are numbered through all segments, those of segment `number` from `base` on.

        Returns:
            Segment, its base, key/value head, first token, how many, part (-1: all of them), how many parts, the first
            of them, and where keys and values begin. There is no task left where the segment is the last one's next.
        """
        tokens = max(1, rows_together // (args[N_HEAD] // args[N_HEAD_KV]))
        n_kv, n_segments = args[N_HEAD_KV], state[type_word + 1]
        task = atomic_add(args[COUNTER], 1)
        while number < n_segments:
            segment = longs(state[STEP_SEGMENTS] + 8 * number * state[STEP_SEGMENT_WORDS])
            count = segment[SEGMENT_COUNT]
            n_units = (count + tokens - 1) // tokens
            first_part, n_parts = parts_of(args, segment)
            if nth == 1 or count > split_rows:
                n_parts = 1
            if task - base < n_kv * n_units * n_parts:
                # The last tokens have the most keys: they go first.
                unit, part = (task - base) // n_parts, (task - base) % n_parts
                kv, token = unit % n_kv, (n_units - 1 - unit // n_kv) * tokens
                begin = oldest_of(args, segment[SEGMENT_POSITION] + token)
                if n_parts == 1:
                    part = -1
                else:
                    begin = max(begin, (first_part + part) * part_positions)
                place = stored_at(args, segment, begin, kv)
                return number, base, kv, token, min(tokens, count - token), part, n_parts, first_part, place
            base += n_kv * n_units * n_parts
            number += 1
        return number, base, 0, 0, 0, 0, 0, 0, 0

    def attention(args: Any, ith: int, nth: int) -> None:
        """Arguments: see the names at the top."""
        state = longs(args[STATE])
        n_segments = state[type_word + 1]
        if state[type_word] == n_segments:
            return
        scratch = args[SCRATCH] + ith * args[SCRATCH_BYTES]
        task = next_task(args, state, nth, state[type_word], 0)
        while task[0] < n_segments:
            # The next task is taken before this one is done, so that its memory can be asked for.
            following = next_task(args, state, nth, task[0], task[1])
            number, _, kv, token, n, part, n_parts, first_part, _ = task
            task = following
            segment = longs(state[STEP_SEGMENTS] + 8 * number * state[STEP_SEGMENT_WORDS])
            over_parts(args, state, segment, scratch, kv, token, n, part, first_part, following[8])
            if n_parts == 1:
                continue
            finished = args[FINISHED] + ((segment[SEGMENT_ROW] + token) * args[N_HEAD_KV] + kv) * FINISHED_BYTES
            if atomic_add(finished, 1) == n_parts - 1:
                fold_kept(args, state, segment, scratch, kv, token, n, first_part)
                atomic_store(finished, 0)

    return attention


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "attention_f32": lambda variant: build(variant, "F32"),
    "attention_f16": lambda variant: build(variant, "F16"),
    "attention_q8_0": lambda variant: build(variant, "Q8_0"),
}
