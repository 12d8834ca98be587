"""The indexer of block-sparse attention: index keys into the cache, keys of blocks, and each row's best blocks.

A block of the cache has, for each layer with an indexer, float32 [64, index_dim]: an index key for each position as it
was projected, but where a block of positions is whole, its last position has the block's key instead. That is known as
soon as the last position is, from which on nothing reads that position's own index key.

A row's choice depends on its own index queries and on the keys of blocks alone; every sum has one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from ..layout import BLOCK_POSITIONS, STEP_POSITIONS, STEP_SEGMENT_OF, STEP_SEGMENT_WORDS, STEP_SEGMENTS
from ..variants import Variant
from .heads import norm_head, rotate
from .memory import as_float, atomic_add, floats, ints, longs
from .vectors import LANES, fma16_of, load16, splat16, sum16

_ZERO = np.float32(0)

# Arguments of all three. TYPE: the words of the state block that say which rows have the type of cache; ROPE: the
# address of a cell that has the address of the table of cosines and sines; TABLE: the word of a segment that has the
# address of the group's block table; INDEX: where the layer's index keys begin in a block; SIZE: positions of a block
# of positions; CHOSEN: int32 [rows, n_blocks].
(
    STATE,
    TYPE,
    Q,
    Q_ROW,
    K,
    K_ROW,
    N_HEAD,
    DIM,
    N_ROTATED,
    INTERLEAVED,
    ROPE,
    Q_NORM,
    K_NORM,
    EPSILON,
    TABLE,
    INDEX,
    SIZE,
    N_BLOCKS,
    CHOSEN,
    SCRATCH,
    SCRATCH_BYTES,
    COUNTER,
) = range(22)

_block = BLOCK_POSITIONS
_plain = njit(error_model="numpy", fastmath=False)


@_plain
def _table_of(args: Any, state: Any, row: Any) -> Any:
    """The address of the block table of a row's text."""
    segment = state[STEP_SEGMENTS] + 8 * np.int64(ints(state[STEP_SEGMENT_OF])[row]) * state[STEP_SEGMENT_WORDS]
    return longs(segment)[args[TABLE]]


