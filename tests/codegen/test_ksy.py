"""The Kaitai grammar: eight targets compile, and the Python one reads a file that is built by hand."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kaitaistruct
import pytest
import yaml
from kaitai_compiler import compile_grammar, gpack_parser
from schemas import GGUF
from schemas import GPACK as SCHEMA

from codegen import emit_ksy, kaitai_rules, model
from codegen.loader import encode
from codegen.model import Schema, Struct, Vector

TARGETS = ("python", "javascript", "java", "go", "cpp_stl", "rust", "csharp", "ruby")
Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compile_ksy(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a grammar to targets; skips where node or the compiler is absent."""
    return lambda schema, *targets: compile_grammar(schema, tmp_path_factory.mktemp("kaitai"), *targets)


@pytest.fixture(scope="module")
def gpack() -> ModuleType:
    """The Python parser that Kaitai makes of the grammar."""
    return gpack_parser()


# ---------------------------------------------------------------- a file, built by hand


def make(name: str, /, **values: Any) -> bytes:
    """A struct's bytes; what is not given is zero."""
    item = SCHEMA.struct(name)
    zeros = {f.name: bytes(f.type.size) if f.type.is_blob else (0,) * (f.type.count or 0) for f in item.fields}
    return encode(item, {name: values.get(name, zero or 0) for name, zero in zeros.items()})


def header(name: str, rows: int, row_size: int, heap: bytes, /, **values: Any) -> bytes:
    """The header of a table whose heap follows the rows."""
    places = {"ofs_rows": 64, "ofs_heap": 64 + rows * row_size, "len_heap": len(heap)} | values
    magic = SCHEMA.struct(name).magic
    return make(name, magic=magic, version=1, row_size=row_size, num_rows=rows, **places)


def metadata(row_size: int = 40) -> bytes:
    """general.architecture = llama."""
    heap = b"general.architecture" + bytes(4) + b"llama"
    types = {"value_type": 8, "element_type": 8, "count": 1}
    row = make("MetadataKvRowV1", key_length=20, value_offset=24, value_length=5, **types)
    table = header("MetadataKvHeaderV1", 1, row_size, heap, source_version=3, source_alignment=32)
    return table + row.ljust(row_size, b"\xee") + heap


def experts() -> bytes:
    """No layer, one shard whose row is 8 bytes longer than version 1's."""
    heap = b"shard.gguf"
    shard = make("ExpertShardRowV1", name_length=len(heap), file_size=4096, header_size=32)
    shards = {"ofs_shards": 64, "num_shards": 1, "shard_row_size": 104, "ofs_heap": 168}
    return header("ExpertLayoutHeaderV1", 0, 184, heap, **shards) + shard.ljust(104, b"\xee") + heap


