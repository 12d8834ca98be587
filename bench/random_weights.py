"""Llama models of random weights: legal blocks of realistic size, so that products cost what they cost in real ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gpack.generated.constants import GgmlType, MetadataType
from gpack.sections.values import Value
from gpack.sources.gguf_write import build_header

_CHUNK = 4096  # blocks that are made at random; a tensor repeats them
_HALF = np.dtype("<f2")


@dataclass(frozen=True)
class Shape:
    """A model's size."""

    layers: int
    width: int = 2048
    hidden: int = 5632
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 32_000


FULL = {"Q4_K_M": Shape(36), "Q8_0": Shape(20)}  # about 1 GB each
QUICK = {"Q4_K_M": Shape(4, 1024, 2816, 16, 4), "Q8_0": Shape(2, 1024, 2816, 16, 4)}


def write(path: Path, kind: str, shape: Shape) -> None:
    """A GGUF with `Q8_0` in all matrices, or llama.cpp's mix of Q4_K and Q6_K (`Q4_K_M`)."""
    specs = list(_tensors(kind, shape))
    sized = [
        (name, kind_, dims, prod(dims) // GgmlType.BLOCK[kind_] * GgmlType.BYTES[kind_]) for name, kind_, dims in specs
    ]
    header, offsets, size = build_header(version=3, alignment=32, metadata=_metadata(shape), tensors=sized)
    random = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(header)
        for (_, kind_, _, n_bytes), offset in zip(sized, offsets, strict=True):
            file.seek(offset)
            blocks = _blocks(kind_, random)
            whole, rest = divmod(n_bytes, len(blocks))
            for _ in range(whole):
                file.write(blocks)
            file.write(blocks[:rest])
        file.truncate(size)


def _tensors(kind: str, shape: Shape) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    small, large = (GgmlType.Q8_0, GgmlType.Q8_0) if kind == "Q8_0" else (GgmlType.Q4_K, GgmlType.Q6_K)
    width, kv = shape.width, shape.width // shape.heads * shape.kv_heads
    yield "token_embd.weight", small, (width, shape.vocabulary)
    for layer in range(shape.layers):
        # llama.cpp's rule for this mix: the first and last eighth, and every third between.
        eighth = shape.layers // 8
        more = layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2
        wide = large if more else small
        name = f"blk.{layer}."
        yield f"{name}attn_norm.weight", GgmlType.F32, (width,)
        yield f"{name}attn_q.weight", small, (width, width)
        yield f"{name}attn_k.weight", small, (width, kv)
        yield f"{name}attn_v.weight", wide, (width, kv)
        yield f"{name}attn_output.weight", small, (width, width)
        yield f"{name}ffn_norm.weight", GgmlType.F32, (width,)
        yield f"{name}ffn_gate.weight", small, (width, shape.hidden)
        yield f"{name}ffn_up.weight", small, (width, shape.hidden)
        yield f"{name}ffn_down.weight", wide, (shape.hidden, width)
    yield "output_norm.weight", GgmlType.F32, (width,)
    yield "output.weight", large, (width, shape.vocabulary)


def _blocks(kind: int, random: np.random.Generator) -> bytes:
    """Random blocks of a type, values of mean 0 and a deviation of about 0.02."""
    if kind == GgmlType.F32:
        return random.uniform(0.9, 1.1, _CHUNK).astype("<f4").tobytes()
    raw = random.integers(0, 256, (_CHUNK, GgmlType.BYTES[kind]), np.uint8)

    def put(at: int, scale: float) -> None:
        raw[:, at : at + 2] = (random.uniform(0.9, 1.1, _CHUNK) * scale).astype(_HALF).view(np.uint8).reshape(-1, 2)

    if kind == GgmlType.Q8_0:
        put(0, 3e-4)  # times a byte of deviation 74
    elif kind == GgmlType.Q4_K:
        put(0, 1.4e-4)  # times scales around 31 and codes of mean 7.5, less
        put(2, 7.5 * 1.4e-4)  # minima around 31
    else:
        raw[:, 192:208] = random.integers(-16, 16, (_CHUNK, 16), np.int8).view(np.uint8)
        put(208, 1.2e-4)  # times these scales and codes of deviation 18
    return raw.tobytes()


def _metadata(shape: Shape) -> list[Value]:
    numbers = {
        "block_count": shape.layers,
        "context_length": 4096,
        "embedding_length": shape.width,
        "feed_forward_length": shape.hidden,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "rope.dimension_count": shape.width // shape.heads,
        "vocab_size": shape.vocabulary,
    }
    return [
        _text("general.architecture", "llama"),
        _text("general.name", "random weights"),
        *(
            Value(f"llama.{key}", MetadataType.UINT32, MetadataType.UINT32, 1, struct.pack("<I", number))
            for key, number in numbers.items()
        ),
        Value(
            "llama.attention.layer_norm_rms_epsilon",
            MetadataType.FLOAT32,
            MetadataType.FLOAT32,
            1,
            struct.pack("<f", 1e-5),
        ),
        _text("tokenizer.ggml.model", "no_vocab"),
    ]


def _text(key: str, text: str) -> Value:
    return Value(key, MetadataType.STRING, MetadataType.STRING, 1, text.encode())
