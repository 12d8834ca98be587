"""Adds the steps of attention to a program: heads are made ready and stored, then attend to what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .buffers import aligned
from .cache import BlockLayout
from .layout import ATTENTION_ROWS, BLOCK_POSITIONS, FINISHED_BYTES, PRODUCT_ROWS, TILE_POSITIONS
from .step import StepBlock
from .team import Program


class RowsAt(NamedTuple):
    """Where rows of float32 are.

    Attributes:
        address: Of the first.
        row_bytes: From one row to the next.
    """

    address: int
    row_bytes: int


class HeadOptions(NamedTuple):
    """What is done to heads before they attend.

    Attributes:
        n_rotated: Numbers of a head that the position rotates; 0: none.
        interleaved: Whether pairs are neighbours, not a half apart.
        rope: Address of a cell, int64, that has the address of the table of cosines and sines; read at each run.
        q_norm, k_norm: Addresses of the weights of an RMS norm, float32 [head_dim]; 0: none.
        epsilon: Of that norm.
    """

    n_rotated: int = 0
    interleaved: bool = False
    rope: int = 0
    q_norm: int = 0
    k_norm: int = 0
    epsilon: float = 0.0


_NOTHING = HeadOptions()


class AttentionMemory:
    """Memory that all attention steps of a program share while they run."""

    def __init__(self, threads: int, max_rows: int) -> None:
        """For so many threads, and steps of at most so many rows."""
        self._threads, self._max_rows = threads, max_rows
        self._arrays: list[npt.NDArray[np.uint8]] = []  # all that steps know of
        self._scratch: dict[int, npt.NDArray[np.uint8]] = {}  # by the bytes of each thread
        self._finished: npt.NDArray[np.uint8] = aligned((0,), np.uint8)

    def scratch(self, padded: int, group: int) -> tuple[int, int]:
        """Address, and bytes of each thread, for heads of so many numbers, so many to a key/value head."""
        rows = -(-max(ATTENTION_ROWS, group) // PRODUCT_ROWS) * PRODUCT_ROWS
        lines = 4 * -(-rows // TILE_POSITIONS) * TILE_POSITIONS  # largest scores and weights, of parts and of all
        numbers = 3 * rows * padded + lines + PRODUCT_ROWS * BLOCK_POSITIONS + 2 * BLOCK_POSITIONS * padded
        each = -(-4 * numbers // 128) * 128
        # Threads go from a type of cache to the next without waiting: where they have other sizes they share no memory.
        if each not in self._scratch:
            self._scratch[each] = aligned((each * self._threads,), np.uint8)
        return int(self._scratch[each].ctypes.data), each

    def finished(self, n_head_kv: int) -> int:
        """Address of the counts of finished parts, which are 0 between steps."""
        size = self._max_rows * n_head_kv * FINISHED_BYTES
        if self._finished.nbytes < size:
            self._finished = aligned((size,), np.uint8)
            self._arrays.append(self._finished)
        return int(self._finished.ctypes.data)


def attention(
    program: Program,
    step: StepBlock,
    memory: AttentionMemory,
    q: RowsAt,
    k: RowsAt,
    v: RowsAt,
    out: RowsAt,
    *,
    n_head: int,
    layouts: Sequence[BlockLayout],
    layer: int,
    group: int,
    scale: float,
    window: int = 0,
    heads: HeadOptions = _NOTHING,
    rows: int = 0,
) -> None:
    """Adds softmax(q kᵀ · scale) v of every head over the blocks, to which k and v are added; causal.

    The steps of different types of cache run side by side; each returns immediately where no segment has its type.

    Args:
        q, k, v: float32 [rows, heads * head_dim]; q and k are overwritten.
        out: float32 [rows, n_head * head_dim]; may not be q, k or v.
        layouts: Of the group's blocks, one for each type of cache that segments may have.
        layer: Which of the group's layers.
        group: Which of a segment's block tables.
        window: How many of the newest positions are visible; 0: all.
        rows: Address of a state block that names the rows that attend; 0: all of the step do.
    """
    program.keep((step, memory))
    for layout in layouts:
        place = layout.layers[layer]
        program.add(
            f"heads_{layout.cache_type.lower()}",
            step.address,
            *q,
            *k,
            *v,
            n_head,
            place.n_head_kv,
            place.head_dim,
            place.padded,
            heads.n_rotated,
            int(heads.interleaved),
            heads.rope,
            heads.q_norm,
            heads.k_norm,
            float_bits(heads.epsilon),
            step.table_word(group),
            place.keys,
            place.values,
            place.head_bytes,
        )
        if layout is not layouts[-1]:
            program.join(len(program) - 1)
    for layout in layouts:
        place = layout.layers[layer]
        step.need_parts(4 * n_head * (place.padded + 2))
        program.add(
            f"attention_{layout.cache_type.lower()}",
            rows or step.address,
            *q,
            *out,
            n_head,
            place.n_head_kv,
            place.head_dim,
            place.padded,
            float_bits(scale),
            window,
            step.table_word(group),
            place.keys,
            place.values,
            place.head_bytes,
            *memory.scratch(place.padded, n_head // place.n_head_kv),
            memory.finished(place.n_head_kv),
            counter=True,
        )
        if layout is not layouts[-1]:
            program.join(len(program) - 1)


def float_bits(value: float) -> int:
    """A float32 as a kernel's argument: its bits."""
    return int(np.array(value, np.float32).view(np.int32))
