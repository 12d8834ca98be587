"""`guild diff` and `gpack.diff`: each kind of difference, worked out by hand from what was changed."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import amount, grows
from gguf_maker import Entry, Tensor, tiny_llama, tiny_moe, write_gguf, write_split

import gpack
from gpack.cli import main
from gpack.compare import Diff
from gpack.compare.contents import shown
from gpack.conformance.parts import Parts
from gpack.conformance.recipes.bases import everything, everything_source, plain
from gpack.convert.gguf import convert_gguf
from gpack.errors import PathError, UsageError

METADATA, TENSORS = tiny_moe(layers=2)
Capture = pytest.CaptureFixture[str]


def made(path: Path, metadata: list[Entry] = METADATA, tensors: list[Tensor] = TENSORS, **options: Any) -> Path:
    """The pack of a GGUF."""
    convert_gguf(write_gguf(path.with_suffix(".gguf"), metadata, tensors), path, **options)
    return path


def found(diff: Diff, part: str) -> dict[str, Any]:
    """The differences of a part by name: kind, changes, detail."""
    return {
        entry.name: (entry.kind, dict(entry.changes), dict(entry.detail))
        for entry in diff.differences
        if entry.part == part
    }


def changed(name: str, change: Callable[[bytearray], object]) -> list[Tensor]:
    """The tensors, one of them with other bytes."""
    tensors = []
    for tensor in TENSORS:
        data = bytearray(tensor[3])
        if tensor[0] == name:
            change(data)
        tensors.append((*tensor[:3], bytes(data)))
    return tensors


def poke(at: int, *values: int) -> Callable[[bytearray], object]:
    def change(data: bytearray) -> None:
        data[at : at + len(values)] = bytes(values)

    return change


def judged(a: Path, b: Path, status: int, capsys: Capture, *options: str) -> Any:
    """The JSON of the command, which must end so; and the text, which must end the same way."""
    assert main(["diff", str(a), str(b), *options]) == status
    text = capsys.readouterr()
    assert not text.err
    assert text.out.startswith(f"--- {a}")
    assert main(["diff", str(a), str(b), "--json", *options]) == status
    info = json.loads(capsys.readouterr().out)
    assert info["ok"] is True
    assert info["equal"] is (status == 0)
    return info


# --- equal ---


@pytest.mark.parametrize("options", [(), ("--bytes",)])
def test_the_same_bytes_twice(tmp_path: Path, capsys: Capture, options: tuple[str, ...]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gpack").write_bytes(everything())
    info = judged(tmp_path / "a.gpack", tmp_path / "b.gpack", 0, capsys, *options)
    assert (info["differences"], info["not_compared"], info["counts"]) == ([], [], {})
    assert info["a"]["manifest_sha256"] == info["b"]["manifest_sha256"]
    main(["diff", str(tmp_path / "a.gpack"), str(tmp_path / "b.gpack"), *options])
    trust = "" if options else ", going by their digests; --bytes compares every byte"
    assert capsys.readouterr().out.endswith(f"the packs are equal{trust}\n")


def test_equal_digests_spare_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the blobs is read, unless --bytes asks for it."""
    (tmp_path / "a.gpack").write_bytes(everything())
    with gpack.open(tmp_path / "a.gpack") as pack:
        blob = pack.container.entry("ExpertBlobs")
    read: list[int] = []
    pread = os.pread

    def count(descriptor: int, length: int, offset: int) -> bytes:
        read.append(offset)
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", count)
    gpack.diff(tmp_path / "a.gpack", tmp_path / "a.gpack")
    assert not [offset for offset in read if blob.offset <= offset < blob.offset + blob.size]
    gpack.diff(tmp_path / "a.gpack", tmp_path / "a.gpack", compare_bytes=True)
    assert [offset for offset in read if blob.offset <= offset < blob.offset + blob.size]


# --- tensors ---


