"""The commands: what they print, as text and as JSON, and how they end."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from convert.packs import Parts
from gguf_maker import EVERY_KIND, F32, Tensor, make_gguf, tiny_llama, tiny_moe, vector, write_gguf, write_split

import gpack
from gpack.cli import COMMANDS, main
from gpack.convert.gguf import convert_gguf

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A mixture of experts: every kind of section but PLE, draft layer and assets."""
    convert_gguf(write_gguf(tmp_path / "m.gguf", *tiny_moe(layers=2)), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def info(capsys: Capture, *arguments: object, status: int = 0) -> Any:
    """The JSON that a command prints."""
    assert main([*map(str, arguments), "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.isascii()
    return json.loads(captured.out)


def shown(capsys: Capture, *arguments: object, status: int = 0) -> str:
    """The text that a command prints."""
    assert main([*map(str, arguments)]) == status
    captured = capsys.readouterr()
    if status == 0:
        assert captured.err == ""
        return captured.out
    return captured.err or captured.out


def damage(pack: Path, at: int) -> None:
    data = bytearray(pack.read_bytes())
    data[at] ^= 0xFF
    pack.write_bytes(data)


# --- the frame ---


def test_help_and_version(capsys: Capture) -> None:
    for flag in ("--help", "-h"):
        text = shown(capsys, flag)
        for command in ("convert", "verify", "inspect", "export"):
            assert f"\n  {command} " in text
        assert "exit codes: 0 done; 1 the input is damaged" in text
    assert shown(capsys, "--version") == shown(capsys, "-V") == f"guild (gpack) {gpack.__version__}\n"


def test_no_command_is_wrong_usage(capsys: Capture) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: guild COMMAND")


def test_unknown_commands(capsys: Capture) -> None:
    assert "no command 'frobnicate'" in shown(capsys, "frobnicate", status=2)
    assert info(capsys, "frobnicate", status=2)["error"]["code"] == "usage"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(capsys: Capture, command: str) -> None:
    text = shown(capsys, command, "--help")
    assert text.startswith(f"usage: guild {command} ")
    assert "--json" in text
    assert "exit codes" in text
    assert shown(capsys, command, "--help", "--json") == text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["verify"], "FILE"),
        (["convert", "x"], "--output"),
        (["verify", "x", "--frob"], "--frob"),
        (["export"], "--output"),
    ],
)
def test_wrong_arguments(capsys: Capture, arguments: list[str], word: str) -> None:
    complaint = shown(capsys, *arguments, status=2)
    assert word in complaint
    assert f"guild {arguments[0]} --help" in complaint
    error = info(capsys, *arguments, status=2)["error"]
    assert error["code"] == "usage"
    assert word in error["message"]


def test_arguments_come_from_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.argv", ["guild", "--version"])
    assert main() == 0
    assert "guild" in capsys.readouterr().out


# --- convert ---


def test_convert(tmp_path: Path, capsys: Capture) -> None:
    metadata, tensors = tiny_llama(layers=1)
    source, output = write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.gpack"
    text = shown(capsys, "convert", source, "-o", output)
    parts = Parts(output)
    assert sha256(parts.section(14)).hexdigest() in text
    assert "tiny llama: llama," in text
    assert "12 tensors" in text
    assert str(output) in text
    result = info(capsys, "convert", source, "--output", output, "--name", "Other")
    parts = Parts(output)
    assert (result["ok"], result["dry_run"]) == (True, False)
    assert result["manifest_sha256"] == sha256(parts.section(14)).hexdigest()
    assert (result["size"], result["source_size"]) == (len(parts.data), source.stat().st_size)
    assert result["model"] == parts.manifest["model"]
    assert result["model"]["name"] == "Other"
    assert [(s["kind"], s["offset"], s["size"], s["item_count"]) for s in result["sections"]] == [
        (e.kind, e.offset, e.size, e.item_count) for e in parts.entries.values()
    ]
    assert set(result["seconds"]) == {"plan", "write", "sync"}


def test_a_dry_run_writes_nothing_and_tells_the_truth(tmp_path: Path, capsys: Capture) -> None:
    source, output = write_gguf(tmp_path / "m.gguf", *tiny_moe(layers=2)), tmp_path / "m.gpack"
    dry = info(capsys, "convert", source, "-o", output, "--dry-run")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert dry["dry_run"] is True
    assert (dry["fits"], dry["replaces_bytes"]) == (True, 0)
    assert dry["expected_seconds"] >= 0
    assert "manifest_sha256" not in dry
    real = info(capsys, "convert", source, "-o", output)
    assert (dry["size"], dry["sections"], dry["model"]) == (real["size"], real["sections"], real["model"])
    assert real["size"] == output.stat().st_size
    old = output.read_bytes()
    text = shown(capsys, "convert", source, "-o", output, "--name", "another name", "--dry-run")
    assert "dry run: " in text
    assert ", fits (" in text
    assert "replaces " in text
    assert "expected time: " in text
    assert output.read_bytes() == old


