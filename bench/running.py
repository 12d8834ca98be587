"""Running a model against llama.cpp: speed, memory, the first token; and whether both give the same answers."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import gpack
from gpack.generated.constants import GgmlType
from gpack.machine import usable_cores
from gpack.model import GuildModel, ModelPaths
from gpack.sources.gguf import GgufSource
from gpack.sources.gguf_write import build_header
from gpack.terminal import units
from gpack.tokenizer import Tokenizer

from . import peers, random_weights
from .before import against_before
from .bench import Bench
from .measure import Outcome, Row, Way, bound, by_turns, command, samples, warm_up
from .processes import ROOT, machine_has_avx2_beside_better, ours, peer

_CONTEXT, _PROMPT = 1024, 512
_LARGE_ROUNDS = 3
_DECODE, _PROMPT_SHARE = 1.0, 0.8  # of llama.cpp's tokens per second
_MEMORY = 300 << 20  # beside the mapped file and the cache
_FIRST_TOKEN = 1.0  # seconds of the whole command
_CLOSE = 0.005  # of the perplexity
_CHUNK, _CHUNKS = 512, 8


def run(bench: Bench) -> Iterator[Row]:
    """Tokens per second of our engine and of every build of llama.cpp that is there, with one thread and two."""
    builds = peers.llama_builds()
    if not builds:
        yield Row("run", "tokens per second", "skipped: no build of llama.cpp is installed")
        return
    for name, source in models(bench):
        pack = bench.folder / f"{source.stem}.gpack"
        gpack.convert_gguf(source, pack)
        for threads in sorted({1, min(2, usable_cores())}):
            yield from _speed(bench, builds, name, (source, pack), threads)
        if "SmolLM2" in name:
            yield _first_token(bench, name, pack)
        yield from against_before(bench, name, pack)
        pack.unlink()


def models(bench: Bench) -> Iterator[tuple[str, Path]]:
    """Names of the models and their GGUFs; one that is made here is removed when the next is asked for."""
    small = peers.small_model()
    if small is not None and bench.wants("SmolLM2 Q4_1"):
        yield "SmolLM2 Q4_1", small
    for kind, shape in (random_weights.QUICK if bench.quick else random_weights.FULL).items():
        if bench.wants(f"random {kind}"):
            path = bench.folder / f"random-{kind}.gguf"
            random_weights.write(path, kind, shape)
            yield f"random {kind}, {units.size(path.stat().st_size)}", path
            path.unlink()


def _speed(bench: Bench, builds: dict[str, str], name: str, files: tuple[Path, Path], threads: int) -> list[Row]:
    source, pack = files
    decode = 17 + (64 if source.stat().st_size < 1 << 28 else 24)
    # Any ids of the vocabulary do, the same for all.
    ids = [(place * 7919 + 13) % 30_000 for place in range(max(decode, _PROMPT))]
    options = {"threads": threads, "n_ctx": _CONTEXT, "decode": ids[:decode], "prompt": ids[:_PROMPT]}
    ways: dict[str, Way] = {"ours": lambda: ours(bench, "speed", options | {"path": str(pack)})}
    if machine_has_avx2_beside_better():
        ways["ours, avx2"] = lambda: ours(bench, "speed", options | {"path": str(pack), "cpu": "avx2"})
    for build, library in builds.items():
        ways[build] = lambda library=library: peer(bench, library, "speed", options | {"path": str(source)})  # type: ignore[misc]
    warm_up({"ours": ways["ours"]})
    # A gigabyte of weights takes half a minute each time, and more with one thread.
    runs = by_turns(bench.rounds if decode > 64 else min(bench.rounds, _LARGE_ROUNDS), ways)
    told_of = f"{name}, {_plural(threads)}"
    rows = [
        _rates(f"{told_of}, decode", runs, builds, "decode_rate", _DECODE),
        _rates(f"{told_of}, prompt of {_PROMPT}", runs, builds, "prompt_rate", _PROMPT_SHARE),
    ]
    if threads == 1 and "SmolLM2" in name:
        rows.append(_features("CPU features", runs))
    mapped = pack.stat().st_size
    used = max(outcome["peak"] - mapped - outcome["cache"] for outcome in runs["ours"])
    rows.append(bound("run", f"{told_of}, memory beside file and cache", max(used, 0), _MEMORY, units.size))
    return rows


def _rates(what: str, runs: dict[str, list[Outcome]], builds: dict[str, str], key: str, least: float) -> Row:
    """A line of tokens per second; the fastest of the others counts."""
    rates = {way: statistics.median(outcome[key] for outcome in outcomes) for way, outcomes in runs.items()}
    best = max(builds, key=lambda build: rates[build])
    ratio = rates["ours"] / rates[best]
    more = f"; avx2 {rates['ours, avx2']:.1f}" if "ours, avx2" in rates else ""
    others = "".join(f"; {build} {rates[build]:.1f}" for build in builds if build != best)
    systems = {way: outcomes[0]["system"] for way, outcomes in runs.items()}
    return Row(
        "run",
        what,
        f"{rates['ours']:.1f} tokens/s ({systems['ours']}{more})",
        f"{best}: {rates[best]:.1f}{others}",
        f"{ratio:.2f}x as fast",
        f"at least {least}x",
        ratio >= least,
        max(outcome["elsewhere"] for outcomes in runs.values() for outcome in outcomes),
        {"rates": rates, "ratio": ratio, "systems": systems},
    )


def _features(what: str, runs: dict[str, list[Outcome]]) -> Row:
    """A line of the CPU features that each side's code uses."""
    options = {way: outcomes[0]["features"] for way, outcomes in runs.items()}
    ours = "; ".join(f"{way}: {used}" for way, used in options.items() if way.startswith("ours"))
    others = "; ".join(f"{way}: {used}" for way, used in options.items() if not way.startswith("ours"))
    return Row("run", what, ours, others, data=options)


