"""What is measured, one function for each `--only` name; every peer runs in the same rounds as ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import gpack
from gpack.terminal import units

from .bench import Bench
from .cases_more import external_experts, per_layer_embeddings, tokens
from .drafting import drafts
from .integrity import integrity
from .kernels import kernels
from .measure import Outcome, Row, Samples, Way, bound, by_turns, command, compare, job, samples, warm_up
from .models import VOCABULARY
from .running import perplexity, run
from .serving import serve
from .shards import sharded
from .together import forks, texts

_MIB = 1 << 20
# What opening must do without: each costs more than the whole open.
HEAVY = ("numpy", "construct", "dataclasses", "pathlib", "enum")
OPENINGS, STARTS = 200, 25


def quick_open(bench: Bench) -> list[Row]:
    """Opening and closing in one process, files in the page cache."""
    pack, peer = bench.pack(), bench.safetensors()
    times = {
        name: Samples(tuple(seconds[OPENINGS // 10 :]))  # without the first ones, which import and warm up
        for name, seconds in job("openings", pack, peer, OPENINGS).items()
        if isinstance(seconds, list)
    }
    with gpack.open(pack) as opened:
        model = f"{len(opened)} tensors, {opened.tokenizer_table.header.vocab_size} tokens"
    rows = [
        bound("open", f"gpack.open + close, {model}", times["gpack"].median, 1e-3, units.duration),
        bound("open", "Container.open + close", times["container"].median, 1e-3, units.duration),
        compare("open", "gpack.open + close", times["gpack"], times["safetensors"], "safe_open, no vocabulary"),
    ]
    return [*rows, _light_open(pack)]


def _light_open(pack: Path) -> Row:
    modules = job("modules_of_open", pack)["modules"]
    heads = {name.partition(".")[0] for name in modules}
    unwanted = sorted(heads & set(HEAVY) | heads - sys.stdlib_module_names - {"gpack"})
    return Row(
        "open",
        "modules of import gpack + open",
        f"{len(modules)}, unwanted: {', '.join(unwanted) or 'none'}",
        target="standard library, without " + ", ".join(HEAVY),
        reached=not unwanted,
        data={"modules": modules},
    )


def quick_verify(bench: Bench) -> list[Row]:
    """`guild verify --quick` as a whole process, against the same interpreter doing nothing."""
    guild, pack = Path(sys.executable).with_name("guild"), bench.pack()
    ways: dict[str, Way] = {
        "bare": lambda: command(sys.executable, "-c", "pass"),
        "script": lambda: command(guild, "verify", "--quick", pack),
        "module": lambda: command(sys.executable, "-m", "gpack", "verify", "--quick", pack),
    }
    warm_up(ways)
    times = {name: samples(runs) for name, runs in by_turns(STARTS, ways).items()}
    return [
        compare("quick-verify", "guild verify --quick", times["script"], times["bare"], "python -c pass", 3),
        compare("quick-verify", "python -m gpack verify --quick", times["module"], times["bare"], "python -c pass", 3),
    ]


def full_verify(bench: Bench) -> list[Row]:
    """Every rule and byte of a pack in the page cache, against hashing the same bytes."""
    pack = bench.pack()
    ways: dict[str, Way] = {"hash": lambda: job("hash_pass", pack), "verify": lambda: job("verify", pack)}
    warm_up(ways)
    runs = by_turns(bench.rounds, ways)
    beside = max(run["peak"] - run["startup"] for run in runs["verify"])
    what = f"full verify, {units.size(pack.stat().st_size)}"
    return [
        compare("verify", what, samples(runs["verify"]), samples(runs["hash"]), "hashlib pass", bench.target(1 / 0.95)),
        bound("verify", "full verify, memory beside the interpreter", beside, 64 * _MIB, units.size),
    ]


def convert_dense(bench: Bench) -> list[Row]:
    """A dense GGUF into a pack."""
    return _convert(bench, "convert-dense", bench.dense(), "dense.gpack")


def convert_moe(bench: Bench) -> list[Row]:
    """A mixture of experts into a pack: every expert's slices brought together."""
    bench.drop("dense.gguf", "dense.gpack", "dense.safetensors")
    rows = _convert(bench, "convert-moe", bench.moe(), "moe.gpack")
    bench.drop("moe.gguf", "moe.gpack")
    return rows


