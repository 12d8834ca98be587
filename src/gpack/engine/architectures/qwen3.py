"""qwen3: Qwen 3; each head of queries and keys is normed before it is rotated.

Source: Yang et al., Qwen3 Technical Report (2025).
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
    return blocks.read(keys, "neox")


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    x = model.embed(g)
    for number in range(model.h.n_layer):
        layer = model.layer(number)
        x = g.add(x, layer.attention(g, layer.norm(g, x, "attn_norm"), norms=layer.head_norms()))
        n = layer.norm(g, x, "ffn_norm")
        x = g.add(x, layer.moe(g, n) if model.h.n_expert else layer.feed_forward(g, n))
    return model.norm(g, x)
