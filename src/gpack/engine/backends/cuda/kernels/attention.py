"""Attention of one row and head over the blocks of its text.

A block of threads goes through the pool's blocks of 64 positions in order. What is added in which order depends on the
row's position alone. Loops with steps are written out: a range would divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..layout import BLOCK_POSITIONS, BLOCK_SHIFT, MOST_HEAD_DIM, SEGMENT_TABLES
from .dialect import kernel
from .heads import KINDS


def _attend(read: Callable[..., Any]) -> Callable[..., None]:
    def attend(
        q: Any,
        n_head_kv: Any,
        per_key: Any,
        head_dim: Any,
        positions: Any,
        segment_of: Any,
        segments: Any,
        words: Any,
        group: Any,
        tables: Any,
        pool: Any,
        unit_shift: Any,
        offset: Any,
        head_units: Any,
        window: Any,
        scale: Any,
        first_row: Any,
        out: Any,
    ) -> None:
        """softmax(q kᵀ · scale) v over the positions that a row sees; `per_key` heads share one of keys."""
        query = cuda.shared.array(MOST_HEAD_DIM, np.float32)
        mixed = cuda.shared.array(MOST_HEAD_DIM, np.float32)
        scores = cuda.shared.array(BLOCK_POSITIONS, np.float32)
        t, threads = cuda.threadIdx.x, cuda.blockDim.x
        row, h = first_row + cuda.blockIdx.x, cuda.blockIdx.y
        at = (np.int64(row) * cuda.gridDim.y + h) * head_dim
        i = t
        while i < head_dim:
            query[i] = q[at + i]
            mixed[i] = np.float32(0)
            i += threads
        position = np.int64(positions[row])
        table = segments[np.int64(segment_of[row]) * words + SEGMENT_TABLES + group]
        head = h // per_key
        begin = np.int64(0)
        if window > 0 and position >= window:
            begin = position - window + 1
        largest: Any = np.float32(0)
        total = np.float32(0)
        for number in range(begin >> BLOCK_SHIFT, (position >> BLOCK_SHIFT) + 1):
            first = number * BLOCK_POSITIONS
            low: Any = max(begin - first, 0)
            high: Any = min(position - first + 1, BLOCK_POSITIONS)
            keys = (tables[table + number] >> unit_shift) + offset
            cuda.syncthreads()
            j = low + t
            while j < high:
                place = keys + (j * n_head_kv + head) * head_units
                product = np.float32(0)
                for i in range(head_dim):
                    product += query[i] * read(pool, place, i)
                scores[j] = product * scale
                j += threads
            cuda.syncthreads()
            top: Any = scores[low]
            for j in range(low + 1, high):
                # Written so that what is not a number wins.
                if not scores[j] <= top:
                    top = scores[j]
            faded = np.float32(0)
            if first > begin or low < begin - first:
                top = max(top, largest)
                faded = np.float32(math.exp(largest - top))
            largest = top
            cuda.syncthreads()
            j = low + t
            while j < high:
                scores[j] = np.float32(math.exp(scores[j] - top))
                j += threads
            cuda.syncthreads()
            total = total * faded
            for j in range(low, high):
                total += scores[j]
            values = keys + BLOCK_POSITIONS * n_head_kv * head_units
            i = t
            while i < head_dim:
                value = mixed[i] * faded
                for j in range(low, high):
                    value += scores[j] * read(pool, values + (j * n_head_kv + head) * head_units, i)
                mixed[i] = value
                i += threads
        share = np.float32(1) / total
        i = t
        while i < head_dim:
            out[at + i] = mixed[i] * share
            i += threads

    return attend


for _name, (_read, _, _unit) in KINDS.items():
    kernel(f"attend_{_name}", f"f32* i32 i32 i32 i32* i32* i64* i32 i32 i64* {_unit}* i32 i32 i32 i32 f32 i32 f32*")(
        _attend(_read)
    )
