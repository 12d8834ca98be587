"""What is published stays: ids with their verdicts, rules, places of fields; a new layout has a new version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from schemas import GPACK as SCHEMA

from codegen.published import PublishedError, layout_of, renewed
from gpack.conformance import vectors

ROOT = Path(__file__).parents[2]
VECTORS = vectors.load()
TEXT = (ROOT / "schema" / "published.json").read_text()


def changed(**parts: Any) -> str:
    """The published file with other parts."""
    return json.dumps(json.loads(TEXT) | parts)


def test_the_published_list_is_that_of_the_vectors() -> None:
    assert renewed(TEXT, SCHEMA, VECTORS) == TEXT
    assert set(json.loads(TEXT)["vectors"]) == {vector.id for vector in VECTORS}


def test_ids_are_rules_and_places() -> None:
    for vector in VECTORS:
        kind, *parts = vector.id.split("/")
        if kind == "invalid" and parts != ["giant-cut"]:
            assert parts[0] == vector.rules[0]
            assert len(parts) in (2, 3)


def test_adding_is_free() -> None:
    fewer = json.loads(TEXT)["vectors"]
    fewer.pop("invalid/header.magic/header.magic")
    assert renewed(changed(vectors=fewer, rules=[]), SCHEMA, VECTORS) == TEXT


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"vectors": {"invalid/gone": "structure"}}, "vector invalid/gone is gone"),
        ({"vectors": {"valid/plain": "semantic"}}, "valid/plain was semantic and is accept"),
        ({"rules": ["header.gone"]}, "rule header.gone is gone"),
    ],
)
def test_nothing_published_goes_or_changes(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(PublishedError, match=said):
        renewed(changed(**parts), SCHEMA, VECTORS)


def test_a_new_layout_announces_itself_once_released() -> None:
    header = SCHEMA.structs[0]
    grown = replace(header, fields=(*header.fields[:-1], replace(header.fields[-1], name="further")))
    schema = replace(SCHEMA, structs=(grown, *SCHEMA.structs[1:]))
    assert "GPackHeaderV1.further" in json.loads(renewed(TEXT, schema, VECTORS))["layout"]
    with pytest.raises(PublishedError, match=r"raise format.version above 1"):
        renewed(
            changed(released=True), replace(SCHEMA, structs=(*SCHEMA.structs, replace(header, name="New"))), VECTORS
        )
    with pytest.raises(PublishedError, match=r"GPackHeaderV1.reserved is gone"):
        renewed(changed(released=True), schema, VECTORS)
    added = replace(SCHEMA, version=2, structs=(*SCHEMA.structs, replace(header, name="New")))
    assert json.loads(renewed(changed(released=True), added, VECTORS))["version"] == 2


def test_the_layout_is_told_by_hand_worked_values() -> None:
    layout = layout_of(SCHEMA)
    assert layout["GPackHeaderV1"] == 64
    assert layout["GPackHeaderV1.manifest_size"] == [32, "u64"]
    assert layout["GgmlType.Q8_0"] == [8, 32, 34]
    assert layout["sections.ManifestJson"] == [14, 64]
