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
from .attention_part import (
    COUNTER,
    FINISHED,
    HEAD_BYTES,
    HEAD_DIM,
    N_HEAD,
    N_HEAD_KV,
    OUT,
    OUT_ROW,
    PADDED,
    SCRATCH,
    SCRATCH_BYTES,
    STATE,
    TABLE,
    WINDOW,
    part_code,
)
from .memory import atomic_add, atomic_store, floats, longs
from .softmax import softmax_code
from .vectors import load16, store16

_LOWEST, _ZERO = np.float32(-1e30), np.float32(0)


def build(variant: Variant, kind: str) -> Callable[..., None]:
    """The kernel for a cache of a type: F32, F16 or Q8_0."""
    load_queries, padded_rows, over_part = part_code(variant, kind)
    softmax = softmax_code(variant)
    fold, write_row = softmax.fold, softmax.write_row
    block, part_positions = BLOCK_POSITIONS, PART_POSITIONS
    rows_together, split_rows = ATTENTION_ROWS, SPLIT_ROWS
    type_word = STEP_TYPES + 4 * CACHE_TYPES.index(kind)
    plain = njit(error_model="numpy", fastmath=False)

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
