"""The reader's runner: which vectors are asked about, and how answers are judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_vector import Fake

from gpack.conformance import vectors
from gpack.conformance.dumping import dump
from gpack.conformance.outcomes import Run
from gpack.conformance.process import Limits
from gpack.conformance.reader_judge import ReaderOptions, asked
from gpack.conformance.reader_run import run_reader
from gpack.conformance.reader_talk import patience
from gpack.errors import PathError

PROGRAM = str(Path(__file__).with_name("good_reader.py"))
LIMITS = Limits(timeout=60.0, start_timeout=60.0)
DUMP: dict[str, Any] = {"header": {"x": 1}, "footer": {}, "sections": [{"entry": {"kind": 1}, "rows": [{"a": 1}]}]}
ACCEPT = {"verdict": "accept", "dump": DUMP}


def reject(cls: str) -> dict[str, Any]:
    return {"verdict": "reject", "class": cls, "message": "because"}


def run(folder: Path, answers: dict[str, Any], fakes: list[Fake], *arguments: str, **options: Any) -> Run:
    table = folder / "table.json"
    table.write_text(json.dumps(answers))
    command = [sys.executable, PROGRAM, *arguments, str(table)]
    return run_reader(command, fakes, ReaderOptions(limits=LIMITS, **options), lambda _: DUMP)


@pytest.mark.parametrize("per_file", [False, True])
@pytest.mark.parametrize(
    ("expect", "cls", "answer", "outcome", "ok"),
    [
        ("accept", None, ACCEPT, "pass", True),
        ("accept", None, reject("structure"), "rejected", False),
        ("accept", None, {"verdict": "accept", "dump": {**DUMP, "header": {"x": 2}}}, "dump", False),
        ("accept", None, {"verdict": "accept", "dump": {}}, "dump", False),
        ("accept", None, {"verdict": "skip", "reason": "no"}, "skip", True),
        ("reject", "structure", reject("structure"), "pass", True),
        ("reject", "structure", ACCEPT, "accepted", False),
        ("reject", "structure", {"verdict": "skip", "reason": "no"}, "skip", True),
        ("reject", "structure", reject("semantic"), "pass", True),
        ("reject", "digest", reject("structure"), "pass", True),
        ("reject", "unsupported", reject("unsupported"), "pass", True),
        ("reject", "unsupported", reject("structure"), "class", False),
        ("reject", "structure", reject("unsupported"), "class", False),
    ],
)
def test_judging(
    expect: str, cls: str | None, answer: dict[str, Any], outcome: str, ok: bool, per_file: bool, tmp_path: Path
) -> None:
    made = run(tmp_path, {"v": answer}, [Fake(expect=expect, cls=cls)], per_file=per_file)
    (result,) = made.results
    assert (result.outcome, not result.fails) == (outcome, ok)
    assert made.ok == (ok and outcome != "skip")  # a run that skips everything shows nothing
    other_class = answer.get("class", cls) != cls and expect == "reject"
    assert bool(result.notes) == (other_class and outcome == "pass")


def test_other_classes_can_be_made_to_fail(tmp_path: Path) -> None:
    made = run(tmp_path, {"v": reject("semantic")}, [Fake(expect="reject", cls="digest")], strict_class=True)
    assert made.results[0].outcome == "class"
    assert made.results[0].message == "the class is digest, it said semantic: because"


def test_a_dump_of_the_container_alone(tmp_path: Path) -> None:
    """It has to be announced; then rows are not missed, and what is given of the rest still counts."""
    shallow = {**DUMP, "sections": [{"entry": {"kind": 1}}]}
    answers = {"v": {"verdict": "accept", "dump": shallow}}
    assert run(tmp_path, answers, [Fake()]).results[0].outcome == "dump"
    assert run(tmp_path, answers, [Fake()], "--depth", "container").results[0].outcome == "pass"
    assert run(tmp_path, answers, [Fake()], per_file=True, depth="container").results[0].outcome == "pass"
    wrong = {"v": {"verdict": "accept", "dump": {**DUMP, "sections": [{"entry": {"kind": 2}}]}}}
    assert run(tmp_path, wrong, [Fake()], "--depth", "container").results[0].differences == [
        "$.sections[0].entry.kind is 2, should be 1"
    ]


def test_programs_for_one_file_that_end_otherwise(tmp_path: Path) -> None:
    made = run(tmp_path, {"a": 5, "b": ACCEPT}, [Fake("a"), Fake("b")], per_file=True)
    assert [result.outcome for result in made.results] == ["crash", "pass"]
    assert made.results[0].message == "it ended with exit status 5"
    assert made.subject.name == "good_reader"


def test_programs_for_one_file_that_misbehave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", Limits(timeout=3.0, line=1 << 20))
    answers = {"a": "hang", "b": "flood", "c": "{no json", "d": "[]", "e": ACCEPT}
    made = run(tmp_path, answers, [Fake(name) for name in answers], per_file=True)
    assert [result.outcome for result in made.results] == ["timeout", "output", "protocol", "protocol", "pass"]


def test_a_rejection_without_a_word_is_a_crash(tmp_path: Path) -> None:
    """Interpreters end with 1 after an error that nobody caught; what they said of it is told."""
    command = [sys.executable, "-c", "raise SystemExit('it broke')"]
    made = run_reader(command, [Fake()], ReaderOptions(limits=LIMITS, per_file=True), lambda _: DUMP)
    assert made.results[0].outcome == "crash"
    assert made.results[0].message == "it ended with exit status 1 and no reason on its standard output"
    assert made.results[0].stderr == "it broke"


def test_a_recommended_vector_only_warns(tmp_path: Path) -> None:
    made = run(tmp_path, {"v": ACCEPT}, [Fake(expect="reject", cls="semantic", required=False)])
    assert made.results[0].outcome == "accepted"
    assert made.ok


LEVELLED = [
    Fake("valid"),
    Fake("structure", "reject", "structure", path="$.header.magic"),
    Fake("table", "reject", "structure", path="$.TensorIndexBin.magic"),
    Fake("entry", "reject", "structure", path="$.sections[2].offset"),
    Fake("digest", "reject", "digest", "digest", path="$.EmbedBlob.sha256"),
    Fake("semantic", "reject", "semantic", "semantic", path="$.ManifestJson"),
    Fake("giant", large=True),
]


@pytest.mark.parametrize(
    ("level", "depth", "large", "ids"),
    [
        ("structure", "tables", False, "valid structure table entry giant"),
        ("digest", "tables", False, "valid structure table entry digest"),
        ("digest", "tables", True, "valid structure table entry digest giant"),
        ("digest", "container", False, "valid structure entry digest"),
        ("semantic", "container", False, "valid structure entry digest semantic"),
        ("semantic", "tables", True, "valid structure table entry digest semantic giant"),
    ],
)
def test_which_are_asked_about(level: str, depth: str, large: bool, ids: str) -> None:
    assert " ".join(vector.id for vector in asked(LEVELLED, level, depth, large=large)) == ids


def test_the_level_is_the_lower_of_what_it_knows_and_what_is_wanted(tmp_path: Path) -> None:
    answers = {vector.id: ACCEPT if vector.expect == "accept" else reject(str(vector.cls)) for vector in LEVELLED}
    for stated, wanted, level in (
        ("digest", None, "digest"),
        ("digest", "semantic", "digest"),
        ("semantic", "structure", "structure"),
    ):
        made = run(tmp_path, answers, LEVELLED, "--level", stated, level=wanted)
        assert made.subject.level == level
        assert sorted(result.id for result in made.results) == sorted(vector.id for vector in asked(LEVELLED, level))
        assert made.ok


def test_large_files_get_more_time(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(20 << 30)
    assert patience(Limits(timeout=10), path) == 10 + 320  # 64 MiB per second


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    """The shell in front of it says so; its first line does not come."""
    with pytest.raises(PathError, match="ended with exit status 127"):
        run_reader([str(tmp_path / "none")], [Fake()], ReaderOptions(limits=LIMITS), lambda _: DUMP)


def test_gpack_passes_its_own_examination() -> None:
    """All vectors that are not large, in one process; the classes are right too."""
    found = [vector for vector in vectors.load() if not vector.large]
    options = ReaderOptions(limits=LIMITS, jobs=2, strict_class=True)
    made = run_reader([sys.executable, "-m", "gpack.conformance.reference", "reader"], found, options, dump)
    assert [
        (result.id, result.message, result.differences) for result in made.results if result.outcome != "pass"
    ] == []
    assert made.ok
    assert len(made.results) == len(found) > 400
    assert made.notes == []
