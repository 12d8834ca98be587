"""The steps of products: they share out tiles among threads and call the kernels of the weights' type.

Few columns: the weights are multiplied as they are stored. Many: a few tiles are unpacked into panels, and the panels
are multiplied with all columns while they are still in the processor's second cache. Either way gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layout import (
    ADD,
    BIAS,
    BLOCKS,
    COUNT,
    E_BLOCKS,
    E_MEMORY,
    E_MEMORY_EACH,
    E_OUT,
    E_PANEL_AT,
    E_ROW_BYTES,
    E_STATE,
    E_TOKENS,
    E_UNPACK,
    E_WEIGHTS,
    E_WIDTH,
    LENGTH,
    MOST_TILES,
    N_OUT,
    OUT,
    OUT_LIST,
    OUT_ROW,
    P_ADD,
    P_BIAS,
    P_BLOCKS,
    P_COUNTER,
    P_DOT,
    P_FEW,
    P_LENGTH,
    P_MEMORY,
    P_MEMORY_EACH,
    P_MOE_COUNTER,
    P_MULTIPLY,
    P_N_EXPERT,
    P_N_OUT,
    P_ORDER_AT,
    P_OUT,
    P_OUT_ROW,
    P_PANEL_BYTES,
    P_PANELS_AT,
    P_PER_TOKEN,
    P_ROW_BYTES,
    P_SELECTED,
    P_SELECTED_EACH,
    P_STATE,
    P_TABLE,
    P_TAIL_AT,
    P_TILES,
    P_UNPACK,
    P_WEIGHTS,
    P_X,
    P_X_EACH,
    P_X_ROW,
    PANEL,
    PANEL_BYTES,
    ROW_BYTES,
    SCRATCH,
    SCRATCH_AT,
    STEP_ROWS,
    TILE_ARGUMENTS_AT,
    WEIGHTS,
    X_LIST,
    X_ROW,
    X,
)
from ..variants import Variant
from .lanes import rows_of
from .memory import atomic_add, bytes_, call_kernel, floats, ints, longs


def _products(variant: Variant) -> tuple[Callable[..., None], Callable[..., None]]:
    from numba import njit

    lanes = rows_of(variant)
    inline = njit(error_model="numpy", inline="never")

    @inline
    def copy_tail(args: Any, weights: Any, memory: Any, tile: Any) -> Any:
        """The rows of the last tile, which has too few, with rows of zeros after them."""
        source = bytes_(weights + tile * lanes * args[P_ROW_BYTES])
        target = bytes_(memory + args[P_TAIL_AT])
        have = (args[P_N_OUT] - tile * lanes) * args[P_ROW_BYTES]
        for place in range(have):
            target[place] = source[place]
        for place in range(have, lanes * args[P_ROW_BYTES]):
            target[place] = 0
        return memory + args[P_TAIL_AT]

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
    def prepare(args: Any, memory: Any) -> None:
        """The arguments of kernels of tiles that stay for a step, or that a column of its own changes."""
        tile = longs(memory + TILE_ARGUMENTS_AT)
        tile[ROW_BYTES], tile[BLOCKS] = args[P_ROW_BYTES], args[P_BLOCKS]
        tile[PANEL_BYTES], tile[LENGTH] = args[P_PANEL_BYTES], args[P_LENGTH]
        tile[X], tile[X_ROW], tile[X_LIST] = args[P_X], args[P_X_ROW], 0
        tile[OUT], tile[OUT_ROW], tile[OUT_LIST] = args[P_OUT], args[P_OUT_ROW], 0
        tile[N_OUT], tile[BIAS], tile[ADD] = args[P_N_OUT], args[P_BIAS], args[P_ADD]
        tile[SCRATCH] = memory + SCRATCH_AT

    @inline
    def on_tiles(kernel: Any, args: Any, weights: Any, first: Any, stop: Any, memory: Any) -> None:
        """Calls a kernel that reads weights for some tiles, the last of which may have too few rows."""
        tile = longs(memory + TILE_ARGUMENTS_AT)
        tile[WEIGHTS], tile[PANEL] = weights, memory + args[P_PANELS_AT]
        whole = min(stop, args[P_N_OUT] // lanes)
        if whole > first:
            call_kernel(kernel, memory + TILE_ARGUMENTS_AT, first, whole)
        if stop > whole:
            tile[WEIGHTS] = copy_tail(args, weights, memory, whole) - whole * lanes * args[P_ROW_BYTES]
            tile[PANEL] += (whole - first) * args[P_PANEL_BYTES]
            call_kernel(kernel, memory + TILE_ARGUMENTS_AT, whole, stop)

    @inline
    def multiply(args: Any, weights: Any, first: Any, stop: Any, memory: Any) -> None:
        """The products of some tiles and the columns that were prepared."""
        tile = longs(memory + TILE_ARGUMENTS_AT)
        if tile[COUNT] <= args[P_FEW]:
            on_tiles(args[P_DOT], args, weights, first, stop, memory)
            return
        while first < stop:
            end = min(first + args[P_TILES], stop)
            on_tiles(args[P_UNPACK], args, weights, first, end, memory)
            tile[PANEL] = memory + args[P_PANELS_AT]
            call_kernel(args[P_MULTIPLY], memory + TILE_ARGUMENTS_AT, first, end)
            first = end

    def matmul(args: Any, ith: int, nth: int) -> None:
        memory = args[P_MEMORY] + ith * args[P_MEMORY_EACH]
        count = longs(args[P_STATE])[STEP_ROWS] * args[P_PER_TOKEN]
        n_tiles = (args[P_N_OUT] + lanes - 1) // lanes
        if count == 0:
            return
        prepare(args, memory)
        longs(memory + TILE_ARGUMENTS_AT)[COUNT] = count
        while True:
            piece = atomic_add(args[P_COUNTER], 1)
            if count <= args[P_FEW]:
                first, stop = share(n_tiles, piece, nth, MOST_TILES)
            else:
                first = piece * args[P_TILES]
                stop = min(first + args[P_TILES], n_tiles)
            if first >= n_tiles:
                break
            multiply(args, args[P_WEIGHTS], first, stop, memory)

    @inline
    def sort_pairs(args: Any, n_pairs: Any, memory: Any) -> Any:
        """Pairs of token and expert by expert: where each expert's begin, the pairs, the rows of x of each.

        Returns:
            How many experts have pairs; their numbers are put after the rows.
        """
        selected = ints(args[P_SELECTED])
        starts = ints(memory + args[P_ORDER_AT])
        pairs = ints(memory + args[P_ORDER_AT] + 4 * (args[P_N_EXPERT] + 2))
        for expert in range(args[P_N_EXPERT] + 2):
            starts[expert] = 0
        for pair in range(n_pairs):
            starts[selected[pair] + 2] += 1
        n_used = 0
        for expert in range(args[P_N_EXPERT]):
            if starts[expert + 2] != 0:
                pairs[2 * n_pairs + n_used] = expert
                n_used += 1
            starts[expert + 2] += starts[expert + 1]
        for pair in range(n_pairs):
            place = starts[selected[pair] + 1]
            starts[selected[pair] + 1] = place + 1
            pairs[place] = pair
            pairs[n_pairs + place] = pair if args[P_X_EACH] != 1 else pair // args[P_SELECTED_EACH]
        return n_used

    def moe_matmul(args: Any, ith: int, nth: int) -> None:
        memory = args[P_MEMORY] + ith * args[P_MEMORY_EACH]
        n_pairs = longs(args[P_STATE])[STEP_ROWS] * args[P_SELECTED_EACH]
        table = longs(args[P_TABLE])
        n_tiles = (args[P_N_OUT] + lanes - 1) // lanes
        prepare(args, memory)
        n_used = sort_pairs(args, n_pairs, memory)
        tile = longs(memory + TILE_ARGUMENTS_AT)
        starts = ints(memory + args[P_ORDER_AT])
        pairs = memory + args[P_ORDER_AT] + 4 * (args[P_N_EXPERT] + 2)
        used = ints(pairs + 8 * n_pairs)
        size = max(1, min(MOST_TILES, n_tiles // (2 * nth)))
        n_pieces = (n_tiles + size - 1) // size
        while True:
            unit = atomic_add(args[P_MOE_COUNTER], 1)
            if unit >= n_pieces * n_used:
                break
            expert, first = used[unit // n_pieces], unit % n_pieces * size
            begin = starts[expert]
            tile[COUNT] = starts[expert + 1] - begin
            tile[OUT_LIST], tile[X_LIST] = pairs + 4 * begin, pairs + 4 * (n_pairs + begin)
            multiply(args, table[expert], first, min(first + size, n_tiles), memory)

    return matmul, moe_matmul


def _embed(variant: Variant) -> Callable[..., None]:
    lanes = rows_of(variant)

    def embed(args: Any, ith: int, nth: int) -> None:
        """A row is unpacked as if it were a tile of equal rows; one lane is kept."""
        memory = args[E_MEMORY] + ith * args[E_MEMORY_EACH]
        tile = longs(memory)
        panel = floats(memory + args[E_PANEL_AT])
        tokens = ints(args[E_TOKENS])
        token = ith
        while token < longs(args[E_STATE])[STEP_ROWS]:
            tile[WEIGHTS], tile[ROW_BYTES] = args[E_WEIGHTS] + tokens[token] * args[E_ROW_BYTES], 0
            tile[BLOCKS], tile[PANEL] = args[E_BLOCKS], memory + args[E_PANEL_AT]
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
