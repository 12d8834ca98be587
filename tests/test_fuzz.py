"""The fuzzer itself: its targets take sound files, its mutations keep headers sound, what must be found is found."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest

from fuzz import c_reader, fields, running
from fuzz.log import FuzzerLog
from fuzz.registry import targets
from fuzz.result import Result, table
from fuzz.target import Target
from gpack.errors import GpackError, InternalError
from gpack.generated.sections import SECTIONS
from gpack.generated.structs import TensorIndexRowV1

NAMES = [
    *("pack", "manifest", "gguf", "safetensors", "index", "config", "tokenizer.json", "pack-dir", "mtp-dir"),
    *("tokeniser", "vocabulary", "template", "signature"),
    *(f"section-{section.name}" for section in SECTIONS.values() if section.header is not None),
]
TRIED = 40


@cache
def made() -> dict[str, Target]:
    return targets()


def change(data: bytes, rng: Random) -> bytes:
    """What libFuzzer does to bytes, more or less."""
    changed = bytearray(data or b"\0")
    if rng.randrange(3):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    else:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def test_every_reader_is_a_target() -> None:
    pytest.importorskip("model_signing.signing")
    assert set(made()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_on_its_seeds_and_what_is_made_of_them(name: str) -> None:
    """Some seed is taken for good, more than half of what is made of them has a header that holds, nothing is found."""
    if name not in made():
        pytest.skip("model-signing is not installed")
    target, rng, taken, held = made()[name], Random(3), 0, 0
    seeds = target.seeds()
    inputs = seeds[:20]
    for _ in range(TRIED):
        inputs.append(target.mutate(rng.choice(seeds), rng, lambda data: change(data, rng))[: target.limit])
    for data in inputs:
        held += target.header(data)
        try:
            taken += target.run(data)
        except InternalError:
            raise
        except GpackError:
            continue
    assert held / len(inputs) > 0.4
    # A section alone lacks what the checks compare it with.
    assert taken or name.startswith("section-")


def test_the_fields_are_the_schema_s() -> None:
    found = [field for field in fields.fields() if field.record == "TensorIndexRowV1"]
    assert {field.name for field in found} == set(TensorIndexRowV1.FIELDS)
    assert all(field.offset == TensorIndexRowV1.OFFSETS[field.name] for field in found)
    assert "{FUZZ_HEADER, 0, 0, 0, 40, 8}, /* GPackHeaderV1.total_file_size */" in fields.as_c()


def test_what_libfuzzer_writes() -> None:
    log = FuzzerLog()
    for line in (
        "#2\tINITED cov: 12 ft: 13 corp: 2/9b exec/s: 0 rss: 40Mb",
        "#90\tNEW    cov: 15 ft: 20 corp: 3/12b lim: 4 exec/s: 0 rss: 40Mb L: 3/5 MS: 1 Custom-",
        "#100\tREDUCE cov: 15 ft: 21 corp: 3/11b lim: 4 exec/s: 0 rss: 40Mb L: 2/5 MS: 1 Custom-",
        " === Uncaught Python exception: ===",
    ):
        log.take(line + "\n")
    assert (log.edges, log.last_edge) == (15, 90)
    assert log.told() == " === Uncaught Python exception: ==="


def test_the_table() -> None:
    lines = table([Result("a", 1000, 600, 10, 7, 90), Result("b", finding="x"), Result("c", skipped="no wheel")])
    assert "a       1,000       60%          1%     7      90" in lines
    assert "FOUND" in lines.splitlines()[3]
    assert lines.splitlines()[4].endswith("no wheel")


def test_the_c_reader_is_fuzzed_by_a_driver_of_our_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if c_reader.compiler() is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(c_reader, "_CLANGS", ())
    found = c_reader.run(seconds=0, runs=3000, folder=tmp_path)
    if found.skipped is not None:
        pytest.skip(found.skipped)
    assert (found.finding, found.executions) == (None, 3000)
    assert found.passed > 1500


def test_without_atheris_a_target_is_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = running.run("gguf", seconds=1, runs=0, folder=tmp_path)
    assert found.target == "gguf"
    assert "atheris" in (found.skipped or "")
