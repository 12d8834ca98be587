"""granite: Granite 3; llama with factors of the embeddings, of what each part adds, of the scores and of the logits.

Source: Granite Team, Granite 3.0 Language Models (2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Graph, Value
from ..hyperparameters import Keys
from ..weights import Weights
from . import llama
from .blocks import Hyperparameters, Model


@dataclass(frozen=True)
class Granite(Hyperparameters):
    """Also the factors.

    Attributes:
        embedding_factor, residual_factor: Of the embeddings, and of what attention and feed-forward network add.
        logit_divisor: Logits are divided by it.
    """

    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logit_divisor: float = 1.0


def read(keys: Keys, w: Weights) -> Granite:
    """The hyperparameters."""
    return Granite(
        **vars(llama.read(keys, w)),
        embedding_factor=keys.number("embedding_scale", default=1.0),
        residual_factor=keys.number("residual_scale", default=1.0),
        logit_divisor=keys.number("logit_scale", default=1.0),
    )


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    h = model.h
    if not isinstance(h, Granite):
        raise TypeError(type(h).__name__)
    x = g.scale(model.embed(g), h.embedding_factor)
    for number in range(h.n_layer):
        layer = model.layer(number)
        x = g.add(x, g.scale(layer.attention(g, layer.norm(g, x, "attn_norm")), h.residual_factor))
        n = layer.norm(g, x, "ffn_norm")
        x = g.add(x, g.scale(layer.moe(g, n) if h.n_expert else layer.feed_forward(g, n), h.residual_factor))
    return model.norm(g, x)


def logits(g: Graph, model: Model, n: Value) -> Value:
    """Logits of normed hidden states."""
    if not isinstance(model.h, Granite):
        raise TypeError(type(model.h).__name__)
    return g.scale(model.output(g, n), 1 / model.h.logit_divisor)
