"""Chunks that stay open: how many of their tokens count is said when their rows are known.

Keys and values of refused tokens lie beyond the text's end, where the next step writes. A recurrent state is read and
written anew by each step: where all tokens count it is there; for fewer, the first rows' inputs of each recurrent
operation, which the step put aside, go through that operation once more. No other layer runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from .backends.base import Backend, Segment, StateGroups
from .graph import Graph
from .state.pool import Block, Pool
from .state.sequence import OpenChunk
from .state.sequence import Sequence as Text
from .state.states import Floats, TextState


class Replay:
    """What an engine needs to commit a part of a chunk."""

    def __init__(self, backend: Backend, body: Graph, groups: StateGroups) -> None:
        self._backend, self._body, self._groups = backend, body, groups
        self._program: Any = None

    def room(self, pool: Pool, rows: int, writer: object) -> Block | None:
        """Memory for what recurrent states depend on of so many rows; None where there are none.

        Raises:
            UsageError: `engine.budget`.
        """
        if not self._groups.recurrent:
            return None
        return pool.take(self._backend.kept_layout(self._body, rows), writer)

    def accepted(self, counts: Sequence[tuple[OpenChunk, int]], owner: object) -> list[tuple[Text, TextState]]:
        """The states of texts after the first tokens of their chunks, which are void from now on.

        Raises:
            UsageError: As `Engine.accept`.
        """
        self._check(counts, owner)
        for chunk, _ in counts:
            chunk.sequence.opened = None
        waiting = [self._segment(chunk, count) for chunk, count in counts if self._is_replayed(chunk, count)]
        if waiting:
            if self._program is None:
                self._program = self._backend.lower_replay(self._body, self._groups)
            self._backend.replay(self._program, waiting)
        made = []
        for chunk, count in counts:
            if count:
                chunk.sequence.note(chunk.tokens[:count])
                made.append((chunk.sequence, chunk.state.advanced(count, chunk.after, _first(chunk, count))))
        return made

    @staticmethod
    def _check(counts: Sequence[tuple[OpenChunk, int]], owner: object) -> None:
        seen = set()
        for chunk, count in counts:
            if not isinstance(chunk, OpenChunk):
                raise UsageError(f"{type(chunk).__name__} is no open chunk", code="usage", field="counts")
            if chunk.sequence.owner is not owner:
                raise UsageError("a text belongs to another engine", code="engine.sequence", field="counts")
            if chunk.is_void or id(chunk) in seen:
                what = "the chunk is no longer open: its text changed, or was in another step"
                raise UsageError(what, code="engine.open", field="counts")
            if type(count) is not int or not 0 <= count <= len(chunk.tokens):
                what = f"a chunk of {len(chunk.tokens)} tokens cannot be accepted as {count!r}"
                raise UsageError(what, code="usage", field="counts")
            seen.add(id(chunk))

    @staticmethod
    def _is_replayed(chunk: OpenChunk, count: int) -> bool:
        return chunk.kept is not None and 0 < count < len(chunk.tokens)

    @staticmethod
    def _segment(chunk: OpenChunk, count: int) -> Segment:
        assert chunk.after is not None
        assert chunk.kept is not None
        read = 0 if chunk.before.recurrent is None else chunk.before.recurrent.id
        kind = chunk.sequence.cache_type
        return Segment(0, count, chunk.before.position, kind, (), read, chunk.after.id, chunk.kept.id)


def _first(chunk: OpenChunk, count: int) -> Floats | None:
    return None if chunk.seeds is None else chunk.seeds[:count]
