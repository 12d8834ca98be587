"""The tokeniser beside its peers, in one run: start, load, a megabyte of text, and texts that are one long piece.

`python -m bench.tokenizer DIRECTORY` takes a directory with a byte-level `tokenizer.json` (Qwen3.5's, for the numbers
in spec/tokenizer.md). Everything runs on one thread, in turn; medians of
processor time are printed. Peers that are not installed
are skipped by name.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.tokenizer_texts import mixed_text

MEGABYTE = 1_000_000
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

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


def in_turn(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians of calls that run one after the other, round by round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call))
    return {name: median(found) for name, found in times.items()}


def start(pack: Path, folder: Path, rounds: int) -> None:
    """From process start to the first encoded word."""
    programs = {"bare interpreter": "pass", "gpack": _OURS.format(str(pack))}
    if _installed("tokenizers"):
        programs["tokenizers"] = _THEIRS.format(str(folder / "tokenizer.json"))
    environment = {**os.environ, **ONE_THREAD}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled modules are kept, as in every installation

    def run(program: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True, env=environment)

    found = in_turn({name: run(program) for name, program in programs.items()}, rounds)
    print("process start to the first encoded word")
    for name, value in found.items():
        above = value - found["bare interpreter"]
        print(f"  {name:20} {value * 1e3:9.1f} ms   {above * 1e3:+9.1f} ms above a bare interpreter")


def load(pack: Path, rounds: int) -> None:
    """Load and first encode in a process that has the module."""
    from gpack.tokenizer import Tokenizer

    def once() -> None:
        with Tokenizer.open(pack) as tokenizer:
            tokenizer.encode("Hello")

    print("load and first encode, in process")
    first = seconds(once)
    found = in_turn({"gpack": once}, rounds)
    print(f"  {'gpack':20} {found['gpack'] * 1e3:9.3f} ms   (the very first: {first * 1e3:.3f} ms)")


def throughput(pack: Path, folder: Path, rounds: int) -> None:
    """A megabyte of prose, code and CJK on one thread."""
    from gpack.tokenizer import Tokenizer

    ours = Tokenizer.open(pack)
    text = mixed_text(MEGABYTE)
    expected = ours.encode_compiled(text)
    if expected is None:
        print("1 MB of mixed text: skipped, numba is not installed")
        return

    def cold() -> None:
        ours.forget()
        ours.encode(text)

    calls: dict[str, Callable[[], Any]] = {"gpack, no word known": cold, "gpack": lambda: ours.encode(text)}
    if _installed("tokenizers"):
        import tokenizers

        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        print(f"  same ids as tokenizers: {theirs.encode(text).ids == expected}")
        calls["tokenizers"] = lambda: theirs.encode(text).ids
        calls["tokenizers, no offsets"] = lambda: theirs.encode_batch_fast([text])[0].ids
    if _installed("tiktoken"):
        encoding = _tiktoken(ours, folder)
        print(f"  same ids as tiktoken:   {encoding.encode_ordinary(text) == expected}")
        calls["tiktoken"] = lambda: encoding.encode_ordinary(text)
    found = in_turn(calls, rounds)
    size = len(text.encode())
    print(f"{size} bytes of prose, code and CJK, {len(expected)} tokens, one thread")
    for name, value in found.items():
        ratio = value / found["gpack, no word known"]
        print(f"  {name:24} {value * 1e3:9.1f} ms   {size / value / 1e6:7.1f} MB/s   {ratio:5.2f} x")
    plain = seconds(lambda: Tokenizer.open(pack).encode_plain(text))
    print(f"  {'gpack, plain Python':24} {plain * 1e3:9.1f} ms   {size / plain / 1e6:7.1f} MB/s")
    linearity(ours, found["gpack, no word known"], rounds)


def linearity(ours: Any, ordinary: float, rounds: int) -> None:
    """Megabytes that are one piece, against ordinary text."""
    print("1 MB of one kind, against the mixed text")
    texts = {
        "one letter": "a",
        "spaces": " ",
        "digits": "7",
        "one emoji": "\U0001f642",
        "a, no vowel": "xq",
        "ideograph": "\u4e2d",
    }
    for name, unit in texts.items():
        text = unit * (MEGABYTE // len(unit.encode()))

        def once(text: str = text) -> None:
            ours.forget()
            ours.encode(text)

        value = in_turn({name: once}, rounds)[name]
        print(f"  {name:20} {value * 1e3:9.1f} ms   {value / ordinary:5.2f} x")


def _tiktoken(ours: Any, folder: Path) -> Any:
    """The encoding that tiktoken makes of the same vocabulary and rule."""
    import json

    import tiktoken

    root = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pattern = next(
        part["pattern"]["Regex"] for part in root["pre_tokenizer"]["pretokenizers"] if part["type"] == "Split"
    )
    ranks = {ours.piece(token_id): token_id for token_id in root["model"]["vocab"].values()}
    return tiktoken.Encoding("same", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    if find_spec(name) is None:
        print(f"skipped: {name} is not installed")
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Prints all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="directory with tokenizer.json")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args(arguments)
    os.environ.update(ONE_THREAD)
    if options.folder is None or not (options.folder / "tokenizer.json").is_file():
        print("tokenizer: skipped, no directory with a tokenizer.json was named")
        return 0
    with tempfile.TemporaryDirectory() as place:
        pack = make_pack(options.folder, Path(place))
        start(pack, options.folder, options.rounds)
        load(pack, options.rounds)
        throughput(pack, options.folder, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
