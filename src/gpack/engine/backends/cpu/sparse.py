"""Adds the steps of block-sparse attention to a program: the indexer's, and attention over what it chose.

Rows that see all positions go through the kernel of dense attention: so, below the budget, sparse attention has the
bits of dense attention. Which kernel a row goes through depends on its position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .attention import HeadOptions, RowsAt, float_bits
from .buffers import aligned
from .cache import BlockLayout
from .layout import (
    BLOCK_POSITIONS,
    CACHE_TYPES,
    PART_POSITIONS,
    PRODUCT_ROWS,
    SEGMENT_COUNT,
    SEGMENT_POSITION,
    SEGMENT_SLOT,
    SPLIT_ROWS,
    STEP_N_SEGMENTS,
    STEP_PARTS,
    STEP_SEGMENTS,
    STEP_SLOT_BYTES,
    STEP_TYPES,
    TILE_POSITIONS,
)
from .step import StepBlock
from .team import Program
from .workspace import Workspace


class Blocks(NamedTuple):
    """What is chosen from.

    Attributes:
        size: Positions of a block.
        most: Blocks that a row sees at most.
    """

    size: int
    most: int

    @property
    def limit(self) -> int:
        """Rows at positions below it see all blocks."""
        return (self.most + 1) * self.size - 1


class DenseRows:
    """The state block of a step, cut to the rows at positions below a limit: what dense attention reads."""

    def __init__(self, step: StepBlock, limit: int) -> None:
        """For the steps that a block describes."""
        self._step, self._limit = step, limit
        self._words = np.array(step.words)
        self._segments = np.zeros_like(step.segments)
        self._parts: npt.NDArray[np.uint8] = aligned((0,), np.uint8)

    @property
    def address(self) -> int:
        """Of the state block."""
        return int(self._words.ctypes.data)

    def fill(self) -> None:
        """Takes over what the step's block says now.

        Raises:
            MemoryError: There is no memory for the results of parts.
        """
        words, source = self._words, self._step.words
        n = int(source[STEP_N_SEGMENTS])
        segments = self._segments[:n]
        segments[:] = self._step.segments[:n]
        counts = np.clip(self._limit - segments[:, SEGMENT_POSITION], 0, segments[:, SEGMENT_COUNT])
        segments[:, SEGMENT_COUNT] = counts
        slots = ((segments[:, SEGMENT_POSITION] + counts - 1) // PART_POSITIONS + 1) * counts
        ends = np.cumsum(np.where(counts <= SPLIT_ROWS, slots, 0))
        segments[1:, SEGMENT_SLOT], segments[:1, SEGMENT_SLOT] = ends[:-1], 0
        needed = int(ends[-1]) * int(source[STEP_SLOT_BYTES])
        if needed > self._parts.nbytes:
            self._parts = aligned((needed * 5 // 4,), np.uint8)
        words[:] = source
        words[STEP_SEGMENTS], words[STEP_PARTS] = self._segments.ctypes.data, self._parts.ctypes.data


def indexer(
    program: Program,
    step: StepBlock,
    work: Workspace,
    q: RowsAt,
    k: RowsAt,
    *,
    n_head: int,
    layouts: Sequence[BlockLayout],
    layer: int,
    group: int,
    blocks: Blocks,
    heads: HeadOptions,
) -> None:
    """Adds the choice of each row's blocks, which `attend` reads.

    Args:
        q: float32 [rows, n_head * index_dim], which is overwritten.
        k: float32 [rows, index_dim].
        layouts: Of the group's blocks of memory, one for each type of cache that segments may have.
        layer: Which of the group's layers.
        group: Which of a segment's block tables.
        heads: Of the index queries, and the norm of the keys of blocks.
    """
    program.keep(step)
    for layout in layouts:
        place = layout.layers[layer]
        arguments = (
            step.address,
            STEP_TYPES + 4 * CACHE_TYPES.index(layout.cache_type),
            *q,
            *k,
            n_head,
            place.index_dim,
            heads.n_rotated,
            int(heads.interleaved),
            heads.rope,
            heads.q_norm,
            heads.k_norm,
            float_bits(heads.epsilon),
            step.table_word(group),
            place.index,
            *blocks,
            _chosen(program, work, blocks),
            *work.memory(4 * blocks.most),
        )
        program.add("index_heads", *arguments)
        program.add("index_blocks", *arguments)
        program.add("index_choose", *arguments, counter=True)


def attend(
    program: Program,
    step: StepBlock,
    work: Workspace,
    q: RowsAt,
    out: RowsAt,
    *,
    n_head: int,
    layouts: Sequence[BlockLayout],
    layer: int,
    group: int,
    blocks: Blocks,
    scale: float,
) -> None:
    """Adds the attention of the rows that do not see all blocks.

    Args:
        q: float32 [rows, n_head * head_dim], normed and rotated.
        out: As many rows.
    """
    program.keep(step)
    for layout in layouts:
        place = layout.layers[layer]
        rows = -(-(n_head // place.n_head_kv) // PRODUCT_ROWS) * PRODUCT_ROWS
        lines = 2 * -(-rows // TILE_POSITIONS) * TILE_POSITIONS
        numbers = 2 * rows * place.padded + lines + (rows + 2 * place.padded) * BLOCK_POSITIONS
        program.add(
            f"sparse_{layout.cache_type.lower()}",
            step.address,
            *q,
            *out,
            n_head,
            place.n_head_kv,
            place.head_dim,
            place.padded,
            float_bits(scale),
            step.table_word(group),
            place.keys,
            place.values,
            place.head_bytes,
            *blocks,
            _chosen(program, work, blocks),
            blocks.limit,
            *work.memory(4 * numbers),
            counter=True,
        )


def _chosen(program: Program, work: Workspace, blocks: Blocks) -> int:
    """The address of the rows' choices, int32 [rows, most]: one layer's at a time."""
    memory = work.shared(("chosen blocks", blocks.most), lambda: aligned((work.max_batch, blocks.most), np.int32))
    return int(program.keep(memory).ctypes.data)
