"""Valid packs that the mutations start from: made once per process by gpack's own writer, completed by the sealer.

`everything` and `small` hold all kinds of sections but digests of chunks and parity, `sealed` those too; `external`
keeps its experts in two shards; `vocabulary` has no tensors, `plain` has nothing but the mandatory sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256, shake_128
from typing import Any

from ...generated.constants import (
    CACHE_LINE,
    MIN_CHUNK_LOG2,
    ChunkAlgorithm,
    ExpertFlags,
    GgmlType,
    ParityCode,
    SectionKind,
    ShardFlags,
    TensorFlags,
)
from ...generated.rules import align_up
from ...generated.structs import (
    ChunkDigestsHeaderV1,
    ExpertLayoutHeaderV1,
    ExpertLayoutRowV1,
    ExpertShardRowV1,
    ParityHeaderV1,
)
from ...sections.assets import build_assets
from ..memory_model import Entry, MemoryModel, pack_of
from ..parts import MANIFEST, Parts
from .material import EVERY_KIND, Tensor, in_memory, tensor, tiny_tokenizer

F32, F16, Q4_0, Q8_0 = GgmlType.F32, GgmlType.F16, GgmlType.Q4_0, GgmlType.Q8_0
Q4_K, BF16 = GgmlType.Q4_K, GgmlType.BF16
INDEX, LAYOUT, BLOBS = SectionKind.TENSOR_INDEX_BIN, SectionKind.EXPERT_LAYOUT_BIN, SectionKind.EXPERT_BLOBS
ASSETS = {"tokenizer.json": b"{}", "merges.txt": b"#version: 0.2\nt h\n", "empty": b""}
SHARD_SIZE, SHARD_HEADER = 1 << 20, 4096


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


def everything_source() -> tuple[list[Entry], list[Tensor]]:
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


def small_source() -> tuple[list[Entry], list[Tensor]]:
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


def convert(metadata: Sequence[Entry], tensors: Sequence[Tensor], **options: Any) -> bytes:
    """The pack of a model, by gpack's own writer."""
    return pack_of(MemoryModel(metadata, in_memory(tensors)), **options)


@cache
def everything() -> bytes:
    """All fifteen kinds of sections, with TokenizerAssets added by hand."""
    pack = Parts.parse(convert(*everything_source()))
    pack.add(SectionKind.TOKENIZER_ASSETS, build_assets(ASSETS), len(ASSETS))
    return pack.seal()


@cache
def small() -> bytes:
    """The same in as few bytes as possible."""
    pack = Parts.parse(convert(*small_source()))
    pack.add(SectionKind.TOKENIZER_ASSETS, build_assets({"a": b"x"}), 1)
    return pack.seal()


