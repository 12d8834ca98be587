"""llama: Llama 1 to 3, Mistral, SmolLM2, and Mixtral with its experts.

Sources: Touvron et al., LLaMA (2023); Jiang et al., Mixtral of Experts (2024).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..graph import Graph, Value
from ..hyperparameters import Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters, Model


def read(keys: Keys, w: Weights) -> Hyperparameters:
    """The hyperparameters; Llama 3's factors of frequencies are a tensor."""
    h = blocks.read(keys, "interleaved", experts="maybe")
    if h.rope.n_rotated != h.head_dim:
        raise keys.refuse("rope.dimension_count", f"is {h.rope.n_rotated}, not a head's {h.head_dim} elements")
    scale = keys.number("attention.scale", default=0.0, above=-math.inf)
    if "rope_freqs.weight" in w:
        divisors = w.vector("rope_freqs.weight", h.head_dim // 2)
        h = replace(h, rope=replace(h.rope, divisors=tuple(float(value) for value in divisors.values)))
        if not h.rope.is_finite():
            raise w.refuse("rope_freqs.weight", "divides frequencies by zero, or by nearly that")
    return replace(h, scale=scale or h.scale)


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    x = model.embed(g)
    for number in range(model.h.n_layer):
        layer = model.layer(number)
        x = g.add(x, layer.attention(g, layer.norm(g, x, "attn_norm")))
        n = layer.norm(g, x, "ffn_norm")
        x = g.add(x, layer.moe(g, n) if model.h.n_expert else layer.feed_forward(g, n))
    return model.norm(g, x)


def logits(g: Graph, model: Model, n: Value) -> Value:
    """Logits of normed hidden states."""
    return model.output(g, n)
