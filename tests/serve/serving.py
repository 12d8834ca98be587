"""A tiny model that is served, for the tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf_maker import tiny_llama, write_gguf

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
        self.engine = model.engine(threads=1, cpu="portable", **engine_options)
        self.ends = end_tokens(model.tokenizer, model.metadata.get)
        self.scheduler = Scheduler(self.engine, **{"parallel": 4, "queue": 100, "n_ctx": 200, **options})

    def make(self, prompt: list[int], rules: Rules | None = None, after: Told | None = None, **options: Any) -> Told:
        request = Request(ids=prompt, **{"max_tokens": 12, "sampling": Sampling(seed=1, temperature=1.0), **options})
        n_ctx = self.scheduler.n_ctx
        writing = Writing(request, self.model.tokenizer, self.ends, n_ctx, rules)
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
