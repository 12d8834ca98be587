"""Our engine doing what `llama_cpp.py` does, in a process of its own: `python -m bench.our_engine JOB JSON`.

Sources of an earlier commit do `speed` and `alone` too; whose they are stands in the outcome.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpack
from gpack.model import GuildModel, ModelPaths

try:
    from gpack.engine.backends.cpu.variants import choose
except ImportError:  # at the commit before
    from gpack.engine.cpu import choose  # type: ignore[import-untyped, import-not-found, no-redef, unused-ignore]

from .llama_cpp import surprise
from .worker import resident


def _model(path: str) -> GuildModel:
    return GuildModel.load(ModelPaths(None, path) if path.endswith(".gguf") else path)


def speed(options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second, decoding and for a prompt; memory."""
    started = time.perf_counter()
    cpu = options.get("cpu")
    with (
        _model(options["path"]) as model,
        model.session(n_ctx=options["n_ctx"], threads=options["threads"], cpu=cpu) as session,
    ):
        load = time.perf_counter() - started
        decode, prompt = options["decode"], options["prompt"]
        session.decode(decode[:16])
        session.decode(decode[16:17])
        began = time.perf_counter()
        for token in decode[17:]:
            session.decode([token]).argmax()
        taken = time.perf_counter() - began
        rate = 0.0
        if prompt:
            session.rewind(0)
            session.decode(prompt[:64])
            session.rewind(0)
            began = time.perf_counter()
            session.decode(prompt)
            rate = len(prompt) / (time.perf_counter() - began)
        variant = choose(cpu)
        return {
            "decode_rate": (len(decode) - 17) / taken,
            "prompt_rate": rate,
            "system": variant.name,
            "features": " ".join(sorted(variant.needs[0])),
            "load_seconds": load,
            "peak": resident("VmHWM"),
            "cache": session.cache_bytes,
        }