def _first_token(bench: Bench, name: str, pack: Path) -> Row:
    """The whole command for one token, machine code and file in the page cache."""
    words = (Path(sys.executable).with_name("guild"), "run", pack, "-p", "What is gravity?", "-n", 1, "--temp", 0)
    ways: dict[str, Way] = {"run": lambda: command(*words)}
    warm_up(ways)
    found = samples(by_turns(max(bench.rounds, 5), ways)["run"])
    return bound("run", f"{name}, `guild run` to its first token", found.median, _FIRST_TOKEN, units.duration)


def perplexity(bench: Bench) -> list[Row]:
    """Whether both give the same: perplexity of a text, and the most probable tokens with F32 weights."""
    builds = peers.llama_builds()
    small = peers.small_model()
    if not builds or small is None:
        return [Row("perplexity", "perplexity", "skipped: llama.cpp or the model is not there")]
    library = next(iter(builds.values()))
    rows = [_perplexity(bench, small, library), _same_tokens(bench, "SmolLM2", small, library, 64)]
    other = None if bench.quick else peers.gemma()
    if other is not None:
        rows.append(_same_tokens(bench, "gemma3-270m", other, library, 32))
    return rows


def _perplexity(bench: Bench, source: Path, library: str) -> Row:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "spec").glob("*.md")))
    with Tokenizer.from_gguf(source) as tokenizer:
        ids = tokenizer.encode(text)[: _CHUNK * _CHUNKS]
    chunks = [ids[at : at + _CHUNK] for at in range(0, len(ids) - _CHUNK + 1, _CHUNK)]
    options = {"path": str(source), "threads": usable_cores(), "n_ctx": _CHUNK, "chunks": chunks}
    count = sum(len(chunk) - 1 for chunk in chunks)
    own, theirs = (
        math.exp(found["sum"] / count)
        for found in (ours(bench, "perplexity", options), peer(bench, library, "perplexity", options))
    )
    apart = abs(own / theirs - 1)
    return Row(
        "perplexity",
        f"perplexity of SmolLM2 Q4_1, {len(ids)} tokens",
        f"{own:.4f}",
        f"llama.cpp: {theirs:.4f}",
        f"{apart:.3%} apart",
        f"at most {_CLOSE:.1%}",
        apart <= _CLOSE,
        data={"ours": own, "peer": theirs},
    )


def _same_tokens(bench: Bench, name: str, source: Path, library: str, count: int) -> Row:
    exact = bench.folder / f"{name}-F32.gguf"
    dequantise(source, exact)
    with Tokenizer.from_gguf(source) as tokenizer:
        prompt = tokenizer.encode("The history of the printing press began when")
    options = {"path": str(exact), "threads": usable_cores(), "n_ctx": 256, "prompt": prompt, "count": count}
    own, theirs = ours(bench, "greedy", options)["ids"], peer(bench, library, "greedy", options)["ids"]
    exact.unlink()
    same = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=True)) if a != b), count)
    return Row(
        "perplexity",
        f"{name} with F32 weights: greedy tokens equal to llama.cpp's",
        f"{same} of {count}",
        target="all",
        reached=same == count,
        data={"ours": own, "peer": theirs},
    )


def dequantise(source: Path, target: Path) -> None:
    """The same model with all weights in F32."""
    with GgufSource.open(source) as opened, GuildModel.load(ModelPaths(None, source)) as model:
        specs = [(info.name, GgmlType.F32, info.dims, 4 * prod(info.dims)) for info in opened.tensors]
        header, offsets, size = build_header(
            version=3, alignment=32, metadata=list(opened.metadata.values()), tensors=specs
        )
        with target.open("wb") as file:
            file.write(header)
            for (name, *_), offset in zip(specs, offsets, strict=True):
                file.seek(offset)
                file.write(model.tensors[name].dequantize().astype("<f4").tobytes())
            file.truncate(size)


def _plural(threads: int) -> str:
    return units.plural(threads, "thread")
