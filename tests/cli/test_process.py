"""The program as a process: signals, pipes, terminals, and how it ends where something goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import F32, tiny_llama, write_gguf
from processes import running

import gpack
from gpack.cli import main
from gpack.convert.gguf import convert_gguf
from gpack.sources.gguf import GgufSource

GUILD = Path(sys.executable).with_name("guild")
TIMEOUT = 60  # seconds; slow machines


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    convert_gguf(write_gguf(tmp_path / "m.gguf", *tiny_llama(layers=1)), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = list(map(str, arguments))
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT, **options)


@pytest.mark.parametrize("command", [["guild"], ["gpack"], [sys.executable, "-m", "gpack"]])
def test_all_names_of_the_program(command: list[str], pack: Path) -> None:
    if command[0] in ("guild", "gpack"):
        script = GUILD.with_name(command[0])
        if not script.exists():
            pytest.skip(f"{script} is not installed")
        command = [str(script)]
    assert run(*command, "--version").stdout == f"guild (gpack) {gpack.__version__}\n"
    done = run(*command, "verify", pack, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    assert run(*command, "verify", "/nonexistent").returncode == 3
    assert run(*command).returncode == 2


def test_a_reader_that_leaves_early(pack: Path) -> None:
    """As `guild inspect ... | head -1`: no complaint, no traceback."""
    arguments = [sys.executable, "-m", "gpack", "inspect", str(pack), "--metadata", "--json"]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything was written
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT) == 0
    done = run("bash", "-c", f"{' '.join(arguments)} | head -1")
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_an_error_whose_reader_has_left() -> None:
    arguments = [sys.executable, "-m", "gpack", "verify", "/nonexistent", "--json"]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT) == 3


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_an_output_that_is_closed(pack: Path, closed: str) -> None:
    """What belongs there goes nowhere: not to the other output, nor into a file that was opened since."""
    for path, code in ((pack, 0), ("/nonexistent", 3)):
        done = run("bash", "-c", f"{sys.executable} -m gpack verify {path} {closed}")
        assert done.returncode == code
        assert (done.stderr if closed[0] == "2" else done.stdout) == ""
        if closed[0] == "2" and code:
            assert done.stdout == ""


def test_an_input_that_is_closed(pack: Path) -> None:
    for command in ("tokenize", "run"):
        done = run("bash", "-c", f"{sys.executable} -m gpack {command} {pack} <&-")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "guild: error: standard input: it is closed [io.read]\n"


def test_an_output_that_knows_only_ascii(pack: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run(sys.executable, "-m", "gpack", "inspect", pack, "--metadata", "--tensors", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "\\u0120"
        in run(
            sys.executable, "-m", "gpack", "inspect", pack, "--section", "TokenizerBin", "--json", env=environment
        ).stdout
        + run(sys.executable, "-m", "gpack", "inspect", pack, "--metadata", "--json", env=environment).stdout
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_a_conversion_leaves_nothing(tmp_path: Path, number: int) -> None:
    source = tmp_path / "m.gguf"
    write_gguf(source, {}, [("big", F32, (1,), bytes(4))])
    (tmp_path / "m.gpack").write_bytes(b"old")
    # The conversion waits in the middle of its work, where the temporary file is there.
    program = (
        "import sys, time, gpack.container.writer as w; from gpack.cli import main\n"
        "def wait(*_):\n    print('here', flush=True)\n    time.sleep(60)\n"
        "w.GPackBuilder._recheck = wait\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = [sys.executable, "-c", program, "convert", str(source), "-o", str(tmp_path / "m.gpack")]
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "here\n"
        assert len(list(tmp_path.glob("m.gpack.tmp.*"))) == 1
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 130
        assert process.stderr.read() == "guild: error: interrupted; no file was changed [interrupted]\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gpack"]
    assert (tmp_path / "m.gpack").read_bytes() == b"old"


@pytest.mark.parametrize("options", [[], ["--json"], ["--quick"]])
def test_an_output_that_is_full(pack: Path, options: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        arguments = [sys.executable, "-m", "gpack", "verify", *options, str(pack)]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "standard output: cannot be written: No space left on device [io.write]" in done.stderr


def test_no_output_at_all(pack: Path) -> None:
    done = run("bash", "-c", f'"{sys.executable}" -m gpack verify --quick "{pack}" >&-')
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {})
    (tmp_path / "m.gpack.tmp.99999999").write_bytes(b"left over")
    (tmp_path / "m.gpack.tmp.notes").write_bytes(b"mine")
    assert main(["convert", str(source), "-o", str(tmp_path / "m.gpack")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gpack", "m.gpack.tmp.notes"]


def test_a_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {}, [("big", F32, (1 << 20,), bytes(1 << 22))])
    shown = on_a_terminal("convert", source, "-o", tmp_path / "m.gpack", pause=0.15)
    assert re.search(r"convert +\d+% \|.*\| \d\S* \S+ of 4\.0 MiB, \d\S* \SiB/s, \d\d:\d\d left", shown)
    assert shown.endswith(" \r")  # and is gone at the end
    assert "verify" in on_a_terminal("verify", tmp_path / "m.gpack")
    assert "%" not in on_a_terminal("verify", tmp_path / "m.gpack", "--json")
    assert run(sys.executable, "-m", "gpack", "verify", tmp_path / "m.gpack").stderr == ""


def on_a_terminal(*arguments: object, pause: float = 0) -> str:
    """What the program writes to a pseudo-terminal as its standard error.

    With a pause [s] before each update, for otherwise it may end before the bar is drawn a second time.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (25, 100))
    written = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                written.extend(data)
        except OSError:  # the other end is closed
            pass

    program = (
        "import sys, time; from gpack.cli import main, progress\n"
        "update = progress.Progress.update\n"
        f"progress.Progress.update = lambda *given: (time.sleep({pause}), update(*given))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    reader = threading.Thread(target=read)
    reader.start()
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=theirs, timeout=TIMEOUT)
    finally:
        os.close(theirs)  # the reader's end
        reader.join()
        os.close(ours)
    assert done.stdout
    return written.decode()


