"""Makes small GGUF files for tests, packed by hand: independent of the reader and the writer under test.

Everything is deterministic: the same arguments give the same bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpack.conformance.recipes import material

# A metadata entry is (key, kind, value). Kinds are "u8" ... "f64", "bool", "str", and "[kind]" for arrays.
Entry = tuple[str, str, Any]
# A tensor is (name, type id, dims with the contiguous one first, data).
Tensor = tuple[str, int, tuple[int, ...], bytes]

KINDS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "str": (8, ""),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
ARRAY = 9
F32, F16, Q4_0 = 0, 1, 2
# The vectors of the conformance kit are made of the same.
EVERY_KIND, TINY_TOKENS, TINY_SPECIALS = material.EVERY_KIND, material.TINY_TOKENS, material.TINY_SPECIALS
TINY_MERGES, TINY_CHAT_TEMPLATE = material.TINY_MERGES, material.TINY_CHAT_TEMPLATE
byte_alphabet, tiny_tokenizer = material.byte_alphabet, material.tiny_tokenizer


def pack_string(text: str | bytes) -> bytes:
    octets = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(octets)) + octets


def type_id(kind: str) -> int:
    return ARRAY if kind.startswith("[") else KINDS[kind][0]


def pack_value(kind: str, value: Any) -> bytes:
    """The bytes of a value after its type."""
    if kind.startswith("["):
        inner = kind[1:-1]
        return struct.pack("<IQ", type_id(inner), len(value)) + b"".join(pack_value(inner, v) for v in value)
    if kind == "str":
        return pack_string(value)
    return struct.pack(KINDS[kind][1], value)


def pack_entry(entry: Entry) -> bytes:
    key, kind, value = entry
    return pack_string(key) + struct.pack("<I", type_id(kind)) + pack_value(kind, value)


def infer_kind(value: Any) -> str:
    """The kind that a plain Python value is written as."""
    if isinstance(value, list):
        wide = type(value[0]) is int and max(value) >= 1 << 32
        return "[u64]" if wide else f"[{infer_kind(value[0])}]"
    return {bool: "bool", int: "u32", float: "f32", str: "str", bytes: "str"}[type(value)]


def entries_of(metadata: Mapping[str, Any] | Sequence[Entry]) -> list[Entry]:
    if isinstance(metadata, Mapping):
        return [(key, infer_kind(value), value) for key, value in metadata.items()]
    return list(metadata)


def pad(size: int, alignment: int) -> int:
    return -size % alignment


def make_gguf(
    metadata: Mapping[str, Any] | Sequence[Entry] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    kv_count: int | None = None,
    tensor_count: int | None = None,
    raw_metadata: bytes = b"",
    raw_entries: int = 0,
    n_dims: Mapping[str, int] | None = None,
    offsets: Mapping[str, int] | None = None,
    trailing: bytes = b"",
) -> bytes:
    """A GGUF file.

    Args:
        metadata: Entries, or plain values by key; `general.alignment` is the caller's to add.
        tensors: Tensors, laid out in order.
        version: Written as it is.
        alignment: Used for the layout.
        magic: The first four bytes.
        kv_count: Lies about the number of entries.
        tensor_count: Lies about the number of tensors.
        raw_metadata: Bytes after the entries, for entries that cannot be expressed otherwise.
        raw_entries: Number of entries in `raw_metadata`.
        n_dims: Lies about the number of dimensions of tensors, by name.
        offsets: Offsets in the data section to write instead of the true ones, by name.
        trailing: Bytes at the end of the file.
    """
    entries = entries_of(metadata)
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) + raw_entries if kv_count is None else kv_count,
    )
    head = magic + struct.pack("<IQQ", version, *counts)
    head += b"".join(map(pack_entry, entries)) + raw_metadata
    data = b""
    for name, ggml_type, dims, octets in tensors:
        dim_count = (n_dims or {}).get(name, len(dims))
        offset = (offsets or {}).get(name, len(data))
        head += pack_string(name) + struct.pack(f"<I{len(dims)}Q", dim_count, *dims)
        head += struct.pack("<IQ", ggml_type, offset)
        data += octets + bytes(pad(len(octets), alignment))
    return head + bytes(pad(len(head), alignment)) + data + trailing


def write_gguf(path: Path, *args: Any, **options: Any) -> Path:
    """`make_gguf` into a file."""
    path.write_bytes(make_gguf(*args, **options))
    return path


def shard_name(stem: str, index: int, count: int) -> str:
    """The file name of shard `index`, from 0."""
    return f"{stem}-{index + 1:05d}-of-{count:05d}.gguf"


def split_entries(index: int, count: int, tensor_count: int) -> list[Entry]:
    return [("split.no", "u16", index), ("split.count", "u16", count), ("split.tensors.count", "i32", tensor_count)]


def write_split(
    directory: Path,
    stem: str,
    metadata: Mapping[str, Any] | Sequence[Entry],
    tensors: Sequence[Tensor],
    *,
    shards: int = 3,
    metadata_first: bool = False,
    extra: Mapping[int, Sequence[Entry]] | None = None,
    alignments: Mapping[int, int] | None = None,
) -> list[Path]:
    """A model in several files, as llama-gguf-split writes it: metadata in the first one only.

    Args:
        directory: Where to.
        stem: The name before `-00001-of-...`.
        metadata: The model's entries.
        tensors: The model's tensors, dealt out in runs.
        shards: Number of files.
        metadata_first: The first file holds no tensors.
        extra: More entries for single shards, by index.
        alignments: Alignment of single shards, by index; written as `general.alignment` if not 32.
    """
    tensor_shards = shards - metadata_first
    per_shard = -(-len(tensors) // tensor_shards)
    runs = [list(tensors[i * per_shard : (i + 1) * per_shard]) for i in range(tensor_shards)]
    if metadata_first:
        runs.insert(0, [])
    paths = []
    for index, run in enumerate(runs):
        entries = [] if index else entries_of(metadata)
        alignment = (alignments or {}).get(index, 32)
        if alignment != 32:
            entries.append(("general.alignment", "u32", alignment))
        entries += split_entries(index, shards, len(tensors)) + list((extra or {}).get(index, ()))
        path = directory / shard_name(stem, index, shards)
        paths.append(write_gguf(path, entries, run, alignment=alignment))
    return paths


class TensorMaker:
    """Random tensors of plausible values, from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def f32(self, name: str, *dims: int) -> Tensor:
        return name, F32, dims, self._normal(dims).astype("<f4").tobytes()

    def f16(self, name: str, *dims: int) -> Tensor:
        return name, F16, dims, self._normal(dims).astype("<f2").tobytes()

    def norm(self, name: str, *dims: int) -> Tensor:
        return name, F32, dims, (1 + self._normal(dims)).astype("<f4").tobytes()

    def q4_0(self, name: str, *dims: int) -> Tensor:
        blocks = int(np.prod(dims)) // 32
        data = self._rng.integers(0, 256, (blocks, 18), dtype=np.uint8)
        scales = self._rng.uniform(0.002, 0.01, blocks).astype("<f2")
        data[:, :2] = scales.view(np.uint8).reshape(blocks, 2)
        return name, Q4_0, dims, data.tobytes()

    def _normal(self, dims: tuple[int, ...]) -> Any:
        return self._rng.normal(0, 0.02, int(np.prod(dims)))