def test_bytes_of_a_tensor(tmp_path: Path, capsys: Capture) -> None:
    """F32 values 3 and 4 of a norm: 1.0 in the first file, 3.5 and 1.25 in the second."""
    name = "output_norm.weight"
    one = changed(name, lambda data: data.__setitem__(slice(12, 20), np.array([1.0, 1.0], "<f4").tobytes()))
    other = changed(name, lambda data: data.__setitem__(slice(12, 20), np.array([3.5, 1.25], "<f4").tobytes()))
    a, b = made(tmp_path / "a.gpack", tensors=one), made(tmp_path / "b.gpack", tensors=other)
    info = gpack.diff(a, b)
    # 1.0 is 00 00 80 3f, 3.5 is 00 00 60 40, 1.25 is 00 00 a0 3f: two bytes and one.
    detail = {"bytes": 256, "differing_bytes": 3, "first_offset": 14, "max_abs_difference": 2.5}
    assert found(info, "tensor") == {name: ("changed", {}, detail)}
    assert set(found(info, "directory")) == {"DensePackBlob", "ManifestJson"}
    assert not info.equal
    judged(a, b, 1, capsys)
    main(["diff", str(a), str(b)])
    text = capsys.readouterr().out
    assert (
        "tensor    ~ output_norm.weight: 3 of 256 bytes differ, the first at byte 14; values differ by at most 2.5"
        in text
    )
    assert text.rstrip().splitlines()[-1].startswith("the packs differ: ")


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    name = "output_norm.weight"
    values = [np.array(v, "<f4").tobytes() for v in ([1.0, np.nan, np.inf], [np.nan, np.nan, -np.inf])]
    packs = [made(tmp_path / f"{n}.gpack", tensors=changed(name, poke(0, *v))) for n, v in enumerate(values)]
    detail = found(gpack.diff(*packs), "tensor")[name][2]
    assert detail["not_finite"] == 2
    assert detail["max_abs_difference"] == 0.0


def test_a_slice_of_an_expert(tmp_path: Path) -> None:
    """Byte 5000 of a stack: the offset is the tensor's, though every expert lies in a blob of its own."""
    name = "blk.1.ffn_up_exps.weight"
    before = next(t[3] for t in TENSORS if t[0] == name)[3000]
    other = changed(name, poke(3000, before ^ 0x55))
    info = gpack.diff(made(tmp_path / "a.gpack"), made(tmp_path / "b.gpack", tensors=other))
    size = next(len(t[3]) for t in TENSORS if t[0] == name)
    assert found(info, "tensor") == {name: ("changed", {}, {"bytes": size, "differing_bytes": 1, "first_offset": 3000})}


def test_experts_inside_and_outside_are_the_same(tmp_path: Path) -> None:
    """What differs is where they lie; their bytes are read from the shards, and are equal."""
    source = write_split(tmp_path, "m", METADATA, TENSORS)[0]
    convert_gguf(source, tmp_path / "e.gpack")
    convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    info = gpack.diff(tmp_path / "e.gpack", tmp_path / "x.gpack")
    tensors = found(info, "tensor")
    places = tensors.pop("(places)")[2]["tensors_at_another_offset"]
    assert places == len(tensors) == sum("_exps" in tensor[0] for tensor in TENSORS)
    assert all(entry == ("changed", {"flags": (0, 1)}, {}) for entry in tensors.values())
    assert found(info, "directory")["ExpertBlobs"][0] == "removed"
    assert found(info, "header")["flags"][0] == "changed"
    os.unlink(tmp_path / "m-00003-of-00003.gguf")
    notes = gpack.diff(tmp_path / "e.gpack", tmp_path / "x.gpack").not_compared
    assert notes
    assert all("missing" in note.reason for note in notes)


