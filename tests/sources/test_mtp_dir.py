"""Draft layers from other files: an `mtp-*.gguf`, or a directory with `dense.txt`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import Entry, Tensor, TensorMaker, tiny_moe, write_gguf
from pack_dir_maker import PackDir, blobs

import gpack
from gpack import errors
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import SectionKind
from gpack.model import FileExpertSource
from gpack.sections.verify import verify

METADATA, TENSORS = tiny_moe()
MAKE = TensorMaker(9)
DRAFTS: list[Tensor] = [
    MAKE.norm("blk.3.attn_norm.weight", 64),
    MAKE.q4_0("blk.3.nextn.eh_proj.weight", 128, 64),
    MAKE.norm("blk.3.nextn.enorm.weight", 64),
    MAKE.q4_0("blk.3.ffn_gate_exps.weight", 64, 32, 4),
    MAKE.q4_0("blk.3.ffn_up_exps.weight", 64, 32, 4),
    MAKE.f16("blk.3.ffn_down_exps.weight", 32, 64, 4),
]
EXPERTS = {tensor[0]: tensor for tensor in DRAFTS if "_exps" in tensor[0]}


def with_drafts(metadata: list[Entry], layers: int = 4) -> list[Entry]:
    """The metadata of the same model with its draft layer inside."""
    counted = [(k, t, layers) if k == "dots1.block_count" else (k, t, v) for k, t, v in metadata]
    return [*counted, ("dots1.nextn_predict_layers", "u32", 1)]


def convert(tmp_path: Path, mtp: Path, **options: Any) -> Path:
    source = tmp_path / "m.gguf"
    if not source.exists():
        write_gguf(source, METADATA, TENSORS)
    convert_gguf(source, tmp_path / "p.gpack", mtp_dir=mtp, **options)
    return tmp_path / "p.gpack"


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_draft_gguf_gives_the_pack_of_a_gguf_that_holds_the_draft(where: str, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", with_drafts(METADATA), [*TENSORS, *DRAFTS])
    convert_gguf(whole, tmp_path / "whole.gpack")
    folder = tmp_path / "mtp"
    folder.mkdir()
    # The embedding is the model's own: it is left out.
    sidecar = write_gguf(folder / "mtp-m.gguf", {"general.architecture": "dots1"}, [TENSORS[0], *DRAFTS])
    path = convert(tmp_path, sidecar if where == "file" else folder)
    assert path.read_bytes() == (tmp_path / "whole.gpack").read_bytes()
    assert verify(path).report.counts == {}
    with gpack.open(path) as pack:
        assert pack.manifest["model"]["layer_count"] == 3
        assert pack.manifest["mtp"]["tensor_count"] == 6
        assert pack.metadata["dots1.block_count"] == 4
        assert all(pack.info(tensor[0]).home == SectionKind.MTP_BLOB for tensor in DRAFTS)
        assert all(pack[name].tobytes() == data for name, _, _, data in DRAFTS)
    with FileExpertSource.open_gpack(path) as experts:
        assert sorted(experts.layers) == [1, 2, 3]


def directory(form: str) -> PackDir:
    """The draft layer as an engine's directory has it: dense tensors as F32, experts as they are."""
    made = PackDir()
    values = np.random.default_rng(3).normal(0, 1, 64 * 2 + 128 * 64).astype("<f4").tobytes()
    for name, ne0, ne1, start in (
        ("blk.3.attn_norm.weight", 64, 1, 0),
        ("blk.3.nextn.enorm.weight", 64, 1, 256),
        ("blk.3.nextn.eh_proj.weight", 128, 64, 512),
    ):
        size = ne0 * ne1 * 4
        made.add(name, 2, values[start : start + size], ne0, ne1, size)
    data, lines = blobs(EXPERTS, [3])
    made.files["experts.bin"] = data
    if form != "no types":
        made.files["native_experts.txt"] = lines[0].encode()
    return made


