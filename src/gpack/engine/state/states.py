"""The state of a text at one position: plain values that are replaced as a whole, never changed.

So a step prepares the state that comes next beside the one that counts, and a commit is one assignment; an interrupt
finds the one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.base import BLOCK, Layout, StateGroups
from ..graph.states import KeyValues, StateId
from .pool import Block, Pool

Floats = npt.NDArray[Any]


def group_states(states: Sequence[StateId]) -> StateGroups:
    """The states of a graph: keys and values by window, everything else together."""
    windows: dict[int, list[StateId]] = {}
    recurrent = []
    for state in states:
        if isinstance(state.kind, KeyValues):
            windows.setdefault(state.kind.window, []).append(state)
        else:
            recurrent.append(state)
    return StateGroups(tuple(map(tuple, windows.values())), tuple(windows), tuple(recurrent))


@dataclass(frozen=True, eq=False)
class Layouts:
    """How the states of texts with one type of cache lie in memory.

    Attributes:
        blocks: Of each group of keys and values.
        windows: As `StateGroups` has them.
        recurrent: None where the model has no recurrent layers.
        slack: Positions beyond its window that a group keeps.
    """

    blocks: tuple[Layout, ...]
    windows: tuple[int, ...]
    recurrent: Layout | None
    slack: int

    def most_bytes(self, n_ctx: int) -> int:
        """Bytes of the states of a text of n_ctx positions while a step runs."""
        total = 0 if self.recurrent is None else 2 * self.recurrent.nbytes
        for layout, window in zip(self.blocks, self.windows, strict=True):
            kept = min(n_ctx, window + 2 * self.slack + BLOCK) if window else n_ctx
            total += layout.nbytes * -(-kept // BLOCK)
        return total


@dataclass(frozen=True, eq=False)
class Table:
    """The blocks of a text in one group of keys and values, by position // 64.

    Attributes:
        blocks: None where a block fell out of the window.
        ids: int64; 0 where there is none.
    """

    blocks: tuple[Block | None, ...] = ()
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    @classmethod
    def of(cls, blocks: Sequence[Block | None]) -> Table:
        """A table of some blocks."""
        ids = np.array([0 if block is None else block.id for block in blocks] or [0], np.int64)
        return cls(tuple(blocks), ids)

    def is_ready(self, position: int, writer: object) -> bool:
        """Whether `writer` may write to a position as it is: what most steps of single tokens find."""
        number = position // BLOCK
        block = self.blocks[number] if number < len(self.blocks) else None
        return block is not None and block.writer is writer and block.shared <= position

    def with_room(self, pool: Pool, layout: Layout, position: int, count: int, writer: object) -> Table:
        """Room for positions from `position` on, where `writer` may write.

        Raises:
            UsageError: `engine.budget`.
        """
        last, there = (position + count - 1) // BLOCK, len(self.blocks)
        copies = {
            number: pool.copy(block, writer)
            for number in range(position // BLOCK, min(last + 1, there))
            if (block := self.blocks[number]) is not None
            and (block.writer is not writer or block.shared > max(position, number * BLOCK))
        }
        if not copies and last < there:
            return self
        blocks = [copies.get(number, block) for number, block in enumerate(self.blocks)]
        return Table.of([*blocks, *(pool.take(layout, writer) for _ in range(there, last + 1))])

    def cut(self, position: int) -> Table:
        """Without the blocks of which no position is below `position`."""
        count = -(-position // BLOCK)
        return self if count >= len(self.blocks) else Table.of(self.blocks[:count])

    def without(self, position: int) -> Table:
        """Without the blocks of which all positions are below `position`."""
        count = min(max(0, position) // BLOCK, len(self.blocks))
        if all(block is None for block in self.blocks[:count]):
            return self
        return Table.of([*([None] * count), *self.blocks[count:]])

    def begins(self) -> int:
        """The first position that is there."""
        found = next((number for number, block in enumerate(self.blocks) if block is not None), 0)
        return found * BLOCK


@dataclass(frozen=True, eq=False)
class DraftState:
    """What the draft layer keeps of a text of `keys.position + waiting rows` tokens.

    Its row of position p is made of what the model gave for token p (the seed) and of token p + 1; so one row less than
    there are tokens can be known, and the seeds of those that are not computed wait.

    Attributes:
        keys: Of the draft layer alone.
        waiting: [rows, width] each, seeds in the order of positions: hidden states after the model's last norm, or
            what its architecture gives beside these.
    """

    keys: TextState
    waiting: tuple[Floats, ...] = ()

    @property
    def rows(self) -> int:
        """How many seeds wait."""
        return sum(map(len, self.waiting))

    def extended(self, seeds: Floats) -> DraftState:
        """After more tokens."""
        return DraftState(self.keys, (*self.waiting, seeds))

    def truncated(self, position: int) -> DraftState:
        """After fewer tokens. A seed that is no longer known becomes zeros, which only drafts depend on."""
        if position > self.keys.position:
            seeds = np.concatenate(self.waiting)[: position - self.keys.position]
            return DraftState(self.keys, (seeds,))
        if position == 0:
            return DraftState(self.keys.truncated(0))
        width, dtype = (self.waiting[0].shape[1], self.waiting[0].dtype) if self.waiting else (0, np.float32)
        return DraftState(self.keys.truncated(position - 1), (np.zeros((1, width), dtype),))

    def shared(self) -> DraftState:
        """For another text or for later."""
        return DraftState(self.keys.shared(), self.waiting)


@dataclass(frozen=True, eq=False)
class TextState:
    """The state of a text after `position` tokens."""

    layouts: Layouts
    position: int = 0
    tables: tuple[Table, ...] = ()
    recurrent: Block | None = None  # None: all zeros, as at position 0
    draft: DraftState | None = None  # None: nothing is drafted for the text by a layer of the model

    @classmethod
    def empty(cls, layouts: Layouts, draft: Layouts | None = None) -> TextState:
        """The state before the first token; `draft`: of the draft layer, where it is used."""
        kept = None if draft is None else DraftState(cls.empty(draft))
        return cls(layouts, tables=tuple(Table() for _ in layouts.blocks), draft=kept)

    def with_room(self, pool: Pool, count: int, writer: object) -> tuple[TextState, Block | None]:
        """The same state with room for `count` positions more, and memory for the recurrent states after them.

        Raises:
            UsageError: `engine.budget`.
        """
        after = None if self.layouts.recurrent is None else pool.take(self.layouts.recurrent, writer)
        if count == 1 and all(table.is_ready(self.position, writer) for table in self.tables):
            return self, after
        tables = tuple(
            table.with_room(pool, layout, self.position, count, writer)
            for table, layout in zip(self.tables, self.layouts.blocks, strict=True)
        )
        if all(new is old for new, old in zip(tables, self.tables, strict=True)):
            return self, after
        return replace(self, tables=tables), after

    def advanced(self, count: int, after: Block | None, seeds: Floats | None = None) -> TextState:
        """The state `count` positions later, which were written; blocks that have fallen out of a window are left out.

        Args:
            seeds: [count, width], which the draft layer goes on from.
        """
        position, layouts = self.position + count, self.layouts
        tables = self.tables
        if any(layouts.windows):
            tables = tuple(
                table.without(position - layouts.slack - window + 1) if window else table
                for table, window in zip(tables, layouts.windows, strict=True)
            )
        draft = self.draft if self.draft is None or seeds is None else self.draft.extended(seeds)
        return TextState(layouts, position, tables, after, draft)

    def can_truncate(self, position: int) -> bool:
        """Whether `truncated` can reach a position."""
        if position in (0, self.position):
            return True
        return self.layouts.recurrent is None and all(
            not window or table.begins() <= max(0, position - window + 1)
            for table, window in zip(self.tables, self.layouts.windows, strict=True)
        )

    def truncated(self, position: int) -> TextState:
        """The state after fewer tokens; `can_truncate` says whether that is possible."""
        if position == self.position:
            return self
        tables = tuple(table.cut(position) for table in self.tables)
        draft = None if self.draft is None else self.draft.truncated(position)
        return TextState(self.layouts, position, tables, None, draft)

    def shared(self) -> TextState:
        """The same state, for another text or for later: nobody overwrites what it holds."""
        for table in self.tables:
            for number, block in enumerate(table.blocks):
                if block is not None:
                    block.shared = max(block.shared, min(self.position, (number + 1) * BLOCK))
        tables = tuple(table.cut(self.position) for table in self.tables)
        return replace(self, tables=tables, draft=None if self.draft is None else self.draft.shared())

    def blocks(self) -> list[Block]:
        """All memory that the state refers to."""
        found = [block for table in self.tables for block in table.blocks if block is not None]
        if self.draft is not None:
            found += self.draft.keys.blocks()
        return found if self.recurrent is None else [*found, self.recurrent]

    @property
    def nbytes(self) -> int:
        """Bytes that the state refers to, shared ones among them."""
        return sum(block.memory.nbytes for block in self.blocks())
