"""Texts that share an engine: decoded together, forked from one prefix, and what their state takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpack.machine import usable_cores
from gpack.sources.gguf import GgufSource
from gpack.terminal import units

from . import peers
from .before import rates as show_rates
from .before import spread
from .bench import Bench
from .measure import Row, Way, by_turns, warm_up
from .processes import machine_has_avx2_beside_better, ours, peer
from .running import models

_COUNTS = (1, 2, 4, 8, 16)
# Of one text's tokens per second at the commit before: with 2, 4, 8, 16 texts, by a part of the model's name.
_TARGETS = {
    "Q8_0": {2: 1.6, 4: 2.8, 8: 4.4, 16: 6.0},
    "Q4_K_M": {2: 1.5, 4: 2.4, 8: 3.6, 16: 4.7},
    "SmolLM2": {2: 1.5, 4: 2.3, 8: 3.4, 16: 4.7},
}
_AVX2_COUNT, _AVX2_TARGET = 8, 2.5
_PROMPT, _STEPS, _REPEATS = 256, 128, 2
_PEER_COUNTS, _PEER_STEPS = (1, 8), 32  # of a gigabyte: llama.cpp takes minutes for sixteen prompts
_SMALL = 1 << 28

_FORKS, _PREFIX = 64, 2000
_ONCE, _FORK_SECONDS = 1.05, 1e-3
_LONG, _QUICK_LONG = 32_768, 4096
_BLOCK = 64  # positions


def texts(bench: Bench) -> Iterator[Row]:
    """Texts decoded together by two threads, against one text of the commit before; llama.cpp's gain stands beside."""
    at = peers.before()
    if at is None:
        yield Row("texts", "texts together", "skipped: git does not have the commit before")
        return
    for name, source in models(bench):
        options = _options(source, _COUNTS)
        ways: dict[str, Way] = {
            "ours": lambda options=options: ours(bench, "together", options),  # type: ignore[misc]
            "before": lambda options=options: ours(bench, "alone", options, at=at),  # type: ignore[misc]
        }
        if source.stat().st_size < _SMALL and machine_has_avx2_beside_better():
            few = _options(source, (_AVX2_COUNT,)) | {"cpu": "avx2"}
            ways["ours, avx2"] = lambda few=few: ours(bench, "together", few)  # type: ignore[misc]
            ways["before, avx2"] = lambda few=few: ours(bench, "alone", few, at=at)  # type: ignore[misc]
        warm_up({way: ways[way] for way in ways if way.startswith("before")})
        runs = by_turns(-(-bench.many_rounds() // _REPEATS), ways)
        rates = {
            way: {
                int(count): [value for outcome in outcomes for value in outcome["rates"][count]]
                for count in outcomes[0]["rates"]
            }
            for way, outcomes in runs.items()
        }
        disturbed = max(outcome["elsewhere"] for outcomes in runs.values() for outcome in outcomes)
        gains = _peer_gains(bench, source)
        targets = next((found for part, found in _TARGETS.items() if part in name), {})
        for count in _COUNTS:
            row = (rates["ours"][count], rates["before"][1], targets.get(count))
            yield _row(f"{name}, {units.plural(count, 'text')} together", row, gains.get(count, ""), disturbed)
        if "ours, avx2" in rates:
            row = (rates["ours, avx2"][_AVX2_COUNT], rates["before, avx2"][1], _AVX2_TARGET)
            yield _row(f"{name}, {_AVX2_COUNT} texts together, avx2", row, "", disturbed)
        same = all(outcome["same"] for way in ("ours", "ours, avx2") for outcome in runs.get(way, ()))
        yield Row(
            "texts",
            f"{name}, tokens of a text are those it writes alone",
            "yes" if same else "no",
            target="yes",
            reached=same,
        )


def _options(source: Path, counts: tuple[int, ...]) -> dict[str, Any]:
    prompts = [[(place * 7919 + 13 + 1009 * text) % 30_000 for place in range(_PROMPT)] for text in range(max(counts))]
    return {
        "path": str(source),
        "threads": min(2, usable_cores()),
        "n_ctx": _PROMPT + _STEPS,
        "prompts": prompts,
        "counts": counts,
        "steps": _STEPS,
        "repeats": _REPEATS,
    }


def _row(what: str, row: tuple[list[float], list[float], float | None], gains: str, disturbed: float) -> Row:
    ours_, before, target = row
    ratio = statistics.median(ours_) / statistics.median(before)
    return Row(
        "texts",
        what,
        show_rates(ours_),
        f"one text before: {show_rates(before)}{gains}",
        f"{ratio:.2f}x",
        "" if target is None else f"at least {target}x",
        None if target is None else ratio >= target,
        disturbed,
        {"ours": ours_, "before": before, "ratio": ratio, "peers": gains},
    )


def _peer_gains(bench: Bench, source: Path) -> dict[int, str]:
    """By the number of texts: tokens per second of every build of llama.cpp, and its gain over one text; one run."""
    takes_long = bench.quick or source.stat().st_size >= _SMALL
    options = _options(source, _PEER_COUNTS if takes_long else _COUNTS) | {"repeats": 1}
    if takes_long:
        options["steps"] = _PEER_STEPS
    gains: dict[int, str] = {}
    for build, library in peers.llama_builds().items():
        rates = peer(bench, library, "together", options)["rates"]
        for count, (value,) in rates.items():
            gain = f", {value / rates['1'][0]:.2f}x its own" if count != "1" else ""
            gains[int(count)] = f"{gains.get(int(count), '')}; {build}: {value:.1f}{gain}"
    return gains


def forks(bench: Bench) -> Iterator[Row]:
    """Forks of a prefix share its memory; windows take memory for the window, not for the context."""
    small = peers.small_model()
    if small is None:
        yield Row("forks", "forks", "skipped: the model is not there")
    else:
        yield from _forks(bench, small)
    gemma = peers.gemma()
    if gemma is None:
        yield Row("forks", "state of windows", "skipped: the model is not there")
    else:
        yield _windows(bench, gemma)


def _forks(bench: Bench, source: Path) -> Iterator[Row]:
    options = {
        "path": str(source),
        "threads": min(2, usable_cores()),
        "n_ctx": 2 * _PREFIX,
        "prefix": [(place * 7919 + 13) % 30_000 for place in range(_PREFIX)],
        "count": _FORKS,
    }
    runs = by_turns(bench.rounds, {"ours": lambda: ours(bench, "forks", options)})["ours"]
    found = runs[0]
    what = f"{_FORKS} forks of a prefix of {_PREFIX} tokens"
    seconds = [outcome["seconds"] for outcome in runs]
    yield Row(
        "forks",
        f"{what}, each",
        spread(seconds, units.duration),
        target=f"at most {units.duration(_FORK_SECONDS)}",
        reached=statistics.median(seconds) <= _FORK_SECONDS,
        data={"seconds": seconds},
    )
    alone, forked, written, block = (found[name] for name in ("alone", "forked", "written", "block"))
    grown = [
        units.size(after - before) for before, after in zip(found["resident"], found["resident"][1:], strict=False)
    ]
    yield Row(
        "forks",
        f"{what}, memory of the states before they write",
        f"{units.size(forked)} (the process grew by {grown[0]})",
        f"the prefix alone: {units.size(alone)}",
        f"{forked / alone:.3f}x",
        f"at most {_ONCE}x",
        forked <= _ONCE * alone,
        data=found,
    )
    yield Row(
        "forks",
        f"{what}, more after a token each",
        f"{units.size(written - forked)} (the process grew by {grown[1]})",
        f"a block of {_BLOCK} positions: {units.size(block)}",
        f"{(written - forked) / (_FORKS * block):.2f} blocks a fork",
        "at most 1 block a fork",
        written - forked <= _FORKS * block,
        data=found,
    )


def _windows(bench: Bench, source: Path) -> Row:
    """What it may be is worked out from the metadata: whole layers keep the context, the others window and step."""
    n_ctx = _QUICK_LONG if bench.quick else _LONG
    with GgufSource.open(source) as opened:
        layers, heads, head_dim, window = (
            int(str(opened.metadata[f"gemma3.{key}"].python()))
            for key in ("block_count", "attention.head_count_kv", "attention.key_length", "attention.sliding_window")
        )
    found = ours(bench, "state", {"path": str(source), "threads": min(2, usable_cores()), "n_ctx": n_ctx})
    position = 2 * 2 * heads * head_dim  # bytes of a layer: key and value in F16
    whole = layers // 6  # every sixth
    kept = min(n_ctx, window + found["batch"] + 2 * _BLOCK)
    most = position * (whole * n_ctx + (layers - whole) * kept)
    return Row(
        "forks",
        f"gemma3-270m, state of {n_ctx:,} tokens, {layers - whole} of {layers} layers with a window of {window}",
        f"{units.size(found['used'])} (the process grew by {units.size(found['resident'])})",
        f"every layer over the whole context: {units.size(position * layers * n_ctx)}",
        f"{found['used'] / (position * layers * n_ctx):.3f}x",
        f"at most {units.size(most)}: windows of {kept} positions",
        found["used"] <= most,
        data=found,
    )
