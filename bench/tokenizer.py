"""The tokeniser beside its peers, in one run: start, load, a megabyte of text, and texts that are one long piece.

`python -m bench.tokenizer DIRECTORY` takes a directory with byte-level `tokenizer.json` files, its own or its
subdirectories' (Qwen3.5's, for the numbers in spec/tokenizer.md), and GGUF files of SentencePiece-style vocabularies;
without one, vocabularies are made. Everything runs on one thread, in turn; medians of processor time are printed. Peers
that are not installed are skipped by name.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.measure import Row, Samples, bound, compare, table
from bench.tokenizer_texts import mixed_text
from bench.vocabularies import Vocabularies, given, made
from gpack.terminal import units

CASE = "tokenizer"
MEGABYTE = 1_000_000
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
# The most that is allowed: start above a bare interpreter, load and first encode, a run against ordinary text.
START, LOAD, RUN = 0.020, 0.002, 3
_RUNS = {
    "one letter": "a",
    "spaces": " ",
    "digits": "7",
    "one emoji": "\U0001f642",
    "one ideograph": "\u4e2d",
    "=": "=",
}

_OURS = "from gpack.tokenizer import Tokenizer; Tokenizer.open({!r}).encode('Hello')"
_THEIRS = "from tokenizers import Tokenizer; Tokenizer.from_file({!r}).encode('Hello').ids"


def make_pack(folder: Path, place: Path) -> Path:
    """A pack that holds the directory's tokeniser and no tensors."""
    from gpack.convert.gguf import convert_gguf
    from gpack.generated.constants import MetadataType
    from gpack.sections.values import Value
    from gpack.sources.gguf_write import build_header
    from gpack.sources.hf_tokenizer_dir import read_tokenizer

    text = MetadataType.STRING
    metadata = {"general.architecture": Value("general.architecture", text, text, 1, b"none"), **read_tokenizer(folder)}
    header, _, _ = build_header(version=3, alignment=32, metadata=metadata.values(), tensors=[])
    gguf = place / "vocabulary.gguf"
    gguf.write_bytes(header)
    convert_gguf(gguf, place / "vocabulary.gpack")
    return place / "vocabulary.gpack"


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of one call, in this process and the processes that it waited for.

    Everything here runs on one thread, so that is the time that the call takes where nothing else runs; unlike the
    clock on the wall, it does not count what else the machine does.
    """
    started = _processor_time()
    call()
    return _processor_time() - started


def _processor_time() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Samples]:
    """Calls that run one after the other, round by round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: Samples(tuple(found)) for name, found in times.items()}


def measure(vocabularies: Vocabularies, rounds: int) -> list[Row]:
    """All measurements with these vocabularies."""
    os.environ.update(ONE_THREAD)
    rows = []
    for folder in vocabularies.byte_level:
        with tempfile.TemporaryDirectory() as place:
            pack = make_pack(folder, Path(place))
            found = start(pack, folder, rounds) + load(pack, rounds)
            found += throughput(pack, folder, rounds, real=vocabularies.real)
        rows += [replace(row, what=f"{folder.name}: {row.what}") for row in found]
    for path in vocabularies.scored:
        rows += [replace(row, what=f"{path.stem}: {row.what}") for row in scored(path, rounds)]
    return rows


def start(pack: Path, folder: Path, rounds: int) -> list[Row]:
    """From process start to the first encoded word."""
    programs = {"bare": "pass", "gpack": _OURS.format(str(pack))}
    what = "process start to first word, above a bare interpreter"
    if installed("tokenizers"):
        programs["tokenizers"] = _THEIRS.format(str(folder / "tokenizer.json"))
    environment = {**os.environ, **ONE_THREAD}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled modules are kept, as in every installation

    def run(program: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True, env=environment)

    ways = {name: run(program) for name, program in programs.items()}
    ways["gpack"]()  # writes compiled modules
    found = in_turn(ways, rounds)
    bare = found["bare"].median
    rows = [bound(CASE, what, found["gpack"].median - bare, START, units.duration)]
    if "tokenizers" not in found:
        return [*rows, skipped(what, "tokenizers")]
    ours, theirs = _above(found["gpack"], bare), _above(found["tokenizers"], bare)
    return [*rows, compare(CASE, what, ours, theirs, "tokenizers", 1)]


def _above(times: Samples, bare: float) -> Samples:
    return Samples(tuple(value - bare for value in times.seconds))


def load(pack: Path, rounds: int) -> list[Row]:
    """Load and first encode in a process that has the module."""
    from gpack.tokenizer import Tokenizer

    def once() -> None:
        with Tokenizer.open(pack) as tokenizer:
            tokenizer.encode("Hello")

    once()
    found = in_turn({"gpack": once}, max(rounds, 11))
    return [bound(CASE, "load and first encode, in process", found["gpack"].median, LOAD, units.duration)]


