"""Commands that write, killed before each of their calls to the system, and with each of them failing.

What stands at the destination is the old file or the new one, whole; the next run removes what was left behind.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import traced
from exhaustive import amount, grows
from gguf_maker import tiny_moe, write_gguf
from sealed_packs import MIB, flip, place_of, sealed

from gpack.cli import main
from gpack.container.temporary import remove_abandoned
from gpack.convert.gguf import convert_gguf
from gpack.convert.parts import split
from gpack.repair import JOURNAL_SUFFIX
from gpack.repair.journal import finish, journal_of

OLD = b"the old file"
# Everything that changes what is on the disk, or makes it last; between two of them a kill changes nothing.
CALLS = (
    "open",
    "link",
    "ftruncate",
    "posix_fallocate",
    "pwrite",
    "copy_file_range",
    "fsync",
    "rename",
    "unlink",
    "close",
)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
MOST_POINTS = amount(20, 10_000)  # for each command, spread over its calls

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Work:
    """A command, and what it writes: `output`, from what it was to `new`; where it mends a pack that is the pack."""

    def __init__(self, output: Path, arguments: list[str], old: bytes = OLD) -> None:
        self.output, self.arguments, self.old = output, arguments, old
        self.reset()
        assert main(arguments) == 0
        self.new = output.read_bytes()
        self.signed = arguments[0] == "sign"  # ECDSA takes a number that nobody else knows: each bundle is another

    def run(self) -> int:
        return main(self.arguments)

    def reset(self) -> None:
        self.output.write_bytes(self.old)

    def leftovers(self) -> list[str]:
        return [path.name for path in self.output.parent.iterdir() if ".tmp." in path.name]

    def is_new(self) -> bool:
        """Whether the new file stands there, whole; else it must be the old one.

        A journal that a repair in place left is first applied, as every command does that is given the pack.
        """
        finish(self.output)
        content = self.output.read_bytes()
        if self.signed and content != self.old:
            return set(json.loads(content)) == set(json.loads(self.new))
        assert content in (self.old, self.new)
        return content == self.new

    def clean(self) -> None:
        """What the next run begins with."""
        for destination in (self.output, journal_of(self.output)):
            remove_abandoned(destination)
        assert self.leftovers() == []


def _prepared(command: str, folder: Path, output: Path) -> Work:
    metadata, tensors = tiny_moe(layers=2)
    source, pack = write_gguf(folder / "m.gguf", metadata, tensors), folder / "m.gpack"
    convert_gguf(source, pack, external_experts=command == "pack-experts")
    if command in ("convert", "export", "pack-experts", "seal"):
        given = source if command == "convert" else pack
        return Work(output, [command, str(given), "-o", str(output)])
    if command == "edit":
        return Work(output, ["edit", str(pack), "--set", "general.name=Another", "-o", str(output)])
    if command == "join":
        parts = [part.path for part in split(pack, pack.stat().st_size // 3 + 1)]
        return Work(output, ["join", str(parts[1]), "-o", str(output)])
    if command == "sign":
        pytest.importorskip("model_signing.signing")
        from cryptography.hazmat.primitives import serialization as said
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        hidden = said.NoEncryption()
        (folder / "k.pem").write_bytes(key.private_bytes(said.Encoding.PEM, said.PrivateFormat.PKCS8, hidden))
        return Work(output, ["sign", str(pack), "--private-key", str(folder / "k.pem"), "-o", str(output)])
    good, damaged = sealed(folder / "good.gpack"), folder / "damaged.gpack"
    damaged.write_bytes(good.read_bytes())
    for at in (1, MIB + 1):
        flip(damaged, place_of(damaged, "Data") + at)
    if command == "repair":
        return Work(output, ["repair", str(damaged), "--from", str(good), "-o", str(output)])
    return Work(output, ["repair", str(output), "--from", str(good), "--in-place"], damaged.read_bytes())


COMMANDS = ("convert", "export", "pack-experts", "seal", "sign", "edit", "join", "repair", "repair-in-place")


@pytest.fixture(scope="module", params=COMMANDS)
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("crash")
    output = folder / "out" / "file"
    output.parent.mkdir()
    return _prepared(request.param, folder, output)


def watch(patch: pytest.MonkeyPatch, before: Callable[[int, str], None]) -> list[str]:
    """Calls `before` with number and name of each call; returns the names of those that were made."""
    made: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            made.append(name)
            try:
                before(len(made) - 1, name)
            except OSError:
                if name == "close":  # the number is free whatever the system says
                    real(*args, **named)
                raise
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
    assert {"fsync", "rename"} <= set(made)
    assert {"pwrite", "copy_file_range"} & set(made)
    outcomes = set()
    for point in points(len(made)):
        work.reset()
        child = os.fork()
        if not child:
            run_and_die(work, point)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert len(work.leftovers()) <= 1
        outcomes.add(work.is_new())
        work.clean()
    assert outcomes == {True, False}
    assert work.run() == 0
    capfd.readouterr()


@grows
@pytest.mark.parametrize("code", ERRORS)
def test_each_call_fails(work: Work, capfd: pytest.CaptureFixture[str], code: int) -> None:
    made = count_calls(work)
    capfd.readouterr()
    for point in points(len(made)):
        work.reset()

        def fail(number: int, name: str, point: int = point) -> None:
            # Python's own removing of a folder closes once more what could not be closed.
            if number == point and not (work.signed and name == "close"):
                raise OSError(code, os.strerror(code))

        with pytest.MonkeyPatch.context() as patch:
            watch(patch, fail)
            status = work.run()
        _check_told(work, status, made[point], code, capfd.readouterr().err)


def _check_told(work: Work, status: int, name: str, code: int, told: str) -> None:
    """What a command that met a fault said, and what it left."""
    assert status in (0, 3), (name, told)
    journal = journal_of(work.output).exists()
    assert work.is_new() == (status == 0 or "in place" in told or journal), (name, told)
    assert "standard output" not in told, name
    if (
        status == 3
        and code in (errno.ENOSPC, errno.EDQUOT)
        and name in ("pwrite", "copy_file_range", "posix_fallocate", "fsync")
    ):
        assert "[io.no_space]" in told or "[io.not_durable]" in told
    if name != "unlink":
        assert work.leftovers() == [], name
    work.clean()


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
    assert work.is_new()


class Disk:
    """What a power loss can leave, from recorded calls: bytes last when their file was synced, names when their folder
    was; until then either may be there or not.
    """

    def __init__(self) -> None:
        self.unsynced: set[int] = set()  # files, by inode
        self.names: list[str] = []  # renamed and unlinked in folders that were not synced since
        self.order: list[str] = []

    def wrote(self, descriptor: int) -> None:
        self.unsynced.add(os.fstat(descriptor).st_ino)
        self.order.append("write")

    def synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.names.clear()
            self.order.append("sync folder")
        else:
            self.unsynced.discard(status.st_ino)
            self.order.append("sync")

    def renamed(self, path: Any) -> None:
        # From here on the name may last: so must the bytes.
        assert os.stat(path).st_ino not in self.unsynced
        self.names.append(os.fspath(path))
        self.order.append("rename")

    def removed(self, path: Any) -> None:
        if os.fspath(path).endswith(JOURNAL_SUFFIX):
            assert not self.unsynced  # what the journal was for has lasted
            self.names.append(os.fspath(path))
            self.order.append("unlink")


def test_a_power_loss_leaves_the_old_file_or_the_new(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model of a disk that keeps only what was synced; after a success all of it was."""
    disk = Disk()
    real = {name: getattr(os, name) for name in ("pwrite", "copy_file_range", "ftruncate", "fsync", "rename", "unlink")}

    def wrap(name: str, note: Callable[[Any], None], *, before: bool = False) -> None:
        changed = 1 if name == "copy_file_range" else 0  # which argument is what the call changes

        def call(*args: Any, **named: Any) -> Any:
            if before:
                note(args[changed])
            done = real[name](*args, **named)
            if not before:
                note(args[changed])
            return done

        monkeypatch.setattr(os, name, call)

    work.reset()
    for name in ("pwrite", "copy_file_range", "ftruncate"):
        wrap(name, disk.wrote)
    wrap("fsync", disk.synced)
    wrap("rename", disk.renamed, before=True)
    wrap("unlink", disk.removed, before=True)
    assert work.run() == 0
    assert (disk.unsynced, disk.names) == (set(), [])
    assert disk.order[-2:] == [disk.order[-2], "sync folder"]
    assert disk.order[-2] in ("rename", "unlink")
    assert "write" in disk.order
    assert work.is_new()


