"""What drafts gain: of a draft layer that is right as often as one likes, and n-grams of texts of several kinds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Any

from gpack.machine import usable_cores

from . import draft_models, peers
from .bench import Bench
from .measure import Row, by_turns
from .processes import ours

_STEPS, _REPEATS, _ROUNDS = 256, 2, 2
_RIGHT = 0.8
_LAYER = {"dense": 1.7, "experts": 1.4}  # at least so many times as fast with three drafts
_NEVER_SLOWER = 0.97
_QUOTED = 500
_NGRAMS = {"a quote with changes": 1.3, "a loop": 2.0, "prose": _NEVER_SLOWER}


def drafts(bench: Bench) -> Iterator[Row]:
    """Tokens per second with drafts, against none in the same process."""
    for name, least in _LAYER.items():
        if not bench.quick and bench.wants(f"qwen35 {name}"):
            yield from _layer(bench, name, least)
    path = peers.small_model()
    if path is not None and bench.wants("SmolLM2"):
        for what, least in _NGRAMS.items():
            prompt, answer = _dictated(what)
            options = {"path": str(path), "mtp": False, "prompt": prompt, "answer": answer, "steps": len(answer)}
            yield _row(bench, f"SmolLM2, n-grams, {what}", options, "auto", least)


def _layer(bench: Bench, name: str, least: float) -> Iterator[Row]:
    kind = draft_models.Kind(experts=name == "experts")
    for right, draft, wanted in ((_RIGHT, 3, least), (_RIGHT, "auto", None), (0.0, "auto", _NEVER_SLOWER)):
        path = bench.folder / f"drafts-{right}.gguf"
        if not path.exists():
            draft_models.write(path, kind, right)
        # Prompts that differ, so that a text is no part of another one.
        prompt = [random.Random(right).randrange(draft_models.VOCABULARY) for _ in range(32)]
        options = {"path": str(path), "mtp": True, "prompt": prompt, "steps": _STEPS}
        yield _row(bench, f"qwen35 {name}, Q8_0, drafts right {right:.0%}, --draft {draft}", options, draft, wanted)
    for path in bench.folder.glob("drafts-*.gguf"):
        path.unlink()


def _row(bench: Bench, what: str, options: dict[str, Any], draft: int | str, least: float | None) -> Row:
    options |= {"threads": min(2, usable_cores()), "n_ctx": 2048, "repeats": _REPEATS, "drafts": ["off", draft]}
    outcomes = by_turns(_ROUNDS, {"ours": lambda: ours(bench, "drafts", options)})["ours"]
    rates = {way: [rate for outcome in outcomes for rate in outcome["rates"][str(way)]] for way in ("off", draft)}
    with_drafts, without = (statistics.median(rates[way]) for way in (draft, "off"))
    became = outcomes[-1]["drafts"][str(draft)]
    accepted = " ".join(f"{right}/{tried}" for right, tried in zip(became["accepted"], became["tried"], strict=True))
    same = all(outcome["same"] for outcome in outcomes)
    ratio = with_drafts / without
    return Row(
        "drafts",
        what,
        f"{with_drafts:.1f} tokens/s, accepted {accepted or 'none'}{'' if same else ', ANOTHER TEXT'}",
        f"no drafts: {without:.1f} tokens/s",
        f"{ratio:.2f}x",
        "" if least is None else f"at least {least}x, same text",
        None if least is None else ratio >= least and same,
        max(outcome["elsewhere"] for outcome in outcomes),
        {"rates": {str(way): values for way, values in rates.items()}, "drafts": became, "same": same},
    )


def _dictated(what: str) -> tuple[list[int], list[int]]:
    """A prompt and the answer that the model is made to give: what it computes costs what it costs."""
    rng = random.Random(7)
    words = [rng.randrange(1000, 40_000) for _ in range(_QUOTED)]
    if what == "a loop":
        return words[:64], words[64:84] * 15
    if what == "prose":
        common = [rng.randrange(200, 2000) for _ in range(300)]
        return words[:256], [rng.choice(common) for _ in range(_STEPS)]
    changed = [rng.randrange(1000, 40_000) if rng.random() < 0.05 else word for word in words]
    return words, changed
