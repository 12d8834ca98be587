"""The chunks of a step, checked, and what becomes of each on its way through the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..errors import GpackError, UsageError
from .chunks import Chunk, check_room, check_text, check_tokens
from .options import MOST_OPEN
from .state.pool import Block
from .state.sequence import OpenChunk
from .state.states import TextState


@dataclass
class Plan:
    """A chunk on its way through a step."""

    chunk: Chunk
    tokens: list[int]
    state: TextState | None = None  # with room for the tokens
    after: Block | None = None
    kept: Block | None = None
    opened: OpenChunk | None = None
    seeds: npt.NDArray[Any] | None = None  # of all tokens, where a draft layer goes on from them
    error: GpackError | None = None
    n_logits: int = 0
    first_row: int = 0
    first_logits: int = 0


def planned(chunks: Sequence[Chunk], owner: Any, n_vocab: int, batch: int) -> list[Plan]:
    """Checks the chunks of a step before anything is computed.

    Args:
        owner: The engine, whose texts they must be.
        batch: Most rows of a step.

    Raises:
        UsageError: As `Engine.step`.
    """
    if not isinstance(chunks, Sequence):
        raise UsageError(f"{type(chunks).__name__} is no sequence of chunks", code="usage", field="chunks")
    plans, rows, wanted, seen = [], 0, 0, set()
    for chunk in chunks:
        if not isinstance(chunk, Chunk):
            raise UsageError(f"{type(chunk).__name__} is no chunk", code="usage", field="chunks")
        text = check_text(chunk.sequence, owner)
        if id(text) in seen:
            raise UsageError("a text has two chunks in one step", code="engine.sequence", field="sequence")
        seen.add(id(text))
        if chunk.position is not None and chunk.position != text.position:
            raise UsageError(
                f"the chunk begins at position {chunk.position}, the text has {text.position} tokens",
                code="engine.position",
                field="position",
            )
        tokens = check_tokens(chunk.tokens, n_vocab)
        if chunk.open and len(tokens) > MOST_OPEN:
            what = f"a chunk that stays open has at most {MOST_OPEN} tokens, not {len(tokens)}"
            raise UsageError(what, code="engine.batch", field="open")
        check_room(text.position, len(tokens), text.n_ctx)
        if chunk.logits not in ("last", "all", "none"):
            raise UsageError(f"logits is {chunk.logits!r}", code="usage", field="logits", hint="last, all or none")
        n_logits = len(tokens) if chunk.logits == "all" else int(chunk.logits == "last")
        plans.append(Plan(chunk, tokens, n_logits=n_logits, first_logits=wanted))
        rows += len(tokens)
        wanted += n_logits
    if not plans or rows > batch:
        raise UsageError(
            f"a step has 1 to {batch} rows, not {rows}",
            code="engine.batch",
            field="chunks",
            hint="a larger batch, or more steps",
        )
    return plans
