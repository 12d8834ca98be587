"""What kernels and Python both know: sizes of blocks of threads, words of tables. Nothing here imports numba."""

from __future__ import annotations

from typing import Final

# Rows of activations that go through a matrix at once: one alone, or up to eight.
COLUMNS: Final = (1, 8)
PRODUCT_THREADS: Final = 128  # of a block that makes products, at most
MOST_SUM_THREADS: Final = 256  # that share a sum over a row
ROUTE_THREADS: Final = 32
DELTA_THREADS: Final = 128
ROW_THREADS: Final = 128  # of a block that works element by element
MOST_LANES: Final = 32  # that share a row of weights

CACHE_TYPES: Final = ("F32", "F16", "Q8_0")
BLOCK_SHIFT: Final = 6
BLOCK_POSITIONS: Final = 1 << BLOCK_SHIFT
MOST_HEAD_DIM: Final = 256
MOST_EXPERTS: Final = 512

# Words of a segment, int64: its first row, how many, the position of the first, the addresses of the recurrent states
# before and after it, and of what is kept of its rows; then for each group of keys and values where in the step's
# table its block addresses begin.
SEGMENT_ROW, SEGMENT_COUNT, SEGMENT_POSITION, SEGMENT_READ, SEGMENT_WRITE, SEGMENT_KEEP, SEGMENT_TABLES = range(7)


def lanes_shift(parts: int) -> int:
    """The logarithm of how many lanes share a row of so many parts: as many as there are, up to 32."""
    shift = 0
    while (2 << shift) <= min(parts, MOST_LANES):
        shift += 1
    return shift


def sum_threads(width: int) -> int:
    """Threads that share the sum of a row: a power of two that depends on its width alone."""
    threads = 1
    while 32 * threads <= width and threads < MOST_SUM_THREADS:
        threads *= 2
    return threads
