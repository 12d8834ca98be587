"""Our engine doing what `llama_cpp.py` does, in a process of its own: `python -m bench.our_engine JOB JSON`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpack.engine.backends.cpu.variants import choose
from gpack.model import GuildModel, ModelPaths

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
    "greedy": greedy,
    "perplexity": perplexity,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))))
