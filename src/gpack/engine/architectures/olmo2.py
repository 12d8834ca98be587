"""olmo2: OLMo 2 and 3; norms after each part alone, and of all queries and all keys of a row together.

Source: OLMo Team, 2 OLMo 2 Furious (2024). OLMo 3 has windows of attention in three of four layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..graph import Graph, Part, Value
from ..graph.rope import Rope
from ..hyperparameters import MOST_CONTEXT, Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters, Layer, Model
from .gemma3 import local_layers
from .llama import logits

__all__ = ["Olmo2", "logits", "read", "trace"]


@dataclass(frozen=True)
class Olmo2(Hyperparameters):
    """Also the windows of OLMo 3.

    Attributes:
        window: Positions that local layers see; 0: all layers are global.
        local: For each layer, whether it is local.
        local_rope: Rotation in local layers, never scaled.
    """

    window: int = 0
    local: tuple[bool, ...] = ()
    local_rope: Rope | None = None


def read(keys: Keys, _w: Weights) -> Olmo2:
    """The hyperparameters."""
    h = blocks.read(keys, "neox")
    window = keys.integer("attention.sliding_window", most=MOST_CONTEXT, least=0, default=0)
    return Olmo2(
        **vars(h),
        window=window,
        local=local_layers(keys, h.n_layer, 4) if window else (False,) * h.n_layer,
        local_rope=replace(h.rope, factor=1.0, yarn=None),
    )


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    h = model.h
    if not isinstance(h, Olmo2):
        raise TypeError(type(h).__name__)
    x = model.embed(g)
    for number in range(h.n_layer):
        layer = model.layer(number)
        x = g.add(x, layer.norm(g, attention(g, layer, h, x), "post_attention_norm"))
        x = g.add(x, layer.norm(g, layer.feed_forward(g, x), "post_ffw_norm"))
    return model.norm(g, x)


def attention(g: Graph, layer: Layer, h: Olmo2, x: Value) -> Value:
    """Attention, whose queries and keys are normed as whole rows."""
    w, local = layer.model.w, h.local[layer.number]
    rows = {
        name: layer.linear(g, x, f"attn_{name}", heads * h.head_dim)
        for name, heads in (("q", h.n_head), ("k", h.n_head_kv), ("v", h.n_head_kv))
    }
    q, k = (
        g.rms(rows[name], w.vector(layer.name(f"attn_{name}_norm.weight"), rows[name].width), h.epsilon)
        for name in ("q", "k")
    )
    mixed = g.attention(
        Part.of(q),
        Part.of(k),
        Part.of(rows["v"]),
        layer=layer.number,
        n_head=h.n_head,
        n_head_kv=h.n_head_kv,
        rope=h.local_rope if local and h.local_rope else h.rope,
        scale=h.scale,
        window=h.window if local else 0,
    )
    return layer.linear(g, mixed, "attn_output", h.n_embd)
