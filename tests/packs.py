"""Valid packs for tests, made once per process: converted from tiny GGUFs, then completed by hand.

`everything` and `small` hold all fifteen kinds of sections; `external` keeps its experts in two shards;
`vocabulary` has no tensors, `plain` has nothing but the mandatory sections.
"""

from __future__ import annotations

import tempfile
from functools import cache
from hashlib import shake_128
from pathlib import Path

from gguf_maker import EVERY_KIND, Entry, Tensor, tiny_tokenizer, write_gguf
from mutate import Pack

from gpack.convert.gguf import convert_gguf
from gpack.generated.structs import ExpertLayoutRowV1, ExpertShardRowV1
from gpack.sections.assets import build_assets

# type: (elements, bytes) to a block, as ggml has them.
F32, F16, Q4_0, Q8_0, Q4_K, BF16 = 0, 1, 2, 8, 12, 30
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), BF16: (1, 2)}
ASSETS = {"tokenizer.json": b"{}", "merges.txt": b"#version: 0.2\nt h\n", "empty": b""}


def tensor(name: str, ggml_type: int, *dims: int) -> Tensor:
    """A tensor of bytes that depend on its name only; the last is never zero, so that no padding looks like it."""
    elements = 1
    for extent in dims:
        elements *= extent
    block, size = BLOCKS[ggml_type]
    data = shake_128(name.encode()).digest(elements // block * size)
    return name, ggml_type, dims, data[:-1] + b"\x7f"


def _experts(layer: int, *, fused: bool, count: int = 3) -> list[Tensor]:
    first = (
        [tensor(f"blk.{layer}.ffn_gate_up_exps.weight", Q4_0, 32, 8, count)]
        if fused
        else [
            tensor(f"blk.{layer}.ffn_gate_exps.weight", Q4_0, 32, 4, count),
            tensor(f"blk.{layer}.ffn_up_exps.weight", Q4_0, 32, 4, count),
        ]
    )
    return [*first, tensor(f"blk.{layer}.ffn_down_exps.weight", F16, 4, 32, count)]


def _model(layers: int, *, drafts: int, name: str = "tiny") -> list[Entry]:
    return [
        ("general.architecture", "str", name),
        ("general.name", "str", f"A {name} model"),
        (f"{name}.block_count", "u32", layers),
        (f"{name}.context_length", "u32", 128),
        (f"{name}.nextn_predict_layers", "u32", drafts),
    ]


def everything_gguf() -> tuple[list[Entry], list[Tensor]]:
    """All homes, all kinds of metadata, all shapes of experts."""
    metadata = [*_model(4, drafts=1), *EVERY_KIND, *tiny_tokenizer()]
    tensors = [
        tensor("token_embd.weight", Q8_0, 32, 24),
        tensor("output.weight", F16, 32, 24),
        tensor("per_layer_token_embd.weight", Q8_0, 64, 5),
        tensor("rope_freqs.weight", F32, 3),
        tensor("blk.0.attn_norm.weight", F32, 32),
        tensor("blk.0.attn_q.weight", Q4_0, 32, 32),
        tensor("blk.0.attn_k.weight", BF16, 32, 5),
        tensor("blk.0.attn_v.weight", F16, 32, 3),
        tensor("blk.0.ffn_up.weight", Q8_0, 32, 7),
        tensor("blk.0.ffn_down.weight", Q4_K, 256, 2),
        tensor("blk.0.odd.weight", Q8_0, 32),
        tensor("blk.0.conv.weight", F32, 2, 3, 5),
        *_experts(1, fused=False),
        *_experts(2, fused=True),
        tensor("blk.2.ffn_gate_inp.weight", F32, 32, 3),
        tensor("blk.3.attn_norm.weight", BF16, 31),
        tensor("blk.3.nextn.eh_proj.weight", Q8_0, 64, 2),
        *_experts(3, fused=False, count=2),
    ]
    return metadata, tensors


def small_gguf() -> tuple[list[Entry], list[Tensor]]:
    """As little as fills every kind of section."""
    metadata = [
        ("general.architecture", "str", "t"),
        ("t.block_count", "u32", 2),
        ("t.nextn_predict_layers", "u32", 1),
        ("tokenizer.ggml.tokens", "[str]", ["a", "b", "ab"]),
        ("tokenizer.ggml.merges", "[str]", ["a b"]),
        ("tokenizer.chat_template", "str", "{{ x }}"),
    ]
    tensors = [
        tensor("token_embd.weight", F16, 2, 3),
        tensor("output.weight", F16, 2, 3),
        tensor("per_layer_token_embd.weight", F16, 2, 2),
        tensor("a.weight", F32, 3),
        tensor("b.weight", F16, 3),
        tensor("q.weight", Q4_0, 32, 1),
        tensor("blk.0.ffn_up_exps.weight", F16, 2, 2, 1),
        tensor("blk.0.ffn_down_exps.weight", F16, 2, 2, 1),
        tensor("blk.1.norm.weight", F32, 2),
    ]
    return metadata, tensors


def convert(metadata: list[Entry], tensors: list[Tensor]) -> bytes:
    """The pack of a GGUF."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_gguf(Path(folder) / "source.gguf", metadata, tensors)
        convert_gguf(source, Path(folder) / "made.gpack")
        return (Path(folder) / "made.gpack").read_bytes()


@cache
def everything() -> bytes:
    """All fifteen kinds of sections, with TokenizerAssets added by hand."""
    pack = Pack.parse(convert(*everything_gguf()))
    pack.add(12, build_assets(ASSETS), len(ASSETS))
    return pack.seal()


@cache
def small() -> bytes:
    """The same in as few bytes as possible."""
    pack = Pack.parse(convert(*small_gguf()))
    pack.add(12, build_assets({"a": b"x"}), 1)
    return pack.seal()


@cache
def vocabulary() -> bytes:
    """A tokenizer and no tensors."""
    return convert([("general.architecture", "str", "t"), *tiny_tokenizer()], [])


@cache
def plain() -> bytes:
    """The three mandatory sections, nothing in the tables."""
    return convert([], [])


@cache
def external() -> bytes:
    """The experts of `everything` in shards, put together from the records: gate and up in one, down in another."""
    pack = Pack.parse(everything())
    pack.remove(10)
    names = [b"model-00001-of-00002.gguf", b"model-00002-of-00002.gguf"]
    rows, at = [], 4096
    places: dict[str, int] = {}
    for row in pack.rows(9):
        row.flags |= 1
        row.offset = row.stride = 0
        fused = row.flags & 2
        row.gate_shard, row.up_shard, row.down_shard = 0, 0, 1
        row.gate_offset = row.down_offset = at
        row.down_stride = row.down_bytes
        row.gate_stride = row.gate_bytes + row.up_bytes if fused else row.gate_bytes
        row.up_stride = row.gate_stride if fused else row.up_bytes
        row.up_offset = at + (row.gate_bytes if fused else row.gate_bytes * row.n_expert)
        for role in ("gate_up", "down") if fused else ("gate", "up", "down"):
            places[f"blk.{row.layer}.ffn_{role}_exps.weight"] = getattr(row, f"{role.split('_')[0]}_offset")
        at += 8192
        rows.append(row.encode())
    shards = [
        ExpertShardRowV1(
            name_offset=len(names[0]) * index, name_length=len(name), file_size=1 << 20, header_size=4096,
            header_sha256=bytes([index + 1]) * 32, sha256=bytes([index + 3]) * 32, flags=1,
        ).encode()
        for index, name in enumerate(names)
    ]  # fmt: skip
    header = pack.get(9)
    header.num_shards = 2
    header.ofs_shards = 64 + ExpertLayoutRowV1.SIZE * len(rows)
    header.ofs_heap = header.ofs_shards + 96 * 2
    header.len_heap = sum(map(len, names))
    pack.section(9).data[:] = b"".join([header.encode(), *rows, *shards, *names])
    for name, place in places.items():
        pack.set_row(1, name, flags=1)
        if pack.rows(1)[pack.find(1, name)].offset != place:
            pack.set_row(1, name, offset=place)
    pack.manifest["experts"] |= {
        "mode": "external",
        "shards": [
            {"name": name.decode(), "size": 1 << 20, "header_sha256": f"0{i + 1}" * 32, "sha256": f"0{i + 3}" * 32}
            for i, name in enumerate(names)
        ],
    }
    return pack.seal()