def alone(options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of one text after a prompt."""
    prompt, steps = options["prompts"][0], options["steps"]
    rates = []
    with (
        _model(options["path"]) as model,
        model.session(n_ctx=options["n_ctx"], threads=options["threads"], cpu=options.get("cpu")) as session,
    ):
        first = int(session.decode(prompt).argmax())
        for _ in range(options["repeats"]):
            token = first
            began = time.perf_counter()
            for _ in range(steps):
                token = int(session.decode([token]).argmax())
            rates.append(steps / (time.perf_counter() - began))
            session.rewind(len(prompt))
    return {"rates": {"1": rates}, "system": choose(options.get("cpu")).name}


def together(options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of all texts, each with its own prompt, of which the first 1, 2, ... are decoded together."""
    from gpack.engine.engine import Chunk

    prompts, steps = options["prompts"], options["steps"]
    rates: dict[str, list[float]] = {str(count): [] for count in options["counts"]}
    written: list[set[tuple[int, ...]]] = [set() for _ in prompts]  # by each text, every time
    with _model(options["path"]) as model, model.engine(threads=options["threads"], cpu=options.get("cpu")) as engine:
        texts = [engine.sequence(n_ctx=options["n_ctx"]) for _ in prompts]
        first = [
            int(engine.step([Chunk(text, prompt)]).logits[0].argmax())
            for text, prompt in zip(texts, prompts, strict=True)
        ]
        for _ in range(options["repeats"]):
            for count in options["counts"]:
                tokens, new = first[:count], []
                began = time.perf_counter()
                for _ in range(steps):
                    chunks = [Chunk(text, [token]) for text, token in zip(texts, tokens, strict=False)]
                    tokens = engine.step(chunks, copy=False).logits.argmax(axis=1).tolist()
                    new.append(tokens)
                rates[str(count)].append(count * steps / (time.perf_counter() - began))
                for text, known, ids in zip(texts, written, zip(*new, strict=True), strict=False):
                    known.add(ids)
                    text.truncate(len(prompts[0]))
    return {
        "rates": rates,
        "system": choose(options.get("cpu")).name,
        "same": all(len(known) <= 1 for known in written),
    }


def forks(options: dict[str, Any]) -> dict[str, Any]:
    """Time and memory of texts that begin like one of them."""
    from gpack.engine.engine import Chunk

    prefix, count = options["prefix"], options["count"]
    with _model(options["path"]) as model, model.engine(threads=options["threads"]) as engine:
        with engine.sequence(n_ctx=options["n_ctx"]) as text:
            engine.step([Chunk(text, prefix[:1])])
            block = engine.pool.used
            text.fork().close()
        text = engine.sequence(n_ctx=options["n_ctx"])
        for at in range(0, len(prefix), engine.batch):
            engine.step([Chunk(text, prefix[at : at + engine.batch])])
        alone, resident_alone = engine.pool.used, resident("VmRSS")
        began = time.perf_counter()
        made = [text.fork() for _ in range(count)]
        seconds = time.perf_counter() - began
        forked, resident_forked = engine.pool.used, resident("VmRSS")
        engine.step([Chunk(fork, [token]) for token, fork in enumerate(made)]).raise_error()
        return {
            "seconds": seconds / count,
            "block": block,
            "alone": alone,
            "forked": forked,
            "written": engine.pool.used,
            "resident": [resident_alone, resident_forked, resident("VmRSS")],
        }


def state(options: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a text's state when its context is full."""
    from gpack.engine.engine import Chunk

    n_ctx = options["n_ctx"]
    with (
        _model(options["path"]) as model,
        model.engine(threads=options["threads"]) as engine,
        engine.sequence(n_ctx=n_ctx) as text,
    ):
        before = resident("VmRSS")
        began = time.perf_counter()
        for at in range(0, n_ctx, engine.batch):
            ids = [(place * 7919 + 13) % 30_000 for place in range(at, min(at + engine.batch, n_ctx))]
            engine.step([Chunk(text, ids, "none")])
        return {
            "seconds": time.perf_counter() - began,
            "used": engine.pool.used,
            "batch": engine.batch,
            "resident": resident("VmRSS") - before,
        }


class _Silent:
    """A tokeniser of a model without vocabulary: tokens stand for nothing."""

    def __len__(self) -> int:
        return 0

    def stream(self, **_: Any) -> Any:
        return self

    def flush(self) -> str:
        return ""


class _Dictated:
    """A session whose model computes as ever, and then says what it is asked to."""

    def __init__(self, session: Any, text: list[int]) -> None:
        self._session, self._text = session, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def decode(self, ids: list[int]) -> Any:
        logits = self._session.decode(ids)
        self._say(logits, self._session.position)
        return logits

    def propose(self, ids: list[int]) -> Any:
        rows = self._session.propose(ids)
        for place, row in enumerate(rows, start=1):
            self._say(row, self._session.position + place)
        return rows

    def _say(self, logits: Any, position: int) -> None:
        if position < len(self._text):
            logits[self._text[position]] = 1e9


def drafts(options: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second of a text for each way to draft, by turns; and what became of the drafts."""
    from functools import partial

    from gpack.generate.drafting import MtpDrafter, NgramDrafter
    from gpack.generate.text import Request, TextGenerator

    rates: dict[str, list[float]] = {}
    drafts: dict[str, Any] = {}
    ids: list[list[int]] = []
    with _model(options["path"]) as model:
        for _ in range(options["repeats"]):
            for draft in options["drafts"]:
                session: Any = model.session(n_ctx=options["n_ctx"], threads=options["threads"], drafts=options["mtp"])
                drafter: Any = partial(MtpDrafter, session) if options["mtp"] else NgramDrafter
                if options.get("answer"):
                    session = _Dictated(session, [*options["prompt"], *options["answer"]])
                tokenizer: Any = _Silent()
                with TextGenerator(session, tokenizer, draft=draft, drafter=drafter) as generator:
                    request = Request(ids=options["prompt"], max_tokens=options["steps"])
                    found = generator.generate(request)
                    rates.setdefault(str(draft), []).append(found.timings.decode_rate or 0.0)
                    drafts[str(draft)] = None if found.timings.drafts is None else found.timings.drafts.to_dict()
                    ids.append(found.ids)
    return {"rates": rates, "drafts": drafts, "same": all(each == ids[0] for each in ids)}


def greedy(options: dict[str, Any]) -> dict[str, Any]:
    """The most probable tokens after a prompt."""
    with (
        _model(options["path"]) as model,
        model.session(n_ctx=options["n_ctx"], cache_type="F32", compute="f32") as session,
    ):
        new: list[int] = []
        logits = session.decode(options["prompt"])
        for _ in range(options["count"]):
            new.append(int(logits.argmax()))
            logits = session.decode(new[-1:])
        return {"ids": new}


def perplexity(options: dict[str, Any]) -> dict[str, Any]:
    """The sum of the negative log-likelihoods of chunks, each without the tokens before it."""
    total = 0.0
    with _model(options["path"]) as model, model.session(n_ctx=options["n_ctx"]) as session:
        for chunk in options["chunks"]:
            session.rewind(0)
            total += surprise(session.decode(chunk, all_logits=True), chunk)
    return {"sum": total}


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "speed": speed,
    "alone": alone,
    "together": together,
    "forks": forks,
    "state": state,
    "drafts": drafts,
    "greedy": greedy,
    "perplexity": perplexity,
}

if __name__ == "__main__":
    outcome = JOBS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
    print(json.dumps(outcome | {"package": gpack.__file__}))
