"""Every architecture and every option of theirs against a forward pass in float64 that shares no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import each_value
from float64_model import Reference
from tiny_models import TinyModel, text, tiny

from gpack.engine.backends.cpu.variants import usable

YARN: dict[str, Any] = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 40,
}


def with_biases(model: TinyModel, *names: str) -> TinyModel:
    """Biases of the named matrices, in every layer."""
    rng = np.random.default_rng(5)
    for name, values in list(model.tensors.items()):
        if name.endswith(".weight") and name.split(".")[-2] in names:
            bias = rng.standard_normal((values.shape[0],)) / 5
            model.tensors[name.replace(".weight", ".bias")] = bias.astype(np.float32)
    return model


def with_fused_attention(model: TinyModel) -> TinyModel:
    """Queries, keys and values in one matrix."""
    for layer in range(2):
        parts = [model.tensors.pop(f"blk.{layer}.attn_{name}.weight") for name in "qkv"]
        model.tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
    return model


def with_fused_experts(model: TinyModel) -> TinyModel:
    """Gates and ups in one tensor."""
    for layer in range(2):
        parts = [model.tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight") for name in ("gate", "up")]
        model.tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    return model


def with_frequencies(model: TinyModel) -> TinyModel:
    """Llama 3's factors of frequencies."""
    model.tensors["rope_freqs.weight"] = np.array([1, 1.5, 4, 8], np.float32)
    return model


def mixtral(**keys: Any) -> TinyModel:
    """Experts of a llama, whose width is that of the feed-forward network."""
    model = tiny("llama", n_expert=5, n_used=3, **keys)
    del model.metadata["llama.expert_feed_forward_length"]
    return model


MODELS: dict[str, TinyModel] = {
    "llama": tiny(),
    "llama tied": tiny(tied=True),
    "llama all heads alike": tiny(n_head=4, n_kv=4),
    "llama scale": tiny(attention__scale=0.7),
    "llama linear": tiny(rope__scaling__type="linear", rope__scaling__factor=2.5),
    "llama frequencies": with_frequencies(tiny()),
    "llama fused": with_fused_attention(tiny()),
    "llama biases": with_biases(
        tiny(), "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"
    ),
    "mixtral": mixtral(),
    "mixtral scale": mixtral(expert_weights_scale=2.5),
    "qwen2": tiny("qwen2"),
    "qwen3 one key head": tiny("qwen3", n_head=6, n_kv=1, width=20, tied=True),
    "qwen3 partial rotation": tiny("qwen3", width=16, rope__dimension_count=6),
    "qwen3 wide": tiny("qwen3", n_head=2, n_kv=1, width=80, n_layer=1),
    "qwen3 yarn": tiny("qwen3", **YARN, rope__scaling__yarn_beta_fast=20.0, rope__scaling__attn_factor=1.3),
    "qwen3moe": tiny("qwen3moe", n_expert=7, n_used=3, width=40, n_head=3, n_kv=3),
    "qwen3moe fused": with_fused_experts(tiny("qwen3moe", n_expert=4, n_used=4)),
    "gemma3": tiny(
        "gemma3",
        n_layer=7,
        attention__sliding_window=50,
        rope__scaling__type="linear",
        rope__scaling__factor=3.0,
        rope__freq_base=1e6,
    ),
    "gemma3 capped": tiny("gemma3", final_logit_softcapping=2.0),
    "gemma3 pattern": tiny(
        "gemma3",
        n_layer=3,
        attention__sliding_window=3,
        attention__sliding_window_pattern=[False, True, True],
        rope__freq_base_swa=500.0,
    ),
    "gemma3 period": tiny("gemma3", n_layer=3, attention__sliding_window=1, attention__sliding_window_pattern=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_text(name: str, tmp_path: Path) -> None:
    model, ids = MODELS[name], text(150)
    wanted = Reference(model.metadata, model.tensors).logits(ids)
    with model.open(tmp_path / "m.gguf") as loaded:
        made = loaded.logits(ids, compute="f32", cache_type="F32")
        with loaded.session(compute="f32", cache_type="F32", batch=37) as session:
            start = session.decode(ids[:100])
            singly = np.array([session.decode([number]) for number in ids[100:]])
    assert wanted.std() > 0.5
    np.testing.assert_allclose(made, wanted, atol=3e-5, rtol=0)
    np.testing.assert_allclose(start, wanted[99], atol=3e-5, rtol=0)
    np.testing.assert_allclose(singly, wanted[100:], atol=3e-5, rtol=0)


@each_value
@pytest.mark.parametrize("variant", [variant.name for variant in usable()])
@pytest.mark.parametrize("window", [0, 300])
def test_long_texts_in_parts_of_many_threads(variant: str, window: int, tmp_path: Path) -> None:
    """From 256 positions on several threads share one token's keys."""
    options: dict[str, Any] = (
        {"attention__sliding_window": window, "attention__sliding_window_pattern": 2} if window else {}
    )
    model, ids = tiny("gemma3", n_layer=2, **options), text(520)
    wanted = Reference(model.metadata, model.tensors).logits(ids)
    with (
        model.open(tmp_path / "m.gguf") as loaded,
        loaded.session(compute="f32", cache_type="F32", threads=4, cpu=variant) as session,
    ):
        made = session.decode(ids[:500], all_logits=True)
        singly = np.array([session.decode([number]) for number in ids[500:]])
    np.testing.assert_allclose(made, wanted[:500], atol=5e-5, rtol=0)
    np.testing.assert_allclose(singly, wanted[500:], atol=5e-5, rtol=0)


def test_the_largest_gemma_scales_by_another_width(tmp_path: Path) -> None:
    """62 layers: the 27B model, whose scores are divided by the root of 32 / 4, not of a head's 16."""
    model, ids = tiny("gemma3", n_layer=62, width=16), text(9)
    wanted = Reference(model.metadata | {"gemma3.attention.scale": 8**-0.5}, model.tensors).logits(ids)
    other = Reference(model.metadata, model.tensors).logits(ids)
    with model.open(tmp_path / "m.gguf") as loaded:
        made = loaded.logits(ids, compute="f32", cache_type="F32")
    np.testing.assert_allclose(made, wanted, atol=2e-4, rtol=0)
    assert np.abs(made - other).max() > 0.1


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_embeddings_are_the_hidden_states(pooling: Any, tmp_path: Path) -> None:
    model, ids = tiny("qwen3"), text(30)
    states = Reference(model.metadata, model.tensors).hidden(ids)
    wanted = {"mean": states.mean(axis=0), "last": states[-1], "none": states}[pooling]
    with model.open(tmp_path / "m.gguf") as loaded:
        made = loaded.embed(ids, pooling=pooling, compute="f32", cache_type="F32")
    np.testing.assert_allclose(made, wanted, atol=2e-5, rtol=0)
