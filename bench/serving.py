"""`guild serve` with several clients, against its own engine and against the servers of llama.cpp."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpack.machine import usable_cores
from gpack.terminal import units

from .before import rates as show_rates
from .bench import Bench
from .measure import ENVIRONMENT, Outcome, Row, Way, bound, by_turns
from .processes import ours
from .running import models
from .servers import Server, ask, commands, running

_COUNTS = (1, 8)
_OF_ENGINE = {1: 0.97, 8: 0.9}  # of what the engine alone does with as many texts
_OF_PEER = {8: 3.0}
_SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1}
_GREEDY: dict[str, Any] = {"temperature": 0}
_SMALL = 1 << 28
_LONG, _REUSED = 4000, 1300
_FIRST_SECONDS, _GAP_SECONDS, _SHARE = 0.5, 0.15, 0.8
_CHUNK_SECONDS, _STREAMS = 40e-6, 16
_READY_SECONDS = 0.3
_BLOCK = 64


def serve(bench: Bench) -> Iterator[Row]:
    """Tokens per second of 1 and of 8 clients; on the small model also who waits for whom, and what it costs."""
    threads = min(2, usable_cores())
    for name, source in models(bench):
        is_small = source.stat().st_size < _SMALL
        prompt, steps = (128, 64) if is_small else (32, 32)
        yield from _together(bench, name, source, threads, prompt, steps)
        if is_small:
            words = commands(source, parallel=_STREAMS, n_ctx=4352, threads=threads)["ours"]
            with running(words) as server:
                yield from _beside(name, server)
                yield _chunks(name, server)
                yield _reuse(name, server)
            yield _ready(bench, name, source, words)


def prompt_of(number: int, length: int) -> list[int]:
    """Tokens of any vocabulary, other ones for each number."""
    return [(place * 7919 + 13 + 1009 * number) % 30_000 for place in range(length)]


# ------------------------------------------------------------ tokens per second


def _together(bench: Bench, name: str, source: Path, threads: int, prompt: int, steps: int) -> Iterator[Row]:
    servers = commands(source, parallel=max(_COUNTS), n_ctx=512, threads=threads)
    options = {
        "path": str(source),
        "threads": threads,
        "n_ctx": prompt + steps,
        "prompts": [prompt_of(number, prompt) for number in range(max(_COUNTS))],
        "counts": _COUNTS,
        "steps": steps,
        "repeats": 1,
    }
    ways: dict[str, Way] = {"engine": lambda: ours(bench, "together", options)}
    for server, words in servers.items():
        ways[server] = lambda words=words: _rates(words, prompt, steps)  # type: ignore[misc]
    runs = by_turns(1 if bench.quick else min(bench.rounds, 3), ways)
    elsewhere = max(outcome["elsewhere"] for outcomes in runs.values() for outcome in outcomes)
    for way in ("greedy", "sampled"):
        for count in _COUNTS:
            key = f"{way} {count}"
            mine = [outcome["rates"][key] for outcome in runs["ours"]]
            alone = statistics.median(value for outcome in runs["engine"] for value in outcome["rates"][str(count)])
            others = {peer: [outcome["rates"][key] for outcome in runs[peer]] for peer in servers if peer != "ours"}
            yield _rate_row(f"{name}, {units.plural(count, 'client')}, {way}", mine, alone, others, count, elsewhere)


def _rate_row(
    what: str, mine: list[float], alone: float, others: dict[str, list[float]], count: int, elsewhere: float
) -> Row:
    middle = statistics.median(mine)
    of_engine = middle / alone
    best = max((statistics.median(rates) for rates in others.values()), default=0.0)
    of_peer = middle / best if best else None
    target = f"{_OF_ENGINE[count]} of the engine's"
    reached = of_engine >= _OF_ENGINE[count]
    if count in _OF_PEER and of_peer is not None:
        target += f", {_OF_PEER[count]:g}x the best peer's"
        reached &= of_peer >= _OF_PEER[count]
    told = "; ".join(f"{peer}: {show_rates(rates)}" for peer, rates in others.items())
    ratio = f"{of_engine:.2f} of the engine's {alone:.0f}" + (
        "" if of_peer is None else f", {of_peer:.2f}x the best peer's"
    )
    data = {"ours": mine, "engine": alone, "peers": others}
    return Row("serve", what, show_rates(mine), told, ratio, target, reached, elsewhere, data)


def _rates(words: Sequence[str], prompt: int, steps: int) -> Outcome:
    with running(words) as server:
        found = {}
        for way, options in (("greedy", _GREEDY), ("sampled", _SAMPLED)):
            for count in _COUNTS:
                found[f"{way} {count}"] = asyncio.run(_rate(server, count, prompt, steps, options))
        return {"rates": found}


async def _rate(server: Server, count: int, prompt: int, steps: int, options: dict[str, Any]) -> float:
    """Tokens per second of all clients together, after the first token of each; the prompts were read before."""
    await asyncio.gather(*[ask(server, prompt_of(number, prompt), 1, **options) for number in range(count)])
    streams = await asyncio.gather(
        *[ask(server, prompt_of(number, prompt), steps, **options) for number in range(count)]
    )
    # Not counted by events: some tokens are no whole character, and bring none.
    return sum((steps - 1) / (stream.tokens[-1] - stream.tokens[0]) for stream in streams)


# ------------------------------------------------------------ one beside another


def _beside(name: str, server: Server) -> Iterator[Row]:
    """A long prompt is read while short requests come and a text is written."""

    async def measure() -> tuple[float, float, list[float], list[float]]:
        first = await ask(server, prompt_of(1, _LONG), 1)
        alone = first.tokens[0] - first.sent
        running_text = asyncio.create_task(ask(server, prompt_of(2, 30), 250))
        await asyncio.sleep(0.3)
        long = asyncio.create_task(ask(server, prompt_of(3, _LONG), 1))
        await asyncio.sleep(0.05)
        waited = []
        number = 100
        while not long.done() and number < 140:
            short = await ask(server, prompt_of(number, 20), 4)
            waited.append(short.tokens[0] - short.sent)
            number += 1
            await asyncio.sleep(0.1)
        read = await long
        text = await running_text
        begin, end = read.sent, read.tokens[0]
        during = [token for token in text.tokens if begin <= token <= end]
        gaps = [later - earlier for earlier, later in pairwise(during)]
        return alone, read.tokens[0] - read.sent, waited, gaps

    alone, beside, waited, gaps = asyncio.run(measure())
    yield bound(
        "serve",
        f"{name}, first token of a short request beside a prompt of {_LONG}, p95 of {len(waited)}",
        _quantile(waited, 0.95),
        _FIRST_SECONDS,
        units.duration,
    )
    yield bound(
        "serve", f"{name}, between two tokens meanwhile, p99", _quantile(gaps, 0.99), _GAP_SECONDS, units.duration
    )
    share = alone / beside
    yield Row(
        "serve",
        f"{name}, speed of the long prompt meanwhile",
        f"{share:.2f} of its speed alone",
        target=f"at least {_SHARE}",
        reached=share >= _SHARE,
        data={"alone": alone, "beside": beside},
    )


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# ------------------------------------------------------------ what it costs


def _chunks(name: str, server: Server) -> Row:
    async def measure() -> int:
        prompts = [prompt_of(200 + number, 30) for number in range(_STREAMS)]
        streams = await asyncio.gather(*[ask(server, prompt, 256, **_GREEDY) for prompt in prompts])
        return sum(len(stream.tokens) for stream in streams)

    asyncio.run(measure())
    before = server.loop_seconds()
    count = asyncio.run(measure())
    each = (server.loop_seconds() - before) / count
    what = f"{name}, CPU of the event loop for a chunk, {_STREAMS} streams"
    return bound("serve", what, each, _CHUNK_SECONDS, lambda value: f"{value * 1e6:.0f} us")


def _reuse(name: str, server: Server) -> Row:
    prompt = prompt_of(300, _REUSED)
    asyncio.run(ask(server, prompt, 1))
    before = server.counter("gpack_prompt_tokens_read_total")
    asyncio.run(ask(server, [*prompt, 5], 1))
    rows = server.counter("gpack_prompt_tokens_read_total") - before
    what = f"{name}, rows computed of a prompt of {_REUSED} that was read before"
    return bound("serve", what, rows, _BLOCK, lambda value: f"{value:.0f}")


def _ready(bench: Bench, name: str, source: Path, words: Sequence[str]) -> Row:
    run = [sys.executable, "-m", "gpack", "run", str(source), "-p", "a", "-n", "1", "--draft", "off"]
    served, ran = [], []
    for _ in range(1 if bench.quick else 5):
        with running(words) as server:
            served.append(server.ready)
        started = time.perf_counter()
        subprocess.run(run, check=True, capture_output=True, env=ENVIRONMENT)
        ran.append(time.perf_counter() - started)
    more = statistics.median(served) - statistics.median(ran)
    return Row(
        "serve",
        f"{name}, ready to serve",
        units.duration(statistics.median(served)),
        f"`guild run -n 1` as a whole: {units.duration(statistics.median(ran))}",
        f"{more:+.2f} s",
        f"at most {_READY_SECONDS} s more",
        more <= _READY_SECONDS,
        data={"served": served, "ran": ran},
    )