def test_a_dry_run_says_where_the_disk_is_too_small(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_gguf(tmp_path / "m.gguf", {})
    monkeypatch.setattr("gpack.convert.conversion.free_space", lambda _: 100)
    assert "DOES NOT FIT (100 B free)" in shown(capsys, "convert", source, "-o", tmp_path / "o", "--dry-run", status=3)
    result = info(capsys, "convert", source, "-o", tmp_path / "o", "--dry-run", status=3)
    assert (result["fits"], result["free_bytes"]) == (False, 100)
    monkeypatch.setattr("gpack.container.atomic.free_space", lambda _: 100)
    error = info(capsys, "convert", source, "-o", tmp_path / "o", status=3)["error"]
    assert error["code"] == "io.no_space"
    assert f"{result['size'] - 100} are missing" in error["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_the_report(tmp_path: Path, capsys: Capture) -> None:
    metadata, tensors = tiny_llama(layers=1)
    shards = write_split(tmp_path, "s", metadata, tensors, shards=2)
    output = tmp_path / "m.gpack"
    shown(capsys, "convert", shards[1], "-o", output, "--report")
    made = json.loads((tmp_path / "m.gpack.report.json").read_text())
    assert [source["file"] for source in made["sources"]] == [path.name for path in shards]
    assert [source["size"] for source in made["sources"]] == [path.stat().st_size for path in shards]
    parts = Parts(output)
    rows = parts.tensors()
    assert [tensor["name"] for tensor in made["tensors"]] == [name for name, *_ in tensors]
    for tensor, (_, _, dims, data) in zip(made["tensors"], tensors, strict=True):
        row = rows[tensor["name"]]
        assert (tensor["dims"], tensor["bytes"], tensor["offset"]) == ([*dims], len(data), row.offset)
        start = tensor["source_offset"]
        assert (tmp_path / tensor["source"]).read_bytes()[start : start + len(data)] == data
    assert made["manifest_sha256"] == sha256(parts.section(14)).hexdigest()
    shown(capsys, "convert", shards[0], "-o", output, "--report", tmp_path / "told.json")
    assert {**json.loads((tmp_path / "told.json").read_text()), "seconds": 0} == {**made, "seconds": 0}


def test_a_report_never_takes_the_models_place(tmp_path: Path, capsys: Capture) -> None:
    source, output = write_gguf(tmp_path / "m.gguf", {}), tmp_path / "m.gpack"
    for target in (source, output, tmp_path / "." / "m.gpack"):
        error = info(capsys, "convert", source, "-o", output, "--report", target, status=2)["error"]
        assert error["code"] == "convert.same_file"
    assert source.read_bytes() == make_gguf({})
    assert not output.exists()


# --- verify ---


def test_verify(pack: Path, capsys: Capture) -> None:
    parts = Parts(pack)
    identity = sha256(parts.section(14)).hexdigest()
    result = info(capsys, "verify", pack)
    assert (result["ok"], result["mode"], result["violations"], result["counts"]) == (True, "full", [], {})
    assert (result["size"], result["sections"]) == (len(parts.data), len(parts.entries))
    assert result["bytes_hashed"] == sum(entry.size for entry in parts.entries.values())
    assert result["manifest_sha256"] == identity
    text = shown(capsys, "verify", pack)
    assert text.startswith(f"{pack}: OK ({len(parts.entries)} sections, ")
    assert text.endswith(f"manifest sha256 {identity}\n")
    quick = info(capsys, "verify", pack, "--quick")
    assert (quick["ok"], quick["mode"], quick["manifest_sha256"]) == (True, "quick", identity)
    assert f"{pack}: OK (quick: {len(parts.entries)} sections, {len(parts.data)} bytes" in shown(
        capsys, "verify", "--quick", pack
    )


def test_verify_finds_a_changed_byte(pack: Path, capsys: Capture) -> None:
    entry = Parts(pack).entries[3]
    damage(pack, entry.offset + 5)
    result = info(capsys, "verify", pack, status=1)
    assert result["ok"] is False
    violation = result["violations"][0]
    assert (violation["rule"], violation["section"], violation["offset"]) == (
        "section.sha256",
        "DensePackBlob",
        entry.offset,
    )
    text = shown(capsys, "verify", pack, status=1)
    assert "error: section.sha256: DensePackBlob" in text
    assert "INVALID (1 violation of 1 rule" in text
    # The payloads are not what a quick open looks at.
    shown(capsys, "verify", pack, "--quick")


def test_verify_finds_a_changed_manifest_even_quickly(pack: Path, capsys: Capture) -> None:
    damage(pack, Parts(pack).entries[14].offset)
    error = info(capsys, "verify", pack, "--quick", status=1)["error"]
    assert (error["code"], error["section"], error["path"]) == ("manifest.sha256", "ManifestJson", str(pack))
    shown(capsys, "verify", pack, status=1)


def test_a_newer_file_is_unsupported(pack: Path, capsys: Capture) -> None:
    data = bytearray(pack.read_bytes())
    data[4:8] = b"\2\0\2\0"
    pack.write_bytes(data)
    assert info(capsys, "verify", pack, "--quick", status=4)["error"]["code"] == "header.min_reader_version"
    assert info(capsys, "inspect", pack, status=4)["error"]["code"] == "header.min_reader_version"


def test_truncated_and_foreign_files(pack: Path, tmp_path: Path, capsys: Capture) -> None:
    data = pack.read_bytes()
    for size in (0, 1, 63, 64, 127, len(data) - 1):
        pack.write_bytes(data[:size])
        for command in (["verify"], ["verify", "--quick"], ["inspect"]):
            assert info(capsys, *command, pack, status=1)["ok"] is False
        shown(capsys, "export", pack, "-o", tmp_path / "x.gguf", status=1)
    assert not (tmp_path / "x.gguf").exists()


# --- inspect ---


def test_inspect_a_pack(pack: Path, capsys: Capture) -> None:
    parts = Parts(pack)
    result = info(capsys, "inspect", pack, "--tensors", "--metadata")
    assert result["ok"] is True
    assert result["manifest_sha256"] == sha256(parts.section(14)).hexdigest()
    assert result["flags"] == [
        "LITTLE_ENDIAN",
        "HAS_DENSE_PACK",
        "HAS_NATIVE_DENSE",
        "HAS_EXPERT_BLOBS",
        "HAS_TOKENIZER_BIN",
    ]
    for entry, section in zip(parts.entries.values(), result["sections"], strict=True):
        assert section["sha256"] == sha256(parts.section(entry.kind)).hexdigest()
        assert (section["kind"], section["size"]) == (entry.kind, entry.size)
    for part in ("model", "experts", "tokenizer"):
        assert result[part] == parts.manifest[part]
    metadata, tensors = tiny_moe(layers=2)
    assert [tensor["name"] for tensor in result["tensors"]] == sorted(name for name, *_ in tensors)
    assert sum(kind["bytes"] for kind in result["types"]) == sum(len(data) for *_, data in tensors)
    assert list(result["metadata"]) == [key for key, _, _ in metadata]
    tokens = next(value for key, _, value in metadata if key == "tokenizer.ggml.tokens")
    assert result["metadata"]["tokenizer.ggml.tokens"] == {"type": "string[272]", "count": 272, "value": tokens}
    text = shown(capsys, "inspect", pack, "--tensors", "--metadata")
    for word in (
        "tiny dots1: dots1,",
        "blob count 4, bytes 25600",
        "blk.1.ffn_down_exps.weight",
        "32 x 64 x 4",
        "tokenizer.ggml.merges",
        "ExpertBlobs",
        result["manifest_sha256"],
    ):
        assert word in text
    assert "blk.1" not in shown(capsys, "inspect", pack)


def test_every_section_can_be_shown(pack: Path, capsys: Capture) -> None:
    names = [section["name"] for section in info(capsys, "inspect", pack)["sections"]]
    assert len(names) == 12
    for number, name in zip(Parts(pack).entries, names, strict=True):
        result = info(capsys, "inspect", pack, "--section", name)
        assert result["section"]["name"] == name
        assert info(capsys, "inspect", pack, "--section", number) == result
        text = shown(capsys, "inspect", pack, "--section", name)
        assert text.startswith(f"{name} (kind {number}): ")
        assert result["section"]["sha256"] in text
        if "rows" in result and name != "ExpertLayoutBin":
            assert len(result["rows"]) == result["section"]["item_count"]
    rows = info(capsys, "inspect", pack, "--section", "NativeDenseIndexBin")["rows"]
    assert rows[0] == {
        "name": "blk.0.attn_k.weight",
        "ggml_type": "Q4_0",
        "ne0": 64,
        "ne1": 32,
        "offset": 0,
        "byte_size": 1152,
    }
    assert info(capsys, "inspect", pack, "--section", "TokenizerBin")["header"]["vocab_size"] == 272
    assert info(capsys, "inspect", pack, "--section", "EmbedBlob")["header"]["ne1"] == 272
    assert info(capsys, "inspect", pack, "--section", "ExpertLayoutBin")["rows"][0]["stride"] == 8192


def test_the_rarer_sections_can_be_shown(tmp_path: Path, capsys: Capture) -> None:
    metadata = {"general.architecture": "x", "x.block_count": 1, "x.nextn_predict_layers": 1}
    tensors: list[Tensor] = [("per_layer_token_embd.weight", F32, (2, 3), bytes(24)), vector("blk.0.nextn.enorm", 4)]
    pack = tmp_path / "m.gpack"
    convert_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors), pack)
    assert info(capsys, "inspect", pack, "--section", "PleBlob")["header"] == {
        "ggml_type": "F32",
        "ne0": 2,
        "ne1": 3,
        "byte_size": 24,
        "data_offset": 64,
    }
    (row,) = info(capsys, "inspect", pack, "--section", "MtpBlob")["rows"]
    assert (row["name"], row["ggml_type"], row["offset"], row["byte_size"]) == ("blk.0.nextn.enorm", "F32", 0, 16)
    assert "blk.0.nextn.enorm" in shown(capsys, "inspect", pack, "--section", "MtpBlob")
    assert "mtp: tensor count 1, bytes 16" in shown(capsys, "inspect", pack)


