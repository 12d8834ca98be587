"""The writer's runner: what is asked, what is judged, and writers that misbehave."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import gpack
from gpack.conformance.meaning import meaning_of_pack, meaning_of_recipe
from gpack.conformance.outcomes import Result
from gpack.conformance.process import MIB, Limits
from gpack.conformance.writer_recipes import OUTPUT_FILE, WriterRecipe
from gpack.conformance.writer_rules import broken_rules
from gpack.conformance.writer_run import WriterOptions, run_writer
from gpack.conformance.writer_set import writer_recipes
from gpack.generated.constants import GgmlType, SectionKind

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("bad_writer.py"))
RECIPES = {recipe.id: recipe for recipe in writer_recipes()}
SMALL = RECIPES["container/small"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def written(recipe: WriterRecipe, folder: Path) -> Path:
    """gpack's own file."""
    folder.mkdir(exist_ok=True)
    recipe.materialise(folder, profile="canonical")
    recipe.write(folder, folder / OUTPUT_FILE)
    return folder / OUTPUT_FILE


def attempt(mode: str, good: Path, *, timeout: float = 60.0, recipe: WriterRecipe = SMALL, **options: Any) -> Result:
    command = [sys.executable, PROGRAM, mode, str(good)]
    made = run_writer(command, [recipe], WriterOptions(limits=Limits(timeout=timeout), **options), broken_rules)
    assert made.ok == (made.results[0].outcome == "pass")
    assert made.results[0].fails == (made.results[0].outcome not in ("pass", "skip"))
    return made.results[0]


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes(recipe: WriterRecipe, tmp_path: Path) -> None:
    """gpack's own writer keeps the rules, and means what the recipe says; the recipe follows its schema."""
    path = written(recipe, tmp_path / "made")
    assert broken_rules(path) == []
    assert meaning_of_pack(path, recipe.level) == meaning_of_recipe(recipe)
    schema = json.loads((ROOT / "spec/conformance/writer-recipe.schema.json").read_text())
    info = json.loads((tmp_path / "made/RECIPE.json").read_text())
    assert [error.message for error in Draft202012Validator(schema).iter_errors(info)] == []
    files = {section["file"] for section in info.get("sections", [])}
    for name in ("tensors", "assets", "private_sections", "shards"):
        files |= {item["file"] for item in info.get(name, []) if "file" in item}
    assert files == set(recipe.files)


def test_recipes_ask_for_everything(tmp_path: Path) -> None:
    """Every kind of section, every tensor type, every rank, every type of metadata, both modes of experts."""
    kinds, types, ranks, modes, values = set(), set(), set(), set(), set()
    for recipe in RECIPES.values():
        if recipe.level == "model":
            path = written(recipe, tmp_path / recipe.id.replace("/", "-"))
            with gpack.open(path) as pack:
                kinds |= {entry.kind for entry in pack.container.entries}
                modes |= {pack.manifest.get("experts", {}).get("mode")}
            types |= {info["ggml_type"] for info in recipe.document["tensors"]}
            ranks |= {len(info["dims"]) for info in recipe.document["tensors"]}
            values |= {info["type"].strip("[]") for info in recipe.document["metadata"]}
    assert set(range(15)) <= kinds
    assert any(kind >= 0x8000_0000 for kind in kinds)
    assert types == set(GgmlType.NAMES.values())
    assert ranks == set(range(9))
    assert modes == {None, "embedded", "external"}
    assert values == {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "u64", "i64", "f64"}


def test_recipes_are_the_same_every_time() -> None:
    """Another process makes the same."""
    import subprocess
    from hashlib import sha256

    code = (
        "import json, hashlib; from gpack.conformance.writer_set import writer_recipes as w\n"
        "print(hashlib.sha256(json.dumps([[r.document, {n: d.hex() for n, d in r.files.items()}] for r in w()])"
        ".encode()).hexdigest())"
    )
    info = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    here = json.dumps([[r.document, {n: d.hex() for n, d in r.files.items()}] for r in writer_recipes()])
    assert sha256(here.encode()).hexdigest() == info


# ---------------------------------------------------------------- judging


