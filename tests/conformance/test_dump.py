"""`dump`: values worked out by hand from the bytes, equality with what `gpack.open` says, and files that it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import gpack
from gpack.conformance import dump, vectors
from gpack.errors import BoundsError, FormatError, GpackError, UnsupportedError

VECTORS = {vector.id: vector for vector in vectors.load()}


def test_fixed_records_by_hand(tmp_path: Path) -> None:
    """The mission's layout: offsets and formats are typed here, not taken from the generator."""
    path = VECTORS["valid/plain"].write(tmp_path)
    data = path.read_bytes()
    said = dump(path)
    assert list(said) == ["header", "footer", "sections"]
    magic, version, reader, flags, count, table, manifest, size, total = struct.unpack_from("<IHHIIQQQQ", data)
    assert said["header"] == {
        "magic": magic,
        "format_version": version,
        "min_reader_version": reader,
        "flags": flags,
        "section_count": count,
        "section_table_offset": str(table),
        "manifest_offset": str(manifest),
        "manifest_size": str(size),
        "total_file_size": str(total),
    }
    assert (magic, version, reader, flags, count, total) == (0x4B435047, 1, 1, 1, 3, len(data))
    assert said["footer"]["footer_magic"] == 0x454B5047
    assert said["footer"]["manifest_sha256"] == data[-64 + 24 : -64 + 56].hex()
    assert "reserved" not in said["header"] | said["footer"]
    first = said["sections"][0]
    kind, _, offset, length, alignment, _, items = struct.unpack_from("<IIQQIIQ", data, table)
    assert first["entry"] == {
        "kind": kind,
        "flags": 0,
        "offset": str(offset),
        "size": str(length),
        "alignment": alignment,
        "item_count": str(items),
        "sha256": data[table + 40 : table + 72].hex(),
        "name": "MetadataKvBin",
    }
    assert (kind, offset, length, alignment, items) == (0, 64, 64, 64, 0)
    assert first["header"]["magic"] == int.from_bytes(b"GPKV", "little")
    assert first["rows"] == []
    assert list(said["sections"][2]) == ["entry"]  # the manifest is JSON, no records


def test_rows_are_those_of_gpack(tmp_path: Path) -> None:
    path = VECTORS["valid/everything"].write(tmp_path)
    said = {section["entry"]["name"]: section for section in dump(path)["sections"]}
    with gpack.open(path) as pack:
        tensors = said["TensorIndexBin"]["rows"]
        assert [bytes.fromhex(row["name"]["hex"]).decode() for row in tensors] == sorted(pack)
        for row in tensors:
            info = pack.info(bytes.fromhex(row["name"]["hex"]).decode())
            assert (row["ggml_type"], row["offset"]) == (info.ggml_type, str(info.offset))
            assert row["dims"] == [str(extent) for extent in info.dims]
        keys = [bytes.fromhex(row["key"]["hex"]).decode() for row in said["MetadataKvBin"]["rows"]]
        assert sorted(keys) == sorted(pack.metadata)
        text = next(row for row in said["MetadataKvBin"]["rows"] if row["key"]["hex"] == b"general.name".hex())
        assert bytes.fromhex(text["value"]["hex"]).decode() == pack.metadata["general.name"]
    assert "name_offset" not in tensors[0]
    assert said["TokenizerBin"]["header"]["eos_token_id"] == 271
    assert list(said["TokenizerBin"]) == ["entry", "header"]
    assert list(said["EmbedBlob"]) == ["entry", "header"]
    row = next(row for row in tensors if row["name"]["hex"] == b"token_embd.weight".hex())
    single = {name: said["EmbedBlob"]["header"][name] for name in ("ggml_type", "ne0", "ne1", "data_offset")}
    assert single == dict(zip(single, (row["ggml_type"], *row["dims"][:2], "64"), strict=True))
    assert list(said["DensePackBlob"]) == ["entry"]
    assert said["DenseIndexBin"]["rows"][0]["code_bias"] == 0
    assert said["ExpertLayoutBin"]["shards"] == []


def test_shards_and_digests(tmp_path: Path) -> None:
    (layout,) = [x for x in dump(VECTORS["valid/external"].write(tmp_path))["sections"] if "shards" in x]
    assert [bytes.fromhex(row["name"]["hex"]) for row in layout["shards"]] == [
        b"model-00001-of-00002.gguf",
        b"model-00002-of-00002.gguf",
    ]
    assert layout["shards"][0]["file_size"] == "1048576"
    assert len(layout["shards"][0]["sha256"]) == 64


def test_every_valid_vector_has_a_dump_that_is_json(tmp_path: Path) -> None:
    for vector in VECTORS.values():
        if vector.expect == "accept":
            said = dump(vector.write(tmp_path))
            assert json.loads(json.dumps(said, allow_nan=False)) == said
            assert len(said["sections"]) == said["header"]["section_count"]


def test_rows_of_a_later_version_say_the_same(tmp_path: Path) -> None:
    """Longer rows have other places, and the same values where nothing depends on places."""
    usual = dump(VECTORS["valid/small"].write(tmp_path))["sections"][0]
    longer = dump(VECTORS["valid/longer-rows-MetadataKvBin"].write(tmp_path))["sections"][0]
    assert longer["rows"] == usual["rows"] != []
    assert longer["header"]["row_size"] == usual["header"]["row_size"] + 8


@pytest.mark.parametrize(
    ("vector_id", "error", "code"),
    [
        ("invalid/header.magic/header.magic", FormatError, "header.magic"),
        ("invalid/header.min_reader_version/header.min_reader_version", UnsupportedError, "header.min_reader_version"),
        ("invalid/header.complete/header/empty", BoundsError, "header.complete"),
        ("invalid/header.total_file_size/header.total_file_size/64-more", BoundsError, "header.total_file_size"),
        ("invalid/index.header/MetadataKvBin", BoundsError, "index.header"),
        ("invalid/index.row_size/MetadataKvBin.row_size/short", FormatError, "index.row_size"),
        ("invalid/index.num_rows/MetadataKvBin.num_rows", FormatError, "index.num_rows"),
        ("invalid/index.heap_ref/MetadataKvBin.rows.value_offset/bytes", BoundsError, "index.heap_ref"),
        ("invalid/index.heap_bounds/MetadataKvBin.len_heap", BoundsError, "index.heap_bounds"),
        ("invalid/tokenizer.header/TokenizerBin", BoundsError, "tokenizer.header"),
    ],
)
def test_refused(vector_id: str, error: type[GpackError], code: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        dump(VECTORS[vector_id].write(tmp_path))
    assert caught.value.code == code
