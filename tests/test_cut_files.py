"""Files that are cut while they are used: an error that says so, in processes that a signal would end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_maker import tiny_llama, write_gguf

from gpack.convert.gguf import convert_gguf

TIMEOUT = 300
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing guards against lost pages")

# Cuts the pack as soon as it is mapped the n-th time, or is read in pieces, and then goes on as the command would.
CUT = """
import os, sys
import gpack.container.mapped as mapped
import gpack.container.pieces as pieces
import gpack.model.direct as direct
path, after, keep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
real, count = mapped.map_range, 0
def map_range(*args):
    global count
    made = real(*args)
    count += 1
    if count == after:
        os.truncate(path, keep)
    return made
mapped.map_range = direct.map_range = map_range
read_at, reads = pieces.read_at, 0
def read(*args):
    global reads
    reads += 1
    if reads == int(os.environ.get("CUT_AT_READ", 0)):
        os.truncate(path, keep)
    return read_at(*args)
pieces.read_at = read
"""
COMMAND = "from gpack.cli import main\nsys.exit(main(sys.argv[4:]))\n"
GENERATE = """
from gpack.errors import PathError
from gpack.model import GuildModel
model = GuildModel.load(path)
session = model.session(threads=2)
session.decode([1, 2, 3])
os.truncate(path, keep)
position = session.position
try:
    session.decode([4])
except PathError as error:
    print(error.code, session.position == position)
"""


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    metadata, tensors = tiny_llama(layers=2)
    convert_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CUT + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode >= 0, f"signal {-done.returncode}"
    return done


@LINUX
@pytest.mark.parametrize(
    ("command", "after", "keep"),
    [
        ("inspect", 1, 5000),
        ("tokenize", 1, 5000),
        ("export", 1, 5000),
        ("diff", 1, 5000),
        ("run", 1, 5000),
        ("run", 2, 0),
    ],
)
def test_commands(pack: Path, tmp_path: Path, command: str, after: int, keep: int) -> None:
    output, other = tmp_path / "out.gguf", tmp_path / "other.gpack"
    output.write_bytes(b"old")
    other.write_bytes(pack.read_bytes())
    arguments: dict[str, list[object]] = {
        "inspect": [pack, "--tensors", "--metadata"],
        "tokenize": [pack, "hello there"],
        "export": [pack, "-o", output],
        "diff": ["--bytes", pack, other],
        "run": [pack, "-p", "hello", "--raw", "-n", "4"],
    }
    done = run(COMMAND, pack, after, keep, command, *arguments[command])
    assert done.returncode == 3, done.stderr
    assert "[io.short_read]" in done.stderr
    assert output.read_bytes() == b"old"


@pytest.mark.parametrize("read", [1, 2, 5, 20])
def test_verify_reads_in_pieces(pack: Path, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """Sections that are not read at once are read piece by piece, never mapped: a cut is an error of the read."""
    monkeypatch.setenv("CUT_AT_READ", str(read))
    pieces = "import gpack.sections.context as context\ncontext.READ_LIMIT = 0\n"
    done = run(pieces + COMMAND, pack, 0, 500, "verify", pack)
    assert done.returncode == 3, done.stderr
    assert "[io.short_read]" in done.stderr


@LINUX
def test_a_model_that_is_cut_between_two_steps(pack: Path) -> None:
    done = run(GENERATE, pack, 0, 5000)
    assert done.stdout == "io.short_read True\n", done.stderr


@LINUX
def test_pages_that_are_not_ours_still_end_the_process(tmp_path: Path) -> None:
    program = (
        "import mmap\nfrom gpack.container.lost_pages import guard\nassert guard()\n"
        "file = open(path, 'wb+')\nfile.write(bytes(1 << 16))\nfile.flush()\n"
        "lost = mmap.mmap(file.fileno(), 1 << 16)\nos.truncate(path, 0)\nlost[5]\n"
    )
    command = [sys.executable, "-c", CUT + program, str(tmp_path / "other"), "0", "0"]
    assert subprocess.run(command, timeout=TIMEOUT, check=False).returncode == -signal.SIGBUS


@LINUX
def test_many_threads_lose_pages_at_once(tmp_path: Path) -> None:
    program = (
        "import threading\nfrom gpack.container import lost_pages\nassert lost_pages.guard()\n"
        "open(path, 'wb').write(b'x' * (1 << 20))\n"
        "descriptor = os.open(path, os.O_RDONLY)\n"
        "view = memoryview(mapped.MappedFile(path, 1 << 20, 'mmap').span(descriptor, 0, 1 << 20))\n"
        "os.truncate(path, 4096)\n"
        "found = []\n"
        "work = lambda part: found.append(bytes(view[part << 17:(part + 1) << 17]).count(b'x'))\n"
        "threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\n"
        "print(sum(found), lost_pages.lost().code)\n"
    )
    done = run(program, tmp_path / "file", 0, 0)
    assert done.stdout == "4096 io.short_read\n", done.stderr
    assert os.path.getsize(tmp_path / "file") == 4096
