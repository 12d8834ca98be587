"""What compiled code and Python both know of memory: places, sizes and words of arguments.

Nothing here imports numba. What stands here stands nowhere else.
"""

from __future__ import annotations

from typing import Final

# Weights

# Rows of a tile, which is the number of 32-bit lanes of a variant's vectors.
TILE_ROWS: Final = {"vnni": 16, "avx2": 8, "portable": 8}

# Activations in 8 bits (q8): groups of 32 values that share a scale. A group takes a cache line: float32 scale; float32
# sums of the values as rounded, of all 32 and of each 16; int32 sum of the codes times -128; int16 sums of the codes
# times 32, for each 16 those of every first and every second pair; int32 sum of the negative codes, times -1; 32 codes,
# int8.
Q8_VALUES: Final = 32
Q8_SCALE, Q8_SUM, Q8_HALF_SUMS, Q8_OFFSET, Q8_PAIRS, Q8_NEGATIVE, Q8_CODES, Q8_BYTES = 0, 4, 8, 16, 20, 28, 32, 64

# Steps

# The state of a batch: int64 words.
N_ROWS: Final = 0  # rows of the step