@pytest.mark.parametrize("name", ["PleBlob", "8", "99", "²", "no such section", "-1"])
def test_a_section_that_is_not_there(pack: Path, capsys: Capture, name: str) -> None:
    error = info(capsys, "inspect", pack, f"--section={name}", status=2)["error"]
    assert error["code"] == "pack.no_section"
    assert "MetadataKvBin" in error["hint"]


@pytest.mark.parametrize("split", [False, True])
def test_inspect_a_gguf(tmp_path: Path, capsys: Capture, *, split: bool) -> None:
    metadata, tensors = tiny_moe(layers=2)
    paths = write_split(tmp_path, "s", metadata, tensors) if split else [write_gguf(tmp_path / "m", metadata, tensors)]
    result = info(capsys, "inspect", paths[-1], "--tensors", "--metadata")
    assert result["format"] == "GGUF version 3"
    assert [shard["file"] for shard in result["shards"]] == [path.name for path in paths]
    assert result["size"] == sum(path.stat().st_size for path in paths)
    assert [tensor["name"] for tensor in result["tensors"]] == [name for name, *_ in tensors]
    for tensor, (_, _, dims, data) in zip(result["tensors"], tensors, strict=True):
        assert (tensor["dims"], tensor["bytes"]) == ([*dims], len(data))
        start = tensor["offset"]
        assert (tmp_path / tensor["place"]).read_bytes()[start : start + len(data)] == data
    assert list(result["metadata"]) == [key for key, _, _ in metadata]
    assert result["experts"]["blob_count"] == 4
    assert "blk.1.ffn_down_exps.weight" in shown(capsys, "inspect", paths[0], "--tensors")


