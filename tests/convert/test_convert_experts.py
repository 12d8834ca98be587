"""Routed experts and draft layers as a conversion writes them: offsets and strides worked out by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from convert import packs
from convert.packs import GATE, GATE_UP, UP, convert
from gguf_maker import Tensor, TensorMaker, tiny_moe

# --- experts ---

EXPERT_ROW = "<IIIIIIIIQQQQQQQQQQQIIIIQQQQQQ"


@pytest.mark.parametrize("fused", [False, True])
def test_experts_lie_together(tmp_path: Path, *, fused: bool) -> None:
    metadata, tensors = tiny_moe(layers=3, fused=fused)
    parts = convert(tmp_path, metadata, tensors)
    source = {name: data for name, _, _, data in tensors}
    rows = list(struct.iter_unpack(EXPERT_ROW, parts.section(packs.EXPERT_LAYOUT)[64:]))
    # 64 x 32 in Q4_0 take 64 * 32 / 32 * 18 = 1152 bytes, 32 x 64 in F16 4096; 6400 bytes round up to 8192.
    flags = 2 if fused else 0
    shape = (2, 2, 1, 0, 64, 32, 64, 32, 32, 64, 1152, 1152, 4096)
    external = (0,) * 10
    assert rows == [(layer, 4, flags, 0, *shape, place, 8192, *external) for layer, place in ((1, 0), (2, 4 * 8192))]
    blob = parts.section(packs.EXPERTS)
    assert len(blob) == 2 * 4 * 8192
    for number, layer in enumerate((1, 2)):
        for expert in range(4):
            start = (number * 4 + expert) * 8192
            if fused:
                whole = source[f"blk.{layer}.ffn_gate_up_exps.weight"]
                ahead = whole[expert * 2304 : (expert + 1) * 2304]
            else:
                gate, up = (source[f"blk.{layer}.ffn_{role}_exps.weight"] for role in ("gate", "up"))
                ahead = gate[expert * 1152 : (expert + 1) * 1152] + up[expert * 1152 : (expert + 1) * 1152]
            down = source[f"blk.{layer}.ffn_down_exps.weight"][expert * 4096 : (expert + 1) * 4096]
            assert blob[start : start + 8192] == ahead + down + bytes(1792)
    index = parts.tensors()
    for name, row in index.items():
        if "_exps" in name:
            assert row.home == packs.EXPERTS
            assert row.home_row == int(name[4]) - 1
            assert parts.bytes_of(row, 8192) == source[name]
    roles = {row.role for row in index.values() if row.home == packs.EXPERTS}
    assert roles == ({3, GATE_UP} if fused else {GATE, UP, 3})
    assert parts.manifest["experts"] == {"mode": "embedded", "layer_count": 2, "blob_count": 8, "bytes": 8 * 6400}
    assert parts.flags & 0b1000
    assert (parts.entries[packs.EXPERT_LAYOUT].item_count, parts.entries[packs.EXPERTS].item_count) == (2, 8)
    # The shared expert and the router are dense.
    assert index["blk.1.ffn_gate_shexp.weight"].home == packs.NATIVE
    assert index["blk.1.ffn_gate_inp.weight"].home == packs.DENSE


def test_layers_without_a_gate_and_of_several_types(tmp_path: Path) -> None:
    make = TensorMaker(5)
    tensors = [
        make.q4_0("blk.10.ffn_up_exps.weight", 32, 2, 3),
        make.f32("blk.10.ffn_down_exps.weight", 2, 32, 3),
        make.f16("blk.9.ffn_up_exps.weight", 4, 4, 2),
        make.f16("blk.9.ffn_down_exps.weight", 4, 4, 2),
        make.f32("blk.9.ffn_up_exps.bias", 4, 2),
    ]
    parts = convert(tmp_path, {}, tensors)
    rows = list(struct.iter_unpack(EXPERT_ROW, parts.section(packs.EXPERT_LAYOUT)[64:]))
    # By number, not by name: 9 before 10. Flag 4: no gate.
    assert [row[:3] for row in rows] == [(9, 2, 4), (10, 3, 4)]
    assert [row[14:19] for row in rows] == [(0, 32, 32, 0, 4096), (0, 36, 256, 8192, 4096)]
    index = parts.tensors()
    for name, _, _, data in tensors[:4]:
        assert parts.bytes_of(index[name], 4096) == data
    assert index["blk.9.ffn_up_exps.bias"].home == packs.DENSE


@pytest.mark.parametrize(
    "shapes",
    [
        {"gate": (32, 4, 2), "up": (32, 4, 2)},  # no down
        {"up": (32, 4, 2), "down": (4, 32, 3)},  # another number of experts
        {"up": (32, 4), "down": (4, 32)},  # no experts at all
        {"gate_up": (32, 5, 2), "down": (5, 32, 2)},  # no two halves
        {"gate": (32, 4, 0), "up": (32, 4, 0), "down": (4, 32, 0)},
        {"gate_up": (32, 4, 2), "up": (32, 4, 2), "down": (4, 32, 2)},
    ],
)
def test_what_looks_like_experts_but_is_none_is_dense(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    make = TensorMaker(6)
    tensors = [make.f32(f"blk.0.ffn_{role}_exps.weight", *dims) for role, dims in shapes.items()]
    parts = convert(tmp_path, {}, tensors)
    rows = parts.tensors()
    assert {(row.home, row.role) for row in rows.values()} == {(packs.DENSE, 0)}
    assert all(parts.bytes_of(rows[name]) == data for name, _, _, data in tensors)


# --- draft layers ---

MTP_ROW = "<IIII8QQQQIIQ"


def draft_model() -> tuple[list[Any], list[Tensor]]:
    """Three layers, the last of which is a draft layer with experts."""
    make = TensorMaker(7)
    metadata = [
        ("general.architecture", "str", "qwen"),
        ("qwen.block_count", "u32", 3),
        ("qwen.nextn_predict_layers", "u32", 1),
    ]
    tensors = [
        make.q4_0("token_embd.weight", 32, 4),
        make.q4_0("blk.0.attn_q.weight", 32, 32),
        make.q4_0("blk.1.attn_q.weight", 32, 32),
        make.norm("blk.2.nextn.enorm.weight", 5),
        make.q4_0("blk.2.attn_q.weight", 32, 32),
        make.f32("blk.2.ffn_gate_exps.weight", 3, 2, 2),
        make.f32("blk.2.ffn_up_exps.weight", 3, 2, 2),
        make.f16("blk.2.ffn_down_exps.weight", 2, 3, 2),
    ]
    return metadata, tensors


def test_the_draft_layer(tmp_path: Path) -> None:
    metadata, tensors = draft_model()
    parts = convert(tmp_path, metadata, tensors)
    source = {name: data for name, _, _, data in tensors}
    index = parts.tensors()
    assert [name for name, row in index.items() if row.home == packs.MTP] == [
        "blk.2.attn_q.weight",
        "blk.2.ffn_down_exps.weight",
        "blk.2.ffn_gate_exps.weight",
        "blk.2.ffn_up_exps.weight",
        "blk.2.nextn.enorm.weight",
    ]
    section = parts.section(packs.MTP)
    ofs_data, len_data = struct.unpack_from("<QQ", section, 40)
    # Header and 5 rows take 664 bytes, so the data starts at 4096; 576 + 20 bytes fill one page, two experts two more.
    assert (ofs_data, len_data) == (4096, 3 * 4096)
    info = {name.decode(): (f[12], f[13], f[14], f[15]) for name, f in parts.table(packs.MTP, MTP_ROW)}
    assert info == {
        "blk.2.attn_q.weight": (0, 576, 0, 0),
        "blk.2.nextn.enorm.weight": (576, 20, 0, 0),
        "blk.2.ffn_gate_exps.weight": (4096, 48, 4096, 1),
        "blk.2.ffn_up_exps.weight": (4096 + 24, 48, 4096, 2),
        "blk.2.ffn_down_exps.weight": (4096 + 48, 24, 4096, 3),
    }
    for name, row in index.items():
        if row.home == packs.MTP:
            assert row.offset == 4096 + info[name][0]
        assert parts.bytes_of(row, 4096) == source[name]
    assert packs.EXPERTS not in parts.entries
    assert parts.flags & 0b100000
    assert parts.manifest["mtp"] == {"tensor_count": 5, "bytes": 576 + 20 + 48 + 48 + 24}
    assert parts.manifest["model"]["layer_count"] == 2


@pytest.mark.parametrize("drafts", [("u32", 0), ("u32", 4), ("str", "1"), ("bool", True), ("i32", -1), ("f32", 1.0)])
def test_no_draft_layer_where_the_number_makes_no_sense(tmp_path: Path, drafts: tuple[str, Any]) -> None:
    metadata, tensors = draft_model()
    metadata[2] = ("qwen.nextn_predict_layers", *drafts)
    parts = convert(tmp_path, metadata, tensors)
    assert packs.MTP not in parts.entries
    assert packs.EXPERTS in parts.entries
    assert parts.manifest["model"]["layer_count"] == 3
