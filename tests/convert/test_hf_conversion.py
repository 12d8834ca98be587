"""Conversions of safetensors: the same bytes each time, from a source that must not change, and what they report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hf_maker import MOE, Maker, experts, qwen3_config, qwen3_folder, refused, write_by_hand, write_json, write_sharded

import gpack
from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.errors import FormatError, PathError, UnsupportedError, UsageError


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    one = qwen3_folder(tmp_path / "one" / "deep", shards=3)
    two = qwen3_folder(tmp_path / "two", shards=3)
    os.utime(two / "config.json", (1, 1))
    convert(one, tmp_path / "one.gpack")
    convert(two, tmp_path / "two.gpack")
    assert (tmp_path / "one.gpack").read_bytes() == (tmp_path / "two.gpack").read_bytes()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00002-of-00003.safetensors"])
def test_a_source_that_changes(tmp_path: Path, name: str) -> None:
    folder = qwen3_folder(tmp_path / "m", shards=3)

    def touch(*_: int) -> None:
        os.utime(folder / name, (1, 1))

    refused(FormatError, "convert.source_changed", folder, name, progress=touch)


def test_a_shard_that_is_cut_meanwhile(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", hidden=256, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"

    def cut(*_: int) -> None:
        os.truncate(shard, 100)

    refused(PathError, "io.short_read", folder, shard.name, progress=cut)


def test_a_file_that_goes_away_is_still_read(tmp_path: Path) -> None:
    """It was opened before anything was written."""
    folder = qwen3_folder(tmp_path / "m", shards=2)
    convert(folder, tmp_path / "a.gpack")

    def remove(*_: int) -> None:
        (folder / "model-00002-of-00002.safetensors").unlink(missing_ok=True)

    convert(folder, tmp_path / "b.gpack", progress=remove)
    assert (tmp_path / "a.gpack").read_bytes() == (tmp_path / "b.gpack").read_bytes()


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", shards=2)
    for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        before = (folder / name).read_bytes()
        with pytest.raises(UsageError) as caught:
            convert(folder, folder / name)
        assert caught.value.code == "convert.same_file"
        assert main(["convert", str(folder), "-o", str(tmp_path / "x"), "--report", str(folder / name)]) == 2
        assert (folder / name).read_bytes() == before
    assert not (tmp_path / "x").exists()


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m")
    refused(UsageError, "usage", folder, "pack directory", pack_dir=tmp_path)
    refused(UsageError, "usage", folder, "quantised", external_experts=True, quantize="Q8_0")
    refused(UsageError, "usage", folder, "Q9", quantize="Q9")
    (tmp_path / "x.txt").write_bytes(b"text")
    refused(FormatError, "convert.source", tmp_path / "x.txt", "b'text'")


def test_a_type_that_is_not_known(tmp_path: Path) -> None:
    header = {"odd": {"dtype": "F5", "shape": [32], "data_offsets": [0, 16]}}
    source = write_by_hand(tmp_path / "m.safetensors", header, bytes(16))
    refused(UnsupportedError, "safetensors.dtype", source, "'odd'", "'F5'")


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [8, 4]), ("F6_E3M2", [2, 8]), ("F8_E4M3FNUZ", [4, 4])])
def test_small_floats_are_packed_as_they_are(tmp_path: Path, dtype: str, shape: list[int]) -> None:
    bits = {"F4": 4, "F6_E3M2": 6}.get(dtype, 8)
    data = bytes(range(shape[0] * shape[1] * bits // 8))
    header = {"odd": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}
    source = write_by_hand(tmp_path / "m.safetensors", header, data)
    info = report(convert(source, tmp_path / "m.gpack"))
    assert info["import"]["runnable"] is False
    # Blocks of several values, but no native kernel: not among the matrices of the arena.
    assert info["tensors"][0]["section"] == "DensePackBlob"
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert (pack["odd"].type_name, pack["odd"].dims, bytes(pack["odd"])) == (dtype, tuple(shape[::-1]), data)
        with pytest.raises(UnsupportedError) as caught:
            pack["odd"].dequantize()
        assert caught.value.code == "quants.no_codec"
    with pytest.raises(UnsupportedError) as caught:
        gpack.export_gguf(tmp_path / "m.gpack", tmp_path / "m.gguf")
    assert caught.value.code == "export.incomplete"


def test_files_that_are_not_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen3_folder(tmp_path / "m")
    write_by_hand(folder / "consolidated.safetensors", b"{}")
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": "b.safetensors"}})
    info = report(convert(folder, tmp_path / "m.gpack"))
    assert info["notes"] == ["not read: consolidated.safetensors, model.safetensors.index.json"]
    assert main(["convert", str(folder), "-o", str(tmp_path / "n.gpack"), "--quantize", "Q8_0"]) == 0
    assert "note: not read: consolidated.safetensors" in capsys.readouterr().out
    # Who names the file means it; and the pack is the same, whatever lies beside it.
    assert "notes" not in report(convert(folder / "model.safetensors", tmp_path / "o.gpack"))
    assert (tmp_path / "o.gpack").read_bytes() == (tmp_path / "m.gpack").read_bytes()


def test_the_report_tells_where_tensors_come_from(tmp_path: Path) -> None:
    tensors = experts(Maker(5), 12)
    folder = tmp_path / "m"
    folder.mkdir()
    items = list(tensors.items())
    write_sharded(folder, [dict(items[:20]), dict(items[20:])])
    write_json(folder / "config.json", qwen3_config(**MOE))
    info = {tensor["name"]: tensor for tensor in report(convert(folder, tmp_path / "m.gpack"))["tensors"]}
    stack = info["blk.0.ffn_up_exps.weight"]
    assert len(stack["source_tensors"]) == 12
    assert stack["source"] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert stack["steps"] == ["experts stacked"]
    assert "source_offset" in info["token_embd.weight"]