N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_FF_EXP, N_EXPERT = 64, 4, 2, 128, 32, 4
HEAD_DIM = N_EMBD // N_HEAD


def _architecture(name: str, layers: int) -> list[Entry]:
    return [
        ("general.architecture", "str", name),
        ("general.name", "str", f"tiny {name}"),
        ("general.file_type", "u32", 2),
        (f"{name}.vocab_size", "u32", len(TINY_TOKENS)),
        (f"{name}.context_length", "u32", 256),
        (f"{name}.embedding_length", "u32", N_EMBD),
        (f"{name}.block_count", "u32", layers),
        (f"{name}.feed_forward_length", "u32", N_FF),
        (f"{name}.attention.head_count", "u32", N_HEAD),
        (f"{name}.attention.head_count_kv", "u32", N_HEAD_KV),
        (f"{name}.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        (f"{name}.rope.dimension_count", "u32", HEAD_DIM),
        (f"{name}.rope.freq_base", "f32", 10000.0),
    ]


def _attention(make: TensorMaker, layer: str) -> list[Tensor]:
    return [
        make.norm(f"{layer}.attn_norm.weight", N_EMBD),
        make.q4_0(f"{layer}.attn_q.weight", N_EMBD, N_EMBD),
        make.q4_0(f"{layer}.attn_k.weight", N_EMBD, N_HEAD_KV * HEAD_DIM),
        make.f16(f"{layer}.attn_v.weight", N_EMBD, N_HEAD_KV * HEAD_DIM),
        make.q4_0(f"{layer}.attn_output.weight", N_EMBD, N_EMBD),
        make.norm(f"{layer}.ffn_norm.weight", N_EMBD),
    ]


def _dense_ffn(make: TensorMaker, layer: str) -> list[Tensor]:
    return [
        make.q4_0(f"{layer}.ffn_gate.weight", N_EMBD, N_FF),
        make.q4_0(f"{layer}.ffn_up.weight", N_EMBD, N_FF),
        make.q4_0(f"{layer}.ffn_down.weight", N_FF, N_EMBD),
    ]


def _frame(make: TensorMaker, layers: Sequence[Tensor], *, tied: bool) -> list[Tensor]:
    ends = [make.norm("output_norm.weight", N_EMBD)]
    if not tied:
        ends.append(make.f16("output.weight", N_EMBD, len(TINY_TOKENS)))
    return [make.q4_0("token_embd.weight", N_EMBD, len(TINY_TOKENS)), *layers, *ends]


def tiny_llama(
    *, layers: int = 2, tied: bool = False, alignment: int = 32, seed: int = 1
) -> tuple[list[Entry], list[Tensor]]:
    """Metadata and tensors of a llama of 64 dimensions: Q4_0, F16 and F32 tensors."""
    make = TensorMaker(seed)
    blocks: list[Tensor] = []
    for index in range(layers):
        blocks += _attention(make, f"blk.{index}") + _dense_ffn(make, f"blk.{index}")
    metadata = _architecture("llama", layers) + tiny_tokenizer()
    if alignment != 32:
        metadata.append(("general.alignment", "u32", alignment))
    return metadata, _frame(make, blocks, tied=tied)


def _experts(make: TensorMaker, layer: str, *, fused: bool, shared: bool) -> list[Tensor]:
    tensors = [make.f32(f"{layer}.ffn_gate_inp.weight", N_EMBD, N_EXPERT)]
    if fused:
        tensors.append(make.q4_0(f"{layer}.ffn_gate_up_exps.weight", N_EMBD, 2 * N_FF_EXP, N_EXPERT))
    else:
        tensors.append(make.q4_0(f"{layer}.ffn_gate_exps.weight", N_EMBD, N_FF_EXP, N_EXPERT))
        tensors.append(make.q4_0(f"{layer}.ffn_up_exps.weight", N_EMBD, N_FF_EXP, N_EXPERT))
    # The down projection is of another type than the others, as in llama.cpp's mixed files.
    tensors.append(make.f16(f"{layer}.ffn_down_exps.weight", N_FF_EXP, N_EMBD, N_EXPERT))
    if shared:
        tensors.append(make.q4_0(f"{layer}.ffn_gate_shexp.weight", N_EMBD, N_FF_EXP))
        tensors.append(make.q4_0(f"{layer}.ffn_up_shexp.weight", N_EMBD, N_FF_EXP))
        tensors.append(make.q4_0(f"{layer}.ffn_down_shexp.weight", N_FF_EXP, N_EMBD))
    return tensors


def tiny_moe(
    *,
    layers: int = 3,
    fused: bool = False,
    dense_first: bool = True,
    shared_expert: bool = True,
    tied: bool = False,
    seed: int = 2,
) -> tuple[list[Entry], list[Tensor]]:
    """Metadata and tensors of a mixture of 4 experts, 2 of them used, in the manner of dots1.

    Args:
        layers: Number of layers.
        fused: Gate and up projections of the experts in one tensor `ffn_gate_up_exps`.
        dense_first: The first layer has no experts.
        shared_expert: Each layer has an expert that is always used.
        tied: No `output.weight`.
        seed: Of the random values.
    """
    make = TensorMaker(seed)
    blocks: list[Tensor] = []
    for index in range(layers):
        layer = f"blk.{index}"
        blocks += _attention(make, layer)
        if index == 0 and dense_first:
            blocks += _dense_ffn(make, layer)
        else:
            blocks += _experts(make, layer, fused=fused, shared=shared_expert)
    metadata = [
        *_architecture("dots1", layers),
        ("dots1.leading_dense_block_count", "u32", int(dense_first)),
        ("dots1.expert_count", "u32", N_EXPERT),
        ("dots1.expert_used_count", "u32", 2),
        ("dots1.expert_shared_count", "u32", int(shared_expert)),
        ("dots1.expert_feed_forward_length", "u32", N_FF_EXP),
        *tiny_tokenizer(),
    ]
    return metadata, _frame(make, blocks, tied=tied)


def large_vocabulary(tokens: int = 248_320, merges: int = 247_587, seed: int = 3) -> list[Entry]:
    """A tokenizer of a real model's size, with tokens and merges like those of a byte-level BPE."""
    rng = random.Random(seed)
    alphabet = byte_alphabet()
    # Most tokens are a few letters long; some are runs of spaces longer than 255 bytes.
    pieces = ["".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(4096)]
    words = [rng.choice(pieces) + rng.choice(pieces) for _ in range(tokens)]
    words[1000:50000:7000] = ["Ġ" * length for length in range(100, 1500, 200)]
    pairs = [f"{rng.choice(pieces)} {rng.choice(pieces)}" for _ in range(merges)]
    return [
        ("general.architecture", "str", "qwen35"),
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.tokens", "[str]", words),
        ("tokenizer.ggml.token_type", "[i32]", [1] * tokens),
        ("tokenizer.ggml.scores", "[f32]", [0.5] * tokens),
        ("tokenizer.ggml.merges", "[str]", pairs),
    ]


# One entry of every kind, with the values that break readers.


def vector(name: str, count: int = 8) -> Tensor:
    return name, F32, (count,), np.arange(count, dtype="<f4").tobytes()
