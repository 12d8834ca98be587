"""Checks that compute, as the grammar has them: what is cast, what is left out, where a check goes."""

from __future__ import annotations

import ast

import pytest
from schemas import GPACK as SCHEMA

from codegen import kaitai_rules, kaitai_wide
from codegen.kaitai_wide import UntranslatableError, Wide
from codegen.model import Struct


def wide(struct: str, text: str, carrier: str | None = None) -> str:
    item = SCHEMA.struct(struct)
    writer = kaitai_rules._Writer(SCHEMA, item)
    field = item.field(carrier) if carrier else None
    return Wide(SCHEMA, item, writer.number, field).condition(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("struct", "text", "carrier", "shown"),
    [
        (
            "MetadataKvHeaderV1",
            "ofs_heap == ofs_rows + num_rows * row_size",
            "ofs_heap",
            "_.as<u8> == (ofs_rows.as<u8> + (num_rows.as<u8> * row_size.as<u8>).as<u8>).as<u8>",
        ),
        ("MetadataKvHeaderV1", "ofs_heap <= section_size", "ofs_heap", "_.as<u8> <= len_section.as<u8>"),
        ("GPackSectionEntryV1", "offset <= file_size", "offset", "_.as<u8> <= _root.header.total_file_size.as<u8>"),
        ("GPackHeaderV1", "manifest_offset <= file_size", "total_file_size", "manifest_offset.as<u8> <= _.as<u8>"),
        (
            "GPackSectionEntryV1",
            "offset % alignment == 0",
            "alignment",
            "(offset.as<u8> % (_.as<u8> == 0.as<u8> ? 1.as<u8> : _.as<u8>).as<u8>).as<u8> == 0.as<u8>",
        ),
        ("TensorIndexRowV1", "ExpertRole.has(role)", "role", "((_.as<u8> <= 4.as<u8>))"),
        (
            "GPackDenseRowV1",
            "not flags & DenseFlags.SKIP_IN_NATIVE or offset == 0 and code_bias == 0",
            None,
            "(not (flags.skip_in_native) or (offset.as<u8> == 0.as<u8> and code_bias == 0))",
        ),
        (
            "GbtHeaderV1",
            "eos_token_id < vocab_size",
            "vocab_blob_bytes",
            "(eos_token_id < 0 or eos_token_id.as<u8> < vocab_size.as<u8>)",
        ),
        (
            "MtpRowV1",
            "stride == 0 if role == 0 else stride > 0",
            "stride",
            "((role.as<u8> == 0.as<u8> and _.as<u8> == 0.as<u8>) or "
            "(not (role.as<u8> == 0.as<u8>) and _.as<u8> > 0.as<u8>))",
        ),
        ("NativeDenseRowV1", "GgmlType.block[ggml_type] > 1", "ggml_type", "ggml_type_block.as<u8> > 1.as<u8>"),
    ],
)
def test_every_operand_is_cast(struct: str, text: str, carrier: str | None, shown: str) -> None:
    assert wide(struct, text, carrier) == shown


def test_a_product_that_does_not_fit_is_checked_by_division() -> None:
    """2^53 * 2^53 needs 106 bits: `a == b * c` holds where c divides a and the quotient is b."""
    shown = wide("NativeDenseRowV1", "byte_size == ne0 * ne1", "byte_size")
    divisor = "(ne1.as<u8> == 0.as<u8> ? 1.as<u8> : ne1.as<u8>).as<u8>"
    assert f"(_.as<u8> % {divisor}).as<u8> == 0.as<u8>" in shown
    assert f"(_.as<u8> / {divisor}).as<u8> == ne0.as<u8>" in shown


@pytest.mark.parametrize(
    ("struct", "text"),
    [
        ("NativeDenseRowV1", "byte_size < ne0 * ne1"),
        ("TensorIndexRowV1", "byte_size == product(dims)"),
        ("GPackSectionEntryV1", "is_c_string(name)"),
        ("GbtHeaderV1", "gbt_v1_size == section_size"),
    ],
)
def test_what_some_target_would_compute_otherwise_is_left_out(struct: str, text: str) -> None:
    with pytest.raises(UntranslatableError):
        wide(struct, text)


def test_a_check_goes_to_the_next_plain_number() -> None:
    """Flags have a type of their own, arrays are checked item by item, and a newer version is checked alone."""
    row, header = SCHEMA.struct("TensorIndexRowV1"), SCHEMA.struct("GPackHeaderV1")
    assert carrier(row, "dims") == "home"
    assert carrier(row, "flags") == "offset"
    assert carrier(SCHEMA.struct("MetadataKvRowV1"), "flags") is None
    assert carrier(header, "format_version") == "format_version"
    newer = header.field("min_reader_version")
    assert kaitai_rules.newer_fields(SCHEMA, header) == {"min_reader_version"}
    found = kaitai_wide.carrier_of(header, [newer], {"min_reader_version"})
    assert found is header.field("section_count")


def carrier(item: Struct, name: str) -> str | None:
    found = kaitai_wide.carrier_of(item, [item.field(name)])
    return None if found is None else found.name


def test_limits_above_127_are_not_plain_integers() -> None:
    """Rust would compare them in 32 bits: 2^32 - 1 would be -1, and below every limit."""
    valid = kaitai_rules.checks_of(SCHEMA, SCHEMA.struct("MetadataKvRowV1")).by_field["key_length"]
    assert valid == {"min": 1, "max": "65535.0"}


def test_columns_are_given_for_the_value_of_a_field() -> None:
    item = SCHEMA.struct("NativeDenseRowV1")
    checks = kaitai_rules.checks_of(SCHEMA, item).by_field
    columns = {column: value for _, column, value in kaitai_wide.columns_used(item, SCHEMA, checks)}
    assert set(columns) == {"block", "bytes"}
    assert "ggml_type.as<u8> == 41.as<u8> ? 128.as<u8>" in columns["block"].replace("(", "").replace(")", "")
