"""What a conversion writes where: every value here was worked out by hand, or by the `gguf` package."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from convert import packs
from convert.packs import Parts, convert, refused
from gguf import GGUFReader
from gguf_maker import EVERY_KIND, F32, Q4_0, Tensor, pack_value, tiny_llama, tiny_moe, vector, write_gguf, write_split

import gpack
from gpack.convert.gguf import convert_gguf
from gpack.errors import FormatError, PathError, UnsupportedError, UsageError

# --- every section of a dense model ---


def test_a_dense_model(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=2)
    parts = convert(tmp_path, metadata, tensors)
    # No experts, no PLE table, no draft layer, no raw tokenizer files.
    assert sorted(parts.entries) == [0, 1, 2, 3, 4, 5, 6, 7, 11, 14]
    assert (parts.version, parts.min_reader) == (1, 1)
    assert parts.flags == 0b10111  # little-endian, dense pack, native dense, tokenizer
    alignments = {kind: entry.alignment for kind, entry in parts.entries.items()}
    assert alignments == {0: 64, 1: 64, 2: 64, 3: 4096, 4: 64, 5: 4096, 6: 4096, 7: 4096, 11: 64, 14: 64}
    assert all(entry.offset % entry.alignment == 0 for entry in parts.entries.values())
    rows = parts.tensors()
    assert list(rows) == sorted(name for name, *_ in tensors)
    reader = GGUFReader(tmp_path / "m.gguf")
    for position, theirs in enumerate(reader.tensors):
        row = rows[theirs.name]
        assert (row.ggml_type, row.position, row.flags, row.role) == (int(theirs.tensor_type), position, 0, 0)
        assert row.dims == tuple(int(extent) for extent in theirs.shape)
        assert parts.bytes_of(row) == theirs.data.tobytes()
    placements = {name: row.home for name, row in rows.items()}
    assert placements["token_embd.weight"] == packs.EMBED
    assert placements["output.weight"] == packs.HEAD
    assert placements["output_norm.weight"] == packs.DENSE
    assert placements["blk.0.attn_q.weight"] == packs.NATIVE  # Q4_0, 2-D
    assert placements["blk.0.attn_v.weight"] == packs.DENSE  # F16: no block of more than one element
    # 2 layers of q, k, output, gate, up, down; 2 of v and two norms, and the last norm.
    assert parts.entries[packs.NATIVE].item_count == parts.entries[packs.NATIVE_INDEX].item_count == 12
    assert parts.entries[packs.DENSE].item_count == 7
    assert parts.entries[packs.DENSE_INDEX].item_count == 19
    assert parts.entries[packs.TENSORS].item_count == len(tensors) == 21
    assert parts.entries[packs.METADATA].item_count == len(metadata)
    assert parts.entries[packs.TOKENIZER].item_count == 272


def test_places_in_the_arena_and_in_the_dense_pack(tmp_path: Path) -> None:
    """By name: 18-byte rows at multiples of 256 in the arena, others at multiples of 64."""
    q4 = {name: packs.blocks(seed, 1, 18) for seed, name in enumerate(("c", "a", "b"))}
    tensors: list[Tensor] = [(name, Q4_0, (32, 1), data) for name, data in q4.items()]
    tensors += [vector("z", 3), vector("y", 20), ("x", 30, (5,), b"0123456789"), ("w", 1, (2, 2), b"abcdefgh")]
    parts = convert(tmp_path, {}, tensors)
    arena = parts.section(packs.NATIVE)
    assert len(arena) == 3 * 256
    for place, name in ((0, "a"), (256, "b"), (512, "c")):
        assert arena[place : place + 18] == q4[name]
        assert not any(arena[place + 18 : place + 256])
    native = parts.table(packs.NATIVE_INDEX, "<IIIIQQQQ")
    assert [(name, f[2:]) for name, f in native] == [
        (b"a", (2, 0, 32, 1, 0, 18)),
        (b"b", (2, 0, 32, 1, 256, 18)),
        (b"c", (2, 0, 32, 1, 512, 18)),
    ]
    assert struct.unpack_from("<Q", parts.section(packs.NATIVE_INDEX), 40) == (768,)
    dense = parts.section(packs.DENSE)
    places = {row.name: row.offset for row in parts.tensors().values() if row.home == packs.DENSE}
    assert places == {"w": 0, "x": 64, "y": 128, "z": 256}  # y has 80 bytes
    assert len(dense) == 256 + 12
    assert dense[:8] == b"abcdefgh"
    assert dense[64:74] == b"0123456789"


def test_the_dense_index(tmp_path: Path) -> None:
    tensors: list[Tensor] = [
        ("q", Q4_0, (32, 20), packs.blocks(1, 20, 18)),
        ("half", 1, (100,), bytes(200)),
        ("brain", 30, (3, 2), bytes(12)),
        vector("norm", 2),
    ]
    rows = convert(tmp_path, {}, tensors).table(packs.DENSE_INDEX, "<IIIIII8QQQQQQIHhIIIIQQQ")
    parts = Parts(tmp_path / "m.gpack")
    info = [(name, f[2:6], f[14:20]) for name, f in rows]
    # (type, pool type, kind, rank), (offset, bytes, pool offset, pool bytes, compacted offset, flags)
    assert info == [
        (b"brain", (30, 0, 1, 2), (0, 12, 0, 24, 0, 0)),
        (b"half", (1, 0, 3, 1), (64, 200, 256, 400, 256, 0)),
        (b"norm", (0, 0, 0, 1), (320, 8, 768, 8, 768, 0)),
        (b"q", (2, 2, 0, 2), (0, 0, 1024, 360, 0, 1)),  # SKIP_IN_NATIVE
    ]
    # All: 1024 + 360 rounded up to 256; without q: 768 + 8 rounded up.
    assert struct.unpack_from("<QQ", parts.section(packs.DENSE_INDEX), 40) == (1536, 1024)


@pytest.mark.parametrize(
    ("name", "kind"), [("token_embd.weight", 6), ("output.weight", 7), ("per_layer_token_embd.weight", 8)]
)
def test_single_tensors(tmp_path: Path, name: str, kind: int) -> None:
    data = packs.blocks(3, 6, 34)
    parts = convert(tmp_path, {}, [(name, 8, (64, 3), data)])
    section = parts.section(kind)
    assert section[:64] == struct.pack("<IIQQQQ24x", 8, 0, 64, 3, 204, 64)
    assert section[64:] == data
    row = parts.tensors()[name]
    assert (row.home, row.home_row, row.offset, row.size) == (kind, 0, 64, 204)
    assert parts.entries[kind].item_count == 1
    assert bool(parts.flags & 1 << 6) == (kind == 8)


def test_a_single_tensor_of_another_rank_is_an_ordinary_one(tmp_path: Path) -> None:
    parts = convert(tmp_path, {}, [vector("token_embd.weight", 4), ("output.weight", F32, (2, 1, 1), bytes(8))])
    assert sorted(parts.entries) == [0, 1, 2, 3, 14]


# --- metadata ---


def test_every_kind_of_value_is_stored_as_it_is(tmp_path: Path) -> None:
    parts = convert(tmp_path, EVERY_KIND)
    rows = parts.keys()
    assert list(rows) == sorted((key for key, *_ in EVERY_KIND), key=str.encode)
    for position, (key, kind, value) in enumerate(EVERY_KIND):
        row = rows[key]
        packed = pack_value(kind, value)
        # Without an array's own type and count, and without a string's length.
        assert row.value == packed[12 if kind.startswith("[") else 8 if kind == "str" else 0 :]
        assert row.elements == (len(value) if kind.startswith("[") else 1)
        assert (row.position, row.flags) == (position, 0)
    assert struct.unpack_from("<II", parts.section(packs.METADATA), 40) == (3, 32)


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 16), (3, 64), (2, 8), (3, 4096)])
def test_version_and_alignment_are_kept(tmp_path: Path, version: int, alignment: int) -> None:
    metadata, tensors = tiny_llama(layers=1, alignment=alignment)
    parts = convert(tmp_path, metadata, tensors, version=version, alignment=alignment)
    assert struct.unpack_from("<II", parts.section(packs.METADATA), 40) == (version, alignment)
    rows = parts.tensors()
    assert all(parts.bytes_of(rows[name]) == data for name, _, _, data in tensors)


def test_hardware_keys_are_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {"gexec.sm": 90})
    refused(source, tmp_path / "m.gpack", FormatError, "metadata.forbidden", "gexec.sm")
    convert(tmp_path, {"gexecutive": 1, "a.gexec.b": 2})


def test_an_architecture_that_is_no_text(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {"general.architecture": b"\xff"})
    refused(source, tmp_path / "m.gpack", FormatError, "convert.metadata", "general.architecture")


@pytest.mark.parametrize("entry", [("general.name", "u32", 5), ("general.name", "str", b"\xff")])
def test_a_name_that_is_no_text_is_left_to_the_metadata(tmp_path: Path, entry: Any) -> None:
    source = write_gguf(tmp_path / "m.gguf", [entry])
    done = convert_gguf(source, tmp_path / "m.gpack")
    assert done.plan.notes == ["general.name: it is no UTF-8 string, so that the model is called by its architecture"]
    assert done.plan.manifest["model"]["name"] == "unknown"


# --- tensors of odd shapes and types ---


def test_ranks_and_empty_tensors(tmp_path: Path) -> None:
    tensors: list[Tensor] = [
        ("rank0", F32, (), b"\0\0\x80\x3f"),
        vector("rank1", 3),
        ("rank2", F32, (3, 1), bytes(12)),
        ("rank3", 24, (1, 2, 3), b"abcdef"),
        ("rank4", 27, (1, 1, 1, 2), bytes(range(16))),
        ("none", F32, (0,), b""),
        ("none4", F32, (4, 0, 2, 3), b""),
        ("noq4", Q4_0, (32, 0), b""),
        ("token_embd.weight", F32, (0, 7), b""),
    ]
    parts = convert(tmp_path, {}, tensors)
    rows = parts.tensors()
    for name, ggml_type, dims, data in tensors:
        assert (rows[name].dims, rows[name].ggml_type, rows[name].size) == (dims, ggml_type, len(data))
        assert parts.bytes_of(rows[name]) == data
    assert rows["noq4"].home == packs.NATIVE
    assert parts.section(packs.NATIVE) == b""
    assert len(parts.section(packs.EMBED)) == 64
    # 1 + 3 + 3 + 6 + 2 elements, 4 + 12 + 12 + 6 + 16 bytes.
    assert struct.unpack_from("<QQ", parts.section(packs.TENSORS), 40) == (15, 50)


@pytest.mark.parametrize("ggml_type", [4, 36, 43, 65536, 0xFFFFFFFF])
def test_unknown_types_are_refused_by_name_and_number(tmp_path: Path, ggml_type: int) -> None:
    source = write_gguf(tmp_path / "m.gguf", {}, [vector("known"), ("newcomer", ggml_type, (32,), bytes(32))])
    words = ("newcomer", str(ggml_type))
    refused(source, tmp_path / "m.gpack", UnsupportedError, "gguf.tensor_type", *words)
    refused(source, tmp_path / "m.gpack", UnsupportedError, "gguf.tensor_type", *words, dry_run=True)


def test_nothing_at_all(tmp_path: Path) -> None:
    parts = convert(tmp_path, {})
    assert sorted(parts.entries) == [0, 1, 14]
    model = parts.manifest["model"]
    assert model == {
        "name": "unknown",
        "architecture": "unknown",
        "parameter_count": 0,
        "tensor_count": 0,
        "tied_embeddings": False,
        "bytes_by_type": {},
    }


# --- the manifest ---


def test_the_manifest(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=2)
    parts = convert(tmp_path, metadata, tensors)
    made = parts.manifest
    by_type = {"F32": 0, "F16": 0, "Q4_0": 0}
    for _, ggml_type, _, data in tensors:
        by_type[("F32", "F16", "Q4_0")[ggml_type]] += len(data)
    elements = sum(len(data) * 32 // {0: 128, 1: 64, 2: 18}[kind] for _, kind, _, data in tensors)
    assert made["model"] == {
        "name": "tiny llama",
        "architecture": "llama",
        "parameter_count": elements,
        "tensor_count": 21,
        "layer_count": 2,
        "context_length": 256,
        "tied_embeddings": False,
        "bytes_by_type": by_type,
    }
    assert made["tokenizer"] == {
        "model": "gpt2",
        "pre": "qwen2",
        "vocab_size": 272,
        "merge_count": 13,
        "eos_token_id": 271,
        "has_chat_template": True,
    }
    assert (made["schema"], made["producer"], made["flags"]) == ("guild.gpack.v1", "gpack", 0b10111)
    assert [section["kind"] for section in made["sections"]] == [0, 1, 2, 3, 4, 5, 6, 7, 11]
    for section in made["sections"]:
        data = parts.section(section["kind"])
        assert section["sha256"] == sha256(data).hexdigest()
        assert section["size"] == len(data)
    assert "m.gguf" not in parts.data.decode("latin-1")


@pytest.mark.parametrize(
    ("metadata", "name", "expected"),
    [
        ({"general.name": "Given", "general.architecture": "llama"}, None, "Given"),
        ({"general.architecture": "llama"}, None, "llama"),
        ({"general.name": "", "general.architecture": "llama"}, None, "llama"),
        ({}, None, "unknown"),
        ({"general.name": "Given"}, "Chosen é", "Chosen é"),
    ],
)
def test_the_name_is_never_the_files(tmp_path: Path, metadata: dict[str, str], name: str | None, expected: str) -> None:
    assert convert(tmp_path, metadata, name=name).manifest["model"]["name"] == expected


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {})
    refused(source, tmp_path / "m.gpack", UsageError, "usage", "udcff", name="x\udcff")


@pytest.mark.parametrize(
    ("said", "tensors", "tied"),
    [
        (None, ["token_embd.weight"], True),
        (None, ["token_embd.weight", "output.weight"], False),
        (None, ["other"], False),
        (True, ["token_embd.weight", "output.weight"], True),  # some tied models carry both
        (False, ["token_embd.weight"], False),
    ],
)
def test_tied_embeddings(tmp_path: Path, said: bool | None, tensors: list[str], *, tied: bool) -> None:
    metadata: list[Any] = [("general.architecture", "str", "x")]
    if said is not None:
        metadata.append(("x.tie_word_embeddings", "bool", said))
    parts = convert(tmp_path, metadata, [(name, F32, (2, 2), bytes(16)) for name in tensors])
    assert parts.manifest["model"]["tied_embeddings"] is tied
    assert (packs.HEAD in parts.entries) == ("output.weight" in tensors)


# --- the same input gives the same bytes ---


def test_place_and_file_name_do_not_matter(tmp_path: Path) -> None:
    metadata, tensors = tiny_moe()
    one, two = tmp_path / "one", tmp_path / "two elsewhere"
    for folder, name in ((one, "a.gguf"), (two, "b.bin")):
        folder.mkdir()
        convert_gguf(write_gguf(folder / name, metadata, tensors), folder / f"{name}.out")
    assert (one / "a.gguf.out").read_bytes() == (two / "b.bin.out").read_bytes()


@pytest.mark.parametrize("metadata_first", [False, True])
def test_any_shard_gives_the_pack_of_the_whole_file(tmp_path: Path, *, metadata_first: bool) -> None:
    metadata, tensors = tiny_moe()
    whole = convert(tmp_path, metadata, tensors).data
    for shard in write_split(tmp_path, "part", metadata, tensors, metadata_first=metadata_first):
        convert_gguf(shard, tmp_path / "split.gpack")
        assert (tmp_path / "split.gpack").read_bytes() == whole


# --- the file system ---


def test_a_source_that_changes_is_refused(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    (tmp_path / "m.gpack").write_bytes(b"old")

    def touch(_done: int, _total: int) -> None:
        os.utime(source, ns=(1, 1))

    refused(source, tmp_path / "m.gpack", FormatError, "convert.source_changed", "m.gguf", progress=touch)
    assert (tmp_path / "m.gpack").read_bytes() == b"old"


def test_a_source_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {}, [("big", F32, (1 << 20,), bytes(1 << 22))])
    cut = lambda _done, _total: os.truncate(source, 1 << 20)  # noqa: E731
    refused(source, tmp_path / "m.gpack", PathError, "io.short_read", progress=cut)


@pytest.mark.parametrize("how", ["same", "symlink", "hardlink", "shard"])
def test_the_output_is_no_input(tmp_path: Path, how: str) -> None:
    metadata, tensors = tiny_moe()
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    output = tmp_path / "out"
    if how == "same":
        output = source
    elif how == "symlink":
        output.symlink_to(source)
    elif how == "hardlink":
        output.hardlink_to(source)
    else:
        source, output, _ = write_split(tmp_path, "part", metadata, tensors)
    before = output.read_bytes()
    refused(source, output, UsageError, "convert.same_file")
    assert output.read_bytes() == before


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", {})
    refused(source, tmp_path, PathError, "io.not_a_file")
    with pytest.raises(PathError) as caught:
        convert_gguf(source, tmp_path / "no" / "such" / "m.gpack")
    assert caught.value.code == "io.not_found"


def test_progress_counts_the_sections(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    calls: list[tuple[int, int]] = []
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    convert_gguf(source, tmp_path / "m.gpack", progress=lambda done, total: calls.append((done, total)))
    parts = Parts(tmp_path / "m.gpack")
    assert {total for _, total in calls} == {len(parts.data)}
    assert sum(done for done, _ in calls) == sum(e.size for kind, e in parts.entries.items() if kind != packs.MANIFEST)


@pytest.mark.parametrize("field", ["source", "output", "pack_dir", "mtp_dir", "report"])
def test_what_is_no_path(field: str, tmp_path: Path) -> None:
    paths: dict[str, Any] = {"source": tmp_path / "m.gguf", "output": tmp_path / "m.gpack", field: 7}
    with pytest.raises(UsageError, match="int is no path") as caught:
        gpack.convert(**paths)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "before", ["", "gpack.export_gguf", "import gpack.convert.gguf", "from gpack import pack_experts"]
)
def test_convert_is_a_function_whatever_was_imported_before(before: str, tmp_path: Path) -> None:
    """A package and a function share the name."""
    source = write_gguf(tmp_path / "m.gguf", *tiny_llama())
    program = f"import gpack\n{before}\nprint(gpack.convert({str(source)!r}, {str(tmp_path / 'm.gpack')!r}).output)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(tmp_path / "m.gpack"), "")
