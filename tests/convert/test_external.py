"""`--external-experts`: what is recorded, what is not read, and what comes out again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import Entry, Tensor, make_gguf, tiny_llama, tiny_moe, write_gguf, write_split
from reads import Reads

import gpack
from gpack import errors
from gpack.cli import main
from gpack.convert.embed import pack_experts
from gpack.convert.export import export_gguf
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import ExpertFlags, GPackFlags, SectionKind, TensorFlags
from gpack.sections.verify import verify
from gpack.sources.gguf import GgufSource

MODELS = {
    "separate": tiny_moe(),
    "fused": tiny_moe(fused=True),
    "no dense layer": tiny_moe(dense_first=False, shared_expert=False),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[list[Entry], list[Tensor]]:
    return MODELS[request.param]


@pytest.mark.parametrize("shards", [1, 3])
def test_the_layout_is_the_gguf_s(model: tuple[list[Entry], list[Tensor]], shards: int, tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", *model, shards=3) if shards == 3 else [write_gguf(tmp_path / "m.gguf", *model)]
    convert_gguf(paths[-1], tmp_path / "x.gpack", external_experts=True)
    with gpack.open(tmp_path / "x.gpack") as pack, GgufSource.open(paths[0]) as source:
        assert pack.container.header.flags & GPackFlags.EXTERNAL_EXPERTS
        assert not pack.container.header.flags & GPackFlags.HAS_EXPERT_BLOBS
        assert pack.container.find(SectionKind.EXPERT_BLOBS) is None
        experts = {t.name: t for t in source.tensors if "_exps" in t.name}
        assert experts
        for name, tensor in experts.items():
            row = pack.info(name)
            layout = pack.expert_layout.row(row.home_row)
            assert row.flags == TensorFlags.EXTERNAL
            assert row.offset == tensor.offset
            assert layout.flags & ExpertFlags.EXTERNAL
            role = "down" if "down" in name else "up" if "_up_exps" in name and "gate" not in name else "gate"
            assert pack.shards.names[getattr(layout, f"{role}_shard")] == paths[tensor.shard].name
            assert getattr(layout, f"{role}_stride") == tensor.byte_size // 4
        for name, record in zip(pack.shards.names, pack.shards.rows, strict=True):
            data = (tmp_path / name).read_bytes()
            assert record.file_size == len(data)
            assert record.header_sha256 == sha256(data[: record.header_size]).digest()
            assert record.sha256 == bytes(32)
        assert pack.manifest["experts"]["mode"] == "external"
        assert [shard["name"] for shard in pack.manifest["experts"]["shards"]] == pack.shards.names
    assert verify(tmp_path / "x.gpack", shards=True).ok


def test_all_tensors_and_the_export_equal_those_of_the_embedded_pack(
    model: tuple[list[Entry], list[Tensor]], tmp_path: Path
) -> None:
    paths = write_split(tmp_path, "m", *model)
    convert_gguf(paths[0], tmp_path / "e.gpack")
    convert_gguf(paths[0], tmp_path / "x.gpack", external_experts=True)
    with gpack.open(tmp_path / "e.gpack") as embedded, gpack.open(tmp_path / "x.gpack") as outside:
        assert list(embedded) == list(outside)
        for name in embedded:
            assert embedded[name].tobytes() == outside[name].tobytes()
            assert np.array_equal(embedded[name].dequantize(), outside[name].dequantize())
    export_gguf(tmp_path / "e.gpack", tmp_path / "e.gguf")
    export_gguf(tmp_path / "x.gpack", tmp_path / "x.gguf")
    assert (tmp_path / "e.gguf").read_bytes() == (tmp_path / "x.gguf").read_bytes()


def test_no_byte_of_the_experts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Experts of 16 MiB each role, after everything else: what reads ahead of the header would show.
    metadata, tensors = tiny_moe()
    experts = [t for t in tensors if "_exps" in t[0]]
    tensors = [t for t in tensors if "_exps" not in t[0]] + [("pad.weight", 0, (1 << 19,), bytes(1 << 21)), *experts]
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with GgufSource.open(source) as opened:
        forbidden = [(t.offset, t.offset + t.byte_size) for t in opened.tensors if "_exps" in t.name]
    assert len(forbidden) == 6
    reads = Reads(monkeypatch)
    convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    touched = [
        (start, end) for start, end in reads.ranges["m.gguf"] if any(start < b and a < end for a, b in forbidden)
    ]
    assert not touched
    convert_gguf(source, tmp_path / "e.gpack")
    assert any(start < b and a < end for a, b in forbidden for start, end in reads.ranges["m.gguf"])


def test_work_does_not_grow_with_the_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose experts are a hole of 128 GiB the header is read."""
    n_expert, rows = 64, 1 << 18
    dims = (1024, rows, n_expert)
    size = 1024 * rows * n_expert * 4
    entries: list[Entry] = [("general.architecture", "str", "t"), ("t.block_count", "u32", 1)]
    names = ["blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"]
    head = make_gguf(entries, [(name, 0, dims, b"") for name in names], offsets={names[1]: size})
    path = tmp_path / "huge.gguf"
    path.write_bytes(head)
    try:
        os.truncate(path, len(head) + 2 * size)
    except OSError:
        pytest.skip("the file system takes no file of 128 GiB")
    reads = Reads(monkeypatch)
    done = convert_gguf(path, tmp_path / "x.gpack", external_experts=True)
    assert sum(end - start for start, end in reads.ranges["huge.gguf"]) < 4 << 20
    assert done.result is not None
    assert done.result.size < 1 << 16
    with gpack.open(tmp_path / "x.gpack") as pack:
        assert not pack[names[1]][63, -1].any()