@_plain
def _index_key(args: Any, table: Any, position: Any) -> Any:
    """The address of a position's index key."""
    return longs(table)[position // _block] + args[INDEX] + position % _block * args[DIM] * 4


@_plain
def _turn(args: Any, head: Any, norm: Any, position: Any) -> None:
    """Norm and rotation, in place."""
    n = args[N_ROTATED]
    norm_head(head, args[DIM], norm, as_float(np.int32(args[EPSILON])))
    if n > 0:
        rotate(head, n, args[INTERLEAVED], longs(args[ROPE])[0] + position * n * 4)


@_plain
def _heads(args: Any, ith: Any, nth: Any) -> None:
    state = longs(args[STATE])
    first_row, n_rows = state[args[TYPE] + 2], state[args[TYPE] + 3] - state[args[TYPE] + 2]
    n_head, dim = args[N_HEAD], args[DIM]
    total = n_rows * (n_head + 1)
    for unit in range(total * ith // nth, total * (ith + 1) // nth):
        row, number = first_row + unit // (n_head + 1), unit % (n_head + 1)
        position = longs(state[STEP_POSITIONS])[row]
        if number < n_head:
            _turn(args, args[Q] + row * args[Q_ROW] + number * dim * 4, args[Q_NORM], position)
            continue
        source = floats(args[K] + row * args[K_ROW])
        target = floats(_index_key(args, _table_of(args, state, row), position))
        for i in range(dim):
            target[i] = source[i]


def index_heads(args: Any, ith: int, nth: int) -> None:
    """Index queries are normed and rotated in place; index keys go into the cache."""
    _heads(args, ith, nth)


@_plain
def _blocks(args: Any, ith: Any, nth: Any) -> None:
    state = longs(args[STATE])
    first_row, n_rows = state[args[TYPE] + 2], state[args[TYPE] + 3] - state[args[TYPE] + 2]
    size, dim = args[SIZE], args[DIM]
    for row in range(first_row + n_rows * ith // nth, first_row + n_rows * (ith + 1) // nth):
        position = longs(state[STEP_POSITIONS])[row]
        if (position + 1) % size != 0:
            continue
        table, begin = _table_of(args, state, row), position + 1 - size
        place = _index_key(args, table, position)
        made = floats(place)
        for i in range(dim):
            total = _ZERO
            for at in range(begin, position):
                total += floats(_index_key(args, table, at))[i]
            made[i] = (total + made[i]) / np.float32(size)
        _turn(args, place, args[K_NORM], begin)


def index_blocks(args: Any, ith: int, nth: int) -> None:
    """Where a row's position ends a block: the mean of the block's index keys, normed and rotated by its first."""
    _blocks(args, ith, nth)


@_plain
def _is_worse(scores: Any, chosen: Any, a: Any, b: Any) -> Any:
    """Whether the a-th that was chosen goes before the b-th does: its score is lower, or its number higher."""
    return scores[a] < scores[b] or (scores[a] == scores[b] and chosen[a] > chosen[b])


@_plain
def _sink_score(scores: Any, chosen: Any, n: Any, at: Any) -> None:
    """Puts one of a heap with the worst on top into its place."""
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and _is_worse(scores, chosen, child + 1, child):
            child += 1
        if not _is_worse(scores, chosen, child, at):
            return
        scores[at], scores[child] = scores[child], scores[at]
        chosen[at], chosen[child] = chosen[child], chosen[at]
        at = child


@_plain
def _sink_number(chosen: Any, n: Any, at: Any) -> None:
    """Puts one of a heap with the highest number on top into its place."""
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and chosen[child + 1] > chosen[child]:
            child += 1
        if chosen[child] <= chosen[at]:
            return
        chosen[at], chosen[child] = chosen[child], chosen[at]
        at = child


@_plain
def _sort(chosen: Any, n: Any) -> None:
    """Ascending."""
    for at in range(n // 2 - 1, -1, -1):
        _sink_number(chosen, n, at)
    for end in range(n - 1, 0, -1):
        chosen[0], chosen[end] = chosen[end], chosen[0]
        _sink_number(chosen, end, 0)


def _choose(variant: Variant) -> Callable[..., None]:
    fma16, lanes = fma16_of(variant), LANES

    @_plain
    def score(args: Any, q: Any, key: Any) -> Any:
        """Σ_h max(0, q_h · key)."""
        dim, sum_ = args[DIM], _ZERO
        whole = dim // lanes * lanes
        for head in range(args[N_HEAD]):
            query = q + head * dim * 4
            total = splat16(_ZERO)
            for at in range(0, whole * 4, 64):
                total = fma16(load16(query + at), load16(key + at), total)
            product, x, y = sum16(total), floats(query), floats(key)
            for i in range(whole, dim):
                product += x[i] * y[i]
            if product > _ZERO:
                sum_ += product
        return sum_

    @_plain
    def choose_row(args: Any, state: Any, row: Any, scores: Any, chosen: Any) -> None:
        """The best n_blocks whole blocks, in ascending order; there are more than so many."""
        size, n = args[SIZE], args[N_BLOCKS]
        table, q = _table_of(args, state, row), args[Q] + row * args[Q_ROW]
        whole = (longs(state[STEP_POSITIONS])[row] + 1) // size
        for number in range(n):
            scores[number] = score(args, q, _index_key(args, table, (number + 1) * size - 1))
            chosen[number] = np.int32(number)
        for at in range(n // 2 - 1, -1, -1):
            _sink_score(scores, chosen, n, at)
        for number in range(n, whole):
            found = score(args, q, _index_key(args, table, (number + 1) * size - 1))
            if found > scores[0]:
                scores[0], chosen[0] = found, np.int32(number)
                _sink_score(scores, chosen, n, 0)
        _sort(chosen, n)

    def index_choose(args: Any, ith: int, nth: int) -> None:
        """For each row before which there are more whole blocks than it may see: which it sees."""
        state = longs(args[STATE])
        first_row, n_rows = state[args[TYPE] + 2], state[args[TYPE] + 3] - state[args[TYPE] + 2]
        scores = floats(args[SCRATCH] + ith * args[SCRATCH_BYTES])
        while True:
            task = atomic_add(args[COUNTER], 1)
            if task >= n_rows:
                break
            row = first_row + task
            if (longs(state[STEP_POSITIONS])[row] + 1) // args[SIZE] > args[N_BLOCKS]:
                choose_row(args, state, row, scores, ints(args[CHOSEN] + row * args[N_BLOCKS] * 4))

    return index_choose


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "index_heads": lambda _variant: index_heads,
    "index_blocks": lambda _variant: index_blocks,
    "index_choose": _choose,
}
