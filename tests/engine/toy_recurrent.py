"""A made-up architecture with every kind of state: recurrent layers, layers with a window, and layers that see all.

Its file is as short as those of real ones. `gpack` does not know it: `registered` adds it for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tiny_models import TinyModel, tiny

from gpack.engine import architectures
from gpack.engine.architectures import Architecture, blocks, llama
from gpack.engine.architectures.blocks import Hyperparameters, Layer, Model
from gpack.engine.graph import Graph, Part, Value
from gpack.engine.hyperparameters import Keys
from gpack.engine.weights import Weights

NAME = "toy"
TAPS, WINDOW, N_HEAD, N_HEAD_K, HEAD_DIM = 4, 20, 4, 2, 8
CHANNELS = (2 * N_HEAD_K + N_HEAD) * HEAD_DIM


def read(keys: Keys, _w: Weights) -> Hyperparameters:
    return blocks.read(keys, "neox")


def trace(g: Graph, model: Model) -> Value:
    x = model.embed(g)
    for number in range(model.h.n_layer):
        layer = model.layer(number)
        n = layer.norm(g, x, "attn_norm")
        x = g.add(x, recurrent(g, layer, n) if number % 2 == 0 else layer.attention(g, n, window=number % 3 * WINDOW))
        x = g.add(x, layer.feed_forward(g, layer.norm(g, x, "ffn_norm")))
    return model.norm(g, x)


def recurrent(g: Graph, layer: Layer, n: Value) -> Value:
    """A convolution, the delta rule, and a gate."""
    w, number, h = layer.model.w, layer.number, layer.model.h
    channels = layer.linear(g, n, "conv_in", CHANNELS)
    mixed = g.convolution(channels, w.vector(layer.name("conv.weight"), CHANNELS * TAPS), TAPS, layer=number)
    key = N_HEAD_K * HEAD_DIM
    out = g.delta_rule(
        Part(mixed, 0, key),
        Part(mixed, key, key),
        Part(mixed, 2 * key, N_HEAD * HEAD_DIM),
        layer.linear(g, n, "alpha", N_HEAD),
        layer.linear(g, n, "beta", N_HEAD),
        layer=number,
        a=w.vector(layer.name("a"), N_HEAD),
        dt_bias=w.vector(layer.name("dt.bias"), N_HEAD),
        n_head=N_HEAD,
        n_head_k=N_HEAD_K,
        epsilon=h.epsilon,
    )
    gate = layer.linear(g, n, "gate_in", N_HEAD * HEAD_DIM)
    return layer.linear(g, g.gate(gate, out, "sigmoid"), "out", h.n_embd)


def toy(n_layer: int = 4) -> TinyModel:
    """A model of it."""
    model, rng = tiny(NAME, n_layer=n_layer), np.random.default_rng(3)
    for number in range(0, n_layer, 2):
        block = f"blk.{number}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            del model.tensors[f"{block}.{name}.weight"]
        shapes = {"conv_in": CHANNELS, "alpha": N_HEAD, "beta": N_HEAD, "gate_in": N_HEAD * HEAD_DIM}
        for name, n_out in shapes.items():
            model.tensors[f"{block}.{name}.weight"] = (rng.standard_normal((n_out, 32)) / 5).astype(np.float32)
        model.tensors[f"{block}.out.weight"] = (rng.standard_normal((32, N_HEAD * HEAD_DIM)) / 2).astype(np.float32)
        model.tensors[f"{block}.conv.weight"] = rng.standard_normal(CHANNELS * TAPS).astype(np.float32)
        model.tensors[f"{block}.a"] = -np.exp(rng.standard_normal(N_HEAD)).astype(np.float32)
        model.tensors[f"{block}.dt.bias"] = rng.standard_normal(N_HEAD).astype(np.float32)
    return model


def qwen35moe() -> TinyModel:
    """Qwen 3.5 with experts: two delta nets, and a layer of attention between them."""
    return _qwen35("qwen35moe", "qwen3moe", n_expert=4, n_used=2, expert_shared_feed_forward_length=32)


def qwen35() -> TinyModel:
    """The same without experts."""
    return _qwen35("qwen35", "qwen3")


def _qwen35(name: str, like: str, **options: Any) -> TinyModel:
    rng = np.random.default_rng(4)
    model = tiny(
        like,
        n_layer=3,
        n_ff=32,
        full_attention_interval=2,
        ssm__conv_kernel=3,
        ssm__time_step_rank=N_HEAD,
        ssm__group_count=N_HEAD_K,
        ssm__state_size=HEAD_DIM,
        ssm__inner_size=N_HEAD * HEAD_DIM,
        **options,
    )
    model.metadata = {key.replace(f"{like}.", f"{name}."): value for key, value in model.metadata.items()}
    model.metadata["general.architecture"] = name
    tensors, inner, width = model.tensors, N_HEAD * HEAD_DIM, 32

    def add(tensor: str, *shape: int) -> None:
        tensors[tensor] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    for number in range(3):
        block = f"blk.{number}"
        tensors[f"{block}.post_attention_norm.weight"] = tensors.pop(f"{block}.ffn_norm.weight")
        if options:
            for part in ("gate", "up"):
                add(f"{block}.ffn_{part}_shexp.weight", 32, width)
            add(f"{block}.ffn_down_shexp.weight", width, 32)
            add(f"{block}.ffn_gate_inp_shexp.weight", width)
        if number == 1:
            add(f"{block}.attn_q.weight", 2 * 4 * 8, width)  # queries and gates
            continue
        for part in ("q", "k", "v", "output", "q_norm", "k_norm"):
            del tensors[f"{block}.attn_{part}.weight"]
        add(f"{block}.attn_qkv.weight", CHANNELS, width)
        add(f"{block}.attn_gate.weight", inner, width)
        add(f"{block}.ssm_conv1d.weight", CHANNELS, 3)
        for part in ("alpha", "beta"):
            add(f"{block}.ssm_{part}.weight", N_HEAD, width)
        add(f"{block}.ssm_out.weight", width, inner)
        tensors[f"{block}.ssm_a"] = -np.exp(rng.standard_normal(N_HEAD)).astype(np.float32)
        tensors[f"{block}.ssm_dt.bias"] = rng.standard_normal(N_HEAD).astype(np.float32)
        tensors[f"{block}.ssm_norm.weight"] = (1 + rng.standard_normal(HEAD_DIM) / 4).astype(np.float32)
    return model


@contextmanager
def registered() -> Iterator[None]:
    """While it lasts, the engine knows the architecture."""
    architectures.ARCHITECTURES[NAME] = Architecture(read, trace, llama.logits)
    try:
        yield
    finally:
        del architectures.ARCHITECTURES[NAME]
