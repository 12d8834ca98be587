"""Readers in Python, JavaScript and Ruby, made by the Kaitai compiler: every vector of their level, and a 20 GiB file.

Toolchains that are absent are skipped by name; conformance/readers/build.py says what each needs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from exhaustive import each_value
from reader_process import ask, peak, started

from conformance.readers.build import MissingToolError, readers
from gpack.conformance import cli, vectors
from gpack.conformance.reader_judge import asked

HERE = Path(__file__).parent
LANGUAGES = ("python", "javascript", "ruby")
MIB = 1 << 20
# A grammar that is read with fewer checks than today would ask for fewer vectors; the set only grows.
FEWEST = {"structure": 250, "digest": 260}
Command = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def command() -> Command:
    """The command of a reader, which is built where it is not; skips where something is not installed."""

    def build(language: str) -> list[str]:
        try:
            return readers()[language].make()
        except MissingToolError as error:
            pytest.skip(str(error))

    return build


@each_value
@pytest.mark.parametrize("level", ["structure", "digest"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_vector_of_its_level_is_right(command: Command, tmp_path: Path, language: str, level: str) -> None:
    chosen = asked(vectors.load(), level)
    assert len(chosen) >= FEWEST[level]
    info = tmp_path / "result.json"
    options = ["--strict-class", "--timeout", "60", "--start-timeout", "120", "--json", str(info)]
    status = cli.main(["reader", *options, "--", *command(language), "--level", level])
    result = json.loads(info.read_text())
    assert status == 0, result
    assert [item["outcome"] for item in result["results"]] == ["pass"] * len(chosen)
    assert result["subject"]["level"] == level


@pytest.mark.parametrize("language", LANGUAGES)
def test_20_gib_are_read_in_little_memory(command: Command, tmp_path: Path, language: str) -> None:
    known = {vector.id: vector for vector in vectors.load()}
    giant, cut = known["valid/giant"].write(tmp_path), known["invalid/giant-cut"].write(tmp_path)
    if giant.stat().st_blocks * 512 > 64 * MIB:
        pytest.skip("this file system has no sparse files")
    assert giant.stat().st_size > 20 << 30
    with started([*command(language), "--level", "structure"]) as (process, start):
        assert start["level"] == "structure"
        before = peak(process)
        answer = ask(process, giant)
        assert answer["verdict"] == "accept", answer.get("message")
        assert answer["dump"]["header"]["total_file_size"] == str(giant.stat().st_size)
        assert ask(process, cut)["class"] == "structure"
        assert peak(process) - before < 64 * MIB


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_fault_is_told_with_its_place(command: Command, tmp_path: Path, language: str) -> None:
    """The place of the field, whether it is in a record of the container or in a row, which is parsed on its own."""
    known = {vector.id: vector for vector in vectors.load()}
    with started(command(language)) as (process, _):
        for vector_id in (
            "invalid/footer.magic/footer.footer_magic",
            "invalid/assets.alignment/TokenizerAssets.rows.offset",
            "invalid/index.num_rows/TokenizerAssets.num_rows",
        ):
            vector = known[vector_id]
            answer = ask(process, vector.write(tmp_path))
            assert vector.range
            assert answer["offset"] == vector.range[0], answer
            assert vector.path
            assert vector.path.rpartition(".")[2] in answer["message"]


def test_the_stream_of_ranges(command: Command) -> None:
    """JavaScript's own stream: windows, the end of the file, numbers beyond 2^53."""
    build = command("javascript")[-1]
    done = subprocess.run(
        ["node", str(HERE / "range_stream_test.cjs"), build], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["windows", "end", "wide", "terminated", "substreams"]