def write(made: PackDir, folder: Path, form: str) -> Path:
    made.write(folder, table="dense.txt")
    if form == "short":
        rows = made.rows.values()
        shapes = [f"{r['ne0']}x{r['ne1']}" if r["ne1"] != 1 else str(r["ne0"]) for r in rows]
        lines = [f"{r['name']} {r['src_off']} {r['src_bytes']} {s}" for r, s in zip(rows, shapes, strict=True)]
        (folder / "dense.txt").write_text("# name offset bytes shape\n" + "\n".join(lines))
    return folder


@pytest.mark.parametrize("form", ["index", "short", "no types", "below rt"])
def test_a_directory_becomes_the_draft_layer(form: str, tmp_path: Path) -> None:
    made = directory(form)
    folder = tmp_path / "mtp"
    if form == "below rt":
        folder.mkdir()
        write(made, folder / "rt", form)
    else:
        write(made, folder, form)
    path = convert(tmp_path, folder)
    assert verify(path).report.counts == {}
    with gpack.open(path) as pack:
        assert pack.manifest["mtp"]["tensor_count"] == 6
        assert (pack.metadata["dots1.block_count"], pack.metadata["dots1.nextn_predict_layers"]) == (4, 1)
        assert pack["blk.3.nextn.eh_proj.weight"].dims == (128, 64)
        assert pack["blk.3.attn_norm.weight"].dims == (64,)
        for name, row in made.rows.items():
            start = int(row["src_off"])
            assert pack[name].tobytes() == bytes(made.dense[start : start + int(row["src_bytes"])])
        for name, tensor in EXPERTS.items():
            assert pack[name].tobytes() == tensor[3]
            assert pack[name].ggml_type == tensor[1]


def code(tmp_path: Path, mtp: Path, **options: Any) -> errors.GpackError:
    with pytest.raises(errors.GpackError) as caught:
        convert(tmp_path, mtp, **options)
    assert not list(tmp_path.glob("p.gpack*"))
    return caught.value


def test_numbers_that_do_not_continue_the_model(tmp_path: Path) -> None:
    metadata = {"general.architecture": "dots1"}
    late = [(name.replace("blk.3", "blk.4"), *rest) for name, *rest in DRAFTS]
    for name, tensors in (
        ("early", [("blk.2.nextn.enorm.weight", 0, (1,), bytes(4))]),
        ("none", []),
        ("late", late),
        ("stray", [*DRAFTS, ("stray.weight", 0, (1,), bytes(4))]),
    ):
        sidecar = write_gguf(tmp_path / f"mtp-{name}.gguf", metadata, tensors)
        assert code(tmp_path, sidecar).code == "mtp.layers"


def test_a_model_that_has_draft_layers_of_its_own(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", with_drafts(METADATA), [*TENSORS, *DRAFTS])
    sidecar = write_gguf(tmp_path / "mtp-m.gguf", {"general.architecture": "dots1"}, DRAFTS)
    assert "draft layers of its own" in code(tmp_path, sidecar).message


def test_a_model_whose_draft_layer_was_taken_out_takes_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", with_drafts(METADATA), TENSORS)
    sidecar = write_gguf(tmp_path / "mtp-m.gguf", {"general.architecture": "dots1"}, DRAFTS)
    whole = write_gguf(tmp_path / "whole.gguf", with_drafts(METADATA), [*TENSORS, *DRAFTS])
    convert_gguf(whole, tmp_path / "whole.gpack")
    assert convert(tmp_path, sidecar).read_bytes() == (tmp_path / "whole.gpack").read_bytes()


def test_a_model_that_does_not_say_its_layers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "t"}, [])
    sidecar = write_gguf(tmp_path / "mtp-m.gguf", {"general.architecture": "t"}, DRAFTS)
    assert code(tmp_path, sidecar).code == "mtp.layers"


