"""phi3: Phi 3 and 4; one matrix for queries, keys and values, one for gate and up, long rotations.

Sources: Abdin et al., Phi-3 Technical Report (2024); Ding et al., LongRoPE (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Graph, Value
from ..hyperparameters import MOST_CONTEXT, Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters, Model
from .llama import logits

__all__ = ["Phi3", "logits", "read", "trace"]


@dataclass(frozen=True)
class Phi3(Hyperparameters):
    """Also the window of attention that Phi 3 mini has.

    Attributes:
        window: Positions that a row sees; 0: all.
    """

    window: int = 0


def read(keys: Keys, w: Weights) -> Phi3:
    """The hyperparameters."""
    h = blocks.with_long_rope(keys, w, blocks.read(keys, "neox"))
    return Phi3(**vars(h), window=keys.integer("attention.sliding_window", most=MOST_CONTEXT, least=0, default=0))


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    h = model.h
    if not isinstance(h, Phi3):
        raise TypeError(type(h).__name__)
    x = model.embed(g)
    for number in range(h.n_layer):
        layer = model.layer(number)
        x = g.add(x, layer.attention(g, layer.norm(g, x, "attn_norm"), window=h.window))
        x = g.add(x, layer.fused_feed_forward(g, layer.norm(g, x, "ffn_norm")))
    return model.norm(g, x)
