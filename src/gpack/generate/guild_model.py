"""A loaded model that runs: texts, logits, embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import UsageError
from ..model.load import LoadedModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.engine import Engine
    from ..engine.session import Session
    from .sampling import Sampling
    from .text import Generation, Piece, Prompt


class GuildModel(LoadedModel):
    """A loaded model. Use it as a context manager, or call `close`; `load` is the way to make one."""

    def session(self, **options: Any) -> Session:
        """A session: the model at work on one text. The options are those of `gpack.engine.session.Session`.

        Raises:
            UnsupportedError: `engine.obstacle`: the pack says that its model cannot be run.
            GpackError: As `Session`; `pack.closed`: the model was closed.
        """
        self.check_runnable()
        from ..engine.session import Session

        return Session(self, **options)

    def engine(self, **options: Any) -> Engine:
        """An engine: the model on a device, for many texts. The options are those of `gpack.engine.engine.Engine`.

        Raises:
            GpackError: As `session`.
        """
        self.check_runnable()
        from ..engine.engine import Engine

        return Engine(self, **options)

    def logits(self, ids: Sequence[int], **options: Any) -> npt.NDArray[np.float32]:
        """The logits after each token of a text: float32 [len(ids), n_vocab]. The options are those of `session`.

        Raises:
            GpackError: As `Session` and `Session.decode`.
        """
        with self.session(**{"n_ctx": _context_of(ids), **options}) as session:
            return session.decode(ids, all_logits=True)

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        stream: Literal[True],
        **options: Any,
    ) -> Iterator[Piece]: ...
    def generate(self, prompt: Prompt, **options: Any) -> Generation | Iterator[Piece]:
        """Generates one text. `gpack.generate.text.TextGenerator` keeps the cache from one text to the next.

        Args:
            prompt: A text, which is continued; token ids; or messages, for the model's chat template.
            max_tokens: Most tokens to add; None: until the model ends or the context is full.
            sampling: How tokens are chosen; None: always the most probable one.
            stop: Strings that end the text; they are no part of it.
            logprobs: Also tell the log-probabilities of each token and so many of the best.
            stream: An iterator of pieces, as they come; the last one holds all of it.
            options: `ignore_end`: go on after the model's own end; `parse_special`: control tokens in a text count;
                `template_options`: for the chat template; `draft`: how many tokens are guessed, which changes no text;
                all others are those of `session`.

        Raises:
            UsageError: `engine.prompt`, `engine.context`, `engine.token`, or an argument makes no sense.
            GpackError: As `Session`, the tokeniser and the chat template do.
        """
        from .text import generate

        return generate(self, prompt, **options)

    def embed(
        self, text: str | Sequence[int], *, pooling: Literal["mean", "last", "none"] = "mean", **options: Any
    ) -> npt.NDArray[np.float32]:
        """The hidden state after the last norm: of the tokens' mean, of the last token, or of each.

        Args:
            text: A text, or ids.
            options: Those of `session`.

        Returns:
            float32 [n_embd], or [tokens, n_embd] where nothing is pooled; its length is not made 1.

        Raises:
            UsageError: There is no such pooling, or the text is empty.
            GpackError: As `Session` and `Session.decode`.
        """
        if pooling not in ("mean", "last", "none"):
            raise UsageError(f"there is no pooling {pooling!r}", code="usage", field="pooling")
        ids = self.tokenizer.encode(text) if isinstance(text, str) else text
        with self.session(**{"n_ctx": _context_of(ids), **options}) as session:
            states = session.hidden(ids)
        if pooling == "none":
            return states
        made: npt.NDArray[np.float32] = states[-1].copy() if pooling == "last" else states.mean(axis=0)
        return made


def _context_of(ids: Sequence[int]) -> int:
    """Positions that a text takes.

    Raises:
        UsageError: It is no sequence.
    """
    if not hasattr(ids, "__len__"):
        raise UsageError(f"tokens are a sequence of whole numbers, not {type(ids).__name__}", code="usage", field="ids")
    return max(len(ids), 1)
