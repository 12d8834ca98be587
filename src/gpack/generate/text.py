"""Text from a model, token by token or whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import MissingError, UsageError
from ..tokenizer import Tokenizer
from .drafting import Draft, Drafter, MtpDrafter, NgramDrafter, draft_option, length_of
from .ending import end_tokens
from .prefixes import PrefixStore, common
from .request import CONTEXT, EOS, INTERRUPTED, LENGTH, STOP, Generation, Piece, Request, Timings, empty_prompt
from .sampling import GREEDY, Sampling
from .windows import Decoder, Windows
from .writing import Writing

__all__ = [
    "CONTEXT",
    "EOS",
    "INTERRUPTED",
    "LENGTH",
    "STOP",
    "Decoder",
    "Generation",
    "Piece",
    "Prompt",
    "Request",
    "TextGenerator",
    "Timings",
    "empty_prompt",
    "encode",
    "generate",
    "turn_end",
]

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class TextGenerator:
    """Generates texts of one model with one cache, which keeps what a prompt shares with the one before.

    Use it as a context manager, or call `close`. One text at a time.

    Attributes:
        session: The model's session.
        tokenizer: The model's tokeniser.
        ends: Tokens that end a text.
        last: What was generated last, whole or up to where the stream was left.
    """

    def __init__(
        self,
        session: Decoder,
        tokenizer: Tokenizer,
        ends: frozenset[int] = frozenset(),
        *,
        draft: Draft = "auto",
        drafter: Callable[[], Drafter] = NgramDrafter,
        left_out: str | None = None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        """Takes a session.

        Args:
            draft: How many tokens are guessed and computed in one step; no text depends on it. `auto`: what is fastest.
            drafter: Makes what guesses them, for each text.
            left_out: Why the model's draft layer does not, where it has one.
            prefixes: Keeps the states that prompts begin with; generators of sessions with one engine may share it.

        Raises:
            UsageError: `usage`: draft makes no sense.
        """
        self.draft, self.drafter, self.left_out = draft_option(draft), drafter, left_out
        self.prefixes = prefixes
        self.session = session
        self.tokenizer = tokenizer
        self.ends = ends
        self.last: Generation | None = None
        self._cached: list[int] = []

    @classmethod
    def of(
        cls, model: Any, *, draft: Draft = "auto", prefixes: PrefixStore | None = None, **session_options: Any
    ) -> Self:
        """A generator of a loaded model; the options are those of `GuildModel.session`."""
        has_layer = draft_option(draft) != "off" and has_draft_layer(model)
        ends = end_tokens(model.tokenizer, model.metadata.get)
        if not has_layer:
            return cls(model.session(**session_options), model.tokenizer, ends, draft=draft, prefixes=prefixes)
        session = model.session(**session_options, drafts=True)
        left_out = session.drafts_off
        drafter = NgramDrafter if left_out else partial(MtpDrafter, session)
        return cls(session, model.tokenizer, ends, draft=draft, drafter=drafter, left_out=left_out, prefixes=prefixes)

    def generate(self, request: Request) -> Generation:
        """A whole text.

        Raises:
            UsageError: `engine.context`: the prompt is longer than the context.
            FormatError: `engine.nan`: the model computes no probabilities.
        """
        for piece in self.stream(request):
            if piece.generation is not None:
                return piece.generation
        raise UsageError("the text did not end", code="usage")

    def stream(self, request: Request) -> Iterator[Piece]:
        """A text in pieces, one for each token and a last one. The joined texts are the text.

        Raises:
            GpackError: As `generate`, with the first piece.
        """
        run = _Run(self, request)
        try:
            yield from run.pieces()
        finally:
            try:
                run.end()
            finally:
                self.last = run.result()

    def prefill(self, ids: Sequence[int], keep_at: Sequence[int] = ()) -> tuple[npt.NDArray[np.float32], int]:
        """Brings the cache to exactly these tokens; logits of the last one, and how many needed no computing.

        Args:
            ids: One token or more.
            keep_at: After so many tokens the state is kept, where there is a store and nothing else could reach it.

        Raises:
            UsageError: `engine.context`, `engine.token`.
        """
        session, ids = self.session, [int(token_id) for token_id in ids]
        if len(ids) > session.n_ctx:
            raise UsageError(
                f"the prompt has {len(ids)} tokens, the context holds {session.n_ctx}",
                code="engine.context",
                hint="a larger context or a shorter prompt is needed",
            )
        for place, token_id in enumerate(ids):
            if not 0 <= token_id < session.n_vocab:
                raise UsageError(
                    f"token {place} of the prompt is {token_id}, the vocabulary has {session.n_vocab}",
                    code="engine.token",
                )
        # The last token is computed in any case: its logits are what is asked for.
        known = self._return_to(ids, min(common(self._cached, ids), len(ids) - 1))
        done = known
        if self.prefixes is not None and not session.is_trimmable:
            for end in sorted({end for end in keep_at if known < end < len(ids)}):
                self.decode(ids[done:end])
                self.prefixes.keep(session.checkpoint())
                done = end
        return self.decode(ids[done:]), known

    def _return_to(self, ids: Sequence[int], position: int) -> int:
        """Brings the cache to tokens that begin these: those it shares with them, or more that a state holds."""
        session = self.session
        if self.prefixes is not None and (found := self.prefixes.find(ids[:-1], session.kind)) is not None:
            state, reached = found
            if reached > session.reachable(position) and state.position <= session.n_ctx:
                session.resume(state, reached)
                self._cached = list(ids[:reached])
                return reached
        reached = session.rewind(position)
        del self._cached[reached:]
        return reached

    def keep_prefixes(self, budget: int | None = None) -> None:
        """Keeps states from one prompt to the next; they go first where memory ends.

        Args:
            budget: Most bytes; default half of what the states of all texts may take.
        """
        self.prefixes = PrefixStore(self.session.state_budget // 2 if budget is None else budget)
        self.session.relieve(self.prefixes.forget)

    def keep(self) -> None:
        """Keeps the state of the text, where there is a store."""
        if self.prefixes is not None and self.session.position:
            self.prefixes.keep(self.session.checkpoint())

    def decode(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Appends tokens to the cache; the logits of the last one."""
        self._cached += ids
        try:
            return self.session.decode(ids)
        finally:
            del self._cached[self.session.position :]  # what was interrupted is not in the cache

    def accept(self, ids: Sequence[int]) -> None:
        """The first tokens that were proposed to the session are these, and are in the cache from now on."""
        self._cached += ids
        try:
            self.session.accept(len(ids))
        finally:
            del self._cached[self.session.position :]

    def close(self) -> None:
        """Frees the cache."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Run:
    """One text in the making, with the generator's cache."""

    def __init__(self, owner: TextGenerator, request: Request) -> None:
        self.owner, self.request, self.is_done = owner, request, False
        self.writing = Writing(request, owner.tokenizer, owner.ends, owner.session.n_ctx)
        self.windows = Windows(owner, request.ids, owner.drafter(), length_of(owner.draft))
        self.windows.stats.left_out = owner.left_out

    def pieces(self) -> Iterator[Piece]:
        request, writing = self.request, self.writing
        timings = writing.timings
        started = time.perf_counter()
        logits, timings.cached_tokens = self.owner.prefill(request.ids, request.keep_at)
        timings.prompt_tokens = len(request.ids) - timings.cached_tokens
        timings.prompt_seconds = time.perf_counter() - started
        if request.max_tokens == 0:
            writing.reason = LENGTH
        else:
            yield from self._tokens(logits, started)
        self.end()
        yield Piece(writing.flush(), generation=self.result())

    def _tokens(self, logits: npt.NDArray[np.float32], started: float) -> Iterator[Piece]:
        """A piece for each token, until the text ends."""
        writing = self.writing
        timings, resumed = writing.timings, None
        while (piece := writing.push(logits)) is not None:
            now = time.perf_counter()
            if resumed is None:
                timings.first_token_seconds = now - started
            else:
                timings.decoded_tokens += 1
                timings.decode_seconds += now - resumed
            yield piece
            if writing.has_ended:
                return
            resumed = time.perf_counter()
            logits = self.windows.after(writing.ids[-1], self._most())

    def _most(self) -> int:
        """Tokens that may come yet."""
        most = self.request.max_tokens
        return self.owner.session.n_ctx if most is None else most - len(self.writing.ids)

    def end(self) -> None:
        """The cache holds the text."""
        if self.is_done:
            return
        self.is_done = True
        self.windows.end()
        if self.writing.ids:
            self.owner.keep()
        self.writing.timings.drafts = None if self.owner.draft == "off" else self.windows.stats

    def result(self) -> Generation:
        return self.writing.result()


