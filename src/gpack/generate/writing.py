"""A text in the making: tokens are chosen from logits, become text, and end it."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..tokenizer import Tokenizer
from ..tokenizer.decode import TextStream
from .ending import StopStrings
from .request import CONTEXT, EOS, INTERRUPTED, LENGTH, STOP, Generation, Piece, Request, Timings
from .sampling import Logprobs, Sampler, logprobs

Floats = npt.NDArray[np.float32]


class Rules(Protocol):
    """What a text must look like: a grammar at work."""

    def masked(self, logits: Floats) -> Floats:
        """The logits, those of tokens that may not come next being -inf."""

    def take(self, token: int) -> None:
        """Notes the token that was chosen."""


class Writing:
    """One text: what was chosen so far, its text, and why it ended.

    Attributes:
        request: What is asked for.
        ids: Tokens of the text, without the one that ended it.
        reason: How it ended; `interrupted` as long as it has not.
        timings: For whoever computes the logits to fill.
    """

    def __init__(
        self, request: Request, tokenizer: Tokenizer, ends: frozenset[int], n_ctx: int, rules: Rules | None = None
    ) -> None:
        """Begins after the prompt.

        Args:
            ends: Tokens that end a text.
            n_ctx: Tokens that prompt and text may have, and one more that is not computed.
            rules: What the text must look like.

        Raises:
            UsageError: `usage`: a stop string is empty.
        """
        self.request = request
        self.ids: list[int] = []
        self.reason = INTERRUPTED
        self.timings = Timings()
        self._texts: list[str] = []
        self._logprobs: list[Logprobs] = []
        self._ended_by: str | None = None
        self._tokenizer, self._ends, self._n_ctx, self._rules = tokenizer, ends, n_ctx, rules
        self._stops = StopStrings(request.stop)
        self._sampler = Sampler(request.sampling, request.ids)
        self._stream = (
            TextStream(partial(tokenizer.piece, skip_special=True))
            if request.continues
            else tokenizer.stream(skip_special=True)
        )

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self.reason != INTERRUPTED

    def push(self, logits: Floats) -> Piece | None:
        """Chooses the next token; None where the model ended its text instead.

        Raises:
            FormatError: `engine.nan`: the logits give no probabilities.
        """
        scores = logits if self._rules is None else self._rules.masked(logits)
        token_id = self._sampler.sample(scores)
        if token_id in self._ends and not self.request.ignore_end:
            self.reason = EOS
            self._ended_by = self._tokenizer.token(token_id).decode("utf-8", "replace")
            return None
        self._sampler.accept(token_id)
        self.ids.append(token_id)
        if self._rules is not None:
            self._rules.take(token_id)
        found = None
        if self.request.logprobs is not None:
            found = logprobs(logits, token_id, self.request.logprobs)
            self._logprobs.append(found)
        # A model may have more rows than its vocabulary has tokens: they stand for nothing.
        text = self._stream.push(token_id) if token_id < len(self._tokenizer) else ""
        piece = Piece(self._stops.push(text), token_id, found)
        self._texts.append(piece.text)
        if self._stops.found is not None:
            self.reason, self._ended_by = STOP, self._stops.found
        elif len(self.ids) == self.request.max_tokens:
            self.reason = LENGTH
        elif len(self.request.ids) + len(self.ids) > self._n_ctx:
            self.reason = CONTEXT
        return piece

    def flush(self) -> str:
        """What was held back of the text, which has ended."""
        rest = "" if self.reason == STOP else self._stops.push(self._stream.flush()) + self._stops.flush()
        self._texts.append(rest)
        return rest

    def result(self) -> Generation:
        """All of it."""
        return Generation(
            text="".join(self._texts) + self._stops.held,
            ids=self.ids,
            finish_reason=self.reason,
            ended_by=self._ended_by,
            prompt_tokens=len(self.request.ids),
            logprobs=None if self.request.logprobs is None else self._logprobs,
            seed=self._sampler.seed,
            timings=self.timings,
        )
