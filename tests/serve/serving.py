"""A tiny model that is served, for the tests of this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf_maker import F32, N_EMBD, TINY_TOKENS, tiny_llama, write_gguf

from gpack.generate.ending import end_tokens
from gpack.generate.request import Generation, Request
from gpack.generate.sampling import Sampling
from gpack.generate.writing import Rules, Writing
from gpack.model import GuildModel, ModelPaths
from gpack.serve.job import Event, Job
from gpack.serve.scheduler import Scheduler


def write_model(folder: Path) -> Path:
    """A llama with random weights, a vocabulary of bytes, and a chat template."""
    return write_gguf(folder / "tiny.gguf", *tiny_llama())


@contextmanager
def open_model(folder: Path) -> Iterator[GuildModel]:
    with GuildModel.load(ModelPaths(primary_model_path=write_model(folder))) as model:
        yield model


@dataclass
class Told:
    """What a scheduler told of a text."""

    job: Job = field(init=False)
    events: list[Event] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def take(self, event: Event) -> None:
        self.events.append(event)
        if event.error is not None or (event.piece is not None and event.piece.generation is not None):
            self.done.set()

    def result(self) -> Generation:
        assert self.done.wait(60)
        last = self.events[-1]
        if last.error is not None:
            raise last.error
        assert last.piece is not None
        assert last.piece.generation is not None
        texts = [event.piece.text for event in self.events if event.piece is not None]
        assert "".join(texts) == last.piece.generation.text
        return last.piece.generation


class Bed:
    """A scheduler over a model."""

    def __init__(self, model: GuildModel, **options: Any) -> None:
        engine_options = {name: options.pop(name) for name in ("batch", "state_bytes") if name in options}
        self.model = model
        self.tokenizer: Any = options.pop("tokenizer", None) or model.tokenizer
        self.engine = model.engine(threads=1, cpu="portable", **engine_options)
        self.ends = end_tokens(self.tokenizer, model.metadata.get)
        self.scheduler = Scheduler(self.engine, **{"parallel": 4, "queue": 100, "n_ctx": 200, **options})

    def make(self, prompt: list[int], rules: Rules | None = None, after: Told | None = None, **options: Any) -> Told:
        request = Request(ids=prompt, **{"max_tokens": 12, "sampling": Sampling(seed=1, temperature=1.0), **options})
        n_ctx = self.scheduler.n_ctx
        writing = Writing(request, self.tokenizer, self.ends, n_ctx, rules)
        told = Told()
        told.job = Job(request, writing, told.take, None if after is None else after.job)
        return told

    def ask(self, prompt: list[int], **options: Any) -> Told:
        told = self.make(prompt, **options)
        self.scheduler.submit(told.job)
        return told

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.scheduler.close()
        self.engine.close()


# How much likelier than others these are, as powers of e: texts of a model that draws by chance come to an end.
_LIKELY = {"<|im_end|>": 4.0, '"': 4.0, "}": 4.0, "]": 4.0, ",": 1.0, ":": 1.0}
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call by <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_eager_model(folder: Path) -> Path:
    """A llama with random weights whose texts, and JSON in them, end soon; its template knows tools."""
    metadata, tensors = tiny_llama()
    values = {"tokenizer.chat_template": TOOL_TEMPLATE, "llama.context_length": 8192}
    metadata = [(key, kind, values.get(key, value)) for key, kind, value in metadata]
    rng = np.random.default_rng(7)
    embedding = rng.normal(0, 0.02, (len(TINY_TOKENS), N_EMBD)).astype("<f4")
    embedding[:, 0] = 0.5  # of all tokens, so that the first dimension of every state is large
    output = rng.normal(0, 0.1, embedding.shape).astype("<f4")
    output[:, 0] = 0
    for token, power in _LIKELY.items():
        output[TINY_TOKENS.index(token), 0] = power / 7.5
    given = {"token_embd.weight": embedding, "output.weight": output}
    made = [
        (name, F32, (N_EMBD, len(TINY_TOKENS)), given[name].tobytes()) if name in given else (name, kind, dims, data)
        for name, kind, dims, data in tensors
    ]
    return write_gguf(folder / "eager.gguf", metadata, made)


@contextmanager
def serving(path: Path, *options: str, **environment: str) -> Iterator[str]:
    """`guild serve` of a model as a process: its address. It must end as it should."""
    words = [sys.executable, "-m", "gpack", "serve", str(path), "--port", "0", "--threads", "1", "--cpu", "portable"]
    with subprocess.Popen(
        [*words, "--model-alias", "m", *options], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"at (http://\S+)", line) for line in process.stderr)), None)
        try:
            assert found is not None, "the server did not start"
            yield found[1]
        finally:
            process.terminate()
            rest = process.stderr.read()
            assert process.wait(60) == 0, rest
            assert "Traceback" not in rest
