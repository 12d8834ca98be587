"""The generator of `spec/vectors`: what it refuses, and that a run gives what lies on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from exhaustive import exhaustive

from codegen import vectors as generator
from gpack.conformance import Vector, vectors
from gpack.generated.rules import RULES, Rule

ROOT = Path(__file__).parents[2]
ALL = vectors.load()


def test_a_rule_without_a_rejecting_vector_fails() -> None:
    lacking = [vector for vector in ALL if vector.rules[:1] != ("dense.kind",)]
    with pytest.raises(generator.VectorsError, match=r"without a rejecting vector: dense\.kind"):
        generator.check_coverage(lacking)


def test_a_rule_without_an_accepting_vector_fails() -> None:
    def without(vector: Vector) -> Vector:
        return replace(vector, rules=tuple(rule for rule in vector.rules if rule != "tokenizer.byte_tokens"))

    lacking = [without(vector) if vector.expect == "accept" else vector for vector in ALL]
    with pytest.raises(generator.VectorsError, match=r"without an accepting vector: tokenizer\.byte_tokens"):
        generator.check_coverage(lacking)


def test_a_new_rule_asks_for_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        RULES, "new.rule", Rule("new.rule", "semantic", "error", False, False, "FormatError", (), "New.")
    )
    both = r"without an accepting vector: new\.rule; rules without a rejecting vector: new\.rule\. "
    with pytest.raises(generator.VectorsError, match=both):
        generator.check_coverage(ALL)


def test_a_schema_that_is_refused_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one whose new rule of a record has no vector there."""
    schema = tmp_path / "gpack.yaml"
    schema.write_text(generator.SCHEMA.read_text().replace("breaks: [footer.magic]", "breaks: [header.magic]"))
    monkeypatch.setattr(generator, "SCHEMA", schema)
    generator.visible.cache_clear()
    try:
        assert generator.main(["--check"]) == 2
    finally:
        generator.visible.cache_clear()
    assert capsys.readouterr().err.startswith("vectors: ")


def test_an_id_that_stands_twice_fails() -> None:
    with pytest.raises(generator.VectorsError, match="valid/plain"):
        generator.check_coverage([*ALL, next(vector for vector in ALL if vector.id == "valid/plain")])


def test_levels_follow_what_kaitai_can_see() -> None:
    """By hand: the grammar compares a magic and an alignment, and knows neither digests nor the order of names."""
    assert "header.magic" in generator.visible()["GPackHeaderV1"]
    assert "section.alignment" in generator.visible()["GPackSectionEntryV1"]
    assert "header.total_file_size" not in generator.visible()["GPackHeaderV1"]
    levels = {vector.id: (vector.level, vector.cls, vector.required) for vector in ALL}
    assert levels["invalid/header.magic/header.magic"] == ("structure", "structure", True)
    assert levels["invalid/header.min_reader_version/header.min_reader_version"] == ("structure", "unsupported", True)
    assert levels["invalid/header.total_file_size/header.total_file_size/64-more"] == ("structure", "structure", True)
    assert levels["invalid/section.sha256/MetadataKvBin.sha256"] == ("digest", "digest", True)
    assert levels["invalid/manifest.sha256/ManifestJson.sha256"] == ("digest", "digest", True)
    assert levels["invalid/index.sorted/MetadataKvBin.rows.key_offset"] == ("semantic", "semantic", True)
    assert levels["invalid/section.overlap/sections.offset"] == ("semantic", "structure", True)
    assert levels["invalid/field.reserved/MetadataKvBin.reserved"] == ("semantic", "structure", False)
    assert levels["invalid/manifest.summary/ManifestJson.model.parameter_count/other"] == (
        "semantic",
        "semantic",
        False,
    )


def test_a_run_writes_what_differs_and_a_check_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a few of the files on disk for what is made."""
    texts = {
        Path(name): (vectors.default_folder() / name).read_text()
        for name in ("index.json", "recipes/valid/plain.json", "recipes/valid/small.json")
    }
    monkeypatch.setattr(generator, "make", lambda: generator.Made(ALL, texts))
    made = tmp_path / "spec" / "vectors"
    assert generator.main(["--out", str(tmp_path)]) == 0
    assert {name: (made / name).read_text() for name in texts} == texts
    assert generator.main(["--check", "--out", str(tmp_path)]) == 0
    (made / "recipes" / "stale.json").write_text("{}")
    (made / "recipes" / "valid" / "plain.json").write_text("{}")
    capsys.readouterr()
    assert generator.main(["--check", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "recipes/stale.json differs" in out
    assert "recipes/valid/plain.json differs" in out
    assert "small" not in out
    assert generator.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "wrote 1 and removed 1 files of spec/vectors\n"
    assert {path.relative_to(made) for path in made.rglob("*.json")} == set(texts)


@exhaustive
def test_the_files_on_disk_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs, into an empty folder and over it, then `--check` against it, changed and unchanged."""
    monkeypatch.chdir(ROOT)
    assert generator.main(["--out", str(tmp_path)]) == 0
    made = tmp_path / "spec" / "vectors"
    for path in (made / "index.json", *(made / "recipes").rglob("*.json")):
        if path.is_dir():
            continue  # of the rule `manifest.json`
        assert path.read_bytes() == (vectors.default_folder() / path.relative_to(made)).read_bytes(), path
    assert sum(path.is_file() for path in made.rglob("*.json")) == len(ALL) + 3  # the index and two shards
    (made / "recipes" / "stale.json").write_text("{}")
    (made / "recipes" / "valid" / "plain.json").write_text("{}")
    capsys.readouterr()
    assert generator.main(["--check", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "recipes/stale.json differs" in out
    assert "recipes/valid/plain.json differs" in out