def _convert(bench: Bench, case: str, source: Path, name: str) -> list[Row]:
    """The source is in the page cache; waiting for the disk is counted apart.

    Only one output exists at a time: on a virtual machine, memory that was not in use before is slow at first.
    """
    output = bench.folder / name

    def copy() -> Outcome:
        bench.drop(name)
        return job("copy_pass", source, output)

    def convert() -> Outcome:
        bench.drop(name)
        return job("convert", source, output)

    ways: dict[str, Way] = {"copy": copy, "convert": convert, "hash": lambda: job("hash_pass", output)}
    warm_up(ways)
    runs = by_turns(bench.rounds, ways)
    ours, plan, sync = (samples(runs["convert"], key) for key in ("seconds", "plan", "sync"))
    size, before = output.stat().st_size, source.stat().st_size
    what = f"convert {case.removeprefix('convert-')}, {units.size(size)}"
    return [
        compare(case, what, ours, samples(runs["hash"]), "hashlib pass over the output", bench.target(1.25)),
        compare(case, what, ours, samples(runs["copy"]), "copy, nothing hashed"),
        Row(case, "of it planning", str(plan), data=plan.to_dict()),
        Row(case, "waiting for the disk, besides", str(sync), data=sync.to_dict()),
        bound(case, "convert, memory in all", max(run["peak"] for run in runs["convert"]), 256 * _MIB, units.size),
        Row(
            case,
            "pack larger than the GGUF by",
            units.size(size - before),
            ratio=f"{size / before:.4f}x",
            data={"pack": size, "gguf": before},
        ),
    ]


def export(bench: Bench) -> list[Row]:
    """The pack back into its GGUF, which is compared with the source."""
    source, pack, output = bench.dense(), bench.pack(), bench.folder / "export.gguf"

    def run() -> Outcome:
        bench.drop(output.name)
        return job("export", pack, output)

    runs = by_turns(bench.rounds, {"export": run, "hash": lambda: job("hash_pass", output)})
    same = job("hash_pass", source)["sha256"] == job("hash_pass", output)["sha256"]
    bench.drop(output.name)
    row = compare("export", "export to GGUF", samples(runs["export"]), samples(runs["hash"]), "hashlib pass")
    return [row, Row("export", "the source's bytes again", "yes" if same else "no", target="yes", reached=same)]


def vocabulary(bench: Bench) -> list[Row]:
    """Opening a GGUF with a large vocabulary; the peer takes some 12 seconds and runs once, not with --quick."""
    source = bench.dense()
    ours = samples(by_turns(bench.rounds, {"scan": lambda: job("scan", source)})["scan"])
    what = f"open a GGUF with {VOCABULARY} tokens"
    rows = [bound("vocabulary", what, ours.median, 0.1, units.duration)]
    if not bench.quick:
        peer = Samples((job("gguf_reader", source)["seconds"],))
        rows.append(compare("vocabulary", what, ours, peer, "gguf.GGUFReader, once"))
    return rows


CASES: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "tokenizer": tokens,
    "ple": per_layer_embeddings,
    "open": quick_open,
    "quick-verify": quick_verify,
    "vocabulary": vocabulary,
    "verify": full_verify,
    "integrity": integrity,
    "export": export,
    "convert-dense": convert_dense,
    "convert-moe": convert_moe,
    "convert-shards": sharded,
    "external": external_experts,
    "kernels": kernels,
    "run": run,
    "texts": texts,
    "forks": forks,
    "perplexity": perplexity,
    "drafts": drafts,
    "serve": serve,
}
