"""How fast a model runs: tokens per second of a prompt, of one text that goes on, and of several together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .guild_model import GuildModel

if TYPE_CHECKING:
    from ..engine.engine import Engine


@dataclass(frozen=True)
class Rate:
    """One job, and how fast it was each time.

    Attributes:
        job: In words.
        rates: Tokens per second, all texts together, one for each repetition.
    """

    job: str
    rates: tuple[float, ...]


def rates(
    model: GuildModel, *, prompt: int, decode: int, texts: tuple[int, ...], repetitions: int, **options: Any
) -> Iterator[Rate]:
    """Measures one job after the other, each once more before it counts.

    Args:
        prompt: Tokens of a prompt; 0: none is measured.
        decode: Steps that texts go on after an empty context; 0: none are measured.
        texts: How many go on together, in turn.
        options: Those of `GuildModel.engine`, and `cache_type`.

    Raises:
        UsageError: A number makes no sense.
    """
    if min(prompt, decode) < 0 or repetitions < 1 or any(count < 1 for count in texts):
        raise UsageError("prompt, steps, texts and repetitions are counts", code="usage")
    cache_type = options.pop("cache_type", "F16")
    with model.engine(**options) as engine:
        if max(texts, default=1) > engine.batch:
            raise UsageError(f"a step has at most {engine.batch} texts", code="engine.batch", field="texts")
        ids = [(place * 7919 + 13) % engine.n_vocab for place in range(max(prompt, decode, 1))]
        if prompt:
            yield _rate(f"prompt {prompt}", partial(_read, engine, ids[:prompt], cache_type), repetitions)
        for count in texts if decode else ():
            job = f"decode {decode}" if count == 1 else f"decode {decode}, {count} texts"
            yield _rate(job, partial(_continue, engine, ids[:decode], cache_type, count), repetitions)


def _read(engine: Engine, ids: list[int], cache_type: str) -> int:
    """One text's prompt; how many tokens."""
    from ..engine.engine import Chunk

    with engine.sequence(n_ctx=len(ids), cache_type=cache_type) as text:
        for first in range(0, len(ids), engine.batch):
            engine.step([Chunk(text, ids[first : first + engine.batch])]).raise_error()
    return len(ids)


def _continue(engine: Engine, ids: list[int], cache_type: str, count: int) -> int:
    """So many texts, a token each in every step; how many tokens."""
    from ..engine.engine import Chunk

    with ExitStack() as stack:
        texts = [stack.enter_context(engine.sequence(n_ctx=len(ids), cache_type=cache_type)) for _ in range(count)]
        for token in ids:
            engine.step([Chunk(text, [token]) for text in texts], copy=False).raise_error()
    return count * len(ids)


def _rate(job: str, run: Callable[[], int], repetitions: int) -> Rate:
    run()
    found = []
    for _ in range(repetitions):
        began = time.perf_counter()
        tokens = run()
        found.append(tokens / (time.perf_counter() - began))
    return Rate(job, tuple(found))
