"""The vectors on disk, their recipes, and what our own checker says of every one of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpack.conformance import Vector, check, misjudged, vectors
from gpack.conformance.recipe import Recipe
from gpack.conformance.vectors import VectorFolder, checked_id
from gpack.errors import FormatError, GpackError, PathError
from gpack.generated.constants import GgmlType
from gpack.generated.rules import RULES

ALL = vectors.load()
BY_ID = {vector.id: vector for vector in ALL}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All vectors as files."""
    place = tmp_path_factory.mktemp("vectors")
    vectors.write_all(ALL, place)
    return place


@pytest.mark.parametrize("vector", ALL, ids=lambda vector: vector.id)
def test_our_checker_judges_it_rightly(vector: Vector, folder: Path) -> None:
    report = check(folder / f"{vector.id}.gpack", level="structure" if vector.large else "semantic")
    assert misjudged(vector, report) is None
    if vector.path is None or vector.expect == "accept":
        return
    places = [(found.path, found.range) for found in report.result(vector.rules[0]).findings]
    assert (vector.path, vector.range) in places


def test_every_rule_is_shown_held_and_broken() -> None:
    broken = {vector.rules[0] for vector in ALL if vector.path is not None or vector.expect == "reject"}
    held = {rule for vector in ALL if vector.path is None and vector.expect == "accept" for rule in vector.rules}
    assert broken == held == set(RULES)


def test_levels_and_classes() -> None:
    counts = Counter((vector.expect, vector.level) for vector in ALL)
    assert set(counts) == {
        ("accept", "structure"),
        ("reject", "structure"),
        ("reject", "digest"),
        ("reject", "semantic"),
    }
    for vector in ALL:
        assert (vector.cls is None) == (vector.expect == "accept")
        if vector.level == "digest":
            assert (vector.cls, RULES[vector.rules[0]].error) == ("digest", "DigestError")
    # Digest faults are their own set: every other vector is sealed, so that nothing but its own rule is broken.
    digests = {"section.sha256", "manifest.sha256"}
    for vector in ALL:
        if vector.expect == "reject" and vector.rules[0] not in digests:
            assert not digests & set(vector.rules), vector.id


def test_there_is_one_of_each_ggml_type() -> None:
    for name in GgmlType.NAMES.values():
        assert BY_ID[f"valid/type-{name}"].expect == "accept"


def test_a_structural_vector_differs_at_its_field_alone() -> None:
    """Header faults are not bound by the manifest, so that one field is all that changes."""
    base = BY_ID["valid/everything"].data()
    for vector_id, at in (
        ("invalid/header.magic/header.magic", (0, 4)),
        ("invalid/footer.magic/footer.footer_magic", (len(base) - 8, 4)),
    ):
        vector, data = BY_ID[vector_id], BY_ID[vector_id].data()
        assert vector.range == at
        assert len(data) == len(base)
        changed = {index for index, (a, b) in enumerate(zip(base, data, strict=True)) if a != b}
        assert changed
        assert changed <= set(range(at[0], sum(at)))


def test_the_files_have_the_digests_that_their_recipes_say(folder: Path) -> None:
    for vector in ALL:
        if not vector.large:
            data = (folder / f"{vector.id}.gpack").read_bytes()
            assert sha256(data).hexdigest() == vector.recipe.sha256
            assert len(data) == vector.recipe.size


def test_shards_lie_beside_their_pack(folder: Path) -> None:
    vector = BY_ID["valid/external"]
    assert len(vector.shards) == 2
    for name in vector.shards:
        assert (folder / "valid" / name).stat().st_size == 1 << 20


def test_the_giant_is_sparse(folder: Path) -> None:
    status = (folder / "valid/giant.gpack").stat()
    assert status.st_size > 20 << 30
    assert status.st_blocks * 512 < 1 << 20
    assert BY_ID["valid/giant"].recipe.sha256 is None
    with pytest.raises(FormatError, match="only written"):
        BY_ID["valid/giant"].data()


def test_the_written_index_is_the_one_on_disk(folder: Path) -> None:
    assert (folder / "index.json").read_text() == (vectors.default_folder() / "index.json").read_text()
    index = json.loads((folder / "index.json").read_bytes())
    assert [entry["id"] for entry in index["vectors"]] == sorted(BY_ID)


