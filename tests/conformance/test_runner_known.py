"""Lists of known failures can only shrink."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpack.conformance.known_failures import apply_known_failures, list_entry, read_known_failures
from gpack.conformance.outcomes import GOOD, OUTCOMES, Outcome, Result, Run, Subject
from gpack.errors import FormatError, PathError


def made(**outcomes: Outcome) -> Run:
    run = Run(Subject("reader", "r", "", "", "structure", ["r"]))
    run.results = [Result(name, "structure", True, "accept", outcome) for name, outcome in outcomes.items()]
    return run


def test_a_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text("# ours\n\n a/b  accepted  # soon\nc crash\r\n")
    assert read_known_failures(path) == {"a/b": "accepted", "c": "crash"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "line 1: a line is an id and an outcome"),
        ("\na b c", "line 2: a line is an id and an outcome"),
        ("a maybe", "line 1: 'maybe' is no failure"),
        ("a pass", "line 1: 'pass' is no failure"),
        ("a skip", "line 1: 'skip' is no failure"),
        ("a crash\na crash", "line 2: a stands twice"),
        ("\udcff crash", "no UTF-8"),
    ],
)
def test_damaged_lists(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=words) as caught:
        read_known_failures(path)
    assert caught.value.code == "conformance.known_failures"


def test_missing_lists(tmp_path: Path) -> None:
    with pytest.raises(PathError) as caught:
        read_known_failures(tmp_path / "none")
    assert caught.value.code == "io.not_found"
    with pytest.raises(PathError) as caught:
        read_known_failures(tmp_path)
    assert caught.value.code == "io.read"


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome not in GOOD])
def test_a_known_failure_does_not_fail_the_run(outcome: Outcome) -> None:
    assert made(a=outcome, b="pass").ok is False
    run = made(a=outcome, b="pass")
    apply_known_failures(run, {"a": outcome}, {"a", "b"})
    assert run.ok
    assert [result.known for result in run.results] == ["known", ""]


@pytest.mark.parametrize(
    ("outcome", "listed", "known"),
    [
        ("pass", "crash", "fixed"),
        ("timeout", "crash", "changed"),
        ("skip", "crash", "changed"),
        ("accepted", "rejected", "changed"),
    ],
)
def test_a_list_that_is_wrong_fails_the_run(outcome: Outcome, listed: Outcome, known: str) -> None:
    run = made(a=outcome, b="pass")
    apply_known_failures(run, {"a": listed}, {"a", "b"})
    assert not run.ok
    assert run.results[0].known == known


def test_an_entry_that_names_nothing_fails_the_run() -> None:
    run = made(a="pass")
    apply_known_failures(run, {"gone": "crash"}, {"a"})
    assert run.stale == ["gone"]
    assert not run.ok


def test_an_entry_that_was_not_run_is_left_alone() -> None:
    run = made(a="pass")
    apply_known_failures(run, {"b": "crash"}, {"a", "b"})
    assert run.ok


def test_a_new_failure_fails_beside_known_ones() -> None:
    run = made(a="crash", b="crash")
    apply_known_failures(run, {"a": "crash"}, {"a", "b"})
    assert not run.ok
    assert [list_entry(r.id, r.outcome) for r in run.results if r.fails] == ["b crash"]


def test_recommended_ones_only_warn_unless_the_program_misbehaves() -> None:
    for outcome in OUTCOMES:
        run = made(a=outcome, b="pass")
        run.results[0].required = False
        gentle = (
            "pass",
            "skip",
            "accepted",
            "rejected",
            "class",
            "dump",
            "refused",
            "missing",
            "rules",
            "meaning",
            "bytes",
        )
        assert run.ok == (outcome in gentle), outcome
