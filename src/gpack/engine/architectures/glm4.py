"""glm4: GLM 4; norms before and after each part, half of each head rotated, gate and up in one matrix.

Source: Team GLM, ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools (2024).
"""

from __future__ import annotations

from ..graph import Graph, Value
from ..hyperparameters import Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters, Model
from .llama import logits

__all__ = ["logits", "read", "trace"]


def read(keys: Keys, _w: Weights) -> Hyperparameters:
    """The hyperparameters."""
    return blocks.read(keys, "interleaved")


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    x = model.embed(g)
    for number in range(model.h.n_layer):
        layer = model.layer(number)
        a = layer.attention(g, layer.norm(g, x, "attn_norm"))
        x = g.add(x, layer.norm(g, a, "post_attention_norm"))
        f = layer.fused_feed_forward(g, layer.norm(g, x, "ffn_norm"))
        x = g.add(x, layer.norm(g, f, "post_ffw_norm"))
    return model.norm(g, x)
