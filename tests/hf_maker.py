"""Tiny Hugging Face folders for tests: tensors written by the `safetensors` package, the rest by `json`."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import TINY_MERGES, TINY_SPECIALS, TINY_TOKENS
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize

from gpack.convert.anything import convert
from gpack.errors import GpackError
from gpack.pack import open as open_pack
from gpack.sections.verify import verify
from gpack.sources.safetensors_set import SafetensorsSet

# A tensor is (the writer's name of its type, shape, bytes).
Stored = tuple[str, tuple[int, ...], bytes]
Tensors = dict[str, Stored]
Floats = NDArray[np.float32]

ORACLE = Path(__file__).parents[2] / "shared" / "oracle"
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB = 288  # 272 tokens and 16 of padding


def f32(array: NDArray[Any]) -> Stored:
    return "float32", array.shape, array.astype("<f4").tobytes()


def f16(array: NDArray[Any]) -> Stored:
    return "float16", array.shape, array.astype("<f2").tobytes()


def bf16(array: NDArray[Any]) -> Stored:
    """The values, cut to BF16."""
    return "bfloat16", array.shape, (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> Path:
    """A file by the format's own writer, which sorts the tensors by the size of their types, then by name."""
    buffers = {name: np.frombuffer(data, np.uint8) for name, (_, _, data) in tensors.items()}
    specs = {
        name: TensorSpec(dtype=kind, shape=list(shape), data_ptr=buffers[name].ctypes.data, data_len=len(data))
        for name, (kind, shape, data) in tensors.items()
    }
    path.write_bytes(serialize(specs, {"format": "pt"}))
    return path


def write_by_hand(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header, whatever it says, and this data."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + data)
    return path


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_sharded(folder: Path, runs: Sequence[Tensors], stem: str = "model") -> list[Path]:
    """The runs as shards with an index."""
    names = [f"{stem}-{number:05}-of-{len(runs):05}.safetensors" for number in range(1, len(runs) + 1)]
    paths = [write_safetensors(folder / name, run) for name, run in zip(names, runs, strict=True)]
    mapped = {tensor: name for name, run in zip(names, runs, strict=True) for tensor in run}
    write_json(folder / f"{stem}.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": mapped})
    return paths


def tiny_tokenizer_json(**model: Any) -> dict[str, Any]:
    """The tokenizer of `gguf_maker.tiny_tokenizer` as `tokenizer.json` says it."""
    plain = TINY_TOKENS[: -len(TINY_SPECIALS)]
    added = [
        {"id": len(plain) + index, "content": text, "special": True, "normalized": False}
        for index, text in enumerate(TINY_SPECIALS)
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(plain)},
            "merges": list(TINY_MERGES),
            **model,
        },
    }


def write_tokenizer(folder: Path, tokenizer: Mapping[str, Any] | None = None, **settings: Any) -> None:
    write_json(folder / "tokenizer.json", tokenizer or tiny_tokenizer_json())
    write_json(
        folder / "tokenizer_config.json",
        {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, **settings},
    )


def qwen3_config(*, layers: int = 2, hidden: int = 64, **others: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
        **others,
    }


class Maker:
    """Random tensors from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Floats:
        return self._rng.normal(0, 0.02, shape).astype(np.float32)


def attention_layer(
    make: Maker, prefix: str, hidden: int, *, heads: int = 4, kv: int = 2, size: int = 32, gated: bool = False
) -> Tensors:
    shapes = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "self_attn.q_proj": ((1 + gated) * heads * size, hidden),
        "self_attn.k_proj": (kv * size, hidden),
        "self_attn.v_proj": (kv * size, hidden),
        "self_attn.o_proj": (hidden, heads * size),
    }
    return {f"{prefix}.{name}.weight": f32(make(*shape)) for name, shape in shapes.items()}


def mlp(make: Maker, prefix: str, hidden: int, inner: int) -> Tensors:
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"{prefix}.{name}.weight": f32(make(*shape)) for name, shape in shapes.items()}


def qwen3_tensors(*, layers: int = 2, hidden: int = 64, seed: int = 1) -> Tensors:
    make = Maker(seed)
    tensors = {"model.embed_tokens.weight": f32(make(VOCAB, hidden)), "model.norm.weight": f32(make(hidden))}
    for layer in range(layers):
        tensors |= attention_layer(make, f"model.layers.{layer}", hidden)
        tensors |= mlp(make, f"model.layers.{layer}.mlp", hidden, 2 * hidden)
    return tensors


def qwen3_folder(folder: Path, *, tensors: Tensors | None = None, shards: int = 1, **config: Any) -> Path:
    """A whole small model; `config` are values of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {key: config[key] for key in ("layers", "hidden") if key in config}
    made = qwen3_tensors(**sizes) if tensors is None else tensors
    if shards == 1:
        write_safetensors(folder / "model.safetensors", made)
    else:
        items = list(made.items())
        write_sharded(folder, [dict(items[start::shards]) for start in range(shards)])
    write_json(folder / "config.json", qwen3_config(**config))
    write_json(folder / "generation_config.json", {"temperature": 0.5, "top_k": 7, "eos_token_id": [271, 269]})
    write_tokenizer(folder)
    return folder


def refused(kind: type[GpackError], code: str, source: Path, *words: str, **options: Any) -> None:
    """Converts, which must fail with this class and code, naming the words, and leave nothing behind."""
    output = source.parent / "refused.gpack"
    with pytest.raises(GpackError) as caught:
        convert(source, output, **options)
    assert type(caught.value) is kind
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    assert not [entry for entry in output.parent.iterdir() if entry.name.startswith("refused")]


def kept(source: Path, *words: str, **options: Any) -> list[str]:
    """Converts a model that cannot be translated: all its tensors are there, and the reason holds the words."""
    output = source.with_suffix(".kept.gpack")
    convert(source, output, **options)
    assert verify(output).report.ok
    with open_pack(output) as pack, SafetensorsSet(source) as found:
        info = pack.manifest["extensions"]["import"]
        for tensor in found.tensors:
            assert pack[tensor.name].tobytes() == tensor.file.read_at(tensor.begin, tensor.byte_size)
    assert info["runnable"] is False
    reasons: list[str] = info["reasons"]
    for word in words:
        assert word in " / ".join(reasons)
    return reasons


def llama_tensors(**sizes: int) -> Tensors:
    """As a qwen3, without the norms of heads."""
    return {
        name: held
        for name, held in qwen3_tensors(**sizes).items()
        if not name.endswith(("q_norm.weight", "k_norm.weight"))
    }


def experts(make: Maker, count: int) -> dict[str, Any]:
    tensors = qwen3_tensors(layers=1)
    for name in [name for name in tensors if ".mlp." in name]:
        del tensors[name]
    tensors["model.layers.0.mlp.gate.weight"] = f32(make(count, 64))
    for expert in range(count):
        tensors |= mlp(make, f"model.layers.0.mlp.experts.{expert}", 64, 32)
    return tensors


MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "layers": 1,
    "num_experts": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