def test_the_set_stays_small_in_git() -> None:
    files = [path for path in vectors.default_folder().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_500_000


# ---------------------------------------------------------------- recipes


def nothing(_: str) -> bytes:
    raise AssertionError("no base is asked for")


def test_recipe_of_zeros_and_runs() -> None:
    recipe = Recipe(8, sha256(b"\0ab\0\0\0c\0").hexdigest(), None, ((1, b"ab"), (6, b"c")))
    assert recipe.data(nothing) == b"\0ab\0\0\0c\0"
    assert Recipe.parse(recipe.to_dict()) == recipe
    assert recipe.to_dict()["runs"] == [[1, "6162"], [6, "63"]]


@pytest.mark.parametrize(("size", "expected"), [(3, b"xbc"), (7, b"xbcde\0\0")])
def test_recipe_cuts_or_extends_its_base(size: int, expected: bytes) -> None:
    recipe = Recipe(size, sha256(expected).hexdigest(), "valid/base", ((0, b"x"),))
    assert recipe.data(lambda name: b"abcde" if name == "valid/base" else b"") == expected


@pytest.mark.parametrize(
    "data", [b"", b"a", b"\0" * 1000, bytes(range(256)) * 5, b"\0" * 90 + b"x" + b"\0" * 90 + b"y"]
)
@pytest.mark.parametrize("below", [b"", b"\0" * 500, bytes(range(256)) * 3])
def test_a_recipe_gives_what_it_was_made_of(data: bytes, below: bytes) -> None:
    recipe = Recipe.of(data, base="valid/base", below=below)
    assert recipe.data(lambda _: below) == data


def test_runs_hold_only_what_differs() -> None:
    below = bytes(1000)
    data = bytes(100) + b"abc" + bytes(897)
    assert Recipe.of(data, base="b", below=below).runs == ((100, b"abc"),)


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"size": 1, "runs": [[0, "zz"]]},
        {"size": 1, "runs": [[0, "0102"]]},
        {"size": 4, "runs": [[-1, "01"]]},
        {"size": "x", "runs": []},
        {"size": 1, "runs": [[0]]},
        {"size": 1, "runs": 5},
    ],
)
def test_damaged_recipes(said: Any) -> None:
    with pytest.raises(FormatError) as caught:
        Recipe.parse(said)
    assert caught.value.code == "conformance.recipe"


def test_wrong_digest_is_found() -> None:
    with pytest.raises(FormatError, match="another digest"):
        Recipe(1, "0" * 64, None, ()).data(nothing)


def test_a_large_recipe_is_written_sparse(tmp_path: Path) -> None:
    recipe = Recipe(1 << 33, None, None, ((0, b"a"), ((1 << 33) - 1, b"z")))
    recipe.write(tmp_path / "large", nothing)
    with (tmp_path / "large").open("rb") as file:
        assert file.read(2) == b"a\0"
        file.seek(-2, os.SEEK_END)
        assert file.read() == b"\0z"


# ---------------------------------------------------------------- damaged folders


def entry(**changed: Any) -> dict[str, Any]:
    return {**BY_ID["valid/plain"].to_dict(), **changed}


def made(folder: Path, *entries: dict[str, Any], **index: Any) -> Path:
    recipes = folder / "recipes/valid"
    recipes.mkdir(parents=True, exist_ok=True)
    (recipes / "plain.json").write_text(json.dumps(BY_ID["valid/plain"].recipe.to_dict()))
    said = {"format": "gpack-vectors", "version": 1, "vectors": list(entries), **index}
    (folder / "index.json").write_text(json.dumps(said))
    return folder


def test_another_folder_is_read(tmp_path: Path) -> None:
    (found,) = vectors.load(made(tmp_path, entry()))
    assert found.data() == BY_ID["valid/plain"].data()


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "../x"},
        {"id": "/x"},
        {"id": "valid/../../x"},
        {"id": ""},
        {"level": "all"},
        {"expect": "maybe"},
        {"class": "other"},
        {"recipe": "../../etc/passwd"},
        {"recipe": "/etc/passwd"},
        {"shards": ["../x"]},
        {"shards": ["a/b"]},
        {"range": [1]},
        {"range": "x"},
    ],
)
def test_damaged_entries(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(GpackError) as caught:
        vectors.load(made(tmp_path, entry(**changed)))
    assert caught.value.code == "conformance.vectors"


def test_missing_keys_files_and_json(tmp_path: Path) -> None:
    with pytest.raises(PathError):
        vectors.load(tmp_path / "nowhere")
    broken = entry()
    del broken["rules"]
    with pytest.raises(FormatError, match="rules"):
        vectors.load(made(tmp_path, broken))
    with pytest.raises(FormatError):
        vectors.load(made(tmp_path, entry(), version=2))
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(FormatError):
        vectors.load(tmp_path)
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(FormatError):
        vectors.load(tmp_path)


def test_a_base_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        VectorFolder(made(tmp_path, entry())).data("valid/other")
    assert caught.value.code == "conformance.recipe"


@pytest.mark.parametrize("good", ["valid/plain", "invalid/header.flags_match/header.flags/bit-1", "valid/type-Q4_0"])
def test_ids(good: str) -> None:
    assert checked_id(good) == good


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "valid").write_text("a file where a folder should be")
    with pytest.raises(PathError):
        BY_ID["valid/plain"].write(tmp_path)
