"""A table of hostile files: what each consumer answers, and the memory and processor time it takes beside its start.

    python tests/hostile_table.py FOLDER

Files that end in .xz are unpacked first. Each consumer runs in a process of its own, which has used it on a small good
pack before: imports and compiled code are its start. The peak is the kernel's, so pages of mapped files count too.
"""

from __future__ import annotations

import lzma
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gpack
from gpack import errors
from gpack.cli import main as guild
from gpack.conformance.recipes import bases
from gpack.model import GuildModel, ModelPaths

TEXT = "a" * 4000
CLEAR_PEAK = "5"
HEAD = """| File | Bytes | Consumer | Outcome | Peak beside its start, MiB | Processor, s |
|---|--:|---|---|--:|--:|"""


class Outcome(NamedTuple):
    """What a consumer did: exit status or error's code, KiB of peak beside its start, seconds of processor time."""

    answer: str
    peak: int
    seconds: float


def _load(path: Path) -> str:
    GuildModel.load(ModelPaths(None, path) if path.suffix == ".gguf" else path).close()
    return "ok"


def _list(path: Path) -> str:
    with gpack.open(path) as pack:
        for name in pack:
            assert pack[name].nbytes >= 0
        dict(pack.metadata)
        for name in pack.assets():
            bytes(pack.asset(name))
    return "ok"


def _command(*words: str) -> Callable[[Path], str]:
    def call(path: Path) -> str:
        places = {"OUT": str(path.parent / f"{os.getpid()}.out"), "OTHER": str(path.parent / "good.gpack")}
        status = guild([words[0], str(path), *(places.get(word, word) for word in words[1:])])
        Path(places["OUT"]).unlink(missing_ok=True)
        return f"exit {status}"

    return call


CONSUMERS: dict[str, Callable[[Path], str]] = {
    "verify": _command("verify"),
    "load": _load,
    "list": _list,
    "export": _command("export", "-o", "OUT"),
    "convert": _command("convert", "-o", "OUT"),
    "inspect": _command("inspect", "--tensors", "--metadata"),
    "diff": _command("diff", "OTHER"),
    "encode": _command("tokenize", TEXT),
}


def answer_of(call: Callable[[Path], str], path: Path) -> str:
    """What the consumer says of the file; an error of this package is an answer, any other one ends the process."""
    try:
        return call(path)
    except errors.GpackError as error:
        return error.code


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise LookupError(field)


def _child(call: Callable[[Path], str], good: Path, path: Path) -> str:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    answer_of(call, good)
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    before, used = _status("VmRSS"), time.process_time()
    answer = answer_of(call, path)
    used = time.process_time() - used
    return f"{answer}\t{max(0, _status('VmHWM') - before)}\t{used}"


def measure(call: Callable[[Path], str], good: Path, path: Path) -> Outcome:
    """Runs a consumer in a process of its own; a signal or an error that is not this package's is an answer too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(write, _child(call, good, path).encode())
            os._exit(0)
        except BaseException as error:
            os.write(write, f"{type(error).__name__}\t0\t0".encode())
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as lines:
        told = lines.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        return Outcome(signal.Signals(-status).name, 0, 0)
    answer, peak, seconds = told.split("\t")
    return Outcome(answer, int(peak), float(seconds))


def unpacked(folder: Path, place: Path) -> Iterator[Path]:
    """The folder's files, those that end in .xz unpacked, as copies in another folder."""
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        packed = path.suffix == ".xz"
        target = place / (path.stem if packed else path.name)
        target.write_bytes(lzma.decompress(data) if packed else data)
        yield target


def outcomes(folder: Path, place: Path) -> Iterator[tuple[Path, str, Outcome]]:
    """Each file with each consumer; a GGUF is not packed or exported again, and a pack is not converted."""
    good = place / "good.gpack"
    good.write_bytes(bases.vocabulary())
    for path in unpacked(folder, place):
        for name, call in CONSUMERS.items():
            if name not in (("export", "verify", "list") if path.suffix == ".gguf" else ("convert",)):
                yield path, name, measure(call, good, path)


def main() -> None:
    """Prints the table, in Markdown."""
    print(HEAD)  # noqa: T201
    with tempfile.TemporaryDirectory() as place:
        for path, name, (answer, peak, seconds) in outcomes(Path(sys.argv[1]), Path(place)):
            size = path.stat().st_size
            print(f"| {path.name} | {size:,} | {name} | {answer} | {peak / 1024:.1f} | {seconds:.2f} |")  # noqa: T201


if __name__ == "__main__":
    main()