# --- in this process ---


def test_an_interrupted_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    source = write_gguf(tmp_path / "m.gguf", {})
    monkeypatch.setattr(GgufSource, "open", interrupt)
    assert main(["convert", str(source), "-o", str(tmp_path / "x")]) == 130
    assert capsys.readouterr().err == "guild: error: interrupted; no file was changed [interrupted]\n"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (ZeroDivisionError("by zero"), 70, "internal"),
        (MemoryError(), 3, "io.memory"),
        (PermissionError(13, "Permission denied", "/x"), 3, "io.read"),
    ],
)
def test_faults_of_ours_show_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception, status: int, code: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.delenv("GPACK_DEBUG", raising=False)
    monkeypatch.setattr("gpack.cli.verify.run", fail)
    assert main(["verify", "x"]) == status
    complaint = capsys.readouterr().err
    assert complaint.startswith("guild: error: ")
    assert complaint.endswith(f"[{code}]\n")
    assert "Traceback" not in complaint
    assert main(["verify", "x", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    monkeypatch.setenv("GPACK_DEBUG", "1")
    if status == 70:
        with pytest.raises(ZeroDivisionError):
            main(["verify", "x"])


def test_the_handler_of_sigterm_is_another_programs_outside_the_main_thread(pack: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    results: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        thread = threading.Thread(target=lambda: results.append(main(["verify", "--quick", str(pack)])))
        thread.start()
        thread.join(TIMEOUT)
        assert results == [0]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_quick_verify_starts_at_once(pack: Path) -> None:
    """Neither numpy nor what other commands need is loaded for it."""
    program = (
        "import sys; from gpack.cli import main; status = main(sys.argv[1:])\n"
        "sys.exit(status or sum(name in sys.modules for name in ('numpy', 'tqdm', 'construct', 'gguf')))"
    )
    assert run(sys.executable, "-c", program, "verify", "--quick", pack).returncode == 0
