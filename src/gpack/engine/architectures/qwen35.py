"""qwen35 and qwen35moe: Qwen 3.5 and 3.6, gated delta nets with full attention in every fourth layer.

Sources: Yang, Kautz and Hatamizadeh, Gated Delta Networks (2024); Qwen Team, Qwen3-Next (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import UnsupportedError
from ..graph import Graph, Part, Value
from ..graph.operations import Activation
from ..hyperparameters import MOST_HEADS, MOST_WIDTH, Keys
from ..weights import Weights
from . import blocks
from .blocks import MOST_DRAFTED, Hyperparameters, Layer, Model
from .llama import logits

__all__ = ["Qwen35", "draft", "draft_logits", "logits", "read", "trace"]

MOST_TAPS = 64


@dataclass(frozen=True)
class Qwen35(Hyperparameters):
    """Also what its delta nets need.

    Attributes:
        recurrent: For each layer, whether it is a delta net.
        taps: Positions that the convolution sees.
        n_head_k, n_head_v: Heads of keys and queries, and of values; value head h has key head h mod n_head_k.
        state_dim: Elements of each of these heads.
        n_ff_shared: Width of the shared expert's network; 0: there is none.
    """

    recurrent: tuple[bool, ...] = ()
    taps: int = 0
    n_head_k: int = 0
    n_head_v: int = 0
    state_dim: int = 0
    n_ff_shared: int = 0


def read(keys: Keys, _w: Weights) -> Qwen35:
    """The hyperparameters."""
    return read_hybrid(keys, is_moe=keys.architecture.endswith("moe"))


def read_hybrid(keys: Keys, *, is_moe: bool) -> Qwen35:
    """The hyperparameters of a model of delta nets and attention, with experts in all layers or in none."""
    h = blocks.read(keys, "neox", experts="always" if is_moe else "never")
    sections = keys.value("rope.dimension_sections")
    if isinstance(sections, list) and len(sections) > 3 and any(sections[3:]):
        raise UnsupportedError(
            "positions of a fourth axis are not supported",
            code="engine.key",
            field=keys.name("rope.dimension_sections"),
        )
    n_head_v, state_dim = (
        keys.integer("ssm.time_step_rank", most=MOST_HEADS),
        keys.integer("ssm.state_size", most=MOST_WIDTH),
    )
    n_head_k = keys.integer("ssm.group_count", most=MOST_HEADS)
    if keys.integer("ssm.inner_size", most=MOST_WIDTH) != n_head_v * state_dim:
        raise keys.refuse("ssm.inner_size", f"is not {n_head_v} heads of {state_dim}")
    if n_head_v % n_head_k:
        raise keys.refuse("ssm.group_count", f"is {n_head_k}, which does not divide {n_head_v} heads")
    shared = keys.integer("expert_shared_feed_forward_length", most=MOST_WIDTH) if is_moe else 0
    return Qwen35(
        **vars(replace(h, scale=keys.number("attention.scale", default=h.scale))),
        recurrent=_recurrent_layers(keys, h.n_layer),
        taps=keys.integer("ssm.conv_kernel", most=MOST_TAPS, least=2),
        n_head_k=n_head_k,
        n_head_v=n_head_v,
        state_dim=state_dim,
        n_ff_shared=shared,
    )


def _recurrent_layers(keys: Keys, n_layer: int) -> tuple[bool, ...]:
    """Three delta nets to a layer of attention, unless the metadata has a list of them, or another count."""
    listed = keys.value("attention.recurrent_layers")
    if isinstance(listed, list):
        if len(listed) < n_layer or not all(isinstance(value, int) for value in listed):
            raise keys.refuse("attention.recurrent_layers", f"is not a list of yes and no for {n_layer} layers")
        return tuple(bool(value) for value in listed[:n_layer])
    interval = keys.integer("full_attention_interval", most=MOST_HEADS, default=4)
    return tuple((number + 1) % interval != 0 for number in range(n_layer))


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    h = model.h
    if not isinstance(h, Qwen35):
        raise TypeError(type(h).__name__)
    x = model.embed(g)
    for number in range(h.n_layer):
        layer = model.layer(number)
        n = layer.norm(g, x, "attn_norm")
        x = g.add(x, delta_net(g, layer, h, n) if h.recurrent[number] else gated_attention(g, layer, h, n))
        n = layer.norm(g, x, "post_attention_norm")
        x = g.add(x, moe(g, layer, h, n) if h.n_expert else layer.feed_forward(g, n))
    return model.norm(g, x)


def draft(g: Graph, model: Model) -> Value:
    """A layer of attention over the next token's embedding and the hidden state before it; its own norm, or the last.

    Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), multi-token prediction.
    """
    h, w = model.h, model.w
    if not isinstance(h, Qwen35):
        raise TypeError(type(h).__name__)
    layer = model.layer(h.n_layer)
    own = layer.name("nextn.embed_tokens.weight")
    embedded = g.embed(w.matrix(own if own in w else "token_embd.weight", h.n_embd, model.n_vocab))
    both = g.concat(layer.norm(g, embedded, "nextn.enorm"), layer.norm(g, g.given(h.n_embd), "nextn.hnorm"))
    x = g.matmul(both, w.matrix(layer.name("nextn.eh_proj.weight"), 2 * h.n_embd, h.n_embd))
    x = g.add(x, gated_attention(g, layer, h, layer.norm(g, x, "attn_norm")))
    n = layer.norm(g, x, "post_attention_norm")
    x = g.add(x, moe(g, layer, h, n) if h.n_expert else layer.feed_forward(g, n))
    own = layer.name("nextn.shared_head_norm.weight")
    return g.rms(x, w.vector(own if own in w else "output_norm.weight", h.n_embd), h.epsilon)


def draft_logits(g: Graph, model: Model, x: Value) -> Value:
    """Logits through the draft layer's own matrix, or the model's."""
    own = model.layer(model.h.n_layer).name("nextn.shared_head_head.weight")
    return model.output(g, x, own if own in model.w else None, most=MOST_DRAFTED)


def delta_net(g: Graph, layer: Layer, h: Qwen35, n: Value, gate: Activation = "silu") -> Value:
    """A convolution, the gated delta rule, a norm of each head, an output gate."""
    w, size, kv = layer.model.w, h.state_dim, h.n_head_k * h.state_dim
    inner = h.n_head_v * size
    mixed = layer.linear(g, n, "attn_qkv", 2 * kv + inner)
    z = layer.linear(g, n, "attn_gate", inner)
    beta = layer.linear(g, n, "ssm_beta", h.n_head_v)
    alpha = layer.linear(g, n, "ssm_alpha", h.n_head_v)
    taps = w.vector(layer.name("ssm_conv1d.weight"), h.taps, 2 * kv + inner)
    c = g.convolution(mixed, taps, h.taps, layer=layer.number)
    y = g.delta_rule(
        Part(c, 0, kv),
        Part(c, kv, kv),
        Part(c, 2 * kv, inner),
        alpha,
        beta,
        layer=layer.number,
        a=w.vector(layer.name("ssm_a"), h.n_head_v),
        dt_bias=w.vector(layer.name("ssm_dt.bias"), h.n_head_v),
        n_head=h.n_head_v,
        n_head_k=h.n_head_k,
        epsilon=h.epsilon,
    )
    y = g.gate(z, g.rms(y, w.vector(layer.name("ssm_norm.weight"), size), h.epsilon), gate)
    return layer.linear(g, y, "ssm_out", h.n_embd)


def gated_attention(g: Graph, layer: Layer, h: Qwen35, n: Value, attend: Callable[..., Value] | None = None) -> Value:
    """Attention whose result goes through a gate; of each head the queries come first, then the gate.

    Args:
        attend: Notes the attention, with the arguments of `Graph.attention`, which it is by default.
    """
    size, width = h.head_dim, h.n_head * h.head_dim
    both = layer.linear(g, n, "attn_q", 2 * width)
    q, gate = (g.columns(both, first, size, 2 * size, h.n_head) for first in (0, size))
    k, v = (layer.linear(g, n, name, h.n_head_kv * size) for name in ("attn_k", "attn_v"))
    q_norm, k_norm = layer.head_norms()
    y = (attend or g.attention)(
        Part.of(q),
        Part.of(k),
        Part.of(v),
        layer=layer.number,
        n_head=h.n_head,
        n_head_kv=h.n_head_kv,
        rope=h.rope,
        scale=h.scale,
        q_norm=q_norm,
        k_norm=k_norm,
        epsilon=h.epsilon,
    )
    return layer.linear(g, g.gate(gate, y, "sigmoid"), "attn_output", h.n_embd)


def moe(g: Graph, layer: Layer, h: Qwen35, n: Value) -> Value:
    """The chosen experts, and one that all rows go through, with a gate of one element."""
    y = layer.moe(g, n)
    inner = g.gate(
        layer.linear(g, n, "ffn_gate_shexp", h.n_ff_shared), layer.linear(g, n, "ffn_up_shexp", h.n_ff_shared), "silu"
    )
    shared = layer.linear(g, inner, "ffn_down_shexp", h.n_embd)
    return g.add(y, g.gate(layer.linear(g, n, "ffn_gate_inp_shexp", 1), shared, "sigmoid"))
