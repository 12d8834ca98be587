"""A session: one text of a model, carried on token by token."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..model.load import LoadedModel
from .backends import Compute
from .chunks import Chunk, Wanted, check_room, check_tokens
from .engine import Engine
from .options import DEFAULT_BATCH, MOST_TOKENS, count_option
from .sharing import SharedEngine, acquire
from .state.sequence import Checkpoint, OpenChunk

LOG = logging.getLogger("gpack")
Floats = npt.NDArray[np.float32]
_CHECKPOINTS = 2


class Session:
    """A model at work on one text. Use it as a context manager, or call `close`; one thread at a time.

    Sessions of a model with the same options share an engine: its threads, programs and memory.

    Attributes:
        n_vocab: Tokens of the vocabulary, and logits of a position.
        n_ctx: Most tokens of the text.
        n_embd: Width of the hidden state.
        batch: Tokens of a prompt that are worked on together.
    """

    _shared: SharedEngine | None = None

    def __init__(
        self,
        model: LoadedModel,
        *,
        n_ctx: int | None = None,
        cache_type: str = "F16",
        threads: int | None = None,
        compute: Compute = "int8",
        batch: int = DEFAULT_BATCH,
        cpu: str | None = None,
        device: str = "cpu",
        check_weights: bool | None = None,
        drafts: bool = False,
    ) -> None:
        """Takes the model's engine for these options, or makes it.

        Args:
            n_ctx: Most tokens of the text; default what the model was trained on, but not more than 4096.
            cache_type: How keys and values are kept: F32, F16 or Q8_0.
            batch: Tokens of a prompt that are worked on together.
            threads, compute, cpu, device, check_weights: As `Engine` has them.
            drafts: The model's draft layer follows the text, so that `draft` can be asked.

        Raises:
            GpackError: As `Engine` and `Engine.sequence`.
        """
        batch = count_option(batch, "batch", DEFAULT_BATCH, MOST_TOKENS)
        wanted = None if n_ctx is None else count_option(n_ctx, "n_ctx", 1, MOST_TOKENS)
        if wanted is not None:
            batch = min(batch, wanted)
        self._shared = acquire(model, threads=threads, compute=compute, batch=batch, cpu=cpu, device=device)
        # The engine is given back where nobody closed the session; when Python ends, its threads are not waited for.
        self._release = weakref.finalize(self, self._shared.release)
        self._release.atexit = False
        try:
            engine = self._engine
            self._text = engine.sequence(n_ctx=wanted, cache_type=cache_type, drafts=drafts)
            engine.lower(cache_type)
            if drafts:
                engine.lower_drafts(cache_type)
            if check_weights is not False:
                engine.check_weights(everything=bool(check_weights))
        except BaseException:
            self.close()
            raise
        self.n_ctx, self.n_vocab, self.n_embd = self._text.n_ctx, engine.n_vocab, engine.n_embd
        self.batch = min(batch, self.n_ctx)
        self._checkpoints: list[Checkpoint] = []
        self._opened: OpenChunk | None = None
        if self.n_ctx > engine.n_context:
            LOG.warning("a context of %d: the model was trained on %d", self.n_ctx, engine.n_context)

    @property
    def position(self) -> int:
        """Tokens of the text."""
        return self._text.position

    # ------------------------------------------------------------ use

    def decode(self, ids: Sequence[int], *, all_logits: bool = False) -> Floats:
        """Appends tokens to the text: all of them, or none where it fails or is interrupted.

        Args:
            ids: One token or more.
            all_logits: The logits after each token, not only after the last.

        Returns:
            float32 [n_vocab], or [len(ids), n_vocab]; the caller's own.

        Raises:
            UsageError: `engine.context`: they do not fit into the context; `engine.token`: there is no such token;
                `engine.budget`: there is no memory for them.
            FormatError: `engine.nan`: the hidden states or the logits are not finite.
        """
        if all_logits:
            whole: Floats = self._append(ids, "all", hidden=False)[0]
            return whole
        logits: Floats = self._append(ids, "last", hidden=False)[0][-1]
        return logits

    def hidden(self, ids: Sequence[int]) -> Floats:
        """Appends tokens; gives the hidden state of each after the last norm: float32 [len(ids), n_embd].

        Raises:
            GpackError: As `decode`.
        """
        states: Floats = self._append(ids, "none", hidden=True)[1]
        return states

    def propose(self, ids: Sequence[int]) -> Floats:
        """The logits after each of some tokens, none of which is part of the text before `accept`.

        Args:
            ids: 1 to 64 tokens, and no more than the batch.

        Returns:
            float32 [len(ids), n_vocab]; the caller's own.

        Raises:
            GpackError: As `decode`.
        """
        self._opened = None
        result = self._engine.step([Chunk(self._text, ids, "all", open=True)])
        result.raise_error()
        self._opened = result[0].opened
        logits: Floats = result.logits
        return logits

    def accept(self, count: int) -> None:
        """Makes the first so many of the tokens that were proposed a part of the text, and forgets the others.

        Raises:
            UsageError: `engine.open`: none were, or the text has changed since; `usage`: there were not so many.
        """
        if self._opened is None:
            raise UsageError("no tokens were proposed", code="engine.open")
        opened, self._opened = self._opened, None
        self._engine.accept([(opened, count)])

    @property
    def drafts_off(self) -> str | None:
        """Why the model's draft layer cannot be used; None where it can."""
        return self._engine.drafts_off

    def draft(self, token: int, most: int) -> list[int]:
        """Guesses at most so many tokens after the next one, by the model's draft layer; the text stays as it is.

        None where the session was made without `drafts`, or where `drafts_off` says why.

        Raises:
            UsageError: `engine.token`: there is no such token.
        """
        return self._engine.draft([(self._text, token, most)])[0]

    def _append(self, ids: Sequence[int], wanted: Wanted, *, hidden: bool) -> tuple[Any, Any]:
        """Logits and hidden states of the tokens for which they are wanted."""
        engine, text = self._engine, self._text
        tokens = check_tokens(ids, self.n_vocab)
        check_room(text.position, len(tokens), self.n_ctx)
        before, logits, states = text.state, [], []
        try:
            for first in range(0, len(tokens), self.batch):
                is_last = first + self.batch >= len(tokens)
                part: Wanted = wanted if is_last or wanted == "all" else "none"
                made = self._step(engine, tokens[first : first + self.batch], part, hidden)
                logits.append(made[0])
                states.append(made[1])
            if len(logits) == 1:
                return made
            return np.concatenate(logits), np.concatenate(states) if hidden else None
        except BaseException:
            text.return_to(before)
            self._checkpoints = [known for known in self._checkpoints if known.position <= before.position]
            raise

    def _step(self, engine: Engine, tokens: list[int], wanted: Wanted, hidden: bool) -> tuple[Any, Any]:
        result = engine.step([Chunk(self._text, tokens, wanted)], hidden=hidden)
        result.raise_error()
        if len(tokens) > 1 and not engine.is_trimmable:
            self._checkpoints = [*self._checkpoints[1 - _CHECKPOINTS :], self._text.checkpoint()]
        return result.logits, result[0].hidden

    def rewind(self, position: int) -> int:
        """Forgets all tokens from a position on; 0 begins a new text.

        Where layers have forgotten what they would need (windows, recurrent layers), the text goes back further.

        Returns:
            The position that was reached; the tokens from there on are to be computed again.

        Raises:
            UsageError: The text is not that long.
        """
        try:
            position = operator.index(position)
        except TypeError as error:
            raise UsageError(f"{position!r} is not a position", code="usage", field="position") from error
        reached = self._text.rewind(position, *self._checkpoints)
        self._checkpoints = [known for known in self._checkpoints if known.position <= reached]
        return reached

    # ------------------------------------------------------------ states that are kept

    @property
    def kind(self) -> object:
        """The kind of `checkpoint`s that the text can resume."""
        return self._text.state.layouts

    @property
    def is_trimmable(self) -> bool:
        """Whether the text can be rewound to any position exactly."""
        return self._engine.is_trimmable

    @property
    def state_budget(self) -> int:
        """Most bytes of the states of all texts of the engine."""
        return self._engine.pool.budget

    def checkpoint(self) -> Checkpoint:
        """The text as it is, to resume it later or in another session of the same engine and type of cache."""
        return self._text.checkpoint()

    def reachable(self, position: int) -> int:
        """What `rewind` would return."""
        return self._text.reachable(position, *self._checkpoints)

    def resume(self, checkpoint: Checkpoint, position: int) -> None:
        """Makes the text the first tokens of a checkpoint, which must be able to reach that position.

        Raises:
            UsageError: `engine.position`, `engine.context`: it does not, or is of another kind.
        """
        self._checkpoints = []
        self._text.restore(checkpoint)
        self._text.truncate(position)

    def relieve(self, forget: Callable[[], bool]) -> None:
        """Where memory for states ends, the bound method `forget` is called, until it gives back nothing more."""
        self._engine.pool.relief.append(weakref.WeakMethod(forget))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the text's state once the context is full."""
        return self._text.state.layouts.most_bytes(self.n_ctx)

    def close(self) -> None:
        """Forgets the text and gives the engine back; a second call does nothing."""
        self._shared = None
        if hasattr(self, "_text"):
            self._text.close()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _engine(self) -> Engine:
        if self._shared is None or self._shared.engine is None:
            raise UsageError("the session is closed", code="usage")
        return self._shared.engine