def test_the_same_source_gives_the_same_bytes_wherever_it_lies(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_split(tmp_path / folder, "m", *tiny_moe())
        convert_gguf(tmp_path / folder / "m-00001-of-00003.gguf", tmp_path / f"{folder}.gpack", external_experts=True)
    assert (tmp_path / "a.gpack").read_bytes() == (tmp_path / "b.gpack").read_bytes()


def test_a_model_without_experts_has_nothing_to_leave_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_gguf(tmp_path / "m.gguf", *tiny_llama())
    convert_gguf(source, tmp_path / "e.gpack")
    assert main(["convert", str(source), "-o", str(tmp_path / "x.gpack"), "--external-experts"]) == 0
    assert "there are no routed experts" in capsys.readouterr().out
    assert (tmp_path / "e.gpack").read_bytes() == (tmp_path / "x.gpack").read_bytes()


def test_the_command_tells_where_the_experts_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    source = write_split(tmp_path, "m", *tiny_moe())[0]
    assert main(["convert", str(source), "-o", str(folder / "x.gpack"), "--external-experts"]) == 0
    printed = capsys.readouterr().out
    assert "experts stay in m-00002-of-00003.gguf, m-00003-of-00003.gguf" in printed
    assert f"--expert-dir {tmp_path}" in printed
    command = ["convert", str(source), "-o", str(tmp_path / "x.gpack"), "--external-experts", "--hash-shards", "--json"]
    assert main(command) == 0
    info = json.loads(capsys.readouterr().out)
    shards = info["experts"]["shards"]
    assert [shard["sha256"] for shard in shards] == [
        sha256((tmp_path / shard["name"]).read_bytes()).hexdigest() for shard in shards
    ]
    assert main(["convert", str(source), "-o", str(tmp_path / "y.gpack"), "--hash-shards"]) == 2
    assert main(["inspect", str(tmp_path / "x.gpack")]) == 0
    assert "every byte" in capsys.readouterr().out


def test_a_name_that_no_pack_can_hold_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a:b.gguf", *tiny_moe())
    with pytest.raises(errors.FormatError) as caught:
        convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    assert caught.value.code == "expert.shard_path"
    assert os.listdir(tmp_path) == ["a:b.gguf"]


# ---------------------------------------------------------------- pack-experts


@pytest.mark.parametrize("hashed", [False, True])
def test_packing_the_experts_gives_the_pack_of_the_gguf(
    model: tuple[list[Entry], list[Tensor]], hashed: bool, tmp_path: Path
) -> None:
    source = write_split(tmp_path, "m", *model)[0]
    convert_gguf(source, tmp_path / "e.gpack", name="a name")
    convert_gguf(source, tmp_path / "x.gpack", name="a name", external_experts=True, hash_shards=hashed)
    pack_experts(tmp_path / "x.gpack", tmp_path / "full.gpack")
    assert (tmp_path / "full.gpack").read_bytes() == (tmp_path / "e.gpack").read_bytes()


def test_packing_refuses_what_is_not_right_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    source = write_split(folder, "m", *tiny_moe())[0]
    convert_gguf(source, folder / "e.gpack")
    convert_gguf(source, folder / "x.gpack", external_experts=True, hash_shards=True)
    shard = folder / "m-00003-of-00003.gguf"
    data = shard.read_bytes()
    before = set(os.listdir(folder))

    def code(output: Path = folder / "full.gpack", source: Path = folder / "x.gpack") -> str:
        with pytest.raises(errors.GpackError) as caught:
            pack_experts(source, output)
        return caught.value.code

    assert code(output=shard) == "convert.same_file"
    assert code(output=folder / "x.gpack") == "convert.same_file"
    assert code(source=folder / "e.gpack") == "convert.external"
    assert code(output=folder / "no" / "full.gpack") == "io.not_found"
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert code() == "shard.sha256"
    shard.write_bytes(data[:-1])
    assert code() == "shard.size"
    shard.write_bytes(bytes(len(data)))
    assert code() == "shard.header"
    shard.unlink()
    assert code() == "shard.missing"
    assert set(os.listdir(folder)) == before - {shard.name}


def test_a_shard_that_changes_while_it_is_copied(tmp_path: Path) -> None:
    source = write_split(tmp_path, "m", *tiny_moe())[0]
    convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    shard = tmp_path / "m-00003-of-00003.gguf"

    def touch(_: int, __: int) -> None:
        os.utime(shard, ns=(1, 1))

    with pytest.raises(errors.FormatError) as caught:
        pack_experts(tmp_path / "x.gpack", tmp_path / "full.gpack", progress=touch)
    assert caught.value.code == "convert.source_changed"
    assert not list(tmp_path.glob("full*"))


def test_the_command_packs_with_an_expert_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_split(tmp_path, "m", *tiny_moe())[0]
    folder = tmp_path / "away"
    folder.mkdir()
    convert_gguf(source, tmp_path / "e.gpack")
    convert_gguf(source, folder / "x.gpack", external_experts=True)
    command = ["pack-experts", str(folder / "x.gpack"), "-o", str(folder / "full.gpack"), "--json"]
    assert main(command) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "shard.missing"
    assert main([*command, "--expert-dir", str(tmp_path)]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (folder / "full.gpack").read_bytes() == (tmp_path / "e.gpack").read_bytes()
    assert info["size"] == (tmp_path / "e.gpack").stat().st_size


def test_exporting_checks_the_shards_first(tmp_path: Path) -> None:
    source = write_split(tmp_path, "m", *tiny_moe())[0]
    convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    shard = tmp_path / "m-00003-of-00003.gguf"
    with pytest.raises(errors.UsageError) as refused:
        export_gguf(tmp_path / "x.gpack", shard)
    assert refused.value.code == "convert.same_file"
    shard.unlink()
    with pytest.raises(errors.PathError) as caught:
        export_gguf(tmp_path / "x.gpack", tmp_path / "out.gguf")
    assert caught.value.code == "shard.missing"
    assert not list(tmp_path.glob("out*"))


# ---------------------------------------------------------------- disks


def external_pack(folder: Path) -> Path:
    source = write_split(folder, "m", *tiny_moe())[0]
    convert_gguf(source, folder / "x.gpack", external_experts=True)
    return folder / "x.gpack"


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "pack-experts": pack_experts,
    "export": export_gguf,
    "convert": lambda pack, output: convert_gguf(
        pack.with_name("m-00001-of-00003.gguf"), output, external_experts=True
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_fills_leaves_everything_as_it_was(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = external_pack(tmp_path)
    output = tmp_path / "out"
    output.write_bytes(b"what was there before")
    before = sorted(os.listdir(tmp_path))
    pwrite = os.pwrite

    def fill(descriptor: int, data: Any, offset: int) -> int:
        if offset >= 8192:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", fill)
    # Chunks of a page, so that something was written before.
    monkeypatch.setattr("gpack.container.payload.CHUNK", 4096)
    with pytest.raises(errors.PathError) as caught:
        WRITERS[writer](pack, output)
    assert caught.value.code == "io.no_space"
    assert re.search(r"\b\d+ more bytes were to be written", caught.value.message)
    assert output.read_bytes() == b"what was there before"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_free_space_is_checked_first(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = external_pack(tmp_path)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr("gpack.container.atomic.free_space", lambda _: 100)
    with pytest.raises(errors.PathError) as caught:
        WRITERS[writer](pack, tmp_path / "out")
    assert caught.value.code == "io.no_space"
    assert "are missing" in caught.value.message
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("writer", ["pack-experts", "export"])
def test_a_shard_that_is_cut_or_fails_while_it_is_copied(
    writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = external_pack(tmp_path)
    shard = tmp_path / "m-00003-of-00003.gguf"
    before = sorted(os.listdir(tmp_path))
    preadv = os.preadv

    def fail(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(shard) and offset > 4096:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, buffers, offset, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(errors.PathError) as caught:
            WRITERS[writer](pack, tmp_path / "out")
    assert (caught.value.code, caught.value.path) == ("io.read", str(shard))

    def cut(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if shard.stat().st_size > 5000:
            os.truncate(shard, 5000)
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises(errors.PathError) as short:
        WRITERS[writer](pack, tmp_path / "out")
    assert (short.value.code, short.value.path) == ("io.short_read", str(shard))
    assert sorted(os.listdir(tmp_path)) == before


def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    pack = external_pack(tmp_path)
    left = tmp_path / "out.tmp.999999"
    left.write_bytes(b"half a pack")
    pack_experts(pack, tmp_path / "out")
    assert not left.exists()
    assert verify(tmp_path / "out").ok
