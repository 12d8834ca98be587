"""A text that a scheduler carries on: its tokens, how far the model has read them, and who is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..engine.state.sequence import Sequence as Text
from ..errors import GpackError
from ..generate.drafting import AutoLength, FixedLength, NgramDrafter
from ..generate.request import Generation, Piece, Request
from ..generate.writing import Writing


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
    length: AutoLength | FixedLength | None = None
    is_cancelled: bool = False
    is_cut: bool = False
    is_done: bool = False
    has_read: bool = False
    started: float = field(default_factory=time.monotonic)
    last_token: float = 0.0

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

    def result(self) -> Generation:
        """What was generated."""
        return self.writing.result()

    def close(self) -> None:
        """Frees its state."""
        if self.text is not None:
            self.text.close()
        self.text = None
        self.drafts = []