def test_a_good_file_passes(tmp_path: Path, temporary: Path) -> None:
    result = attempt("good", written(SMALL, tmp_path / "made"))
    assert (result.outcome, result.message, result.notes) == ("pass", "", [])
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("nothing", "missing", "there is no output"),
        ("link", "missing", "no regular file"),
        ("pipe", "missing", "no regular file"),
        ("folder", "missing", "no regular file"),
        ("empty", "rules", "breaks rules"),
        ("short", "rules", "breaks rules"),
        ("flip", "rules", "breaks rules in"),
        ("change-input", "touched", ".bin was changed"),
        ("change-recipe", "touched", "RECIPE.json was changed"),
        ("beside", "touched", "new was added"),
        ("leave", "leftovers", "OUTPUT.tmp was added"),
        ("refuse", "refused", "not this one"),
        ("skip", "skip", "some day"),
        ("raise", "crash", "exit status 1 and no reason"),
        ("exit-9", "crash", "exit status 9"),
        ("signal", "crash", "SIGKILL"),
        ("input", "pass", ""),
    ],
)
def test_what_writers_do(mode: str, outcome: str, words: str, tmp_path: Path, temporary: Path) -> None:
    result = attempt(mode, written(SMALL, tmp_path / "made"))
    assert result.outcome == outcome
    assert words in result.message
    assert list(temporary.iterdir()) == []


def test_a_writer_that_hangs(tmp_path: Path, temporary: Path) -> None:
    assert attempt("hang", written(SMALL, tmp_path / "made"), timeout=1.0).outcome == "timeout"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("flood", "output", "over 2097152 bytes to its standard output"),
        ("fill", "disk", "over 8 MiB in its folders"),
        ("grow", "memory", "allowed are 256"),
    ],
)
def test_a_writer_that_uses_too_much(mode: str, outcome: str, words: str, tmp_path: Path, temporary: Path) -> None:
    """The files that it left on the way do not hide why it was ended."""
    limits = Limits(timeout=60.0, memory=256 * MIB, line=2 * MIB, disk=8 * MIB)
    command = [sys.executable, PROGRAM, mode, str(written(SMALL, tmp_path / "made"))]
    (result,) = run_writer(command, [SMALL], WriterOptions(limits=limits), broken_rules).results
    assert result.outcome == outcome
    assert words in result.message
    assert list(temporary.iterdir()) == []


def test_broken_rules_are_told_with_place_and_byte(tmp_path: Path, temporary: Path) -> None:
    result = attempt("short", written(SMALL, tmp_path / "made"))
    place = "header.total_file_size: $.header.total_file_size at bytes 40 to 47: "  # 8 bytes, spec/GPACK.md
    assert any(line.startswith(place) for line in result.differences)


def test_a_valid_file_that_means_something_else(tmp_path: Path, temporary: Path) -> None:
    """Another recipe's file keeps every rule; what differs is told by path."""
    other = written(RECIPES["container/plain"], tmp_path / "made")
    result = attempt("good", other, profile="free")
    assert result.outcome == "meaning"
    assert result.differences[0].startswith("$.manifest")
    assert any(line == "$.sections has 2 items, should have 14" for line in result.differences)


def test_the_same_meaning_in_other_bytes(tmp_path: Path, temporary: Path) -> None:
    """A manifest with a key that nobody knows: readers ignore it, and only the canonical profile minds."""
    recipe = RECIPES["model/manifest/producer"]
    path = written(recipe, tmp_path / "made")
    assert attempt("good", path, recipe=recipe).outcome == "pass"
    with gpack.open(path) as pack:
        model, producer = pack.manifest["model"], pack.manifest["producer"]
        sections = {entry.kind: (pack.container.read(entry.kind), entry.item_count) for entry in pack.container.entries}
    builder = gpack.GPackBuilder({"model": model, "x_unknown": 1}, producer)
    for kind, (data, items) in sections.items():
        if kind != SectionKind.MANIFEST_JSON:
            builder.add(kind, data, items)
    other = tmp_path / "other.gpack"
    builder.build(other)
    result = attempt("good", other, recipe=recipe)
    assert result.outcome == "bytes"
    # The first thing that differs is the header's manifest_size.
    assert result.message == "it differs from the canonical file from byte 32 on"
    assert attempt("good", other, recipe=recipe, profile="free").outcome == "pass"


def test_meaning_is_read_from_the_tensors(tmp_path: Path) -> None:
    """Digests in the meaning are those of the recipe's files, worked out here."""
    from hashlib import sha256

    recipe = RECIPES["model/external/fused"]
    info = meaning_of_pack(written(recipe, tmp_path / "made"), "model")
    item = recipe.document["tensors"][0]
    blocks = int(np.prod(item["dims"])) // 32 * 18  # Q4_0: 18 bytes for 32 elements
    data = recipe.files["experts.gguf"][item["offset"] : item["offset"] + blocks]
    assert info["tensors"]["blk.0.ffn_gate_up_exps.weight"] == {
        "type": "Q4_0",
        "dims": ["32", "8", "4"],
        "position": 0,
        "size": str(blocks),
        "sha256": sha256(data).hexdigest(),
    }
    assert info["experts"] == "external"