def throughput(pack: Path, folder: Path, rounds: int, *, real: bool) -> list[Row]:
    """A megabyte of prose, code and CJK on one thread.

    Args:
        real: The vocabulary was trained: any pair that makes a token is a merge, as tiktoken assumes. Of random merges
            that is not true, and its ids are not compared.
    """
    from gpack.tokenizer import Tokenizer

    ours = Tokenizer.open(pack)
    text = mixed_text(MEGABYTE)
    expected = ours.encode_compiled(text)
    if expected is None:
        return [skipped("1 MB of mixed text, compiled code", "numba")]

    def cold() -> None:
        ours.forget()
        ours.encode(text)

    what = f"{units.size(len(text.encode()))} of prose, code and CJK, no word known"
    calls: dict[str, Callable[[], Any]] = {"gpack": cold, "again": lambda: ours.encode(text)}
    rows = []
    if installed("tokenizers"):
        import tokenizers

        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        calls["tokenizers"] = lambda: theirs.encode(text, add_special_tokens=False).ids
        calls["tokenizers without offsets"] = lambda: theirs.encode_batch_fast([text], add_special_tokens=False)[0].ids
        rows.append(
            _same("tokenizers", calls["tokenizers"]() == ours.encode(text, add_special=False, parse_special=True))
        )
    else:
        rows.append(skipped(what, "tokenizers"))
    encoding = _tiktoken(ours, folder) if installed("tiktoken") else None
    if encoding is not None:
        calls["tiktoken"] = lambda: encoding.encode_ordinary(text)
        if real:
            rows.append(_same("tiktoken", calls["tiktoken"]() == ours.encode(text, add_special=False)))
    else:
        takes = "" if not installed("tiktoken") else "takes one regular expression, this vocabulary has several"
        rows.append(skipped(what, "tiktoken", takes))
    found = in_turn(calls, rounds)
    peers = [name for name in calls if name not in {"gpack", "again"}]
    rows += [compare(CASE, what, found["gpack"], found[name], name, 1) for name in peers]
    rows.append(Row(CASE, "the same, words known", str(found["again"]), data=found["again"].to_dict()))
    plain = Samples((seconds(lambda: Tokenizer.open(pack).encode_plain(text)),))
    rows.append(Row(CASE, "the same, plain Python", str(plain), data=plain.to_dict()))
    return rows + runs(ours, found["gpack"], rounds)


def scored(path: Path, rounds: int) -> list[Row]:
    """The same megabytes with a SentencePiece-style vocabulary."""
    from gpack.tokenizer import Tokenizer

    ours = Tokenizer.from_gguf(path)
    text = mixed_text(MEGABYTE)
    expected = ours.encode_compiled(text)
    if expected is None:
        return [skipped("1 MB of mixed text, compiled code", "numba")]
    what = f"{units.size(len(text.encode()))} of prose, code and CJK"
    found = in_turn({"gpack": lambda: ours.encode(text)}, rounds)["gpack"]
    plain = Samples((seconds(lambda: ours.encode_plain(text)),))
    same = ours.encode_plain(text) == expected
    rows = [
        compare(CASE, what, found, plain, "plain Python", 1),
        Row(CASE, "same ids as plain Python", "yes" if same else "no", target="yes", reached=same),
    ]
    return rows + runs(ours, found, rounds)


def runs(ours: Any, ordinary: Samples, rounds: int) -> list[Row]:
    """Megabytes of one character over and over, against ordinary text."""
    rows = []
    for name, unit in _RUNS.items():
        text = unit * (MEGABYTE // len(unit.encode()))

        def once(text: str = text) -> None:
            ours.forget()
            ours.encode(text)

        found = in_turn({name: once}, rounds)[name]
        rows.append(compare(CASE, f"1 MB of one kind: {name}", found, ordinary, "the mixed text", RUN))
    return rows


def _same(peer: str, same: bool) -> Row:
    return Row(CASE, f"same ids as {peer}", "yes" if same else "no", target="yes", reached=same)


def _tiktoken(ours: Any, folder: Path) -> Any:
    """The encoding that tiktoken makes of the same vocabulary and rule; None where that is several expressions."""
    import json

    import tiktoken

    root = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    parts = root["pre_tokenizer"].get("pretokenizers", [])
    patterns = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    if len(patterns) != 1 or patterns[0] is None or any(part["type"] not in {"Split", "ByteLevel"} for part in parts):
        return None
    ranks = {ours.piece(token_id): token_id for token_id in root["model"]["vocab"].values()}
    return tiktoken.Encoding("same", pat_str=patterns[0], mergeable_ranks=ranks, special_tokens={})


def installed(name: str) -> bool:
    """Whether a peer is there."""
    return find_spec(name) is not None


def skipped(what: str, name: str, why: str = "") -> Row:
    """A line for what could not be measured."""
    return Row(CASE, what, f"skipped: {name} {why or 'is not installed'}")


def main(arguments: list[str] | None = None) -> int:
    """Prints all measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tokenizer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="directory of vocabularies (default: made here)")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        vocabularies = given(options.folder) if options.folder else made(Path(place))
        print(table(measure(vocabularies, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
