"""Readers in C, C++, C#, Go, Java and Rust: every vector of their level, a 20 GiB file, files cut anywhere.

Toolchains that are absent are skipped by name; conformance/readers/README.md says what each needs.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exhaustive import exhaustive
from reader_process import ask, peak, started

from conformance.readers import build
from conformance.readers.build import MissingToolError, Reader, readers
from gpack.conformance import cli, vectors
from gpack.conformance.reader_judge import asked

PERSISTENT = ("cpp", "csharp", "go", "java", "rust")
HASHING = ("csharp", "go", "java", "rust")
MIB = 1 << 20
# A grammar that is read with fewer checks than today would ask for fewer vectors; the set only grows.
FEWEST = {"structure": 264, "digest": 271}
Made = Callable[[str], Reader]


@pytest.fixture(scope="module")
def made() -> Made:
    """A reader, built where it is not; skips where something is not installed."""

    def make(language: str) -> Reader:
        reader = readers()[language]
        try:
            reader.make()
        except MissingToolError as error:
            pytest.skip(str(error))
        return reader

    return make


def judged(folder: Path, command: list[str], level: str, *options: str) -> None:
    """Runs the vectors of a level; every one must pass."""
    chosen = asked(vectors.load(), level)
    assert len(chosen) >= FEWEST[level]
    info = folder / "result.json"
    limits = ["--timeout", "60", "--start-timeout", "120"]
    status = cli.main(["reader", "--strict-class", *limits, *options, "--json", str(info), "--", *command])
    result = json.loads(info.read_text())
    assert status == 0, [item for item in result["results"] if item["outcome"] != "pass"]
    assert [item["outcome"] for item in result["results"]] == ["pass"] * len(chosen)


# What readers that hash say of this level is part of what they say of the next.
@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=exhaustive if name in HASHING else ()) for name in PERSISTENT]
)
def test_structure(made: Made, tmp_path: Path, language: str) -> None:
    judged(tmp_path, [*made(language).command(), "--level", "structure"], "structure")


@pytest.mark.parametrize("language", HASHING)
def test_digests(made: Made, tmp_path: Path, language: str) -> None:
    assert made(language).level == "digest"
    judged(tmp_path, made(language).command(), "digest")


def test_a_process_to_a_file(made: Made, tmp_path: Path) -> None:
    reader = made("c")
    assert reader.per_file
    judged(tmp_path, reader.command(), "structure", "--per-file")


@pytest.mark.parametrize("language", PERSISTENT)
def test_20_gib_are_read_in_little_memory(made: Made, tmp_path: Path, language: str) -> None:
    giant = sparse(tmp_path, "valid/giant")
    with started([*made(language).command(), "--level", "structure"]) as (process, start):
        assert start["level"] == "structure"
        before = peak(process)
        assert ask(process, giant)["dump"]["header"]["total_file_size"] == str(giant.stat().st_size)
        assert ask(process, sparse(tmp_path, "invalid/giant-cut"))["class"] == "structure"
        assert peak(process) - before < 64 * MIB


def test_20_gib_are_read_in_little_memory_by_c(made: Made, tmp_path: Path) -> None:
    """Within an address space that is far smaller than the file."""
    giant = sparse(tmp_path, "valid/giant")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (64 * MIB, 64 * MIB))  # noqa: E731
    command = [*made("c").command(), str(giant)]
    done = subprocess.run(command, check=True, capture_output=True, preexec_fn=limit)
    assert json.loads(done.stdout)["header"]["total_file_size"] == str(giant.stat().st_size)


def sparse(folder: Path, vector_id: str) -> Path:
    """A large vector's file, which takes no room on the disk."""
    path = next(vector for vector in vectors.load() if vector.id == vector_id).write(folder)
    if path.stat().st_blocks * 512 > 64 * MIB:
        pytest.skip("this file system has no sparse files")
    assert path.stat().st_size > 20 << 30 or vector_id.endswith("cut")
    return path


@pytest.mark.parametrize("language", PERSISTENT)
def test_a_file_that_is_cut_anywhere_is_rejected(made: Made, tmp_path: Path, language: str) -> None:
    """The end of the file is met in every kind of record; a reader that dies of it is no reader."""
    data = next(vector for vector in vectors.load() if vector.id == "valid/small").data()
    path = tmp_path / "cut.gpack"
    with started([*made(language).command(), "--level", "structure"]) as (process, _):
        for size in [*range(130), *range(130, len(data), 997), *range(len(data) - 70, len(data))]:
            path.write_bytes(data[:size])
            answer = ask(process, path)
            assert (answer["verdict"], answer["class"]) == ("reject", "structure"), size


@pytest.mark.parametrize("language", PERSISTENT)
def test_a_length_that_no_file_has_is_rejected(made: Made, tmp_path: Path, language: str) -> None:
    """Of a value in the heap: nothing is reserved for bytes that are not there."""
    data = bytearray(next(vector for vector in vectors.load() if vector.id == "valid/small").data())
    data[64 + 64 + 12 : 64 + 64 + 16] = b"\xff" * 4  # value_length of the first row of the first section
    (tmp_path / "long.gpack").write_bytes(data)
    with started([*made(language).command(), "--level", "structure"]) as (process, _):
        before = peak(process)
        answer = ask(process, tmp_path / "long.gpack")
        assert (answer["verdict"], answer["class"]) == ("reject", "structure")
        assert peak(process) - before < 64 * MIB


@pytest.mark.parametrize("language", PERSISTENT)
def test_a_file_that_is_not_there_is_a_fault(made: Made, tmp_path: Path, language: str) -> None:
    """Not a rejection: the reader ends with a status that says so."""
    run = json.dumps({"type": "run", "seq": 1, "id": "none", "path": str(tmp_path / "none.gpack")})
    done = subprocess.run(made(language).command(), check=False, input=run + "\n", capture_output=True, text=True)
    assert done.returncode not in (0, 77)
    assert len(done.stdout.splitlines()) == 1
    assert "none.gpack" in done.stderr or "No such file" in done.stderr


def test_c_sharp_is_compiled_from_the_grammar(tmp_path: Path) -> None:
    """Where Mono is absent, too, so that no more than this can be said of it."""
    try:
        build.compile_grammar("csharp", tmp_path / "csharp")
    except MissingToolError as error:
        pytest.skip(str(error))
    assert "public partial class Gpack : KaitaiStruct" in (tmp_path / "csharp" / "Gpack.cs").read_text()


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("go", "node") else sys.executable)
    assert build.main(["go"]) == 77
    assert "go: not installed: go, node" in capsys.readouterr().err


def test_a_failed_build_shows_what_it_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPACK_READERS", str(tmp_path / "built"))
    script = "print('line 7: no such thing'); raise SystemExit(3)"
    reader = Reader("x", "structure", "", [], tmp_path / "source", build=[[sys.executable, "-c", script]])
    reader.folder.mkdir()
    with pytest.raises(build.BuildError, match="failed with 3:\nline 7: no such thing"):
        reader.make()


def test_a_runtime_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPACK_READERS", str(tmp_path / "built"))
    script = "print('no route to the registry'); raise SystemExit(1)"
    reader = Reader("x", "structure", "the x runtime", [], tmp_path / "source", fetch=[[sys.executable, "-c", script]])
    reader.folder.mkdir()
    with pytest.raises(MissingToolError, match=r"x: no runtime \(the x runtime\): (.|\n)*no route to the registry"):
        reader.make()
