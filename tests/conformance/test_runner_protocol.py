"""Messages, dumps and results: what the runner takes and refuses, its published schemas take and refuse too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from gpack.conformance.compare import at_depth, differences
from gpack.conformance.outcomes import OUTCOMES, Result, Run, Subject, load_run
from gpack.conformance.protocol import ProtocolError, parse_output, parse_result, parse_start, run_line, stop_line
from gpack.errors import FormatError, PathError

FOLDER = Path(__file__).parents[2] / "spec" / "conformance"
SCHEMAS = {
    path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in FOLDER.glob("*.schema.json")
}
REGISTRY: Any = Registry().with_resources(
    [(f"{name}.schema.json", Resource.from_contents(schema)) for name, schema in SCHEMAS.items()]
)
START = {"type": "start", "protocol": 1, "name": "n", "language": "l", "version": "1", "level": "digest"}
DUMP = {
    "header": {"magic": 1},
    "footer": {},
    "sections": [{"entry": {"offset": "64"}, "rows": [{"name": {"hex": "61"}}]}],
}
ACCEPT = {"type": "result", "seq": 7, "verdict": "accept", "dump": DUMP}
REJECT = {"type": "result", "seq": 7, "verdict": "reject", "class": "digest", "message": "m"}
SKIP = {"type": "result", "seq": 7, "verdict": "skip", "reason": "r"}


def faults(name: str, message: Any) -> list[str]:
    validator: Any = Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    return [error.message for error in validator.iter_errors(message)]


def encoded(message: Any) -> bytes:
    return json.dumps(message).encode()


def without(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in names}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schemas_are_schemas(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMAS[name]["description"]


def test_start() -> None:
    start = parse_start(encoded(START))
    assert (start.name, start.language, start.version, start.level, start.depth) == ("n", "l", "1", "digest", "tables")
    assert parse_start(encoded({**START, "depth": "container", "other": 1})).depth == "container"
    assert faults("start", START) == faults("start", {**START, "depth": "container", "other": 1}) == []


@pytest.mark.parametrize(
    "message",
    [
        *(without(START, name) for name in START),
        {**START, "protocol": 2},
        {**START, "protocol": True},
        {**START, "protocol": "1"},
        {**START, "level": "all"},
        {**START, "level": 1},
        {**START, "name": None},
        {**START, "version": 1},
        {**START, "depth": "deep"},
        {**START, "type": "result"},
        [],
        "start",
        None,
        7,
    ],
    ids=str,
)
def test_bad_starts(message: Any) -> None:
    with pytest.raises(ProtocolError):
        parse_start(encoded(message))
    assert faults("start", message)


@pytest.mark.parametrize("message", [ACCEPT, REJECT, SKIP, {**REJECT, "rule": "header.magic", "offset": 0}], ids=str)
def test_results(message: dict[str, Any]) -> None:
    answer = parse_result(encoded(message), 7)
    assert answer.verdict == message["verdict"]
    assert (answer.dump, answer.reject_class) == (message.get("dump"), message.get("class", ""))
    assert answer.message == message.get("message", message.get("reason", ""))
    assert faults("result", message) == []


@pytest.mark.parametrize(
    "message",
    [
        *(without(message, name) for message in (ACCEPT, REJECT, SKIP) for name in message),
        {**ACCEPT, "verdict": "maybe"},
        {**ACCEPT, "verdict": ["accept"]},
        {**ACCEPT, "dump": []},
        {**ACCEPT, "dump": None},
        {**REJECT, "class": "other"},
        {**REJECT, "class": []},
        {**REJECT, "message": 1},
        {**SKIP, "reason": None},
        {**ACCEPT, "seq": "7"},
        {**ACCEPT, "seq": None},
        [],
        None,
    ],
    ids=str,
)
def test_bad_results(message: Any) -> None:
    with pytest.raises(ProtocolError):
        parse_result(encoded(message), 7)
    assert faults("result", message)


@pytest.mark.parametrize("seq", [6, 8, 7.5, True])
def test_other_numbers(seq: Any) -> None:
    with pytest.raises(ProtocolError, match="the request had 7"):
        parse_result(encoded({**ACCEPT, "seq": seq}), 7)


def test_requests() -> None:
    line = run_line(3, "valid/é", "/tmp/é\n.gpack")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    request = json.loads(line)
    assert request == {"type": "run", "seq": 3, "id": "valid/é", "path": "/tmp/é\n.gpack"}
    assert faults("run", request) == []
    assert json.loads(stop_line()) == {"type": "stop"}
    assert faults("stop", {"type": "stop"}) == []


def test_output_of_programs_for_one_file() -> None:
    assert parse_output(encoded(DUMP), 0).dump == DUMP
    rejected = parse_output(encoded({"class": "structure", "message": "m"}), 1)
    assert (rejected.verdict, rejected.reject_class, rejected.message) == ("reject", "structure", "m")
    skipped = parse_output(b"not \xff yet\n", 77)
    assert (skipped.verdict, skipped.message) == ("skip", "not \\xff yet")
    for output, status in ((b"", 0), (b"[]", 0), (b"", 1), (b"{}", 1), (b'{"class": "structure"}', 1)):
        with pytest.raises(ProtocolError):
            parse_output(output, status)


# ---------------------------------------------------------------- dumps


@pytest.mark.parametrize(
    ("found", "info"),
    [
        (DUMP, []),
        ({**DUMP, "header": {"magic": 1.0}}, []),
        ({**DUMP, "header": {"magic": 2}}, ["$.header.magic is 2, should be 1"]),
        ({**DUMP, "header": {"magic": "1"}}, ["$.header.magic is '1', should be 1"]),
        ({**DUMP, "header": {"magic": True}}, ["$.header.magic is True, should be 1"]),
        ({**DUMP, "header": {}}, ["$.header.magic is missing, should be 1"]),
        ({**DUMP, "header": {"magic": 1, "a b": 0}}, ['$.header["a b"] is 0, should not be there']),
        ({**DUMP, "sections": []}, ["$.sections has 0 items, should have 1"]),
        ({**DUMP, "sections": 5}, ["$.sections is 5, should be a list of 1"]),
        (
            {**DUMP, "sections": [{"entry": {"offset": 64}, "rows": [{"name": {"hex": "62"}}]}]},
            [
                "$.sections[0].entry.offset is 64, should be '64'",
                "$.sections[0].rows[0].name.hex is '62', should be '61'",
            ],
        ),
    ],
    ids=str,
)
def test_differences(found: Any, info: list[str]) -> None:
    assert list(differences(DUMP, found)) == info


def test_depth_of_dumps() -> None:
    """At the container's depth header, rows and shards of sections count neither for nor against a reader."""
    shallow = {**DUMP, "sections": [{"entry": {"offset": "64"}}]}
    assert list(differences(at_depth(DUMP, "container"), at_depth(shallow, "container"))) == []
    assert list(differences(at_depth(DUMP, "tables"), at_depth(shallow, "tables"))) == [
        "$.sections[0].rows is missing, should be a list of 1"
    ]
    for odd in ({"sections": [7]}, {"sections": 7}, {"sections": None}, {}):
        assert at_depth(odd, "container") == odd