def test_tables_that_contradict_their_files(tmp_path: Path) -> None:
    cases: list[tuple[str, str]] = [
        ("blk.2.nextn.enorm.weight 0 256 64", "column 1 (name)"),
        ("output_norm.weight 0 256 64", "column 1 (name)"),
        ("blk.3.nextn.enorm.weight 0 128 64", "column 3 (bytes)"),
        ("blk.3.nextn.enorm.weight 9999999 256 64", "column 2 (offset)"),
        ("blk.3.nextn.enorm.weight x 256 64", "column 2 (offset)"),
        ("blk.3.nextn.enorm.weight 0 256 sixty", "column 4 (shape)"),
        ("blk.3.nextn.enorm.weight 0 256 2x2x2x2x4", "column 4 (shape)"),
        ("blk.3.nextn.enorm.weight 0 256", "column 1 (name)"),
    ]
    folder = write(directory("short"), tmp_path / "mtp", "short")
    for line, column in cases:
        (folder / "dense.txt").write_text(line)
        fault = code(tmp_path, folder)
        assert (fault.code, fault.section, fault.field) == ("packdir.table", "line 1", column)


def test_rows_that_a_draft_layer_cannot_have(tmp_path: Path) -> None:
    made = directory("index")
    made.rows["blk.3.attn_norm.weight"] |= {"src_bytes": 0, "code_bits": 8}
    fault = code(tmp_path, write(made, tmp_path / "a", "index"))
    assert fault.field == "column 5 (src_bytes)"
    made = directory("index")
    made.rows["blk.3.attn_norm.weight"] |= {
        "kind": 0,
        "code_bits": 8,
        "group_elems": 64,
        "codes_bytes": 64,
        "scales_bytes": 192,
    }
    fault = code(tmp_path, write(made, tmp_path / "b", "index"))
    assert fault.field == "column 10 (code_bits)"


def test_experts_of_unknown_type_or_size(tmp_path: Path) -> None:
    made = directory("no types")
    made.files["experts.bin"] += b"\0"
    fault = code(tmp_path, write(made, tmp_path / "a", "no types"))
    assert fault.code == "packdir.table"
    assert "native_experts.txt" in str(fault)
    made = directory("index")
    made.files["experts.bin"] = made.files["experts.bin"][:-1]
    fault = code(tmp_path, write(made, tmp_path / "b", "index"))
    assert fault.field == "column 4 (offset)"
    made = directory("index")
    made.files["native_experts.txt"] = b"3 99 1 0 1 0 0 0"
    assert code(tmp_path, write(made, tmp_path / "c", "index")).field == "column 2 (gu_type)"
    made = directory("index")
    made.files["native_experts.txt"] = b"2 2 1 0 1 0 0 0"
    assert code(tmp_path, write(made, tmp_path / "d", "index")).field == "column 1 (layer)"
    write_gguf(tmp_path / "m.gguf", [e for e in METADATA if e[0] != "dots1.expert_count"], TENSORS)
    assert code(tmp_path, write(directory("index"), tmp_path / "e", "index")).code == "mtp.layers"


def test_places_that_hold_no_draft_layer(tmp_path: Path) -> None:
    assert code(tmp_path, tmp_path / "none").code == "io.not_found"
    folder = tmp_path / "two"
    folder.mkdir()
    assert code(tmp_path, folder).code == "io.not_found"
    for name in ("a", "b"):
        write_gguf(folder / f"mtp-{name}.gguf", {"general.architecture": "dots1"}, DRAFTS)
    assert "2 files mtp-*.gguf" in code(tmp_path, folder).message
    made = write(directory("index"), tmp_path / "half", "index")
    os.unlink(made / "dense.bin")
    assert code(tmp_path, made).code == "io.not_found"


def test_pack_directory_and_draft_layers_together(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    packed = PackDir()
    packed.add("output_norm.weight", 2, TENSORS[-2][3], 64, 1, 256)
    convert_gguf(
        source,
        tmp_path / "p.gpack",
        pack_dir=packed.write(tmp_path / "pack"),
        mtp_dir=write(directory("index"), tmp_path / "rt", "index"),
        external_experts=True,
        hash_shards=True,
    )
    assert verify(tmp_path / "p.gpack", shards=True).ok
    with gpack.open(tmp_path / "p.gpack") as pack:
        assert pack.manifest["experts"]["mode"] == "external"
        assert pack["blk.3.ffn_up_exps.weight"].tobytes() == EXPERTS["blk.3.ffn_up_exps.weight"][3]
