"""Temporary files: two runs and two threads at one output, file systems without nameless files, late faults."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import make_gguf, vector
from processes import running

from gpack import errors
from gpack.container import atomic, temporary
from gpack.container.atomic import AtomicFile

TIMEOUT = 60
REFUSED = [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL]


def refuse_nameless(monkeypatch: pytest.MonkeyPatch, code: int = errno.EOPNOTSUPP) -> None:
    """A file system without O_TMPFILE."""
    real = os.open

    def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", call)


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc: what has no name cannot be given one."""

    def call(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "link", call)


@pytest.fixture(params=["nameless", "refused", "no /proc"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How temporary files come to be."""
    if request.param == "refused":
        refuse_nameless(monkeypatch)
    elif request.param == "no /proc":
        refuse_links(monkeypatch)
    return str(request.param)


def write(path: Path, data: bytes) -> None:
    with AtomicFile(path, len(data)) as file:
        file.write_at(data, 0)
        file.sync()
        file.commit()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.usefixtures("way")
def test_a_file_is_locked_whenever_its_name_can_be_seen(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a", 3) as file:
        assert file.path == tmp_path / f"a.tmp.{os.getpid()}"
        assert is_locked(file.path)
        file.write_at(b"abc", 0)
        file.commit()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_another_run_between_creating_and_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """At the moment of locking another run looks for abandoned files; it must not take this one."""
    output, real, seen = tmp_path / "a", fcntl.flock, []

    def lock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        seen.append(temporary.remove_abandoned(output))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    write(output, b"mine")
    assert output.read_bytes() == b"mine"
    if way != "no /proc":
        assert seen == [[]]


def test_a_named_file_that_another_run_removed_before_it_was_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_nameless(monkeypatch)
    real = fcntl.flock

    def lock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / f"a.tmp.{os.getpid()}").unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    write(tmp_path / "a", b"mine")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"mine"


def _ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(TIMEOUT)
    return process.pid


def test_without_nameless_files_a_living_process_keeps_its_unlocked_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, dead = tmp_path / "a", _ended()
    living = [f"a.tmp.{os.getppid()}", "a.tmp.1"]  # process 1 lives, and may be another user's
    for name in (*living, f"a.tmp.{dead}", f"a.tmp.{dead}.2"):
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:
        refuse_nameless(patch)
        removed = temporary.remove_abandoned(output)
    assert sorted(path.name for path in removed) == [f"a.tmp.{dead}", f"a.tmp.{dead}.2"]
    assert names(tmp_path) == sorted(living)
    # With nameless files no writer ever has an unlocked one, whoever has its number now.
    assert sorted(path.name for path in temporary.remove_abandoned(output)) == sorted(living)


@pytest.mark.parametrize("code", REFUSED)
def test_what_systems_without_nameless_files_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    refuse_nameless(monkeypatch, code)
    write(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.usefixtures("way")
def test_two_threads_write_one_output(tmp_path: Path) -> None:
    output, inside = tmp_path / "a", threading.Barrier(2, timeout=TIMEOUT)
    paths: list[str] = []

    def work(data: bytes) -> None:
        with AtomicFile(output, len(data)) as file:
            paths.append(file.path.name)
            inside.wait()  # both have their files now
            file.write_at(data, 0)
            inside.wait()
            file.commit()

    contents = [b"a" * 1000, b"b" * 2000]
    threads = [threading.Thread(target=work, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(paths) == [f"a.tmp.{os.getpid()}", f"a.tmp.{os.getpid()}.2"]
    assert output.read_bytes() in contents
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize(("code", "refused"), [(errno.EINVAL, True), (errno.EACCES, True), (errno.EIO, False)])
def test_a_folder_that_is_not_synced_is_told_and_the_file_is_in_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    code: int,
    refused: bool,
) -> None:
    real = {"open": os.open, "fsync": os.fsync}

    def fails(target: Any, flags: int = 0, *rest: Any, **named: Any) -> Any:
        is_folder = flags == os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC if call == "open" else _is_folder(target)
        if is_folder:
            raise OSError(code, os.strerror(code))
        return real[call](target, flags, *rest, **named) if call == "open" else real[call](target)  # type: ignore[operator]

    output = tmp_path / "a"
    output.write_bytes(b"old")
    monkeypatch.setattr(os, call, fails)
    if refused:
        with caplog.at_level(logging.WARNING, "gpack"):
            write(output, b"new")
        assert "the file is in place, perhaps not yet durable" in caplog.text
    else:
        with pytest.raises(errors.PathError, match="the file is in place, perhaps not yet durable") as caught:
            write(output, b"new")
        assert (caught.value.code, caught.value.exit_code) == ("io.not_durable", 3)
    assert output.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def _is_folder(descriptor: int) -> bool:
    return os.path.isdir(f"/proc/self/fd/{descriptor}")


@pytest.mark.parametrize("call", ["unlink", "close"])
def test_clean_up_that_fails_does_not_hide_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def work() -> None:
        with AtomicFile(tmp_path / "a", 3):
            monkeypatch.setattr(f"{'pathlib.Path' if call == 'unlink' else 'os'}.{call}", fails)
            raise RuntimeError("the reason")

    with pytest.raises(RuntimeError, match="the reason"):
        work()
    monkeypatch.undo()
    assert not (tmp_path / "a").exists()


def test_a_temporary_file_that_somebody_removed(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a", 1) as file:
        file.path.unlink()
        with pytest.raises(errors.PathError, match="removed by another program"):
            file.commit()
    assert names(tmp_path) == []


def interrupt_at(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """Ctrl-C before or after a call of the system, which runs only then."""
    real: Callable[..., Any] = getattr(os, name)

    def call(*args: Any, **named: Any) -> Any:
        if not after:
            raise KeyboardInterrupt
        real(*args, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_about_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    mark = atomic.count_renamed()
    interrupt_at(monkeypatch, "rename", after=after)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", b"new")
    assert atomic.files_in_place(mark) == ([tmp_path / "a"] if after else [])
    assert names(tmp_path) == (["a"] if after else [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_renaming_tells_what_is_there(tmp_path: Path, number: int) -> None:
    source, output = tmp_path / "m.gguf", tmp_path / "m.gpack"
    source.write_bytes(make_gguf({}, [vector("t")]))
    output.write_bytes(b"old")
    program = (
        "import os, sys, time; from gpack.cli import main\n"
        "real = os.rename\n"
        "def rename(*args):\n    real(*args)\n    print('renamed', flush=True)\n    time.sleep(60)\n"
        "os.rename = rename\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "convert", str(source), "-o", str(output)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "renamed\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 130
        told = process.stderr.read()
    assert told == f"guild: error: interrupted; {output} is in place, whole [interrupted]\n"
    assert output.read_bytes()[:4] == b"GPCK"
    assert names(tmp_path) == ["m.gguf", "m.gpack"]