def test_dumps_of_gpack_follow_the_schema(tmp_path: Path) -> None:
    from gpack.conformance import dump, vectors

    seen = set()
    for vector in vectors.load():
        if vector.expect == "accept" and not vector.large:
            info = dump(vector.write(tmp_path))
            assert faults("dump", info) == [], vector.id
            seen |= {name for section in info["sections"] for name in section}
    assert seen == {"entry", "header", "rows", "shards"}


# ---------------------------------------------------------------- results


def a_run() -> Run:
    run = Run(Subject("reader", "r", "l", "1", "digest", ["r", "-x"]), notes=["n"], stale=["gone"], seconds=1.25)
    for outcome in OUTCOMES:
        run.results.append(Result(f"v/{outcome}", "structure", True, "accept", outcome, "because"))
    run.results[3].differ([f"$.x[{index}] is 1, should be 2" for index in range(60)])
    run.results[4].known = "changed"
    run.results[5].notes, run.results[5].stderr = ["a note"], "the end"
    return run


def test_results_as_json_and_back(tmp_path: Path) -> None:
    run = a_run()
    info = run.to_dict()
    assert faults("run-result", info) == []
    assert info["counts"] == dict.fromkeys(OUTCOMES, 1)
    assert info["ok"] is False
    assert len(info["results"][3]["differences"]) == 51
    assert info["results"][3]["differences"][-1] == "and 10 more"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(info))
    again = load_run(path)
    assert again.to_dict() == info


def _with(change: Any) -> Any:
    info = a_run().to_dict()
    change(info)
    return info


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info.pop("results"),
        lambda info: info.pop("subject"),
        lambda info: info.update(format="other"),
        lambda info: info.update(version=2),
        lambda info: info.update(notes=[1]),
        lambda info: info.update(stale="x"),
        lambda info: info["results"][0].update(outcome="fine"),
        lambda info: info["results"][0].update(outcome=["pass"]),
        lambda info: info["results"][0].update(notes="ab"),
        lambda info: info["results"][0].update(known="maybe"),
        lambda info: info["results"][0].update(id=None),
        lambda info: info["results"][0].pop("seconds"),
        lambda info: info["results"].append(7),
        lambda info: info["subject"].update(command=[1]),
        lambda info: info.update(seconds="x"),
    ],
)
def test_damaged_results(change: Any, tmp_path: Path) -> None:
    info = _with(change)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(info))
    with pytest.raises(FormatError) as caught:
        load_run(path)
    assert caught.value.code == "conformance.result"
    assert faults("run-result", info)


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"a":1,"a":1}', "[" * 100_000, "\udcff"])
def test_no_results(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError):
        load_run(path)


def test_an_id_that_stands_twice(tmp_path: Path) -> None:
    info = _with(lambda info: info["results"].append(info["results"][0]))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(info))
    with pytest.raises(FormatError, match="stands twice"):
        load_run(path)


def test_missing_results(tmp_path: Path) -> None:
    with pytest.raises(PathError):
        load_run(tmp_path / "none")
    with pytest.raises(PathError):
        load_run(tmp_path)
