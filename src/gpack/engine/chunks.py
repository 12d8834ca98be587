"""What a step takes, and what it gives."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from ..errors import GpackError, UsageError
from .state.sequence import OpenChunk
from .state.sequence import Sequence as Text

Wanted = Literal["last", "all", "none"]


@dataclass(frozen=True)
class Chunk:
    """Tokens that a step appends to a text.

    Attributes:
        sequence: The text.
        tokens: One or more.
        logits: Of which tokens logits are wanted.
        position: Of the first token; it must be the text's own. None: whatever that is.
        open: Nothing is committed yet; `Engine.accept` says how many of the tokens are. At most 64.
    """

    sequence: Text
    tokens: Sequence[int]
    logits: Wanted = "last"
    position: int | None = None
    open: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a step gave for one chunk.

    Attributes:
        logits: [wanted tokens, n_vocab]; a part of the step's.
        hidden: [tokens, n_embd], the hidden states after the last norm; None unless the step was asked for them.
        error: Why the text failed, which is then as it was before; None where its tokens are committed, or open.
        opened: The chunk, where it is open.
    """

    logits: npt.NDArray[Any]
    hidden: npt.NDArray[Any] | None
    error: GpackError | None
    opened: OpenChunk | None = None


@dataclass(frozen=True)
class StepResult(Sequence[Outcome]):
    """The outcomes of a step, in the order of its chunks.

    Attributes:
        logits: [wanted tokens of all chunks, n_vocab]. Rows of texts that failed mean nothing.
    """

    logits: npt.NDArray[Any]
    outcomes: tuple[Outcome, ...]

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, number: Any) -> Any:
        return self.outcomes[number]

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def raise_error(self) -> None:
        """Raises the first error of a text, where there is one."""
        for outcome in self.outcomes:
            if outcome.error is not None:
                raise outcome.error


def check_text(text: object, owner: object) -> Text:
    """A text that an engine can carry on.

    Raises:
        UsageError: `engine.sequence`: it is closed, or belongs to another engine; `usage`: it is no text.
    """
    if not isinstance(text, Text):
        raise UsageError(
            f"{type(text).__name__} is no text of an engine", code="usage", field="sequence", hint="Engine.sequence"
        )
    if text.owner is not owner or text.is_closed:
        what = "is closed" if text.is_closed else "belongs to another engine"
        raise UsageError(f"the text {what}", code="engine.sequence", field="sequence")
    return text


def check_tokens(ids: Sequence[int], n_vocab: int) -> list[int]:
    """Tokens as a list.

    Raises:
        UsageError: There are none, they are not whole numbers, or `engine.token`: the vocabulary has no such token.
    """
    try:
        numbers = [operator.index(number) for number in ids]
    except TypeError as error:
        raise UsageError(f"tokens are whole numbers: {error}", code="usage", field="ids") from error
    if not numbers:
        raise UsageError("there are no tokens", code="usage", field="ids")
    for number in (min(numbers), max(numbers)):
        if not 0 <= number < n_vocab:
            raise UsageError(
                f"there is no token {number} in a vocabulary of {n_vocab}", code="engine.token", field="ids"
            )
    return numbers


def check_room(position: int, count: int, n_ctx: int) -> None:
    """Refuses tokens for which a text has no place.

    Raises:
        UsageError: `engine.context`.
    """
    if position + count > n_ctx:
        raise UsageError(
            f"{count} more tokens do not fit: {position} of the context's {n_ctx} are taken",
            code="engine.context",
            field="n_ctx",
            hint="a larger n_ctx, a shorter text, or rewind",
        )
