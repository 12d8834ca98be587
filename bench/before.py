"""One text in our engine against the engine of an earlier commit: nothing may have become slower or larger."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpack.machine import usable_cores
from gpack.terminal import units

from . import peers
from .bench import Bench
from .measure import ENVIRONMENT, Outcome, Row, Way, by_turns, command, warm_up
from .processes import environment_of, ours

LEAST, MOST = 0.98, 1.02  # of the speed before, and of the memory
_CONTEXT, _PROMPT, _SMALL = 1024, 512, 1 << 28


def against_before(bench: Bench, name: str, pack: Path) -> Iterator[Row]:
    """Decoding, a prompt, the first token of the whole command, and resident memory."""
    at = peers.before()
    if at is None:
        yield Row("run", f"{name}, against the commit before", "skipped: git does not have it")
        return
    is_small = pack.stat().st_size < _SMALL
    cores = min(2, usable_cores())
    for threads in sorted({1, cores}) if is_small else (cores,):
        decode = 17 + (64 if is_small else 24)
        ids = [(place * 7919 + 13) % 30_000 for place in range(max(decode, _PROMPT))]
        options = {
            "path": str(pack),
            "threads": threads,
            "n_ctx": _CONTEXT,
            "decode": ids[:decode],
            "prompt": ids[:_PROMPT],
        }
        runs = _in_turn(
            bench,
            {
                "ours": lambda options=options: ours(bench, "speed", options),  # type: ignore[misc]
                "before": lambda options=options: ours(bench, "speed", options, at=at),  # type: ignore[misc]
            },
        )
        text = f"{name}, {units.plural(threads, 'thread')}"
        yield _rates(f"{text}, decode", runs, "decode_rate")
        yield _rates(f"{text}, prompt of {_PROMPT}", runs, "prompt_rate")
    yield _least(f"{text}, resident memory", runs, "peak", lambda values: spread(values, units.size))
    words = (sys.executable, "-m", "gpack", "run", pack, "-p", "What is gravity?", "-n", 1, "--temp", 0)
    runs = _in_turn(
        bench,
        {
            "ours": lambda: command(*words, environment=ENVIRONMENT),
            "before": lambda: command(*words, environment=environment_of(at)),
        },
    )
    yield _least(
        f"{name}, `guild run` to its first token", runs, "seconds", lambda values: spread(values, units.duration)
    )


def _in_turn(bench: Bench, ways: dict[str, Way]) -> dict[str, list[Outcome]]:
    warm_up(ways)
    return by_turns(bench.many_rounds(), ways)


def _rates(what: str, runs: dict[str, list[Outcome]], key: str) -> Row:
    return _row(what, runs, key, rates, lambda ratio: ratio >= LEAST, f"at least {LEAST}x")


def _least(what: str, runs: dict[str, list[Outcome]], key: str, show: Callable[[Sequence[float]], str]) -> Row:
    # Times have the same room as speeds: 1/0.98 is 1.02 too.
    return _row(what, runs, key, show, lambda ratio: ratio <= MOST, f"at most {MOST}x")


def _row(
    what: str,
    runs: dict[str, list[Outcome]],
    key: str,
    show: Callable[[Sequence[float]], str],
    is_enough: Callable[[float], bool],
    target: str,
) -> Row:
    values = {way: [float(outcome[key]) for outcome in outcomes] for way, outcomes in runs.items()}
    ratio = statistics.median(values["ours"]) / statistics.median(values["before"])
    return Row(
        "run",
        f"{what}, against the commit before",
        show(values["ours"]),
        f"before: {show(values['before'])}",
        f"{ratio:.3f}x",
        target,
        is_enough(round(ratio, 3)),
        max(outcome["elsewhere"] for outcomes in runs.values() for outcome in outcomes),
        {"values": values, "ratio": ratio},
    )


def rates(values: Sequence[float]) -> str:
    """Tokens per second, for people."""
    return spread(values, lambda value: f"{value:.1f}").replace(" (", " tokens/s (", 1)


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """The median, the smallest, the largest, and how many they are."""
    return f"{show(statistics.median(values))} ({show(min(values))} to {show(max(values))}, n = {len(values)})"
