"""gemma3: Gemma 3; norms before and after each part, windows of attention in most layers.

Source: Gemma Team, Gemma 3 Technical Report (2025). The weights of the norms already are 1 + w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..graph import Graph, Value
from ..graph.rope import Rope
from ..hyperparameters import MOST_CONTEXT, MOST_LAYERS, Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters, Model

_LAYERS_OF_27B = 62  # the one size whose scores are scaled by the width of the hidden state


@dataclass(frozen=True)
class Gemma3(Hyperparameters):
    """Also what Gemma has alone.

    Attributes:
        window: Positions that local layers see; 0: all layers are global.
        local: For each layer, whether it is local.
        local_rope: Rotation in local layers, never scaled.
        cap: Logits are cap · tanh(logits / cap); 0: they stay as they are.
    """

    window: int = 0
    local: tuple[bool, ...] = ()
    local_rope: Rope | None = None
    cap: float = 0.0


def read(keys: Keys, _w: Weights) -> Gemma3:
    """The hyperparameters."""
    h = blocks.read(keys, "neox")
    if h.n_layer == _LAYERS_OF_27B:
        h = replace(h, scale=1 / math.sqrt(h.n_embd / h.n_head))
    window = keys.integer("attention.sliding_window", most=MOST_CONTEXT, least=0, default=0)
    local_base = keys.number("rope.freq_base_swa", default=10000.0, above=1.0)
    return Gemma3(
        **vars(h),
        window=window,
        local=local_layers(keys, h.n_layer, 6) if window else (False,) * h.n_layer,
        local_rope=replace(h.rope, base=local_base, factor=1.0, yarn=None),
        cap=keys.number("final_logit_softcapping", default=0.0, above=-1.0),
    )


def local_layers(keys: Keys, n_layer: int, default: int) -> tuple[bool, ...]:
    """Which layers are local: all but each `default`th, unless the metadata has a list of them, or another count."""
    listed = keys.value("attention.sliding_window_pattern")
    if isinstance(listed, list):
        if len(listed) != n_layer:
            raise keys.refuse("attention.sliding_window_pattern", f"has {len(listed)} values for {n_layer} layers")
        if not all(isinstance(value, int) for value in listed):
            raise keys.refuse("attention.sliding_window_pattern", "is no list of yes and no")
        return tuple(bool(value) for value in listed)
    period = keys.integer("attention.sliding_window_pattern", most=MOST_LAYERS, default=default)
    return tuple(number % period < period - 1 for number in range(n_layer))


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    h = model.h
    if not isinstance(h, Gemma3):
        raise TypeError(type(h).__name__)
    x = g.scale(model.embed(g), math.sqrt(h.n_embd))
    for number in range(h.n_layer):
        layer, local = model.layer(number), h.local[number]
        a = layer.attention(
            g,
            layer.norm(g, x, "attn_norm"),
            norms=layer.head_norms(),
            rope=h.local_rope if local else h.rope,
            window=h.window if local else 0,
        )
        x = g.add(x, layer.norm(g, a, "post_attention_norm"))
        f = layer.feed_forward(g, layer.norm(g, x, "ffn_norm"), "gelu")
        x = g.add(x, layer.norm(g, f, "post_ffw_norm"))
    return model.norm(g, x)


def logits(g: Graph, model: Model, n: Value) -> Value:
    """Logits of normed hidden states, capped where the metadata says so."""
    made = model.output(g, n)
    cap = model.h.cap if isinstance(model.h, Gemma3) else 0.0
    return g.soft_cap(made, cap) if cap else made
