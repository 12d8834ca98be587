"""Models to measure with: real shapes and vocabularies, random weights, written within seconds.

Weights are one block of random bytes over and over: no command looks at their values, and SHA-256 is as fast on any.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gpack.generated.constants import GgmlType, MetadataType
from gpack.sections.values import Value
from gpack.sources.gguf_write import build_header

# Qwen3.5's vocabulary: 256 bytes, one token for each merge, the rest control tokens.
VOCABULARY, MERGES = 248_320, 247_587
_BLOCK = 64 << 20

# Name, type, dims.
Shape = tuple[str, int, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """How large the models are; tensor counts and vocabulary stay as they are.

    Attributes:
        width: Columns of every matrix.
        hidden: Rows of a feed-forward matrix.
        expert_hidden: The same of one expert.
    """

    width: int
    hidden: int
    expert_hidden: int


FULL = Size(width=2048, hidden=6144, expert_hidden=512)  # over 2 GB each
QUICK = Size(width=512, hidden=1024, expert_hidden=256)  # 0.15 GB each
DENSE_LAYERS, MOE_LAYERS, EXPERTS = 64, 16, 64


def write_dense(path: Path, size: Size) -> None:
    """A dense model of 706 tensors: Q4_K and Q6_K matrices, F32 norms, the embedding as head."""
    tensors: list[Shape] = [_embedding(size)]
    for index in range(DENSE_LAYERS):
        layer = f"blk.{index}"
        tensors += _attention(layer, size)
        tensors += [
            (f"{layer}.ffn_gate.weight", GgmlType.Q4_K, (size.width, size.hidden)),
            (f"{layer}.ffn_up.weight", GgmlType.Q4_K, (size.width, size.hidden)),
            (f"{layer}.ffn_down.weight", GgmlType.Q6_K, (size.hidden, size.width)),
        ]
    tensors.append(("output_norm.weight", GgmlType.F32, (size.width,)))
    _write(path, _metadata("qwen3", DENSE_LAYERS), tensors)


def write_moe(path: Path, size: Size) -> None:
    """A mixture of 16 layers of 64 experts: a pack holds their slices interleaved, the GGUF role by role."""
    _write(path, *moe_shapes(size))


def moe_shapes(size: Size) -> tuple[list[Value], list[Shape]]:
    """Metadata and tensors of that mixture."""
    tensors: list[Shape] = [_embedding(size)]
    for index in range(MOE_LAYERS):
        layer = f"blk.{index}"
        tensors += _attention(layer, size)
        tensors += [
            (f"{layer}.ffn_gate_inp.weight", GgmlType.F32, (size.width, EXPERTS)),
            (f"{layer}.ffn_gate_exps.weight", GgmlType.Q4_K, (size.width, size.expert_hidden, EXPERTS)),
            (f"{layer}.ffn_up_exps.weight", GgmlType.Q4_K, (size.width, size.expert_hidden, EXPERTS)),
            (f"{layer}.ffn_down_exps.weight", GgmlType.Q6_K, (size.expert_hidden, size.width, EXPERTS)),
        ]
    tensors.append(("output_norm.weight", GgmlType.F32, (size.width,)))
    extra = [_number("qwen3moe.expert_count", EXPERTS), _number("qwen3moe.expert_used_count", 8)]
    return _metadata("qwen3moe", MOE_LAYERS) + extra, tensors


def write_sparse(path: Path, metadata: Sequence[Value], shapes: Sequence[Shape]) -> int:
    """A model whose tensors are a hole of the file; returns the bytes of its experts."""
    specs = [(*shape, _byte_size(shape)) for shape in shapes]
    header, _, size = build_header(version=3, alignment=32, metadata=metadata, tensors=specs)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)
    return sum(n_bytes for name, _, _, n_bytes in specs if "_exps" in name)


def write_safetensors(path: Path, sizes: Sequence[tuple[str, int]]) -> None:
    """A safetensors file of tensors of these names and bytes; the data is a hole, since only the header is read."""
    header, end = {}, 0
    for name, n_bytes in sizes:
        header[name] = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


# ---------------------------------------------------------------- tensors


def _embedding(size: Size) -> Shape:
    return "token_embd.weight", GgmlType.Q4_K, (size.width, VOCABULARY)


def _attention(layer: str, size: Size) -> list[Shape]:
    width, key_width = size.width, size.width // 4
    return [
        (f"{layer}.attn_norm.weight", GgmlType.F32, (width,)),
        (f"{layer}.attn_q.weight", GgmlType.Q4_K, (width, width)),
        (f"{layer}.attn_k.weight", GgmlType.Q4_K, (width, key_width)),
        (f"{layer}.attn_v.weight", GgmlType.Q6_K, (width, key_width)),
        (f"{layer}.attn_output.weight", GgmlType.Q4_K, (width, width)),
        (f"{layer}.attn_q_norm.weight", GgmlType.F32, (128,)),
        (f"{layer}.attn_k_norm.weight", GgmlType.F32, (128,)),
        (f"{layer}.ffn_norm.weight", GgmlType.F32, (width,)),
    ]


def _byte_size(shape: Shape) -> int:
    _, ggml_type, dims = shape
    return prod(dims) // GgmlType.BLOCK[ggml_type] * GgmlType.BYTES[ggml_type]


def _write(path: Path, metadata: Sequence[Value], shapes: Sequence[Shape]) -> None:
    specs = [(name, ggml_type, dims, _byte_size((name, ggml_type, dims))) for name, ggml_type, dims in shapes]
    header, _, size = build_header(version=3, alignment=32, metadata=metadata, tensors=specs)
    block = memoryview(os.urandom(_BLOCK))
    with path.open("wb") as file:
        file.write(header)
        left = size - len(header)
        while left:
            left -= file.write(block[: min(left, _BLOCK)])


# ---------------------------------------------------------------- metadata


def _metadata(architecture: str, layers: int) -> list[Value]:
    tokens, merges = vocabulary()
    return [
        _text("general.architecture", architecture),
        _text("general.name", f"bench {architecture}"),
        _number(f"{architecture}.block_count", layers),
        _number(f"{architecture}.context_length", 32768),
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", "qwen35"),
        _strings("tokenizer.ggml.tokens", tokens),
        Value(
            "tokenizer.ggml.token_type",
            MetadataType.ARRAY,
            MetadataType.INT32,
            len(tokens),
            struct.pack("<i", 1) * len(tokens),
        ),
        _strings("tokenizer.ggml.merges", merges),
        _number("tokenizer.ggml.eos_token_id", len(tokens) - 1),
    ]


def vocabulary() -> tuple[list[bytes], list[bytes]]:
    """Tokens and merges of a byte-level BPE: every merge makes a token of two earlier ones, as training does."""
    rng = random.Random(1)
    tokens = [text.encode() for text in _alphabet()]
    known = set(tokens)
    merges = []
    for left, right in _pairs(rng, tokens):
        if left + right not in known:
            merges.append(left + b" " + right)
            known.add(left + right)
            tokens.append(left + right)
            if len(merges) == MERGES:
                break
    tokens += [b"<|control_%d|>" % index for index in range(VOCABULARY - len(tokens))]
    return tokens, merges


def _pairs(rng: random.Random, tokens: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Two earlier tokens at a time, short ones more often: results of 2 to 16 bytes, 9.6 on average."""
    while True:
        few = min(len(tokens), 4000)
        left, right = tokens[int(rng.random() ** 2 * few)], tokens[int(rng.random() ** 2 * few)]
        if len(left) + len(right) <= 16:
            yield left, right


def _alphabet() -> list[str]:
    """GPT-2's characters for the 256 bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _strings(key: str, texts: Sequence[bytes]) -> Value:
    raw = b"".join(part for text in texts for part in (len(text).to_bytes(8, "little"), text))
    return Value(key, MetadataType.ARRAY, MetadataType.STRING, len(texts), raw)


def _text(key: str, text: str) -> Value:
    return Value(key, MetadataType.STRING, MetadataType.STRING, 1, text.encode())


def _number(key: str, number: int) -> Value:
    return Value(key, MetadataType.UINT32, MetadataType.UINT32, 1, struct.pack("<I", number))
