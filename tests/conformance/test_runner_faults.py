"""Programs that misbehave: what they do is told, bounded and cleaned up, and the run goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fake_vector import Fake

from gpack.conformance import process, process_group
from gpack.conformance.outcomes import Result, Run
from gpack.conformance.process import MIB, Limits
from gpack.conformance.reader_judge import ReaderOptions
from gpack.conformance.reader_run import run_reader
from gpack.conformance.sandbox import Sandbox
from gpack.errors import PathError

PROGRAM = str(Path(__file__).with_name("bad_program.py"))
DUMP: dict[str, Any] = {"header": {"x": 1}, "footer": {}, "sections": []}
# Two seconds are far more than an answer takes; the larger limits are for modes that must not meet the time-out first.
LIMITS = Limits(
    timeout=2.0,
    start_timeout=60.0,
    memory=256 * MIB,
    processes=20,
    line=2 * MIB,
    stderr=2 * MIB,
    disk=8 * MIB,
    grace=1.0,
)
PATIENT = Limits(**{**vars(LIMITS), "timeout": 60.0})


VECTORS = [Fake("a-good"), Fake("b-bad"), Fake("c-good")]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, so that what is left of them shows."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def run(mode: str, *rest: str, limits: Limits = PATIENT, **options: Any) -> Run:
    command = [sys.executable, PROGRAM, "reader", mode, *rest]
    vectors, dump = options.pop("vectors", VECTORS), options.pop("dump", lambda _: DUMP)
    return run_reader(command, vectors, ReaderOptions(limits=limits, **options), dump)


def check(made: Run, outcome: str, words: str = "") -> Result:
    """The middle one came out so, the others passed."""
    assert [result.outcome for result in made.results] == ["pass", outcome, "pass"]
    assert words in made.results[1].message
    assert not made.ok
    return made.results[1]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("hang", "timeout", "its answer did not come within 2 s"),
        ("stubborn", "timeout", "within 2 s"),
        ("partial", "timeout", "within 2 s"),
    ],
)
def test_hangs(mode: str, outcome: str, words: str, temporary: Path) -> None:
    made = run(mode, limits=LIMITS)
    check(made, outcome, words)
    assert any("ignored SIGTERM" in note for note in made.notes) == (mode == "stubborn")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("flood-stdout", "output", "over 2097152 bytes to its standard output"),
        ("flood-lines", "protocol", "$.type is None"),
        ("flood-stderr", "output", "over 2097152 bytes to its standard error"),
        ("enormous-line", "output", "standard output"),
        ("partial-exit", "crash", "exit status 0 before its answer came"),
        ("exit", "crash", "exit status 0"),
        ("exit-3", "crash", "exit status 3"),
        ("signal", "crash", "SIGSEGV"),
        ("close", "crash", "closed its standard output"),
        ("wrong-seq", "protocol", "$.seq is 3, the request had 2"),
        ("true-seq", "protocol", "$.seq is True"),
        ("no-json", "protocol", "no JSON object"),
        ("no-utf8", "protocol", "utf-8"),
        ("nan", "protocol", "NaN is no JSON"),
        ("doubled-key", "protocol", "stands twice"),
        ("deep", "protocol", "nested more than"),
        ("array", "protocol", "a list, not an object"),
        ("verdict", "protocol", "$.verdict is 'perhaps'"),
        ("no-dump", "protocol", "$.dump is None"),
        ("no-class", "protocol", "$.class is None"),
        ("class", "protocol", "$.class is 'bad'"),
        ("twice", "protocol", "after its answer"),
        ("memory", "memory", "allowed are 256"),
        ("processes", "processes", "allowed are 20"),
        ("disk", "disk", "over 8 MiB"),
        ("disk-temporary", "disk", "over 8 MiB"),
        ("many-files", "disk", "over 8 MiB"),
    ],
)
def test_faults(mode: str, outcome: str, words: str, temporary: Path) -> None:
    if mode == "twice":  # the second line may come a moment later: then the next question meets it
        made = run(mode)
        outcomes = [result.outcome for result in made.results]
        assert sorted(outcomes) == ["pass", "pass", "protocol"]
        assert outcomes[0] == "pass"
    else:
        check(run(mode), outcome, words)
    assert list(temporary.iterdir()) == []


def test_standard_error_is_shown(temporary: Path) -> None:
    assert check(run("exit-3"), "crash").stderr == "it broke"


@pytest.mark.parametrize("mode", ["change", "append-undo", "remove", "pipe", "mode", "beside", "bystander", "outside"])
def test_what_is_not_its_own_must_stay_as_it_is(mode: str, temporary: Path) -> None:
    """Even what is put back: the time of the last change tells. The file as it is now is not looked into any more."""
    words = {
        "change": "input/b-bad.gpack was changed",
        "append-undo": "input/b-bad.gpack was changed",
        "remove": "input/b-bad.gpack was removed",
        "mode": "input/b-bad.gpack was changed",
        "pipe": "input/b-bad.gpack was changed",
        "beside": "input/new was added",
        "bystander": "beside/bystander.txt was removed",
        "outside": "new was added",
    }
    looked_into: list[str] = []

    def dump(path: Path) -> dict[str, Any]:
        looked_into.append(path.stem)
        return DUMP

    check(run(mode, dump=dump), "touched", words[mode])
    assert looked_into == ["a-good", "c-good"]
    assert list(temporary.iterdir()) == []


def test_a_file_that_grows_beyond_the_limit_anywhere(tmp_path: Path, temporary: Path) -> None:
    """Outside of the watched folders only the size of one file is bounded: four times the limit."""
    path = tmp_path / "large"
    assert "File too large" in check(run("large-file", str(path)), "crash").stderr
    assert path.stat().st_size <= 4 * LIMITS.disk


def test_its_folder_replaced_by_a_link(tmp_path: Path, temporary: Path) -> None:
    """The link goes, and what it leads to stays as it is."""
    elsewhere = tmp_path / "elsewhere"
    check(run("link", str(elsewhere)), "touched", "work was changed")
    assert elsewhere.is_dir()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("mode", "folder"), [("leave", "work"), ("leave-temporary", "temporary")])
def test_files_left_behind_are_noted(mode: str, folder: str, temporary: Path) -> None:
    made = run(mode)
    assert [result.outcome for result in made.results] == ["pass"] * 3
    assert made.notes == [f"left files in its {folder} folder: 'left'"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("mode", ["child", "child-session", "child-answer"])
def test_children_do_not_outlive_it(mode: str, tmp_path: Path, temporary: Path) -> None:
    """Not even one in a session of its own that ignores SIGTERM and holds our end of the pipe."""
    pid_file = tmp_path / "pid"
    made = run(mode, str(pid_file))
    if mode == "child-answer":
        assert [result.outcome for result in made.results] == ["pass"] * 3
    else:
        check(made, "crash", "exit status 0 before its answer")
    assert any("left 1 running process behind" in note for note in made.notes)
    assert not is_alive(int(pid_file.read_text()))
    assert list(temporary.iterdir()) == []


def test_a_child_that_speaks_on_for_ever(tmp_path: Path, temporary: Path) -> None:
    """The program has ended, but its standard output never does."""
    pid_file = tmp_path / "pid"
    check(run("child-flood", str(pid_file)), "crash", "exit status 0 before its answer")
    assert not is_alive(int(pid_file.read_text()))
    assert list(temporary.iterdir()) == []


def test_folders_that_cannot_be_made_leave_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up between the folders and the file in one of them."""

    def full(path: Path, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(PathError, match="no temporary folder can be made: No space left"):
        Sandbox()
    assert list(temporary.iterdir()) == []


def test_one_that_cannot_be_ended_is_left_behind(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It became another user's, or waits for a device: the run goes on all the same."""
    alive: list[int] = []

    def end(leader: int, token: str, *, grace: float) -> bool:
        alive.append(leader)
        return False

    monkeypatch.setattr(process_group, "end", end)
    monkeypatch.setattr(process, "_REAP_SECONDS", 0.1)
    try:
        made = run("hang", limits=LIMITS)
        check(made, "timeout")
        assert "could not be ended, and was left behind" in made.notes
    finally:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def test_it_speaks_before_it_is_asked(temporary: Path) -> None:
    """Whether the line comes before the question or is taken for its answer is a matter of time."""
    made = run("unasked", limits=LIMITS)
    assert {result.outcome for result in made.results} == {"protocol"}
    assert "hello" in made.results[0].message


@pytest.mark.parametrize(
    ("mode", "words"),
    [("no-stop", "after the stop: its end"), ("stop-3", "after the stop it ended with exit status 3")],
)
def test_it_does_not_stop_as_it_should(mode: str, words: str, temporary: Path) -> None:
    made = run(mode, limits=LIMITS, vectors=VECTORS[:1])
    assert made.ok
    assert any(words in note for note in made.notes)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("nothing", "ended with exit status 0 before its first line"),
        ("protocol", "$.protocol is 2, this runner speaks 1"),
        ("level", "$.level is 'all'"),
        ("name", "$.name is 7"),
        ("type", "$.type is 'hello'"),
        ("depth", "$.depth is 'deep'"),
    ],
)
def test_it_does_not_introduce_itself(mode: str, words: str, temporary: Path) -> None:
    with pytest.raises(PathError, match="standard error ends with: the last words") as caught:
        run_reader([sys.executable, PROGRAM, "start", mode], VECTORS, ReaderOptions(limits=PATIENT), lambda _: DUMP)
    assert caught.value.code == "conformance.command"
    assert words in caught.value.message
    assert list(temporary.iterdir()) == []


def test_it_hangs_at_the_start(temporary: Path) -> None:
    limits = Limits(**{**vars(LIMITS), "start_timeout": 1.0})
    with pytest.raises(PathError, match="did not come within 1 s"):
        run_reader([sys.executable, PROGRAM, "start", "hang"], VECTORS, ReaderOptions(limits=limits), lambda _: DUMP)
    assert list(temporary.iterdir()) == []


def test_after_many_faults_the_rest_is_not_tried(temporary: Path) -> None:
    vectors = [Fake(f"bad{number}") for number in range(5)]
    made = run("exit", vectors=vectors, most_faults=2)
    assert [result.outcome for result in made.results] == ["crash", "crash", "not-run", "not-run", "not-run"]
    assert made.results[2].message == "it failed 2 times before"


def test_side_by_side(temporary: Path) -> None:
    vectors = [Fake(f"{'bad' if number % 5 == 0 else 'good'}{number:02}") for number in range(20)]
    made = run("exit", vectors=vectors, jobs=3)
    assert {result.id: result.outcome for result in made.results} == {
        vector.id: "crash" if "bad" in vector.id else "pass" for vector in vectors
    }
    assert list(temporary.iterdir()) == []