# ---------------------------------------------------------------- system calls


@pytest.fixture(scope="module")
def traceable() -> None:
    why = traced.available()
    if why:
        pytest.skip(why)


SILENT = os.open(os.devnull, os.O_WRONLY)


def _quiet(work: Work) -> Callable[[], int]:
    """The command in a child, which says nothing."""

    def run() -> int:
        os.dup2(SILENT, 1)
        os.dup2(SILENT, 2)
        return work.run()

    return run


@grows
@pytest.mark.usefixtures("traceable")
def test_killed_at_system_calls(work: Work) -> None:
    """At 300 points spread evenly over all system calls of a command, by all its threads."""
    work.reset()
    total = len(traced.run(_quiet(work)).calls)
    count = amount(12, 300)
    outcomes = set()
    for point in sorted({index * total // count for index in range(count)}):
        work.reset()
        done = traced.run(_quiet(work), traced.Fault(point, kill=True))
        assert done.status in (-signal.SIGKILL, 0)  # threads may make a call less
        assert len(work.leftovers()) <= 1
        outcomes.add(work.is_new())
        work.clean()
    assert outcomes >= {False}
    work.reset()
    assert work.run() == 0


# Of these Python does not ask again after EINTR, which no local file system gives for them.
NOT_ASKED_AGAIN = ("openat", "close", "linkat", "unlink", "unlinkat", "rename", "mkdir", "rmdir")
SYSTEM_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR, 0)


@grows
@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize("code", SYSTEM_ERRORS)
def test_each_system_call_fails(work: Work, code: int) -> None:
    """Each call that deals with files gives an error, or (0) writes but half of what it should."""
    names = ("write", "pwrite64") if not code else tuple(name for name in traced.NAMES.values() if name != "write")
    work.reset()
    made = traced.run(_quiet(work), traced.Fault(-1, names)).calls
    count = amount(8, 10_000)
    for point in sorted({index * len(made) // count for index in range(count)}):
        work.reset()
        done = traced.run(_quiet(work), traced.Fault(point, names, code=code))
        name = done.calls[point] if point < len(done.calls) else ""
        assert done.status in (0, 3), (done.status, name)
        if code in (0, errno.EINTR) and name not in NOT_ASKED_AGAIN:
            assert done.status == 0, name
        assert work.is_new() or done.status, name
        work.clean()


FULL = """
import sys
from gpack.cli import main
from gpack.container import atomic
atomic.check_space = lambda *_: None
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("room", [8, 40, 100])
def test_a_small_file_system_that_fills(work: Work, tmp_path: Path, room: int) -> None:
    """A real one in memory, KiB of room beside the old file; the command does not look before how much is free."""
    if not work.output.parent.is_dir() or work.arguments[0] == "repair":
        pytest.skip("a pack of megabytes does not fill so small a file system at different places")
    script = 'mount -t tmpfs -o size="$1" tmpfs "$2" && cp "$3" "$2/file" && shift 3 && "$@"; s=$?; ls "$0"; exit $s'
    given = [argument if argument != str(work.output) else str(tmp_path / "file") for argument in work.arguments]
    work.reset()
    sizes = f"{(room << 10) + (1 << 14)}"
    shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(tmp_path), sizes, str(tmp_path)]
    command = [*shell, str(work.output), sys.executable, "-c", FULL, *given]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode in (0, 3), done.stderr
    assert (done.returncode == 3) == ("[io.no_space]" in done.stderr)
    assert done.stdout.split()[-1] == "file"
    assert ".tmp." not in done.stdout