def encode(model: Any, prompt: Prompt, *, parse_special: bool = False, **template_options: Any) -> list[int]:
    """The ids of a prompt: text as it is, ids as they are, messages through the model's chat template.

    Args:
        model: The loaded model.
        prompt: The prompt.
        parse_special: Control tokens that are written out in a text become those tokens.
        template_options: For the chat template: `tools`, `enable_thinking`, ...

    Raises:
        MissingError: `chat.no_template`: messages, and the model has no template.
        GpackError: As `Tokenizer.encode` and `encode_chat`.
    """
    if isinstance(prompt, str):
        ids: list[int] = model.tokenizer.encode(prompt, parse_special=parse_special)
        return ids
    if not isinstance(prompt, Iterable):
        raise UsageError("the prompt is neither text nor token ids nor messages", code="engine.prompt")
    items: list[Any] = list(prompt)
    if not all(isinstance(item, Mapping) for item in items):
        if all(isinstance(item, (int, np.integer)) for item in items):
            return [int(item) for item in items]
        raise UsageError("the prompt is neither text nor token ids nor messages", code="engine.prompt")
    if not items:
        return []
    template = model.chat_template
    if template is None:
        raise MissingError("there is no chat template", code="chat.no_template", path=model.path)
    from ..tokenizer.chat import encode_chat

    return encode_chat(model.tokenizer, template, items, **({"add_generation_prompt": True} | template_options))


