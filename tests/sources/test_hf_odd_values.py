"""Any value of any small file replaced by odd ones: the model is whole, so that it is always packed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exhaustive import amount, grows
from hf_maker import Maker, f32, llama_tensors, mlp, qwen3_folder, tiny_tokenizer_json, write_json

from gpack.convert.plan import Plan
from gpack.sources.hf_import import HfSource

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    (1 << 24) - 1,
    (1 << 32) - 1,
    1 << 70,
    1.5,
    float("nan"),
    float("inf"),
    1e300,
    "",
    "x",
    "\ud800",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    [["a"]],
    {"type": "Sequence"},
    [{"type": "ByteLevel"}],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values; of a long list or object the first few."""
    if path:
        yield path
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, item in items[: 20 if not path else 4]:
            yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copy


def linear_folder(folder: Path) -> Path:
    make = Maker(2)
    tensors = {"model.embed_tokens.weight": f32(make(288, 32)), "model.norm.weight": f32(make(32))}
    shapes = {
        "in_proj_qkv.weight": (56, 32),
        "in_proj_z.weight": (24, 32),
        "in_proj_a.weight": (6, 32),
        "in_proj_b.weight": (6, 32),
        "conv1d.weight": (56, 1, 4),
        "A_log": (6,),
        "dt_bias": (6,),
        "norm.weight": (4,),
        "out_proj.weight": (32, 24),
    }
    tensors |= {f"model.layers.0.linear_attn.{name}": f32(make(*shape)) for name, shape in shapes.items()}
    tensors |= {f"model.layers.0.{name}_layernorm.weight": f32(make(32)) for name in ("input", "post_attention")}
    tensors |= mlp(make, "model.layers.0.mlp", 32, 64)
    return qwen3_folder(
        folder,
        tensors=tensors,
        layers=1,
        hidden=32,
        model_type="qwen3_5_text",
        layer_types=["linear_attention"],
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=4,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        num_experts=4,
        num_experts_per_tok=2,
        mtp_num_hidden_layers=0,
        full_attention_interval=4,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 2.0,
            "mrope_section": [1, 1, 0],
            "original_max_position_embeddings": 64,
            "partial_rotary_factor": 0.25,
        },
    )


def llama_folder(folder: Path) -> Path:
    return qwen3_folder(
        folder,
        tensors=llama_tensors(layers=1, hidden=32),
        layers=1,
        hidden=32,
        model_type="llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    )


def attempt(folder: Path) -> None:
    with HfSource.open(folder) as source:
        for tensor in source.tensors:
            assert source.range_of(tensor).size == tensor.byte_size
        Plan(source).builder.layout()


@grows
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (linear_folder, "config.json"),
        (llama_folder, "config.json"),
        (llama_folder, "generation_config.json"),
        (llama_folder, "tokenizer.json"),
        (llama_folder, "tokenizer_config.json"),
    ],
)
def test_odd_values(tmp_path: Path, make: Any, name: str) -> None:
    folder = make(tmp_path / "m")
    if name == "tokenizer.json":
        extra = {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
            "post_processor": {
                "type": "Sequence",
                "processors": [
                    {
                        "type": "TemplateProcessing",
                        "single": [{"SpecialToken": {"id": "<|im_start|>"}}, {"Sequence": {"id": "A"}}],
                        "pair": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
                    }
                ],
            },
        }
        write_json(folder / name, {**tiny_tokenizer_json(ignore_merges=True, byte_fallback=False), **extra})
    attempt(folder)
    value = json.loads((folder / name).read_text())
    by_turns = amount(5, 1)  # each place gets some of the values
    for number, path in enumerate(places(value)):
        for odd in ODD[number % by_turns :: by_turns]:
            write_json(folder / name, replaced(value, path, odd))
            attempt(folder)