def test_inspect_a_gguf_with_unknown_types(tmp_path: Path, capsys: Capture) -> None:
    metadata = {"general.name": "N", "general.architecture": "A"}
    source = write_gguf(tmp_path / "m.gguf", metadata, [vector("old"), ("new", 77, (7, 3), bytes(32))])
    result = info(capsys, "inspect", source, "--tensors")
    assert [tensor["type"] for tensor in result["tensors"]] == ["F32", "unknown (77)"]
    assert (result["model"]["name"], result["model"]["parameter_count"]) == ("N", 29)
    text = shown(capsys, "inspect", source, "--tensors")
    assert "unknown (77)" in text
    assert "7 x 3" in text
    assert "cannot be converted: the tensor 'new' is of unknown type 77 [gguf.tensor_type]" in text


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (("gexec.arch", "str", "sm_90"), "metadata.forbidden"),
        (("general.architecture", "str", b"\xff"), "convert.metadata"),
    ],
)
def test_inspect_a_gguf_that_cannot_be_converted(tmp_path: Path, capsys: Capture, entry: Any, code: str) -> None:
    """What convert refuses can still be looked at."""
    source = write_gguf(tmp_path / "m.gguf", [entry], [vector("t", 3)])
    result = info(capsys, "inspect", source, "--tensors", "--metadata")
    assert result["problem"]["code"] == code
    assert result["model"]["parameter_count"] == 3
    assert entry[0] in result["metadata"]
    text = shown(capsys, "inspect", source, "--tensors")
    assert "cannot be converted: " in text
    assert f"[{code}]" in text
    shown(capsys, "convert", source, "-o", tmp_path / "o", status=1)


