"""`gpack-conformance`: arguments, exit codes, reports, errors; the examples."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import running

from gpack.conformance import cli_run, vectors
from gpack.conformance.cli import main
from gpack.conformance.outcomes import OUTCOMES
from gpack.conformance.writer_set import writer_recipes
from gpack.terminal import interrupts
from gpack.terminal.interrupts import held_interrupts

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "conformance" / "examples"
READER = [sys.executable, str(EXAMPLES / "reader.py")]
WRITER = [sys.executable, str(EXAMPLES / "writer.py")]
SLOW = ["--timeout", "60", "--start-timeout", "60"]
ONE = ["--only", "valid/plain", "--only", "invalid/header.magic/header.magic"]

Output = pytest.CaptureFixture[str]


# ---------------------------------------------------------------- the examples


def test_the_example_reader_passes_its_level(tmp_path: Path, capsys: Output) -> None:
    result = tmp_path / "r.json"
    assert main(["reader", *SLOW, "--json", str(result), "--", *READER]) == 0
    info = json.loads(result.read_text())
    assert info["subject"] == {
        "kind": "reader",
        "name": "example-reader",
        "language": "python",
        "version": "1",
        "level": "digest",
        "command": READER,
    }
    assert set(info["counts"]) == {"pass"}
    assert info["counts"]["pass"] > 100
    assert {item["level"] for item in info["results"]} == {"structure", "digest"}
    assert info["notes"] == []
    assert "OK" in capsys.readouterr().out


def test_the_example_writer_passes_its_level(tmp_path: Path) -> None:
    result = tmp_path / "w.json"
    assert main(["writer", "--timeout", "60", "--level", "container", "--json", str(result), "--", *WRITER]) == 0
    info = json.loads(result.read_text())
    assert info["counts"] == {"pass": sum(recipe.level == "container" for recipe in writer_recipes())}
    assert info["subject"]["name"] == "writer"


def test_the_example_writer_says_what_it_cannot_do(capsys: Output) -> None:
    assert main(["writer", "--timeout", "60", "--only", "*/plain", "--", *WRITER]) == 0
    info = capsys.readouterr().out
    assert "1 pass, 1 skip" in info
    assert "shows nothing" not in info


def test_a_run_that_skipped_everything_fails(capsys: Output) -> None:
    """In continuous integration it would be a check that cannot fail."""
    assert main(["writer", "--timeout", "60", "--only", "model/plain", "--", *WRITER]) == 1
    info = capsys.readouterr().out
    assert "FAIL the run: everything was skipped, so it shows nothing\n" in info
    assert "FAILED: 1 skip" in info


def test_a_run_of_nothing_fails(capsys: Output) -> None:
    """The pattern matches, but nothing of that is of the level."""
    assert (
        main(
            [
                "reader",
                *SLOW,
                "--level",
                "structure",
                "--only",
                "invalid/section.sha256/MetadataKvBin.sha256",
                "--",
                *READER,
            ]
        )
        == 1
    )
    assert "FAIL the run: nothing was asked, so it shows nothing\n" in capsys.readouterr().out


def test_the_broken_writer_gets_the_report_that_the_guide_shows(capsys: Output) -> None:
    command = [sys.executable, str(EXAMPLES / "broken_writer.py")]
    assert main(["writer", "--timeout", "60", "--level", "container", "--", *command]) == 1
    report = re.sub(r"; [0-9.]+ (s|ms|min [0-9]+ s)$", "; ...", capsys.readouterr().out, flags=re.MULTILINE)
    guide = (ROOT / "spec" / "conformance.md").read_text()
    shown = re.search(r"<!-- report -->\n+```text\n(.*?)```", guide, re.DOTALL)
    assert shown is not None
    assert shown[1] == report


@pytest.mark.parametrize("name", ["reader.py", "writer.py"])
def test_the_examples_need_nothing_and_are_short(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    imports = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imports <= set(sys.stdlib_module_names)
    assert len(text.splitlines()) <= 130


def test_the_guide_knows_every_outcome_and_its_links_lead_somewhere() -> None:
    path = ROOT / "spec" / "conformance.md"
    text = path.read_text()
    assert [line for line in (f"| `{name}` | {doc} |" for name, doc in OUTCOMES.items()) if line not in text] == []
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) > 8
    assert [link for link in links if not (path.parent / link).exists()] == []


# ---------------------------------------------------------------- results and lists


def test_reports_are_written(tmp_path: Path, capsys: Output) -> None:
    files = {name: tmp_path / f"r.{name}" for name in ("json", "junit", "html")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["reader", *SLOW, *ONE, *options, "--name", "Mine", "-v", "--", *READER]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == ["ok   invalid/header.magic/header.magic: pass", "ok   valid/plain: pass"]
    assert json.loads(files["json"].read_text())["subject"]["name"] == "Mine"
    assert ET.parse(files["junit"]).getroot().attrib["tests"] == "2"
    assert "Mine" in files["html"].read_text()
    page = tmp_path / "all.html"
    assert main(["report", str(files["json"]), str(files["json"]), "--html", str(page), "--title", "All"]) == 0
    assert page.read_text().count("<th>Mine</th>") == 2
    assert capsys.readouterr().out == f"2 programs, 0 of them failing: {page}\n"


def test_results_as_json_on_standard_output(capsys: Output) -> None:
    assert main(["reader", *SLOW, *ONE, "--json", "--", *READER]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["ok"] is True
    assert info["counts"] == {"pass": 2}


def test_known_failures(tmp_path: Path, capsys: Output) -> None:
    """A list that holds turns the exit code; one entry too many turns it back."""
    broken = [sys.executable, str(EXAMPLES / "broken_writer.py")]
    run = ["writer", "--timeout", "60", "--only", "container/private/*", "--known-failures", str(tmp_path / "known")]
    (tmp_path / "known").write_text("container/private/empty meaning\ncontainer/private/page-aligned rules\n")
    assert main([*run, "--", *broken]) == 0
    assert "1 pass, 1 rules, 1 meaning (2 known failures)" in capsys.readouterr().out
    (tmp_path / "known").write_text("container/private/empty rules\ncontainer/private/one rules\nother crash\n")
    assert main([*run, "--", *broken]) == 1
    out = capsys.readouterr().out
    assert "FAIL container/private/empty: meaning:" in out
    assert "the list says that it fails otherwise" in out
    assert "FAIL container/private/one: passes, but the list of known failures names it" in out
    assert "FAIL other: the list of known failures names what does not exist" in out


def test_a_list_of_known_failures_can_be_had_whole(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_run, "_LISTED", 1)
    broken = [sys.executable, str(EXAMPLES / "broken_writer.py")]
    run = ["writer", "--timeout", "60", "--only", "container/private/*"]
    assert main([*run, "--", *broken]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["  container/private/empty meaning", "  and 1 more: -v lists them all"]
    assert main([*run, "-v", "--", *broken]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["  container/private/empty meaning", "  container/private/page-aligned rules"]


def test_lists(capsys: Output) -> None:
    assert main(["list", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in info["vectors"]] == [vector.id for vector in vectors.load()]
    assert [item["id"] for item in info["recipes"]] == [recipe.id for recipe in writer_recipes()]
    assert main(["list", "--kind", "reader", "--only", "valid/*", "--level", "structure"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines
    assert all(re.match(r"valid/\S+ +structure +accept", line) for line in lines)
    assert main(["list", "--level", "container"]) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]} == {"container"}
    assert main(["reader", "--list", "--level", "digest", "--", "none"]) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]} == {"structure", "digest"}
    assert main(["writer", "--list", "--only", "*/plain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_vectors_and_recipes_as_files(tmp_path: Path, capsys: Output) -> None:
    assert main(["vectors", "--out", str(tmp_path / "v"), "--only", "valid/plain"]) == 0
    assert main(["check", str(tmp_path / "v" / "valid" / "plain.gpack")]) == 0
    assert "header.magic" not in capsys.readouterr().out
    assert main(["check", "-v", str(tmp_path / "v" / "valid" / "plain.gpack")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "passed header.magic" in lines
    assert "not applicable section.pair: no section needs another" in lines
    assert json.loads((tmp_path / "v" / "index.json").read_text())["vectors"][0]["id"] == "valid/plain"
    assert main(["recipes", "--out", str(tmp_path / "r"), "--level", "container", "--profile", "free"]) == 0
    recipe = json.loads((tmp_path / "r" / "container" / "plain" / "RECIPE.json").read_text())
    assert (recipe["id"], recipe["profile"]) == ("container/plain", "free")
    assert (tmp_path / "r" / "container" / "plain" / recipe["sections"][0]["file"]).is_file()
    assert "12 recipes in" in capsys.readouterr().out


def test_check(tmp_path: Path, capsys: Output) -> None:
    main(["vectors", "--out", str(tmp_path), "--only", "invalid/header.magic/header.magic", "--only", "valid/plain"])
    bad = str(tmp_path / "invalid" / "header.magic" / "header.magic.gpack")
    good = str(tmp_path / "valid" / "plain.gpack")
    capsys.readouterr()
    assert main(["check", bad]) == 1
    assert "header.magic" in capsys.readouterr().out
    assert main(["check", bad, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert main(["check", good, "--format", "junit", "-o", str(tmp_path / "c.xml"), "--level", "structure"]) == 0
    assert ET.parse(tmp_path / "c.xml").getroot().find(".//testsuite[@failures='0']") is not None
    assert capsys.readouterr().out == f"{good}: OK: {tmp_path / 'c.xml'}\n"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "required: COMMAND"),
        (["dance"], 2, "invalid choice: 'dance'"),
        (["reader"], 2, "no command to test"),
        (["reader", "--"], 2, "no command to test"),
        (["reader", "--only", "no/such", "--", "x"], 2, "no id matches 'no/such'"),
        (["reader", "--memory", "much", "--", "x"], 2, "'much' is no size"),
        (["reader", "--memory", "1K", "--", "x"], 2, "under 1M"),
        (["reader", "--timeout", "0", "--", "x"], 2, "not a number of seconds"),
        (["reader", "--timeout", "nan", "--", "x"], 2, "not a number of seconds"),
        (["reader", "--jobs", "0", "--", "x"], 2, "not a number from 1"),
        (["reader", "--level", "container", "--", "x"], 2, "invalid choice"),
        (["writer", "--level", "digest", "--", "x"], 2, "invalid choice"),
        (["reader", "--", "/none/such"], 3, "no such program"),
        (["reader", "--", str(EXAMPLES)], 3, "no such program"),
        (["reader", "--json", "/none/such/r.json", "--", *READER], 3, "the folder does not exist"),
        (["reader", "--known-failures", "/none/such", "--", *READER], 3, "does not exist"),
        (["reader", "--only", "valid/plain", "--", sys.executable, "-c", "pass"], 3, "does not introduce itself"),
        (["check", "/none/such"], 3, "no such file"),
        (["check", "x", "--", "y"], 2, "takes no other command"),
        (["report", "/none/such", "--html", "x"], 3, "does not exist"),
        (["report", __file__, "--html", "x"], 1, "no result of a run"),
        (["vectors", "--out", __file__], 3, "cannot be made"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else None,
)
def test_errors(arguments: list[str], status: int, words: str, capsys: Output) -> None:
    assert main(arguments) == status
    info = capsys.readouterr()
    assert info.out == ""
    assert info.err.startswith("gpack-conformance: error: ")
    assert words in info.err
    assert "Traceback" not in info.err


def test_errors_as_json(capsys: Output) -> None:
    assert main(["reader", "--json", "--", "/none/such"]) == 3
    info = json.loads(capsys.readouterr().out)
    assert info["ok"] is False
    assert info["error"]["code"] == "conformance.command"
    assert main(["list", "--json", "--only", "no/such"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"
    assert main(["check", "/none/such", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "io.not_found"


def test_paths_in_the_command_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """The program starts in another folder than the user is in."""
    monkeypatch.chdir(EXAMPLES.parent)
    assert main(["reader", *SLOW, *ONE, "--", sys.executable, "examples/reader.py"]) == 0
    monkeypatch.chdir(EXAMPLES)
    assert main(["reader", *SLOW, *ONE, "--", sys.executable, "reader.py"]) == 0
    assert capsys.readouterr().err == ""


def test_help_and_version(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpack-conformance (gpack) ")
    for command in ("", "check", "vectors", "recipes", "list", "report", "reader", "writer"):
        assert main([*command.split(), "--help"]) == 0
        assert "usage: gpack-conformance" in capsys.readouterr().out


def test_sizes_have_units() -> None:
    from gpack.conformance.cli import size

    assert [size(text) for text in ("2G", "1.5GiB", "512M", "1048576", "3MB")] == [
        2 << 30,
        3 << 29,
        512 << 20,
        1 << 20,
        3 << 20,
    ]


@pytest.mark.parametrize(("kind", "jobs"), [("reader", "1"), ("reader", "3"), ("writer", "2")])
def test_interrupted(kind: str, jobs: str, tmp_path: Path) -> None:
    """Ctrl-C ends the programs and removes the folders, whatever they are doing."""
    script = tmp_path / "program.py"
    script.write_text(
        f"import os, sys\nopen({str(tmp_path)!r} + f'/pid{{os.getpid()}}', 'w').close()\n"
        "import json, time\n"
        'print(json.dumps({"type": "start", "protocol": 1, "name": "n", "language": "l", "version": "1", '
        '"level": "semantic"}), flush=True)\n'
        "for line in sys.stdin:\n    time.sleep(0 if 'stop' in line else 600)\n    break\n"
        "else:\n    time.sleep(600)\n"  # a writer gets no input
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = running(
        [
            sys.executable,
            "-m",
            "gpack.conformance.cli",
            kind,
            "--timeout",
            "600",
            "--jobs",
            jobs,
            "--",
            sys.executable,
            str(script),
        ],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wanted = int(jobs) + (kind == "reader")  # one only introduces itself
    with program as process:
        for _ in range(3000):
            if len(list(tmp_path.glob("pid*"))) == wanted:
                break
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # as people do
        _, info = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in info
    assert [str(path) for path in temporary.rglob("*")] == [], info
    pids = [int(path.name.removeprefix("pid")) for path in tmp_path.glob("pid*")]
    assert len(pids) == wanted
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text()


def interrupted_twice(stop: threading.Event) -> Iterator[bool]:
    """Inside of the block: whether each Ctrl-C was told, if it did not end the block."""
    with held_interrupts(stop):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            yield stop.is_set()


def test_held_interrupts() -> None:
    """Nothing is raised inside, so that nothing is left half done; after it, it is."""
    before = signal.getsignal(signal.SIGINT)
    inside = interrupted_twice(threading.Event())
    assert [next(inside), next(inside)] == [True, True]
    with pytest.raises(KeyboardInterrupt):
        next(inside)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_user_who_insists_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_PATIENCE", -1.0)
    with pytest.raises(KeyboardInterrupt):
        next(interrupted_twice(threading.Event()))


def test_exit_statuses_are_known_where_our_parent_ignores_its_children() -> None:
    command = [sys.executable, "-m", "gpack.conformance.cli", "reader", *SLOW, "--only", "valid/plain", "--"]
    program = """import json, sys
print(json.dumps({"type": "start", "protocol": 1, "name": "n", "language": "l", "version": "1", "level": "structure"}))
sys.stdout.flush()
sys.exit(0 if "stop" in sys.stdin.readline() else 5)"""
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *command, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAIL valid/plain: crash: it ended with exit status 5 before its answer came" in done.stdout
    assert done.returncode == 1
