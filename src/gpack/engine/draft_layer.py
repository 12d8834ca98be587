"""The model's own draft layer: it follows texts, and guesses how they go on.

Its row of position p is made of what the model gave for token p (the seed) and of token p + 1, and says what token
p + 2 may be. A guess is made from the row before it, whose own seed takes the place of the model's. Only rows that are
made of what the model computed are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .backends.base import Backend, Segment, Step
from .graph import Graph
from .prepared import Prepared
from .state.pool import Pool
from .state.sequence import Sequence as Text
from .state.states import DraftState, Layouts, TextState, group_states

_MANY = 256  # seeds that are collected before they are processed


@dataclass
class _Rows:
    """Some rows of one text.

    Attributes:
        keys: With room for them.
        seeds: [rows, width], which the layer is given.
        guess: The most probable token after the last row; -1 where its numbers are not finite.
        after: [1, width]: the seed that the layer itself gives after it.
    """

    text: Text
    keys: TextState
    tokens: list[int]
    seeds: npt.NDArray[Any]
    guess: int = -1
    after: npt.NDArray[Any] | None = None


class DraftLayer:
    """The draft layer of an engine, which runs it while no step runs.

    Attributes:
        off: Why it cannot be used; None where it can.
    """

    def __init__(self, backend: Backend, prepared: Prepared, batch: int) -> None:
        self._backend, self._prepared, self._batch = backend, prepared, batch
        self._layouts: dict[str, Layouts] = {}
        self._programs: dict[tuple[str, ...], Any] = {}

    @property
    def off(self) -> str | None:
        """Why it cannot be used."""
        found = self._prepared.draft
        return found if isinstance(found, str) else None

    def layouts(self, cache_type: str) -> Layouts:
        """How its keys and values lie in memory."""
        known = self._layouts.get(cache_type)
        if known is None:
            groups = group_states(self._graphs()[0].states)
            blocks = tuple(self._backend.key_value_layout(states, cache_type) for states in groups.key_values)
            known = self._layouts.setdefault(cache_type, Layouts(blocks, groups.windows, None, self._batch))
        return known

    def follow(self, pool: Pool, texts: Sequence[Text]) -> None:
        """Processes the collected states of texts that have many; where memory ends, a text is left out."""
        for text in texts:
            while (draft := text.state.draft) is not None and draft.rows > _MANY:
                if not self._advance(pool, text, draft, min(draft.rows - 1, self._batch)):
                    text.exchange(text.state, replace(text.state, draft=None))

    def draft(self, pool: Pool, wanted: Sequence[tuple[Text, int, int]]) -> list[list[int]]:
        """As `Engine.draft`."""
        made: list[list[int]] = [[] for _ in wanted]
        lanes = {}
        for number, (text, token, count) in enumerate(wanted):
            rows = self._first(pool, text, token, count) if count > 0 else None
            if rows is not None:
                lanes[number] = rows
        for turn in range(max((count for _, _, count in wanted), default=0)):
            self._run(list(lanes.values()))
            for number, rows in list(lanes.items()):
                if turn == 0:
                    self._keep(rows)
                if rows.guess >= 0:
                    made[number].append(rows.guess)
                if rows.guess < 0 or len(made[number]) == wanted[number][2]:
                    del lanes[number]
                    continue
                assert rows.after is not None
                keys = rows.keys.advanced(len(rows.tokens), None)
                lanes[number] = _Rows(rows.text, keys, [rows.guess], rows.after)
        return made

    def _first(self, pool: Pool, text: Text, token: int, count: int) -> _Rows | None:
        """All rows up to the one that the first guess comes from, with room for those of the other guesses."""
        while (draft := text.state.draft) is not None and draft.rows > self._batch:
            if not self._advance(pool, text, draft, self._batch):
                return None
        state = text.state
        if draft is None or not draft.rows:
            return None
        try:
            keys, _ = draft.keys.with_room(pool, draft.rows + count - 1, text.writer)
        except UsageError:
            return None
        return _Rows(text, keys, [*text.between(draft.keys.position + 1, state.position), token], _joined(draft))

    def _keep(self, rows: _Rows) -> None:
        """All rows but the last, which is made of a token that does not count yet, are the text's from now on."""
        state = rows.text.state
        count = len(rows.tokens) - 1
        draft = DraftState(rows.keys.advanced(count, None), (rows.seeds[count:].copy(),))
        rows.text.exchange(state, replace(state, draft=draft))

    def _advance(self, pool: Pool, text: Text, draft: DraftState, count: int) -> bool:
        """Goes through so many rows whose tokens are known; whether there was memory."""
        state, first, seeds = text.state, draft.keys.position, _joined(draft)
        try:
            keys, _ = draft.keys.with_room(pool, count, text.writer)
        except UsageError:
            return False
        tokens = text.between(first + 1, first + 1 + count)
        self._run([_Rows(text, keys, tokens, seeds[:count])], wants=False)
        after = DraftState(keys.advanced(count, None), (seeds[count:].copy(),))
        text.exchange(state, replace(state, draft=after))
        return text.state.draft is after

    def _run(self, rows: list[_Rows], *, wants: bool = True) -> None:
        """One run of some texts' rows, or some where there are too many of them; notes what comes of each."""
        rows = sorted(rows, key=lambda item: item.text.cache_type)
        while rows:
            count = total = 0
            while count < len(rows) and total + len(rows[count].tokens) <= self._batch:
                total += len(rows[count].tokens)
                count += 1
            self._run_together(rows[:count], wants=wants)
            rows = rows[count:]

    def _run_together(self, rows: list[_Rows], *, wants: bool) -> None:
        segments, lasts, first = [], [], 0
        for item in rows:
            tables = tuple(table.ids for table in item.keys.tables)
            count = len(item.tokens)
            segments.append(Segment(first, count, item.keys.position, item.text.cache_type, tables))
            first += count
            lasts.append(first - 1)
        tokens = np.array([token for item in rows for token in item.tokens], np.int32)
        wanted = np.array(lasts if wants else [], np.int32)
        step = Step(tokens, segments, wanted, np.concatenate([item.seeds for item in rows]))
        made, logits, is_finite = self._backend.run(self.lower({item.text.cache_type for item in rows}), step)
        if not wants:
            return
        for number, (item, last) in enumerate(zip(rows, lasts, strict=True)):
            item.after = made[last : last + 1, self._prepared.seeds].copy()
            if is_finite or (np.isfinite(item.after).all() and np.isfinite(logits[number]).all()):
                item.guess = int(logits[number].argmax())

    def lower(self, cache_types: set[str]) -> Any:
        """The program for texts of these types of cache, made when it is first needed."""
        kinds = tuple(sorted(cache_types))
        program = self._programs.get(kinds)
        if program is None:
            body, head = self._graphs()
            program = self._programs[kinds] = self._backend.lower(body, head, group_states(body.states), kinds)
        return program

    def _graphs(self) -> tuple[Graph, Graph]:
        found = self._prepared.draft
        assert not isinstance(found, str)  # whoever comes here has asked `off`
        return found


def _joined(draft: DraftState) -> npt.NDArray[Any]:
    return draft.waiting[0] if len(draft.waiting) == 1 else np.concatenate(draft.waiting)