def tokenizer() -> bytes:
    """Tokens a, b, ab and an empty one; the merge a + b; a template of two letters."""
    magic = SCHEMA.struct("GbtHeaderV1").magic
    start = {"magic": magic, "vocab_size": 4, "n_merges": 1, "eos_token_id": -1}
    made = make("GbtHeaderV1", **start, vocab_blob_bytes=4, chat_template_bytes=2)
    for words, width in (((0, 1, 2, 4, 4), 4), ((1, 1, 1, 3), 1), (b"abab", 1), ((0, 1, 2), 4), (b"{}", 1)):
        made = made.ljust(-(-len(made) // 8) * 8, b"\0") + b"".join(word.to_bytes(width, "little") for word in words)
    return made


SINGLE = make("GPackSingleTensorHeaderV1", ggml_type=0, ne0=4, ne1=1, byte_size=16, data_offset=64) + bytes(16)
SECTIONS = {0: metadata(), 1: header("TensorIndexHeaderV1", 0, 120, b""), 6: SINGLE, 9: experts(), 11: tokenizer()}
PRIVATE = 0x80000001


def build(sections: Mapping[int, bytes]) -> bytes:
    """A whole file; digests are zero, for Kaitai knows no SHA-256."""
    data, entries = bytearray(64), []
    for kind, payload in sections.items():
        data += bytes(-len(data) % 64)
        name = f"Section{kind}".encode()
        entries.append(
            make("GPackSectionEntryV1", kind=kind, offset=len(data), size=len(payload), alignment=64, name=name)
        )
        data += payload
    manifest = len(data) - len(payload)
    table = len(data) + -len(data) % 64
    data = data.ljust(table, b"\0") + b"".join(entries)
    data += bytes(-len(data) % 64)
    head, foot = SCHEMA.struct("GPackHeaderV1").magic, SCHEMA.struct("GPackFooterV1").magic
    places = {"section_table_offset": table, "manifest_offset": manifest}
    data += make("GPackFooterV1", footer_magic=foot, total_payload_bytes=sum(map(len, sections.values())), **places)
    size = {"manifest_size": len(payload), "total_file_size": len(data), "section_count": len(entries)}
    data[:64] = make("GPackHeaderV1", magic=head, format_version=1, min_reader_version=1, flags=1, **size, **places)
    return bytes(data)


# ---------------------------------------------------------------- tests


@pytest.mark.parametrize("schema", [SCHEMA, GGUF], ids=lambda schema: schema.id)
def test_every_target_compiles(compile_ksy: Compile, schema: Schema) -> None:
    out = compile_ksy(schema, *TARGETS)
    for target in TARGETS:
        assert any(path.stat().st_size > 1000 for path in (out / target).rglob("*") if path.is_file()), target


def test_grammar_keeps_the_conventions_of_the_format_gallery() -> None:
    text = emit_ksy.emit(SCHEMA)
    assert text.startswith("# Generated by `make codegen`")
    assert SCHEMA.digest in text
    assert "ks-version: '0.9'" in text
    read = yaml.safe_load(text)
    assert list(read["meta"]) == ["id", "title", "file-extension", "license", "ks-version", "endian"]
    assert "_io.size" not in text
    assert read["types"]["gpack_header_v1"]["-orig-id"] == "GPackHeaderV1"


def test_payloads_have_no_size() -> None:
    body = grammar()["types"]["gpack_section_entry_v1"]["instances"]["body"]
    assert "size" not in body
    assert not any("blob" in case and "pack" in case for case in body["type"]["cases"])


def test_u64_stays_below_two_to_the_53() -> None:
    fields = [f for item in grammar()["types"].values() for f in item.get("seq", ()) if f.get("type") == "u8"]
    assert len(fields) > 50
    for f in fields:
        limits = f["valid"] if isinstance(f["valid"], dict) else {"max": f["valid"]}
        assert "max" in limits or re.search(r"_ <= \d+\.0\b|_ == 64", limits["expr"]), f


def test_file_is_read(gpack: ModuleType) -> None:
    manifest = b'{"schema":"guild.gpack.v1"}'
    file = gpack.Gpack.from_bytes(build({**SECTIONS, PRIVATE: b"private", 14: manifest}))
    assert file.header.magic == 0x4B435047
    assert file.header.flags.little_endian
    assert not file.header.flags.has_mtp
    assert file.footer.section_table_offset == file.header.section_table_offset
    assert [entry.kind for entry in file.sections] == [0, 1, 6, 9, 11, PRIVATE, 14]
    assert file.sections[0].name == "Section0"
    assert file.sections[0].kind_enum is gpack.Gpack.SectionKind.metadata_kv_bin

    (row,) = file.sections[0].body.rows
    assert (row.key, row.value, row.count) == ("general.architecture", b"llama", 1)
    assert row.value_type_enum is gpack.Gpack.MetadataType.string
    assert file.sections[1].body.rows == []
    assert file.sections[2].body.byte_size == 16
    assert file.sections[6].body.text == manifest.decode()


def test_private_section_has_no_body(gpack: ModuleType) -> None:
    file = gpack.Gpack.from_bytes(build({**SECTIONS, PRIVATE: b"private", 14: b"{}"}))
    assert file.sections[5].kind_enum == PRIVATE
    assert getattr(file.sections[5], "body", None) is None


def test_arrays_behind_a_header_are_read(gpack: ModuleType) -> None:
    body = gpack.Gpack.from_bytes(build({**SECTIONS, 14: b"{}"})).sections[4].body
    assert body.header.eos_token_id == -1
    assert body.offsets == [0, 1, 2, 4, 4]
    assert list(body.token_types) == [1, 1, 1, 3]
    assert body.vocab_blob == b"abab"
    assert [triple.values for triple in body.triples] == [[0, 1, 2]]
    assert body.chat_template == b"{}"
    assert body.ofs_chat_template == 64 + 24 + 8 + 8 + 16


def test_second_table_is_read(gpack: ModuleType) -> None:
    body = gpack.Gpack.from_bytes(build({**SECTIONS, 14: b"{}"})).sections[3].body
    assert body.rows == []
    assert [(shard.name, shard.file_size) for shard in body.shards] == [("shard.gguf", 4096)]


def test_longer_rows_are_stepped_over(gpack: ModuleType) -> None:
    file = gpack.Gpack.from_bytes(build({**SECTIONS, 0: metadata(row_size=48), 14: b"{}"}))
    body = file.sections[0].body
    assert body.header.row_size == 48
    assert [(row.key, row.value) for row in body.rows] == [("general.architecture", b"llama")]


def test_wrong_magic_is_refused(gpack: ModuleType) -> None:
    data = b"GPCX" + build({**SECTIONS, 14: b"{}"})[4:]
    with pytest.raises(kaitaistruct.ValidationNotEqualError):
        _ = gpack.Gpack.from_bytes(data).header


def test_big_endian_claim_is_refused(gpack: ModuleType) -> None:
    data = bytearray(build({**SECTIONS, 14: b"{}"}))
    data[8] = 0
    with pytest.raises(kaitaistruct.ValidationNotEqualError):
        _ = gpack.Gpack.from_bytes(bytes(data)).header


VECTORS = [(item, vector) for item in SCHEMA.structs for vector in item.vectors]


@pytest.mark.parametrize(("item", "vector"), VECTORS, ids=[f"{item.name}-{vector.name}" for item, vector in VECTORS])
def test_vectors(gpack: ModuleType, item: Struct, vector: Vector) -> None:
    """Valid ones mean what the schema says; of the others those fail whose rule the grammar claims to check."""
    unchecked = {"field.reserved", "field.flags", *kaitai_rules.checks_of(SCHEMA, item).unchecked}
    if set(vector.breaks) - unchecked:
        with pytest.raises((kaitaistruct.ValidationFailedError, EOFError)):
            parse(gpack, item, vector)
        return
    if vector.breaks:
        return
    made = parse(gpack, item, vector)
    assert {name: shown(getattr(made, name)) for name in vector.values} == vector.values


@cache
def grammar() -> Any:
    return yaml.safe_load(emit_ksy.emit(SCHEMA))


def parse(gpack: ModuleType, item: Struct, vector: Vector) -> Any:
    """The struct alone; of what it is told about its surroundings, only the section's length matters to checks."""
    name = model.snake(item.name)
    cls = getattr(gpack.Gpack, "".join(word.capitalize() for word in name.split("_")))
    params = grammar()["types"][name].get("params", ())
    arguments = [vector.given["section_size"] if param["id"] == "len_section" else 0 for param in params]
    size = vector.values["total_file_size"] if "total_file_size" in vector.values else vector.given.get("file_size")
    root = SimpleNamespace(header=SimpleNamespace(total_file_size=size))
    with contextlib.closing(kaitaistruct.KaitaiStream(io.BytesIO(vector.data))) as stream:
        return cls(*arguments, stream, None, root)


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return getattr(value, "as_int", value)
