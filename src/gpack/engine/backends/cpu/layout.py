"""What compiled code and Python both know of memory: places, sizes and words of arguments.

Nothing here imports numba. What stands here stands nowhere else.
"""

from __future__ import annotations

from typing import Final

# ------------------------------------------------------------ weights and activations

# Rows of a tile, which is the number of 32-bit lanes of a variant's vectors.
TILE_ROWS: Final = {"vnni": 16, "avx2": 8, "portable": 8}

# Types whose scales are those of 16 weights, of all 8 bits, and of points of a grid: how their codes are multiplied
# follows from that (see `multiply_kernel`).
_SIXTEENS: Final = ("Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S")
_BYTES: Final = ("Q8_0", "IQ4_NL", "IQ4_XS")
_GRIDS: Final = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")


def group_of(name: str) -> int:
    """Weights of a type of blocks that share a scale."""
    return 16 if name in _SIXTEENS else 32


def multiply_kernel(name: str, variant: str) -> str:
    """The kernel that multiplies panels of codes of a type."""
    if name in _BYTES:
        return "multiply_signed" if variant == "avx2" else "multiply_bytes"
    return f"multiply_grid_{group_of(name)}" if name in _GRIDS else f"multiply_{group_of(name)}"


def panel_bytes(variant: str, n_in: int, group: int) -> int:
    """Bytes of a panel of codes: for each group a float32 scale and minimum of each row, and the codes."""
    return n_in // group * 4 * TILE_ROWS[variant] * (2 + group // 4)


# Activations in 8 bits (q8): groups of 32 values that share a scale. A group takes a cache line: float32 scale; float32
# sums of the values as rounded, of all 32 and of each 16; int32 sum of the codes times -128; int32 sum of the negative
# codes, times -1; 32 codes, int8.
Q8_VALUES: Final = 32
Q8_SCALE, Q8_SUM, Q8_HALF_SUMS, Q8_OFFSET, Q8_NEGATIVE, Q8_CODES, Q8_BYTES = 0, 4, 8, 16, 20, 32, 64

# ------------------------------------------------------------ products

# Columns are rows of activations. Up to so many are multiplied with weights as they are stored; for more, weights are
# unpacked into panels.
MOST_COLUMNS: Final = 24

# Tiles that a thread takes at a time at most.
MOST_TILES: Final = 64

# Words of the arguments of the kernels that work on tiles: `dot_*` and `multiply_*` make products, `codes_*` and
# `floats_*` panels. WEIGHTS: of tile 0. PANEL: of the first tile. LENGTH of a row: what multiplications count, 32
# weights of codes or one that is a float. X_LIST, OUT_LIST: int32 numbers of the columns' rows, or 0 where they are
# 0, 1, 2. BIAS: float32 of each row of weights, or 0. ADD: not 0 where products are added to what is there.
(
    WEIGHTS,
    ROW_BYTES,
    BLOCKS,
    PANEL,
    PANEL_BYTES,
    LENGTH,
    X,
    X_ROW,
    X_LIST,
    COUNT,
    OUT,
    OUT_ROW,
    OUT_LIST,
    N_OUT,
    BIAS,
    ADD,
    SCRATCH,
    TILE_WORDS,
) = range(18)

# Words of the arguments of `matmul`.
(
    P_STATE,
    P_WEIGHTS,
    P_ROW_BYTES,
    P_N_OUT,
    P_BLOCKS,
    P_LENGTH,
    P_X,
    P_X_ROW,
    P_OUT,
    P_OUT_ROW,
    P_BIAS,
    P_ADD,
    P_PER_TOKEN,
    P_DOT,
    P_UNPACK,
    P_MULTIPLY,
    P_FEW,
    P_TILES,
    P_PANEL_BYTES,
    P_MEMORY,
    P_MEMORY_EACH,
    P_TAIL_AT,
    P_PANELS_AT,
    P_COUNTER,
) = range(24)
# `moe_matmul` has these after them, and its counter last.
P_SELECTED, P_SELECTED_EACH, P_TABLE, P_N_EXPERT, P_X_EACH, P_ORDER_AT, P_MOE_COUNTER = range(23, 30)

# A thread's memory while it makes products: arguments for the kernels of tiles, then what those put aside (addresses
# and sums of columns), then the rest.
TILE_ARGUMENTS_AT, SCRATCH_AT = 0, 192
SCRATCH_SUMS: Final = 8 * MOST_COLUMNS
FREE_AT: Final = SCRATCH_AT + SCRATCH_SUMS + 64 * MOST_COLUMNS

# Words of the arguments of `embed`.
E_STATE, E_WEIGHTS, E_ROW_BYTES, E_BLOCKS, E_WIDTH, E_TOKENS, E_OUT, E_UNPACK, E_MEMORY, E_MEMORY_EACH, E_PANEL_AT = (
    range(11)
)

# ------------------------------------------------------------ keys and values

CACHE_TYPES = ("F32", "F16", "Q8_0")
BLOCK_POSITIONS = 64  # positions of a block of the cache, which attention works on at once
TILE_POSITIONS = 16  # positions of a key tile: as many as a vector has floats
# Attention is worked out in parts of so many positions, which begin at multiples of it, and the parts are put together
# in their order. So a row's bits depend on nothing but its position.
PART_POSITIONS = 256
# Segments of at most so many rows share their parts out among threads.
SPLIT_ROWS = 8
ATTENTION_ROWS = 96  # rows, of tokens and heads, that go through a block together
PRODUCT_ROWS = 4  # of which so many are multiplied at once

STATE_COLUMNS = 32  # of a recurrent layer's matrices, that lie together

# ------------------------------------------------------------ a step

# Words of the state block, int64. All kernels read the number of rows; others ask whose a row is.
STEP_ROWS = 0
STEP_POSITIONS = 1  # address of int64 [rows]
STEP_SEGMENT_OF = 2  # address of int32 [rows]
STEP_SEGMENTS = 3  # address of the segment table, int64 [segments, words of a segment]
STEP_SEGMENT_WORDS = 4
STEP_N_SEGMENTS = 5
STEP_PARTS = 6  # address of memory for the results of parts
STEP_SLOT_BYTES = 7  # of these, for a part of one row
STEP_TYPES = 8  # four words for each of CACHE_TYPES: first segment, the one after the last, first row, after the last
STEP_WORDS = 32
# Words of a segment. After them come the addresses of its block tables, one a group, and then, for each set of
# recurrent layers, the address of the state to read and of that to write; last, where its rows are kept.
SEGMENT_ROW, SEGMENT_COUNT, SEGMENT_POSITION, SEGMENT_SLOT, SEGMENT_TABLES = range(5)
# Words of the head program's state block: the number of rows, and the address of their numbers, int32.
PICK_ROWS, PICK_LIST = 0, 1

FINISHED_BYTES = 64  # of a count of finished parts: a cache line
