"""A text that a scheduler carries on: its tokens, how far the model has read them, and who is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..engine.state.sequence import Sequence as Text
from ..errors import GpackError, UsageError
from ..generate.drafting import NgramDrafter
from ..generate.request import Generation, Piece, Request
from ..generate.writing import Writing
from .chances import Chances


@dataclass(frozen=True)
class Event:
    """What is new of a text.

    Attributes:
        piece: The text of one token, or the last of it with all that was generated.
        error: Why there will be no more.
    """

    piece: Piece | None = None
    error: GpackError | None = None


@dataclass(eq=False)
class Job:
    """A text in a scheduler.

    Attributes:
        request: What is asked for.
        writing: Its text.
        tell: Gets what is new, in the scheduler's thread, in order; it must not wait.
        after: A job with the same prompt that goes first, so that the prompt is computed once.
        text: Its state in the engine; None while it waits.
        is_cancelled: Nobody wants it any more; `is_cut`: the server ends.
        started: When it came, seconds of `time.monotonic`.
    """

    request: Request
    writing: Writing
    tell: Callable[[Event], None]
    after: Job | None = None
    text: Text | None = None
    drafts: list[int] = field(default_factory=list)
    drafter: NgramDrafter = field(default_factory=NgramDrafter)
    chances: Chances = field(default_factory=Chances)
    is_cancelled: bool = False
    is_cut: bool = False
    is_done: bool = False
    has_read: bool = False
    started: float = field(default_factory=time.monotonic)
    last_token: float = 0.0

    @property
    def engine_text(self) -> Text:
        """Its state, which it has while it is carried on."""
        assert self.text is not None
        return self.text

    @property
    def follows_layer(self) -> bool:
        """Whether the model's draft layer knows the text."""
        return self.text is not None and self.text.state.draft is not None

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was generated."""
        return [*self.request.ids, *self.writing.ids]

    @property
    def position(self) -> int:
        """Tokens that the model has read."""
        return 0 if self.text is None else self.text.position

    @property
    def unread(self) -> int:
        """Tokens that it has yet to read before the next can be chosen."""
        return len(self.request.ids) + len(self.writing.ids) - self.position

    def ahead(self, count: int) -> list[int]:
        """The next tokens that it reads: so many."""
        first, n_prompt = self.position, len(self.request.ids)
        if first >= n_prompt:
            return self.writing.ids[first - n_prompt : first - n_prompt + count]
        return self.tokens[first : first + count]

    def check(self, n_ctx: int, n_vocab: int) -> None:
        """Refuses a prompt that can never be computed.

        Raises:
            UsageError: `engine.context`: it is longer than the context; `engine.token`: a token is none of the model's.
        """
        ids = self.request.ids
        if len(ids) > n_ctx:
            raise UsageError(
                f"the prompt has {len(ids)} tokens, the context holds {n_ctx}",
                code="engine.context",
                hint="a larger context or a shorter prompt is needed",
            )
        if not 0 <= min(ids) <= max(ids) < n_vocab:
            raise UsageError(f"a token of the prompt is not one of {n_vocab}", code="engine.token")

    def result(self) -> Generation:
        """What was generated."""
        return self.writing.result()

    def close(self) -> None:
        """Frees its state."""
        if self.text is not None:
            self.text.close()
        self.text = None
        self.drafts = []