def generate(
    model: Any,
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    logprobs: int | None = None,
    ignore_end: bool = False,
    parse_special: bool = False,
    template_options: Mapping[str, Any] | None = None,
    stream: bool = False,
    **session_options: Any,
) -> Generation | Iterator[Piece]:
    """One text with a session of its own, which is closed after it; `GuildModel.generate` tells the rest."""
    ids = encode(model, prompt, parse_special=parse_special, **(template_options or {}))
    if not ids:
        raise empty_prompt()
    request = Request(
        ids=ids,
        max_tokens=max_tokens,
        sampling=sampling or GREEDY,
        stop=[stop] if isinstance(stop, str) else stop,
        logprobs=logprobs,
        ignore_end=ignore_end,
        continues=isinstance(prompt, str) or not isinstance(prompt[0], Mapping),
    )
    if stream:
        return _streamed(model, request, session_options)
    with TextGenerator.of(model, **session_options) as generator:
        return generator.generate(request)


def _streamed(model: Any, request: Request, session_options: Mapping[str, Any]) -> Iterator[Piece]:
    """The session lives from the first piece to the last."""
    with TextGenerator.of(model, **session_options) as generator:
        yield from generator.stream(request)


def has_draft_layer(model: Any) -> bool:
    """Whether the metadata count draft layers; whether they can be used is for the engine to say."""
    count = model.metadata.get(f"{model.metadata.get('general.architecture')}.nextn_predict_layers")
    return isinstance(count, int) and count > 0


def turn_end(model: Any, messages: Sequence[Mapping[str, Any]], ids: Sequence[int], **template_options: Any) -> int:
    """How many of a chat's ids come before the prompt of the answer: where the last turn ends.

    Args:
        model: The loaded model.
        messages: The chat.
        ids: What `encode` made of it.
        template_options: As `encode` had them.
    """
    return common(list(ids), encode(model, messages, **{**template_options, "add_generation_prompt": False}))
