"""Dump functions of other languages: every field once, in every language; conditions in C by hand."""

from __future__ import annotations

import pytest
from schemas import GPACK as SCHEMA

from codegen import c_rules, emit_dump

ROWS = "TensorIndexRowV1"


@pytest.mark.parametrize("target", emit_dump.TEMPLATES)
def test_every_field_that_is_not_reserved_is_shown(target: str) -> None:
    text = emit_dump.emit(SCHEMA, target)
    assert SCHEMA.digest in text
    for item in emit_dump.structs(SCHEMA):
        for f in item.struct.fields:
            name = f.ref or f.name
            assert (f'"{name}"' in text) or f.reserved, (item.name, f.name)
    assert '"name_length"' not in text
    assert '"reserved2"' not in text


def test_structs_are_those_of_the_container_and_of_sections_with_a_header() -> None:
    names = [item.struct.name for item in emit_dump.structs(SCHEMA)]
    assert len(names) == len(set(names))
    assert {"GPackHeaderV1", "GPackSectionEntryV1", "GPackFooterV1", ROWS, "ExpertShardRowV1", "GbtHeaderV1"} <= set(
        names
    )
    assert "GPackSingleTensorHeaderV1" in names


def test_forms_follow_the_types() -> None:
    row = next(item for item in emit_dump.structs(SCHEMA) if item.struct.name == ROWS)
    forms = {shown.name: (shown.form, shown.count) for shown in row.shown}
    assert forms["name"] == ("heap_text", None)
    assert forms["dims"] == ("unsigned", 8)
    assert forms["ggml_type"] == ("number", None)
    assert forms["flags"] == ("flags", None)
    assert forms["byte_size"] == ("unsigned", None)
    assert "reserved" not in forms


def test_checks_that_only_a_newer_reader_passes() -> None:
    newer = emit_dump.newer(SCHEMA)
    assert newer["/types/gpack_header_v1/seq/2"] == "header.min_reader_version"
    assert newer["/types/metadata_kv_header_v1/seq/1"] == "index.version"
    assert set(newer.values()) == {"header.min_reader_version", "index.version"}


def test_conditions_in_c() -> None:
    rules = {rule.id: text for rule, text in c_rules.checks(SCHEMA, SCHEMA.struct("GPackSectionEntryV1"))}
    assert rules["section.bounds"] == (
        "((int64_t)v->offset <= file_size) && ((int64_t)v->size <= (file_size - (int64_t)v->offset))".join("()")
    )
    assert rules["section.name_encoding"] == "is_c_string(v->name, 24)"
    rows = {rule.id: text for rule, text in c_rules.checks(SCHEMA, SCHEMA.struct(ROWS))}
    assert rows["tensor.type"] == "known_ggml_type((int64_t)v->ggml_type)"
    assert rows["tensor.dims"] == "ones_after(v->dims, 8, (int64_t)v->n_dims)"
    assert "gpack_ggml_type_block((uint32_t)((int64_t)v->ggml_type))" in rows["tensor.byte_size"]
    headers = {rule.id: text for rule, text in c_rules.checks(SCHEMA, SCHEMA.struct("GbtHeaderV1"))}
    assert headers["tokenizer.layout"] == "(gbt_v1_size(v) == section_size)"