def test_added_removed_and_changed_tensors(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    others = [t for t in tensors if t[0] != "blk.0.attn_q.weight"]
    norm = next(t for t in tensors if t[0] == "output_norm.weight")
    others[others.index(norm)] = (norm[0], 1, (len(norm[3]) // 2,), norm[3])
    others.append(("extra.weight", 0, (2, 3), bytes(24)))
    info = gpack.diff(made(tmp_path / "a.gpack", metadata, tensors), made(tmp_path / "b.gpack", metadata, others))
    tensors_told = found(info, "tensor")
    assert tensors_told["extra.weight"] == ("added", {}, {"type": "F32", "shape": [2, 3], "bytes": 24})
    kind, _, detail = tensors_told["blk.0.attn_q.weight"]
    assert (kind, detail["bytes"]) == ("removed", len(next(t[3] for t in tensors if t[0] == "blk.0.attn_q.weight")))
    changes = tensors_told["output_norm.weight"][1]
    assert changes["type"] == ("F32", "F16")
    assert changes["shape"] == ([len(norm[3]) // 4], [len(norm[3]) // 2])


def test_a_tensor_that_moved_home(tmp_path: Path) -> None:
    """Q8_0 lies in the native arena, F16 in the dense pack."""
    values = bytes(32 * 2 * 32)
    packs = []
    for name, kind, data in (("a", 8, bytes(34 * 32)), ("b", 1, values)):
        packs.append(made(tmp_path / f"{name}.gpack", [], [("w.weight", kind, (32, 32), data)]))
    changes = found(gpack.diff(*packs), "tensor")["w.weight"][1]
    assert changes["home"] == ("NativeDenseBlob", "DensePackBlob")
    assert changes["type"] == ("Q8_0", "F16")
    assert changes["bytes"] == (34 * 32, 2048)


# --- metadata, tokenizer, files, manifest ---


def test_metadata(tmp_path: Path) -> None:
    _, tensors = tiny_llama(layers=1)
    one: list[Entry] = [
        ("general.architecture", "str", "t"),
        ("same", "u32", 1),
        ("value", "u32", 1),
        ("type", "u32", 7),
        ("gone", "str", "x" * 300),
        ("list", "[i32]", [1, 2, 3]),
    ]
    other: list[Entry] = [
        ("general.architecture", "str", "t"),
        ("value", "u32", 2),
        ("same", "u32", 1),
        ("type", "u64", 7),
        ("list", "[i32]", [1, 5, 3, 4]),
        ("new", "f32", 0.5),
    ]
    info = gpack.diff(made(tmp_path / "a.gpack", one, tensors), made(tmp_path / "b.gpack", other, tensors))
    keys = found(info, "metadata")
    assert "same" not in keys
    assert keys["value"] == ("changed", {"value": (1, 2)}, {})
    assert keys["type"] == (
        "changed",
        {"type": ("uint32", "uint64"), "element_type": ("uint32", "uint64"), "value": (7, 7)},
        {},
    )
    assert keys["gone"][0] == "removed"
    assert keys["gone"][2]["value"] == "x" * 200 + "... (300 characters)"
    assert keys["new"] == ("added", {}, {"type": "float32", "value": 0.5})
    kind, changes, detail = keys["list"]
    assert (kind, changes["count"], changes["value"]) == ("changed", (3, 4), ([1, 2, 3], [1, 5, 3, 4]))
    assert detail == {"differing_elements": 2, "first_index": 1, "first": [2, 5]}
    assert keys["(order)"] == ("changed", {}, {"first": ["same", "value"]})


def test_what_the_model_is_comes_before_how_the_file_is_laid_out(tmp_path: Path, capsys: Capture) -> None:
    """A key with a text was added, and a byte of a tensor changed; header, directory and footer follow from those."""
    a = made(tmp_path / "a.gpack")
    b = made(tmp_path / "b.gpack", [*METADATA, ("note", "str", "hello")], changed("output_norm.weight", poke(0, 7)))
    info = judged(a, b, 1, capsys)
    parts = list(dict.fromkeys(entry["part"] for entry in info["differences"]))
    assert parts[:2] == ["metadata", "tensor"]
    layout = [part for part in parts if part in ("header", "directory", "footer", "section")]
    assert "directory" in layout
    assert parts[-len(layout) :] == layout
    assert list(info["counts"]) == parts
    main(["diff", str(a), str(b)])
    assert "metadata  + note: type string; value hello" in capsys.readouterr().out.splitlines()


def test_tokenizer(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    other: list[Entry] = []
    for key, kind, value in metadata:
        changed_value = value
        if key == "tokenizer.ggml.tokens":
            changed_value = [*value[:3], "zzz", *value[4:]]
        elif key == "tokenizer.chat_template":
            changed_value = value[:5] + "!" + value[5:]
        other.append((key, kind, changed_value))
    info = gpack.diff(made(tmp_path / "a.gpack", metadata, tensors), made(tmp_path / "b.gpack", other, tensors))
    parts = found(info, "tokenizer")
    before = next(value for key, _, value in metadata if key == "tokenizer.ggml.tokens")[3]
    assert parts["tokens"][2] == {"differing_elements": 1, "first_index": 3, "first": [before, "zzz"]}
    assert parts["chat_template"][2]["first_offset"] == 5
    assert parts["vocab_blob_bytes"][1]["vocab_blob_bytes"][1] - parts["vocab_blob_bytes"][1]["vocab_blob_bytes"][
        0
    ] == (3 - len(before.encode()))
    # What TokenizerBin holds is told once.
    assert not {key for key in found(info, "metadata") if key in ("tokenizer.ggml.tokens", "tokenizer.chat_template")}


def test_a_tokenizer_on_one_side_only(tmp_path: Path, capsys: Capture) -> None:
    """Keys whose values TokenizerBin holds are told without them."""
    metadata, tensors = tiny_llama(layers=1)
    bare = [entry for entry in metadata if not entry[0].startswith("tokenizer.")]
    a, b = made(tmp_path / "a.gpack", metadata, tensors), made(tmp_path / "b.gpack", bare, tensors)
    for pair, kind in (((a, b), "removed"), ((b, a), "added")):
        keys = found(gpack.diff(*pair), "metadata")
        assert keys["tokenizer.ggml.tokens"] == (kind, {}, {"type": "array", "held_by": "TokenizerBin"})
        assert keys["tokenizer.chat_template"] == (kind, {}, {"type": "string", "held_by": "TokenizerBin"})
        assert keys["tokenizer.ggml.model"][0] == kind
        judged(*pair, 1, capsys)


def test_a_value_that_tokenizer_bin_holds_on_one_side_only(tmp_path: Path) -> None:
    """Without a token list there is no TokenizerBin, so the template stays among the metadata."""
    metadata, tensors = tiny_llama(layers=1)
    bare = [entry for entry in metadata if entry[0] in ("general.architecture", "tokenizer.chat_template")]
    info = gpack.diff(made(tmp_path / "a.gpack", metadata, tensors), made(tmp_path / "b.gpack", bare, tensors))
    changes = found(info, "metadata")["tokenizer.chat_template"][1]
    assert changes == {"held_by": ("TokenizerBin", "MetadataKvBin")}


@pytest.mark.parametrize(
    ("text", "expected"), [("a\udc80b", "a\\x80b"), ("a\ud800b", "a\\ud800b"), ("\ud800\udc80", "\\ud800\\udc80")]
)
def test_text_that_is_no_unicode(text: str, expected: str) -> None:
    """Bytes of metadata that are no UTF-8, and half a pair of surrogates, which a manifest's JSON can hold."""
    assert shown(text) == expected


def test_files_and_manifest(tmp_path: Path) -> None:
    from gpack.sections.assets import build_assets

    one, other = Parts.parse(everything()), Parts.parse(everything())
    other.section(12).data[:] = build_assets({"tokenizer.json": b"[]", "new": b"abc", "empty": b""})
    other.manifest["model"]["name"] = "another"
    other.manifest["extensions"] = {"x": {"y": [1, 2]}}
    (tmp_path / "a.gpack").write_bytes(one.seal())
    (tmp_path / "b.gpack").write_bytes(other.seal())
    info = gpack.diff(tmp_path / "a.gpack", tmp_path / "b.gpack")
    assert found(info, "asset") == {
        "merges.txt": ("removed", {}, {"bytes": 18}),
        "new": ("added", {}, {"bytes": 3}),
        "tokenizer.json": ("changed", {}, {"first_offset": 0}),
    }
    manifest = found(info, "manifest")
    assert manifest["$.model.name"] == ("changed", {"value": ("A tiny model", "another")}, {})
    assert manifest["$.extensions.x.y[1]"] == ("added", {}, {"value": 2})


def test_a_private_section(tmp_path: Path) -> None:
    one, other = Parts.parse(plain()), Parts.parse(plain())
    one.add(0x80000001, b"abcdef", 1, name="private")
    other.add(0x80000001, b"abXdeY", 1, name="private")
    other.add(0x80000002, b"x", 1, name="more")
    (tmp_path / "a.gpack").write_bytes(one.seal())
    (tmp_path / "b.gpack").write_bytes(other.seal())
    info = gpack.diff(tmp_path / "a.gpack", tmp_path / "b.gpack")
    kind, changes, detail = found(info, "section")["private"]
    assert (kind, changes) == ("changed", {})
    assert detail == {"bytes": 6, "differing_bytes": 2, "first_offset": 2, "sizes": [6, 6]}
    assert found(info, "directory")["more"][0] == "added"
    assert found(info, "header")["section_count"] == ("changed", {"section_count": (4, 5)}, {})


# --- damaged files ---


def test_a_flipped_byte_shows_with_bytes_only(tmp_path: Path, capsys: Capture) -> None:
    """The directory still records the digest that the section had."""
    data = bytearray(everything())
    (tmp_path / "a.gpack").write_bytes(data)
    with gpack.open(tmp_path / "a.gpack") as pack:
        place = pack.place("blk.0.attn_norm.weight")
    data[place.offset + 7] ^= 0x80
    (tmp_path / "b.gpack").write_bytes(data)
    assert judged(tmp_path / "a.gpack", tmp_path / "b.gpack", 0, capsys)["differences"] == []
    info = gpack.diff(tmp_path / "a.gpack", tmp_path / "b.gpack", compare_bytes=True)
    detail = found(info, "tensor")["blk.0.attn_norm.weight"][2]
    assert (detail["differing_bytes"], detail["first_offset"]) == (1, 7)
    assert found(info, "bytes")["file"][2]["first_offset"] == place.offset + 7
    judged(tmp_path / "a.gpack", tmp_path / "b.gpack", 1, capsys, "--bytes")


@pytest.mark.parametrize("size", [4, 64, 127, 500, 5000, -100, -1])
def test_truncated_files(tmp_path: Path, capsys: Capture, size: int) -> None:
    data = everything()
    (tmp_path / "a.gpack").write_bytes(data)
    (tmp_path / "b.gpack").write_bytes(data[:size])
    info = judged(tmp_path / "a.gpack", tmp_path / "b.gpack", 1, capsys)
    assert info["b"]["damage"]
    assert info["not_compared"] or info["differences"]
    length = len(data[:size])
    files = [entry for entry in info["differences"] if entry["part"] == "bytes"]
    if files:
        assert files[0]["detail"]["differing_bytes"] == 0
        assert files[0]["detail"]["sizes"] == [len(data), length]
    # The same damage twice is no difference.
    (tmp_path / "c.gpack").write_bytes(data[:size])
    judged(tmp_path / "b.gpack", tmp_path / "c.gpack", 0, capsys, "--bytes")


@grows
def test_any_damage_ends_well(tmp_path: Path) -> None:
    """Bytes of all records and tables are changed in turn: a result, never an error but ours."""
    data = everything()
    (tmp_path / "a.gpack").write_bytes(data)
    with gpack.open(tmp_path / "a.gpack") as pack:
        entries = list(pack.container.entries)
        table = pack.container.header.section_table_offset
    ends = [entry.offset + entry.size for entry in entries if entry.size < 1 << 16]
    places = [*range(4, 64, 3), *range(table, len(data), 11)]
    places += [
        at
        for entry, end in zip(entries, ends, strict=False)
        for at in range(entry.offset, min(end, entry.offset + 256), 9)
    ]
    for at in places[:: amount(5, 1)]:
        changed_data = bytearray(data)
        changed_data[at] ^= 0xFF
        (tmp_path / "b.gpack").write_bytes(changed_data)
        info = gpack.diff(tmp_path / "a.gpack", tmp_path / "b.gpack", compare_bytes=True)
        assert not info.equal, at
        json.dumps(info.to_dict())


def test_what_is_no_pack(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.gpack").write_bytes(everything())
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    with pytest.raises(UsageError, match="no pack"):
        gpack.diff(tmp_path / "a.gpack", source)
    assert main(["diff", str(source), str(tmp_path / "a.gpack")]) == 2
    assert "guild convert" in capsys.readouterr().err
    with pytest.raises(PathError) as caught:
        gpack.diff(tmp_path / "a.gpack", tmp_path / "none")
    assert caught.value.code == "io.not_found"
    assert main(["diff", str(tmp_path / "a.gpack"), str(tmp_path / "none"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "io.not_found"
    assert main(["diff", str(tmp_path / "a.gpack")]) == 2


def test_names_of_others_do_not_command_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    a = made(tmp_path / "a.gpack", [("general.architecture", "str", "t")], [("a\x1b[2J", 0, (1,), bytes(4))])
    b = made(tmp_path / "b.gpack", [("general.architecture", "str", "t\x1b[2J")], [])
    assert main(["diff", str(a), str(b)]) == 1
    assert "\x1b" not in capsys.readouterr().out


# --- large files ---


def test_no_blob_is_read_into_memory(tmp_path: Path) -> None:
    """One tensor of 96 MiB in each, which differs in its last byte."""
    size = 96 << 20
    for name, last in (("a", 0), ("b", 1)):
        metadata, _ = everything_source()
        data = bytearray(size)
        data[-1] = last
        made(tmp_path / f"{name}.gpack", metadata, [("w.weight", 24, (1024, size // 1024), bytes(data))])
        del data
    tracemalloc.start()
    info = gpack.diff(tmp_path / "a.gpack", tmp_path / "b.gpack")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found(info, "tensor")["w.weight"][2] == {"bytes": size, "differing_bytes": 1, "first_offset": size - 1}
    assert peak < 32 << 20
