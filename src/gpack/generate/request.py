"""What is to be generated, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from .drafting import DraftStats
from .sampling import GREEDY, Logprobs, Sampling

# How a text ended. EOS: a token of the model's own; STOP: a stop string; LENGTH: max_tokens; CONTEXT: no place left.
EOS, STOP, LENGTH, CONTEXT, INTERRUPTED = "eos", "stop", "length", "context", "interrupted"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be generated.

    Attributes:
        ids: The prompt.
        max_tokens: Most tokens to add; None: until the context is full.
        sampling: How they are chosen.
        stop: Strings that end the text; they are no part of it.
        logprobs: Tell the log-probabilities of each token and so many of the best; None: do not.
        ignore_end: Go on after the model's own end.
        keep_at: Tokens of the prompt after which its state is kept, where there is a store: the end of a turn.
        continues: The text goes on where the prompt's text ended; else it is one of its own, as an answer is.
    """

    ids: Sequence[int]
    max_tokens: int | None = None
    sampling: Sampling = GREEDY
    stop: Sequence[str] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    continues: bool = False
    keep_at: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not len(self.ids):
            raise empty_prompt()
        for name in ("max_tokens", "logprobs"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | np.integer) or value < 0):
                raise UsageError(f"{name} is {value!r}, not a whole number of 0 or more", code="usage", field=name)
        if not isinstance(self.sampling, Sampling):
            raise UsageError(
                f"sampling is {type(self.sampling).__name__}, not Sampling", code="usage", field="sampling"
            )
        if not all(isinstance(text, str) for text in self.stop):
            raise UsageError("stop strings are text", code="usage", field="stop")


@dataclass
class Timings:
    """Where the time went, seconds.

    Attributes:
        prompt_tokens: Tokens of the prompt that were computed.
        cached_tokens: Tokens of the prompt that the cache still held.
        prompt_seconds: For computing them.
        first_token_seconds: Until the first token was chosen.
        decoded_tokens: Tokens after the first one, each computed from the one before.
        decode_seconds: For these, choosing and text included.
        drafts: What became of drafts; None where there are none, or the text is not done yet.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    first_token_seconds: float | None = None
    decoded_tokens: int = 0
    decode_seconds: float = 0.0
    drafts: DraftStats | None = None

    @property
    def prompt_rate(self) -> float | None:
        """Tokens of the prompt per second; None where none was computed."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first one; None where there was only one."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        drafts = None if self.drafts is None else self.drafts.to_dict()
        return {**vars(self), "drafts": drafts, "prompt_rate": self.prompt_rate, "decode_rate": self.decode_rate}


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated.

    Attributes:
        text: The text, without what ended it.
        ids: Its tokens, those of a stop string among them, without the one that ended it.
        finish_reason: `eos`, `stop`, `length`, `context` or `interrupted`.
        ended_by: The stop string, or the spelling of the model's token, that ended it.
        prompt_tokens: Tokens of the prompt, those in the cache among them.
        logprobs: One for each of `ids`, where they were asked for.
        seed: Of the draws; None where nothing was drawn.
        timings: Where the time went.
    """

    text: str
    ids: list[int]
    finish_reason: str
    ended_by: str | None
    prompt_tokens: int
    logprobs: list[Logprobs] | None
    seed: int | None
    timings: Timings


@dataclass(frozen=True)
class Piece:
    """A step of a stream.

    Attributes:
        text: What is certain of the text now; often empty.
        token: The token of this step; None in the last piece.
        logprobs: Of that token, where they were asked for.
        generation: All of it, in the last piece.
    """

    text: str
    token: int | None = None
    logprobs: Logprobs | None = None
    generation: Generation | None = None


def empty_prompt() -> UsageError:
    """The error of a prompt without tokens: there is nothing that could be continued."""
    return UsageError("the prompt is empty: it has no tokens", code="engine.prompt")
