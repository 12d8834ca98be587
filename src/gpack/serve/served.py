"""A model that is served: loaded, with the threads that carry its texts on."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import __version__
from ..engine.engine import Chunk
from ..errors import UnsupportedError
from ..generate.drafting import Draft
from ..generate.ending import end_tokens
from ..generate.guild_model import GuildModel
from ..generate.request import Request
from ..generate.text import has_draft_layer, turn_end
from ..generate.writing import Rules, Writing
from ..generated.constants import GgmlType
from ..tokenizer.chat import special_tokens
from .grammar import Grammars
from .job import Event, Job
from .kept import KeptPrompts
from .markup import Style, open_reasoning
from .scheduler import Call, Scheduler


@dataclass(frozen=True)
class Settings:
    """How models are served.

    Attributes:
        parallel: Texts that a model carries on together.
        queue: Further requests that may wait.
        n_ctx: Most tokens of a text; None: what the model was trained on, at most 8192.
        threads, compute, cpu, device, cache_type: As `guild run`.
        draft: Tokens that are guessed of each text.
        state_bytes: Most bytes of the states of all texts; None: half of the memory that is free.
        timeout: Seconds that a request may take.
        cache_dir: Folder that keeps the states of prompts from one run to the next; None: they are not kept.
    """

    parallel: int = 16
    queue: int = 128
    n_ctx: int | None = None
    threads: int | None = None
    compute: Any = "int8"
    cpu: str | None = None
    device: str = "cpu"
    cache_type: str = "F16"
    draft: Draft = "auto"
    state_bytes: int | None = None
    timeout: float = 600.0
    cache_dir: str | None = None


_EMBEDDED_ROWS = 64  # of a step, so that running texts do not wait
_MOST_CONTEXT = 8192  # that a text has unless more is asked for


@dataclass
class Prompt:
    """A prompt, as tokens.

    Attributes:
        ids: The tokens.
        keep_at: Where turns end.
        is_thinking: It ends within reasoning.
    """

    ids: list[int]
    keep_at: list[int] = field(default_factory=list)
    is_thinking: bool = False


class Served:
    """A loaded model and its scheduler.

    Attributes:
        name: What clients call it.
        model: The model.
        scheduler: Carries its texts on.
        n_ctx: Most tokens of a text.
        style: How its answers are marked.
        created: When it was loaded, seconds since 1970.
        nbytes: Of its file.
        weights: How many tensors there are of each type.
        fingerprint: What answers of the same model, version and options have in common.
    """

    def __init__(
        self, name: str, model: GuildModel, settings: Settings, post: Callable[[list[Call]], None] | None = None
    ) -> None:
        """Starts a loaded model's threads; it is closed with this.

        Raises:
            GpackError: As `GuildModel.engine` and `Scheduler`.
        """
        self.name, self.model, self.created = name, model, int(time.time())
        self.engine = model.engine(
            threads=settings.threads,
            compute=settings.compute,
            cpu=settings.cpu,
            device=settings.device,
            state_bytes=settings.state_bytes,
        )
        self.kept: KeptPrompts | None = None
        try:
            if settings.cache_dir is not None:
                compute, kind = str(settings.compute), settings.cache_type
                self.kept = KeptPrompts(settings.cache_dir, model, self.engine, compute=compute, cache_type=kind)
            self.n_ctx = settings.n_ctx or min(self.engine.n_context, _MOST_CONTEXT)
            self.scheduler = Scheduler(
                self.engine,
                parallel=settings.parallel,
                queue=settings.queue,
                n_ctx=self.n_ctx,
                cache_type=settings.cache_type,
                draft=settings.draft,
                layer=settings.draft != "off" and has_draft_layer(model),
                post=post,
            )
        except BaseException:
            self.engine.close()
            raise
        if self.kept is not None:
            self.kept.load(self.scheduler.prefixes)
        self.ends = end_tokens(model.tokenizer, model.metadata.get)
        self.template = model.chat_template
        self.style = Style.of(None if self.template is None else self.template.source)
        self.fingerprint = _fingerprint(model, settings)
        self.grammars = Grammars(model.tokenizer, self.ends, self.engine.n_vocab)
        self.nbytes = os.path.getsize(model.path)
        self.weights = Counter(GgmlType.NAMES[ggml_type] for ggml_type, _ in model.tensors.shapes())

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> Prompt:
        """The prompt of a conversation.

        Raises:
            UnsupportedError: `chat.no_template`: the model has no chat template.
            GpackError: As `encode_chat`.
        """
        if self.template is None:
            raise UnsupportedError(
                "the model has no chat template", code="chat.no_template", hint="/v1/completions continues texts"
            )
        tokenizer = self.model.tokenizer
        options: dict[str, Any] = {"special_tokens": special_tokens(tokenizer), **variables}
        if tools:
            options["tools"] = list(tools)
        made = self.template.render(messages, add_generation_prompt=True, **options)
        ids = tokenizer.encode_marked(made.text, made.mask)
        keep_at = []
        if not self.engine.is_trimmable:
            keep_at = [turn_end(self.model, messages, ids, **options)]
        return Prompt(ids, keep_at, open_reasoning(made.text))

    def embed(self, ids: Sequence[int]) -> Any:
        """The mean of the hidden states of a text, float32 [n_embd], of length 1.

        Raises:
            UsageError: `engine.context`: the text is too long; `engine.budget`: there is no room for it now.
        """
        total = np.zeros(self.engine.n_embd, np.float64)
        with self.engine.sequence(n_ctx=self.n_ctx, cache_type="F16") as text:
            for first in range(0, len(ids), _EMBEDDED_ROWS):
                chunk = Chunk(text, list(ids[first : first + _EMBEDDED_ROWS]), logits="none")
                result = self.engine.step([chunk], hidden=True)
                result.raise_error()
                total += result[0].hidden.astype(np.float64).sum(axis=0)
        length = float(np.linalg.norm(total)) or 1.0
        return (total / length).astype(np.float32)

    def job(
        self, request: Request, tell: Callable[[Event], None], rules: Rules | None = None, after: Job | None = None
    ) -> Job:
        """A text, to be submitted."""
        writing = Writing(request, self.model.tokenizer, self.ends, self.n_ctx, rules)
        return Job(request, writing, tell, after)

    def mentions(self, variable: str) -> bool:
        """Whether the chat template has a variable of this name."""
        return self.template is not None and re.search(rf"\b{re.escape(variable)}\b", self.template.source) is not None

    @property
    def is_busy(self) -> bool:
        """Whether it has texts to carry on."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def close(self) -> int:
        """Ends texts, threads and the model; how many texts were cut."""
        cut = self.scheduler.close(self.kept.save if self.kept is not None else None)
        self.engine.close()
        self.model.close()
        return cut


def _fingerprint(model: GuildModel, settings: Settings) -> str:
    made = hashlib.sha256(
        repr((__version__, settings.compute, settings.cpu, settings.device, settings.cache_type)).encode()
    )
    if model.pack is not None:
        made.update(model.pack.container.footer.manifest_sha256)
    else:
        made.update(repr([(name, item.ggml_type, item.dims) for name, item in model.tensors.items()]).encode())
    return f"gpack-{made.hexdigest()[:16]}"
