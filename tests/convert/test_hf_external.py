"""`--external-experts` of safetensors: where the files have the experts at equal distances, and where not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import MOE, ORACLE, Maker, Tensors, experts, f32, qwen3_folder, refused, write_safetensors, write_sharded
from reads import Reads

import gpack
from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.embed import pack_experts
from gpack.errors import GpackError, UsageError
from gpack.generated.constants import ExpertFlags
from gpack.model import FileExpertSource
from gpack.sections.verify import verify

COUNT = 4
CONFIG: dict[str, Any] = {**MOE, "num_experts": COUNT}
NAME = "model.layers.0.mlp.experts"


def fused(count: int = COUNT) -> Tensors:
    """A layer whose experts are two tensors: gate rows before up rows in each expert of the first."""
    made = Maker(6)
    tensors: Tensors = {name: held for name, held in experts(made, count).items() if NAME not in name}
    tensors[f"{NAME}.gate_up_proj"] = f32(made(count, 64, 64))
    tensors[f"{NAME}.down_proj"] = f32(made(count, 64, 32))
    return tensors


SOURCES = {"fused": fused(), "one tensor each": experts(Maker(5), COUNT), "a single expert": experts(Maker(5), 1)}


@pytest.mark.parametrize("kind", SOURCES)
def test_it_holds_what_the_embedded_pack_holds(tmp_path: Path, kind: str) -> None:
    count = 1 if kind == "a single expert" else COUNT
    config = {**CONFIG, "num_experts": count, "num_experts_per_tok": 1}
    folder = qwen3_folder(tmp_path / "m", tensors=SOURCES[kind], **config)
    convert(folder, tmp_path / "e.gpack")
    convert(folder, folder / "x.gpack", external_experts=True)
    assert verify(folder / "x.gpack", shards=True).ok
    with gpack.open(tmp_path / "e.gpack") as embedded, gpack.open(folder / "x.gpack") as outside:
        assert list(embedded) == list(outside)
        for name in embedded:
            assert embedded[name].tobytes() == outside[name].tobytes(), name
        layout = outside.expert_layout.row(0)
        assert layout.flags & ExpertFlags.EXTERNAL
        # Two halves of 32 rows of 64 values; or down, gate, up of one expert one after another: 3 x 32 x 64 x 4.
        assert layout.gate_stride == {"fused": 2 * 32 * 64 * 4, "a single expert": 8192}.get(kind, 3 * 8192)
        assert outside.manifest["experts"]["mode"] == "external"
        assert [shard["name"] for shard in outside.manifest["experts"]["shards"]] == ["model.safetensors"]
    pack_experts(folder / "x.gpack", tmp_path / "again.gpack")
    assert (tmp_path / "again.gpack").read_bytes() == (tmp_path / "e.gpack").read_bytes()
    gpack.export_gguf(tmp_path / "e.gpack", tmp_path / "e.gguf")
    gpack.export_gguf(folder / "x.gpack", tmp_path / "x.gguf")
    assert (tmp_path / "e.gguf").read_bytes() == (tmp_path / "x.gguf").read_bytes()


@pytest.mark.parametrize("io", ["mmap", "read", "direct"])
def test_every_mode_gives_the_files_bytes(tmp_path: Path, io: str) -> None:
    tensors = fused()
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **CONFIG)
    convert(folder, folder / "x.gpack", external_experts=True)
    both = np.frombuffer(tensors[f"{NAME}.gate_up_proj"][2], "<f4").reshape(COUNT, 64, 64)
    down = np.frombuffer(tensors[f"{NAME}.down_proj"][2], "<f4").reshape(COUNT, 64, 32)
    with FileExpertSource.open_gpack(folder / "x.gpack", io=io) as source:
        for number in range(COUNT):
            expert = source.get(0, number)
            assert expert.gate is not None
            np.testing.assert_array_equal(expert.gate, both[number, :32])
            np.testing.assert_array_equal(expert.up, both[number, 32:])
            np.testing.assert_array_equal(expert.down, down[number])


def test_no_byte_of_the_experts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # After the header, by the writer's order: the names of experts come before those of everything else.
    tensors = fused()
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **CONFIG)
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    forbidden = [
        (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
        for name, entry in header.items()
        if name.startswith(NAME)
    ]
    assert len(forbidden) == 2
    reads = Reads(monkeypatch)
    convert(folder, folder / "x.gpack", external_experts=True)
    assert not reads.touched("model.safetensors", forbidden)
    convert(folder, folder / "e.gpack")
    assert reads.touched("model.safetensors", forbidden)


def test_experts_in_the_order_of_their_names(tmp_path: Path) -> None:
    """With ten or more, 10 stands after 1: expert 2 is further away than expert 1."""
    folder = qwen3_folder(tmp_path / "m", tensors=experts(Maker(5), 12), **MOE)
    refused(
        UsageError,
        "convert.external",
        folder,
        "blk.0.ffn_gate_exps.weight",
        "not at equal distances",
        "expert 1 begins 24576 bytes after expert 0, expert 2 73728 bytes after expert 1",
        external_experts=True,
    )


def test_experts_of_a_layer_in_two_files(tmp_path: Path) -> None:
    tensors = experts(Maker(5), COUNT)
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **CONFIG)
    (folder / "model.safetensors").unlink()
    late = {name: held for name, held in tensors.items() if f"{NAME}.3." in name}
    write_sharded(folder, [{name: held for name, held in tensors.items() if name not in late}, late])
    refused(
        UsageError,
        "convert.external",
        folder,
        "expert 0",
        "model-00001-of-00002",
        "expert 3",
        "model-00002-of-00002",
        external_experts=True,
    )


def test_whole_layers_in_different_files(tmp_path: Path) -> None:
    """Gate and up in one shard, down in another: each has a place."""
    tensors = fused()
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **CONFIG)
    (folder / "model.safetensors").unlink()
    down = {name: held for name, held in tensors.items() if name.endswith("experts.down_proj")}
    write_sharded(folder, [{name: held for name, held in tensors.items() if name not in down}, down])
    convert(folder, folder / "x.gpack", external_experts=True, hash_shards=True)
    report = verify(folder / "x.gpack", shards=True)
    assert report.ok
    assert not report.report.counts.get("expert.uncovered")
    with gpack.open(folder / "x.gpack") as pack:
        assert pack.shards.names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        assert pack["blk.0.ffn_down_exps.weight"].tobytes() == tensors[f"{NAME}.down_proj"][2]


@pytest.mark.parametrize(
    ("harm", "code"), [("swap", "shard.header"), ("cut", "shard.size"), ("remove", "shard.missing")]
)
def test_a_shard_that_is_another_now(tmp_path: Path, harm: str, code: str) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=fused(), **CONFIG)
    convert(folder, folder / "x.gpack", external_experts=True)
    shard = folder / "model.safetensors"
    if harm == "swap":
        write_safetensors(shard, experts(Maker(5), COUNT))
    elif harm == "cut":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        shard.unlink()
    with pytest.raises(GpackError) as caught:
        pack_experts(folder / "x.gpack", tmp_path / "e.gpack")
    assert caught.value.code == code
    with pytest.raises(GpackError) as caught, gpack.open(folder / "x.gpack") as pack:
        _ = pack["blk.0.ffn_up_exps.weight"]
    assert caught.value.code == code


@pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
def test_a_wrapped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for path in (ORACLE / "hf" / "qwen35moe-wrapped").iterdir():
        (folder / path.name).symlink_to(path)
    convert(folder, tmp_path / "e.gpack", text_only=True)
    assert main(["convert", str(folder), "-o", str(folder / "x.gpack"), "--text-only", "--external-experts"]) == 0
    assert "of experts stay in model.safetensors" in capsys.readouterr().out
    assert main(["verify", str(folder / "x.gpack")]) == 0
    with gpack.open(tmp_path / "e.gpack") as embedded, gpack.open(folder / "x.gpack") as outside:
        for name in embedded:
            assert embedded[name].tobytes() == outside[name].tobytes()