@cache
def sealed() -> bytes:
    """`small` with digests of its chunks, of which every section is one, and parity in two stripes."""
    pack = Parts.parse(small())
    blocks = [bytes(section.data) for section in pack.sections if section.entry.kind != MANIFEST and section.data]
    size = align_up(max(map(len, blocks)), CACHE_LINE)
    stripes = 2
    n_data = -(-len(blocks) // stripes)
    header = ParityHeaderV1(
        code=ParityCode.CAUCHY,
        num_data=n_data,
        num_parity=1,
        num_stripes=stripes,
        num_chunks=len(blocks),
        block_size=size,
        parity_bytes=stripes * size,
    )
    parity = bytearray(header.encode())
    for stripe in range(stripes):
        made = bytearray(size)
        for column, block in enumerate(blocks[stripe::stripes]):
            for place, value in enumerate(block):
                made[place] ^= product(inverse(n_data ^ column), value)
        parity += made
    pack.add(SectionKind.PARITY, bytes(parity), stripes)
    pack.add(SectionKind.CHUNK_DIGESTS, b"", 0)
    digest_chunks(pack)
    return pack.seal()


def digest_chunks(pack: Parts) -> None:
    """Makes the digests anew of a pack whose sections are a chunk each."""
    from blake3 import blake3

    others = (SectionKind.CHUNK_DIGESTS, MANIFEST)
    data = [section.data for section in pack.sections if section.entry.kind not in others and section.data]
    header = ChunkDigestsHeaderV1(algorithm=ChunkAlgorithm.BLAKE3, chunk_log2=MIN_CHUNK_LOG2, num_digests=len(data))
    section = pack.section(SectionKind.CHUNK_DIGESTS)
    section.data[:] = header.encode() + b"".join(blake3(bytes(chunk)).digest() for chunk in data)
    section.entry.item_count = len(data)


@cache
def product(left: int, right: int) -> int:
    """Of two elements of GF(2^8) with the polynomial 0x11D, bit by bit."""
    made = 0
    while right:
        made ^= left if right & 1 else 0
        left = left << 1 ^ (0x11D if left & 0x80 else 0)
        right >>= 1
    return made


@cache
def inverse(value: int) -> int:
    """The element with which the product is 1."""
    return next(other for other in range(256) if product(value, other) == 1)


@cache
def vocabulary() -> bytes:
    """A tokenizer and no tensors."""
    return convert([("general.architecture", "str", "t"), *tiny_tokenizer()], [])


@cache
def repeated_merges() -> bytes:
    """One merge of long tokens, over and over: spelled out they take far more bytes than the tokens."""
    left, right = "l" * 400, "r" * 400
    merges = [f"{left} {right}"] * 40
    tokens = ("tokenizer.ggml.tokens", "[str]", [left, right, left + right])
    return convert([("general.architecture", "str", "t"), tokens, ("tokenizer.ggml.merges", "[str]", merges)], [])


@cache
def plain() -> bytes:
    """The three mandatory sections, nothing in the tables."""
    return convert([], [])


def shard_bytes() -> dict[str, bytes]:
    """The two shards of `external` by name: a header of a few letters, zeros, and a mark at the end of the file."""
    made = {}
    for index in (1, 2):
        data = bytearray(SHARD_SIZE)
        data[:16] = shake_128(b"shard %d" % index).digest(16)
        data[-1] = index
        made[f"model-0000{index}-of-00002.gguf"] = bytes(data)
    return made


@cache
def external() -> bytes:
    """The experts of `everything` in shards, put together from the records: gate and up in one, down in another."""
    return outside(Parts.parse(everything()), shard_bytes()).seal()


def outside(pack: Parts, files: dict[str, bytes]) -> Parts:
    """Moves the experts of a pack into two shards, each layer at the next two pages."""
    pack.remove(BLOBS)
    rows, at = [], SHARD_HEADER
    places: dict[str, int] = {}
    for row in pack.rows(LAYOUT):
        row.flags |= ExpertFlags.EXTERNAL
        row.offset = row.stride = 0
        fused = row.flags & ExpertFlags.FUSED_GATE_UP
        row.gate_shard, row.up_shard, row.down_shard = 0, 0, 1
        row.gate_offset = row.down_offset = at
        row.down_stride = row.down_bytes
        row.gate_stride = row.gate_bytes + row.up_bytes if fused else row.gate_bytes
        row.up_stride = row.gate_stride if fused else row.up_bytes
        row.up_offset = at + (row.gate_bytes if fused else row.gate_bytes * row.n_expert)
        for role in ("gate_up", "down") if fused else ("gate", "up", "down"):
            places[f"blk.{row.layer}.ffn_{role}_exps.weight"] = getattr(row, f"{role.split('_')[0]}_offset")
        at += 2 * SHARD_HEADER
        rows.append(row.encode())
    shards, said, heap = [], [], b""
    for name, data in files.items():
        shard = ExpertShardRowV1(
            name_offset=len(heap),
            name_length=len(name),
            file_size=len(data),
            header_size=SHARD_HEADER,
            header_sha256=sha256(data[:SHARD_HEADER]).digest(),
            sha256=sha256(data).digest(),
            flags=ShardFlags.HAS_SHA256,
        )
        heap += name.encode()
        shards.append(shard.encode())
        digests = {"header_sha256": shard.header_sha256.hex(), "sha256": shard.sha256.hex()}
        said.append({"name": name, "size": len(data), **digests})
    header = pack.get(LAYOUT)
    header.num_shards = len(shards)
    header.ofs_shards = ExpertLayoutHeaderV1.SIZE + ExpertLayoutRowV1.SIZE * len(rows)
    header.ofs_heap = header.ofs_shards + ExpertShardRowV1.SIZE * len(shards)
    header.len_heap = len(heap)
    pack.section(LAYOUT).data[:] = b"".join([header.encode(), *rows, *shards, heap])
    for name, place in places.items():
        pack.set_row(INDEX, name, flags=TensorFlags.EXTERNAL)
        if pack.rows(INDEX)[pack.find(INDEX, name)].offset != place:
            pack.set_row(INDEX, name, offset=place)
    pack.manifest["experts"] |= {"mode": "external", "shards": said}
    return pack
