"""What compiled code and Python both know of memory: places, sizes and words of arguments.

Nothing here imports numba. What stands here stands nowhere else.
"""

from __future__ import annotations

from typing import Final

# ------------------------------------------------------------ weights and activations

# Rows of a tile, which is the number of 32-bit lanes of a variant's vectors.
TILE_ROWS: Final = {"vnni": 16, "avx2": 8, "portable": 8}

# Activations in 8 bits (q8): groups of 32 values that share a scale. A group takes a cache line: float32 scale; float32
# sums of the values as rounded, of all 32 and of each 16; int32 sum of the codes times -128; int16 sums of the codes
# times 32, for each 16 those of every first and every second pair; int32 sum of the negative codes, times -1; 32 codes,
# int8.
Q8_VALUES: Final = 32
Q8_SCALE, Q8_SUM, Q8_HALF_SUMS, Q8_OFFSET, Q8_PAIRS, Q8_NEGATIVE, Q8_CODES, Q8_BYTES = 0, 4, 8, 16, 20, 28, 32, 64

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
# recurrent layers, the address of the state to read and of that to write.
SEGMENT_ROW, SEGMENT_COUNT, SEGMENT_POSITION, SEGMENT_SLOT, SEGMENT_TABLES = range(5)
# Words of the head program's state block: the number of rows, and the address of their numbers, int32.
PICK_ROWS, PICK_LIST = 0, 1

FINISHED_BYTES = 64  # of a count of finished parts: a cache line
