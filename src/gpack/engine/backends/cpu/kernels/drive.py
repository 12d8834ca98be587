"""The steps of products: they share out tiles among threads and call the kernels of the weights' type.

Few tokens: the rows are multiplied as they are stored, token by token. Many: a few tiles are unpacked into panels, and
the panels are multiplied with all tokens while they are still in the processor's second cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..variants import Variant
from .lanes import rows_of
from .memory import atomic_add, bytes_, call_kernel, floats, ints, longs
from .multiply import (
    ADD,
    BIAS,
    COLUMNS,
    COUNT,
    LENGTH,
    OUT,
    OUT_LIST,
    OUT_ROW,
    PANEL,
    PANEL_BYTES,
    SCRATCH,
    X_LIST,
    X_ROW,
    X,
)

# Words of the arguments of `matmul`.
(
    STATE,
    WEIGHTS,
    ROW_BYTES,
    N_OUT,
    BLOCKS,
    PANEL_LENGTH,
    X_AT,
    X_STEP,
    OUT_AT,
    OUT_STEP,
    BIAS_AT,
    ADD_TO,
    LAST,
    PER_TOKEN,
    DOT,
    UNPACK,
    MULTIPLY,
    FEW,
    TILES,
    ONE_PANEL,
    MEMORY,
    MEMORY_EACH,
    TAIL_AT,
    PANELS_AT,
    CHUNK,
    COUNTER,
) = range(26)
# `moe_matmul` has these behind them.
SELECTED, SELECTED_EACH, TABLE, N_EXPERT, X_EACH, ORDER_AT, MOE_COUNTER = range(25, 32)
# Where things lie in a thread's memory: arguments of kernels, results of row dots, what a multiplication needs.
UNPACK_AT, MULTIPLY_AT, RESULTS_AT, MULTIPLY_MEMORY_AT, FREE_AT = 0, 64, 256, 256 + 4096, 256 + 4096 + 1024


def _products(variant: Variant) -> tuple[Callable[..., None], Callable[..., None]]:
    from numba import njit

    lanes = rows_of(variant)
    inline = njit(error_model="numpy", inline="never")

    @inline
    def copy_tail(args: Any, weights: Any, memory: Any, tile: Any) -> Any:
        """The rows of the last tile, which has too few, with rows of zeros behind them."""
        source = bytes_(weights + tile * lanes * args[ROW_BYTES])
        target = bytes_(memory + args[TAIL_AT])
        have = (args[N_OUT] - tile * lanes) * args[ROW_BYTES]
        for place in range(have):
            target[place] = source[place]
        for place in range(have, lanes * args[ROW_BYTES]):
            target[place] = 0
        return memory + args[TAIL_AT]

    @inline
    def share(n_tiles: Any, number: Any, nth: Any, most: Any) -> Any:
        """The tiles of a piece, beyond the last where there is no such piece.

        What is asked for ahead at a piece's end is another thread's, and its beginning was not asked for: so pieces
        are large, as many equal ones as threads, and then smaller and smaller ones, that all end at the same time.
        """
        first, left = 0, n_tiles
        while True:
            size = max(1, min(most, 7 * left // (8 * nth)))
            if number < nth:
                first += number * size
                return first, min(first + size, n_tiles)
            if left <= nth * size:
                return n_tiles, n_tiles
            first, left, number = first + nth * size, left - nth * size, number - nth

    @inline
    def dots(args: Any, weights: Any, x: Any, out: Any, first: Any, behind: Any, memory: Any) -> None:
        """The products of some tiles and one token."""
        block = longs(memory + UNPACK_AT)
        block[0], block[1], block[2], block[3] = weights, args[ROW_BYTES], args[BLOCKS], x
        results = memory + RESULTS_AT
        block[4] = results - 4 * lanes * first
        whole = min(behind, args[N_OUT] // lanes)
        if whole > first:
            call_kernel(args[DOT], memory + UNPACK_AT, first, whole)
        if behind > whole:
            block[0] = copy_tail(args, weights, memory, whole)
            block[4] = results + 4 * lanes * (whole - first)
            call_kernel(args[DOT], memory + UNPACK_AT, 0, 1)
        made, target = floats(results), floats(out + 4 * lanes * first)
        bias = floats(args[BIAS_AT] + 4 * lanes * first)
        for place in range(min(behind * lanes, args[N_OUT]) - first * lanes):
            value = made[place]
            if args[BIAS_AT] != 0:
                value += bias[place]
            if args[ADD_TO] != 0:
                value += target[place]
            target[place] = value

    @inline
    def unpack(args: Any, weights: Any, first: Any, behind: Any, memory: Any) -> None:
        """Panels of some tiles."""
        block = longs(memory + UNPACK_AT)
        panels = memory + args[PANELS_AT]
        block[0], block[1], block[2], block[3] = weights, args[ROW_BYTES], args[BLOCKS], panels
        whole = min(behind, args[N_OUT] // lanes)
        if whole > first:
            call_kernel(args[UNPACK], memory + UNPACK_AT, first, whole)
        if behind > whole:
            block[0] = copy_tail(args, weights, memory, whole)
            block[3] = panels + (whole - first) * args[ONE_PANEL]
            call_kernel(args[UNPACK], memory + UNPACK_AT, 0, 1)

    @inline
    def prepare(args: Any, memory: Any) -> None:
        """The arguments of a multiplication that do not change between panels."""
        block = longs(memory + MULTIPLY_AT)
        block[PANEL], block[PANEL_BYTES], block[LENGTH] = memory + args[PANELS_AT], args[ONE_PANEL], args[PANEL_LENGTH]
        block[X], block[X_ROW], block[X_LIST] = args[X_AT], args[X_STEP], 0
        block[OUT], block[OUT_ROW], block[OUT_LIST] = args[OUT_AT], args[OUT_STEP], 0
        block[COLUMNS], block[BIAS], block[ADD] = args[N_OUT], args[BIAS_AT], args[ADD_TO]
        block[SCRATCH] = memory + MULTIPLY_MEMORY_AT

    def matmul(args: Any, ith: int, nth: int) -> None:
        memory = args[MEMORY] + ith * args[MEMORY_EACH]
        count = longs(args[STATE])[0] * args[PER_TOKEN]
        x = args[X_AT]
        if args[LAST] != 0:
            x += (count - 1) * args[X_STEP]
            count = 1
        n_tiles = (args[N_OUT] + lanes - 1) // lanes
        if count == 0:
            return
        if count <= args[FEW]:
            while True:
                unit = atomic_add(args[COUNTER], 1)
                token = unit % count
                first, behind = share(n_tiles, unit // count, nth, args[CHUNK])
                if first >= n_tiles:
                    break
                out = args[OUT_AT] + token * args[OUT_STEP]
                dots(args, args[WEIGHTS], x + token * args[X_STEP], out, first, behind, memory)
            return
        prepare(args, memory)
        block = longs(memory + MULTIPLY_AT)
        block[X], block[COUNT] = x, count
        while True:
            first = atomic_add(args[COUNTER], args[TILES])
            if first >= n_tiles:
                break
            behind = min(first + args[TILES], n_tiles)
            unpack(args, args[WEIGHTS], first, behind, memory)
            call_kernel(args[MULTIPLY], memory + MULTIPLY_AT, first, behind)

    @inline
    def sort_pairs(args: Any, n_pairs: Any, memory: Any) -> None:
        """Pairs of token and expert by expert: where each expert's begin, the pairs, and the rows of x of each."""
        selected = ints(args[SELECTED])
        starts = ints(memory + args[ORDER_AT])
        pairs = ints(memory + args[ORDER_AT] + 4 * (args[N_EXPERT] + 2))
        for expert in range(args[N_EXPERT] + 2):
            starts[expert] = 0
        for pair in range(n_pairs):
            starts[selected[pair] + 2] += 1
        for expert in range(args[N_EXPERT]):
            starts[expert + 2] += starts[expert + 1]
        for pair in range(n_pairs):
            place = starts[selected[pair] + 1]
            starts[selected[pair] + 1] = place + 1
            pairs[place] = pair
            pairs[n_pairs + place] = pair if args[X_EACH] != 1 else pair // args[SELECTED_EACH]

    def moe_matmul(args: Any, ith: int, nth: int) -> None:
        memory = args[MEMORY] + ith * args[MEMORY_EACH]
        tokens = longs(args[STATE])[0]
        n_pairs = tokens * args[SELECTED_EACH]
        table = longs(args[TABLE])
        n_tiles = (args[N_OUT] + lanes - 1) // lanes
        if tokens <= args[FEW]:
            selected = ints(args[SELECTED])
            size = max(1, min(args[CHUNK], n_tiles // (2 * nth)))
            n_chunks = (n_tiles + size - 1) // size
            while True:
                unit = atomic_add(args[MOE_COUNTER], 1)
                if unit >= n_chunks * n_pairs:
                    break
                pair, first = unit // n_chunks, unit % n_chunks * size
                behind = min(first + size, n_tiles)
                row = pair if args[X_EACH] != 1 else pair // args[SELECTED_EACH]
                x, out = args[X_AT] + row * args[X_STEP], args[OUT_AT] + pair * args[OUT_STEP]
                dots(args, table[selected[pair]], x, out, first, behind, memory)
            return
        sort_pairs(args, n_pairs, memory)
        prepare(args, memory)
        block = longs(memory + MULTIPLY_AT)
        starts = ints(memory + args[ORDER_AT])
        pairs = memory + args[ORDER_AT] + 4 * (args[N_EXPERT] + 2)
        n_units = (n_tiles + args[TILES] - 1) // args[TILES]
        while True:
            unit = atomic_add(args[MOE_COUNTER], 1)
            if unit >= n_units * args[N_EXPERT]:
                break
            expert = unit // n_units
            begin, end = starts[expert], starts[expert + 1]
            if begin == end:
                continue
            first = unit % n_units * args[TILES]
            behind = min(first + args[TILES], n_tiles)
            unpack(args, table[expert], first, behind, memory)
            block[COUNT] = end - begin
            block[OUT_LIST], block[X_LIST] = pairs + 4 * begin, pairs + 4 * (n_pairs + begin)
            call_kernel(args[MULTIPLY], memory + MULTIPLY_AT, first, behind)

    return matmul, moe_matmul


# Words of the arguments of `embed`.
E_STATE, E_WEIGHTS, E_ROW_BYTES, E_BLOCKS, E_WIDTH, E_TOKENS, E_OUT, E_UNPACK, E_MEMORY, E_MEMORY_EACH, E_PANELS = (
    range(11)
)


def _embed(variant: Variant) -> Callable[..., None]:
    lanes = rows_of(variant)

    def embed(args: Any, ith: int, nth: int) -> None:
        """A row is unpacked as if it were a tile of equal rows; one lane is kept."""
        memory = args[E_MEMORY] + ith * args[E_MEMORY_EACH]
        block = longs(memory)
        panel = floats(memory + args[E_PANELS])
        tokens = ints(args[E_TOKENS])
        token = ith
        while token < longs(args[E_STATE])[0]:
            block[0], block[1] = args[E_WEIGHTS] + tokens[token] * args[E_ROW_BYTES], 0
            block[2], block[3] = args[E_BLOCKS], memory + args[E_PANELS]
            call_kernel(args[E_UNPACK], memory, 0, 1)
            out = floats(args[E_OUT] + 4 * token * args[E_WIDTH])
            for place in range(args[E_WIDTH]):
                out[place] = panel[lanes * place]
            token += nth

    return embed


BUILDERS: dict[str, Callable[[Variant], Callable[..., None]]] = {
    "matmul": lambda variant: _products(variant)[0],
    "moe_matmul": lambda variant: _products(variant)[1],
    "embed": _embed,
}