def test_every_kind_of_value_is_shown(tmp_path: Path, capsys: Capture) -> None:
    entries = [*EVERY_KIND, ("nan", "f32", float("nan")), ("inf", "[f64]", [float("-inf")]), ("raw", "str", b"\xffa")]
    source = write_gguf(tmp_path / "m.gguf", entries)
    convert_gguf(source, tmp_path / "m.gpack")
    from_gguf = info(capsys, "inspect", source, "--metadata")["metadata"]
    assert info(capsys, "inspect", tmp_path / "m.gpack", "--metadata")["metadata"] == from_gguf
    for key, _, value in EVERY_KIND:
        assert from_gguf[key]["value"] == value
    assert from_gguf["a.u64"]["type"] == "uint64"
    assert from_gguf["c.nested"] == {"type": "array[3]", "count": 3, "value": [[1, 2], [], [3]]}
    assert (from_gguf["nan"]["value"], from_gguf["inf"]["value"]) == ("nan", ["-inf"])
    assert from_gguf["raw"]["value"] == "\\xffa"
    assert "-9223372036854775808" in shown(capsys, "inspect", tmp_path / "m.gpack", "--metadata")


EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\u202e\u0085\x00"


def test_names_never_command_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    evil: Tensor = (f"t{EVIL}", F32, (2,), bytes(8))
    metadata = [
        ("general.name", "str", f"n{EVIL}"),
        ("general.architecture", "str", f"a{EVIL}"),
        (f"k{EVIL}", "str", EVIL),
        ("tokenizer.ggml.tokens", "[str]", [EVIL]),
        ("tokenizer.ggml.model", "str", EVIL),
        ("tokenizer.chat_template", "str", EVIL),
        ("list", "[str]", [EVIL]),
    ]
    source, output = write_gguf(tmp_path / "m.gguf", metadata, [evil]), tmp_path / "m.gpack"
    texts = [shown(capsys, "convert", source, "-o", output), shown(capsys, "verify", output)]
    texts += [shown(capsys, "inspect", path, "--tensors", "--metadata") for path in (source, output)]
    sections = info(capsys, "inspect", output)["sections"]
    texts += [shown(capsys, "inspect", output, "--section", section["name"]) for section in sections]
    write_gguf(source, metadata, [evil], offsets={evil[0]: 1 << 30})
    texts.append(shown(capsys, "convert", source, "-o", output, status=1))
    write_gguf(source, [(f"k{EVIL}", "u8", 1)] * 2)
    texts.append(shown(capsys, "inspect", source, status=1))
    for text in texts:
        assert all(char.isprintable() or char == "\n" for char in text)
    assert "\\x1b[2J" in texts[0]


def test_a_hostile_file_name(tmp_path: Path, capsys: Capture) -> None:
    source, output = write_gguf(tmp_path / "m.gguf", {}), tmp_path / f"x{EVIL[:-1]}\udcff"
    for command in (
        ["convert", source, "-o", output],
        ["verify", output],
        ["verify", "--quick", output],
        ["inspect", output],
        ["export", output, "-o", tmp_path / f"{EVIL[:-1]}"],
    ):
        text = shown(capsys, *command)
        assert all(char.isprintable() or char == "\n" for char in text)
        info(capsys, *command)


# --- export ---


def test_export(pack: Path, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "back.gguf"
    result = info(capsys, "export", pack, "-o", output)
    metadata, tensors = tiny_moe(layers=2)
    assert result == {
        "ok": True,
        "output": str(output),
        "size": output.stat().st_size,
        "tensors": len(tensors),
        "keys": len(metadata),
    }
    assert output.read_bytes() == (tmp_path / "m.gguf").read_bytes()
    text = shown(capsys, "export", pack, "--output", output)
    assert text.startswith(f"{output}: ")
    assert f"{len(tensors)} tensors, {len(metadata)} keys" in text
    (tmp_path / "link.gguf").symlink_to(pack)
    error = info(capsys, "export", pack, "-o", tmp_path / "link.gguf", status=2)["error"]
    assert error["code"] == "convert.same_file"
