"""Commands that write, killed before each of their calls to the system, and with each of them failing.

What stands at the destination is the old file or the new one, whole; the next run removes what was left behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exhaustive import amount, grows
from gguf_maker import tiny_moe, write_gguf

from gpack.cli import main
from gpack.container.temporary import remove_abandoned
from gpack.convert.gguf import convert_gguf

OLD = b"the old file"
# Everything that changes what is on the disk, or makes it last; between two of them a kill changes nothing.
CALLS = ("open", "link", "ftruncate", "posix_fallocate", "pwrite", "fsync", "rename", "unlink", "close")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
MOST_POINTS = amount(20, 10_000)  # for each command, spread over its calls

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Work:
    """A command, and what it writes."""

    def __init__(self, output: Path, arguments: list[str]) -> None:
        self.output, self.arguments = output, arguments
        self.output.write_bytes(OLD)
        assert main(arguments) == 0
        self.new = output.read_bytes()

    def run(self) -> int:
        return main(self.arguments)

    def reset(self) -> None:
        self.output.write_bytes(OLD)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.output.parent.iterdir() if ".tmp." in path.name]


@pytest.fixture(scope="module", params=["convert", "export", "pack-experts"])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("crash")
    output = folder / "out" / "file"
    output.parent.mkdir()
    metadata, tensors = tiny_moe(layers=2)
    source, pack = write_gguf(folder / "m.gguf", metadata, tensors), folder / "m.gpack"
    convert_gguf(source, pack, external_experts=request.param == "pack-experts")
    given = source if request.param == "convert" else pack
    return Work(output, [request.param, str(given), "-o", str(output)])


def watch(patch: pytest.MonkeyPatch, before: Callable[[int, str], None]) -> list[str]:
    """Calls `before` with number and name of each call; returns the names of those that were made."""
    made: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            made.append(name)
            before(len(made) - 1, name)
            return real(*args, **named)

        patch.setattr(owner, name, call)

    for name in CALLS:
        wrap(os, name)
    wrap(fcntl, "flock")
    return made


def count_calls(work: Work) -> list[str]:
    work.reset()
    with pytest.MonkeyPatch.context() as patch:
        made = watch(patch, lambda *_: None)
        assert work.run() == 0
        return list(made)


def points(count: int) -> Iterator[int]:
    """Numbers from 0 to `count`, all or so many evenly spread."""
    step = max(count / MOST_POINTS, 1)
    seen = {int(index * step) for index in range(int(count / step) + 1)}
    return iter(sorted(point for point in seen if point < count))


def run_and_die(work: Work, point: int) -> None:
    """Runs in a child, which is killed before the call of that number."""

    def kill(number: int, _: str) -> None:
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, kill)
            work.run()
    finally:
        os._exit(99)  # it should not live


@grows
def test_killed_before_each_call(work: Work, capfd: pytest.CaptureFixture[str]) -> None:
    made = count_calls(work)
    assert {"pwrite", "fsync", "rename"} <= set(made)
    outcomes = set()
    for point in points(len(made)):
        work.reset()
        child = os.fork()
        if not child:
            run_and_die(work, point)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        content = work.output.read_bytes()
        assert content in (OLD, work.new), point
        outcomes.add(content == OLD)
        assert len(work.leftovers()) <= 1
        remove_abandoned(work.output)  # which is what the next run begins with
        assert work.leftovers() == []
    assert outcomes == {True, False}
    assert work.run() == 0
    assert work.output.read_bytes() == work.new
    capfd.readouterr()


@grows
@pytest.mark.parametrize("code", ERRORS)
def test_each_call_fails(work: Work, capsys: pytest.CaptureFixture[str], code: int) -> None:
    made = count_calls(work)
    capsys.readouterr()
    for point in points(len(made)):
        work.reset()

        def fail(number: int, _: str, point: int = point) -> None:
            if number == point:
                raise OSError(code, os.strerror(code))

        with pytest.MonkeyPatch.context() as patch:
            watch(patch, fail)
            status = work.run()
        told = capsys.readouterr()
        name, content = made[point], work.output.read_bytes()
        assert status in (0, 3), (name, told.err)
        assert content == (work.new if status == 0 or "in place" in told.err else OLD), (name, told.err)
        assert "standard output" not in told.err, name
        if status == 3 and code in (errno.ENOSPC, errno.EDQUOT) and name in ("pwrite", "posix_fallocate", "fsync"):
            assert "[io.no_space]" in told.err or "[io.not_durable]" in told.err
        if name != "unlink":
            assert work.leftovers() == [], name
        remove_abandoned(work.output)
        assert work.leftovers() == []


def test_short_writes_and_short_reads(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write or read less than it was asked for, down to a byte."""
    pwrite, preadv, pread = os.pwrite, os.preadv, os.pread

    def part(length: int) -> int:
        return max(length // 2, 1)

    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: part(len(data))], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][: part(len(views[0]))]], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, part(length), at))
    work.reset()
    assert work.run() == 0
    assert work.output.read_bytes() == work.new


def test_what_is_synced_before_it_is_named(work: Work) -> None:
    """After the last write the file is synced, only then renamed, and then the folder is synced."""
    made = [name for name in count_calls(work) if name in ("pwrite", "fsync", "rename")]
    last = len(made) - 1 - made[::-1].index("pwrite")
    assert made[last + 1 :] == ["fsync", "rename", "fsync"]
    assert made.index("rename") == len(made) - 2
