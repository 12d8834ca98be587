"""Cases that other programs of this folder measure too: the tokeniser, per-layer embeddings, external experts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from gpack.terminal import units

from . import external, ple, tokenizer
from .bench import Bench
from .measure import Row
from .vocabularies import ENVIRONMENT, given, made

_GROWTH = 1.5  # 64 times the experts; what is above 1 is noise


def tokens(bench: Bench) -> list[Row]:
    """The tokeniser against `tokenizers` and `tiktoken`, with real vocabularies where a directory was named."""
    directory = bench.vocabularies or os.environ.get(ENVIRONMENT)
    vocabularies = given(Path(directory)) if directory else made(bench.folder)
    return tokenizer.measure(vocabularies, min(bench.rounds, 3) if bench.quick else bench.rounds)


def per_layer_embeddings(bench: Bench) -> list[Row]:
    """Rows of a table on a disk: Direct mode against Mmap; there is no target, the numbers are what is asked for."""
    prompt = 8192 if bench.quick else 65536
    # A file system in memory has no disk to read directly.
    with tempfile.TemporaryDirectory(prefix="gpack-bench-", dir=bench.disk) as folder:
        size = ple.QUICK if bench.quick else ple.FULL
        measured = ple.measure(Path(folder), size=size, prompt_tokens=prompt, written_tokens=prompt // 32)
    rows = []
    for what in dict.fromkeys(entry["what"] for entry in measured):
        modes = {entry["mode"]: entry for entry in measured if entry["what"] == what}
        rows += [_embedding_row(what, state, modes["direct"], modes["mmap"]) for state in ("cold", "warm")]
    return rows


def _embedding_row(what: str, state: str, direct: dict[str, Any], mapped: dict[str, Any]) -> Row:
    ours, peer = direct[f"{state}_rows_per_s"], mapped[f"{state}_rows_per_s"]
    rate = direct[f"{state}_hit_rate"]
    refused = "" if direct["direct"] else f", buffered: {direct['fallback']}"
    return Row(
        "ple",
        f"rows of embeddings, {what}, {state}",
        f"Direct: {ours:,.0f} rows/s, hit rate {rate:.0%}{refused}",
        f"mmap: {peer:,.0f} rows/s",
        f"{ours / peer:.3g}x as many",
        data={"direct": direct, "mmap": mapped},
    )


def external_experts(bench: Bench) -> list[Row]:
    """Conversion whose time must not grow with the experts that stay outside."""
    bench.drop("dense.gguf", "dense.gpack", "dense.safetensors")
    hidden = external.QUICK if bench.quick else external.FULL
    measured = external.measure(
        bench.folder, hidden=hidden, width=512 if bench.quick else external.WIDTH, rounds=bench.rounds
    )
    outside = [entry for entry in measured if entry["mode"] == "external"]
    inside = next(entry for entry in measured if entry["mode"] == "embedded")
    first, last = outside[0], outside[-1]
    growth = last["seconds"] / first["seconds"]
    what = f"convert, {units.size(last['expert_bytes'])} of experts outside"
    return [
        Row(
            "external",
            what,
            units.duration(last["seconds"]),
            f"{units.size(first['expert_bytes'])} of them: {units.duration(first['seconds'])}",
            f"{growth:.3g}x",
            f"at most {_GROWTH}x",
            growth <= _GROWTH,
            data={"runs": outside},
        ),
        Row(
            "external",
            f"convert, {units.size(first['expert_bytes'])} of experts outside",
            units.duration(first["seconds"]),
            f"inside: {units.duration(inside['seconds'])}",
            f"{first['seconds'] / inside['seconds']:.3g}x",
            data={"inside": inside},
        ),
    ]
