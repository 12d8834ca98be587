"""What architectures have in common: hyperparameters, attention, feed-forward networks, the output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ...errors import FormatError, UnsupportedError
from ..graph import Graph, Part, Value, Vector
from ..graph.rope import Rope, Yarn
from ..hyperparameters import MOST_CONTEXT, MOST_EXPERTS, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Keys
from ..weights import Weights

# Drafts are chosen among so many tokens: vocabularies of byte pairs have the frequent ones first. The model's own
# choice, which decides, is among all.
MOST_DRAFTED = 1 << 16
_SHORT, _LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
_LONG = ("phi3",)  # architectures that read them
Pairing = Literal["interleaved", "neox"]
# Of each token the normed hidden state; or that, and what a draft layer goes on from.
Traced = Value | tuple[Value, Value]


@dataclass(frozen=True)
class Hyperparameters:
    """The numbers of a model, in the names of the metadata's keys.

    Attributes:
        n_layer: Layers that are run: block_count without the draft layers.
        n_context: Positions that the model was trained on.
        n_embd: Width of the hidden state.
        n_ff: Width of the feed-forward network, or of one expert's.
        n_head, n_head_kv: Heads of queries, and of keys and values.
        head_dim: Elements of a head.
        epsilon: Of the RMS norms.
        scale: Of attention scores.
        rope: Rotary position embedding.
        n_expert, n_used: Experts of a layer, and how many of them a token goes through; 0: none.
        expert_scale: Factor of the experts' weights.
        n_draft: Layers after these, which predict further tokens: nextn_predict_layers.
        most_context: Longest text for which these numbers hold; 0: any.
    """

    n_layer: int
    n_context: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    epsilon: float
    scale: float
    rope: Rope
    n_expert: int = 0
    n_used: int = 0
    expert_scale: float = 1.0
    n_draft: int = 0
    most_context: int = 0


def read(keys: Keys, pairing: Pairing, *, experts: Literal["never", "maybe", "always"] = "never") -> Hyperparameters:
    """The hyperparameters that all architectures have.

    Raises:
        FormatError: `engine.key`: a key is missing, out of range or contradicts another.
        UnsupportedError: `engine.key`: a way of scaling positions that is not known.
    """
    n_embd = keys.integer("embedding_length", most=MOST_WIDTH)
    n_head = keys.integer("attention.head_count", most=MOST_HEADS)
    n_head_kv = keys.integer("attention.head_count_kv", most=MOST_HEADS, default=n_head)
    if n_head % n_head_kv:
        raise keys.refuse("attention.head_count_kv", f"is {n_head_kv}, which does not divide {n_head} heads")
    if "attention.key_length" not in keys and n_embd % n_head:
        raise keys.refuse("attention.head_count", f"is {n_head}, which does not divide a width of {n_embd}")
    head_dim = keys.integer("attention.key_length", most=MOST_WIDTH, default=max(1, n_embd // n_head))
    if keys.integer("attention.value_length", most=MOST_WIDTH, default=head_dim) != head_dim:
        raise keys.refuse("attention.value_length", f"is not {head_dim}, as keys have it")
    n_block = keys.integer("block_count", most=MOST_LAYERS)
    n_draft = keys.integer("nextn_predict_layers", most=MOST_LAYERS, least=0, default=0)
    if n_draft >= n_block:
        raise keys.refuse("nextn_predict_layers", f"is {n_draft} of {n_block} layers")
    made = Hyperparameters(
        n_layer=n_block - n_draft,
        n_draft=n_draft,
        n_context=keys.integer("context_length", most=MOST_CONTEXT),
        n_embd=n_embd,
        n_ff=0,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        epsilon=keys.number("attention.layer_norm_rms_epsilon"),
        scale=1 / math.sqrt(head_dim),
        rope=read_rope(keys, head_dim, pairing),
    )
    n_expert = 0
    if experts == "always" or (experts == "maybe" and "expert_count" in keys):
        n_expert = keys.integer("expert_count", most=MOST_EXPERTS, least=1 if experts == "always" else 0)
    if not n_expert:
        return replace(made, n_ff=keys.integer("feed_forward_length", most=MOST_WIDTH))
    n_used = keys.integer("expert_used_count", most=MOST_EXPERTS)
    if n_used > n_expert:
        raise keys.refuse("expert_used_count", f"is {n_used}, more than the {n_expert} experts that there are")
    scale = keys.number("expert_weights_scale", default=1.0, above=-math.inf)
    width_key = "expert_feed_forward_length" if experts == "always" else "feed_forward_length"
    return replace(
        made, n_ff=keys.integer(width_key, most=MOST_WIDTH), n_expert=n_expert, n_used=n_used, expert_scale=scale or 1.0
    )


def read_rope(keys: Keys, head_dim: int, pairing: Pairing) -> Rope:
    """Rotary position embedding, with the scaling that the metadata asks for."""
    n_rotated = keys.integer("rope.dimension_count", most=MOST_WIDTH, default=head_dim)
    if n_rotated > head_dim or n_rotated % 2:
        raise keys.refuse("rope.dimension_count", f"is {n_rotated}: odd, or more than a head's {head_dim} elements")
    base = keys.number("rope.freq_base", default=10000.0, above=1.0)
    kind = keys.text("rope.scaling.type", "linear" if "rope.scale_linear" in keys else "none")
    factor = keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=1.0))
    plain = Rope(n_rotated, base, pairing == "interleaved")
    if kind == "none" or (kind == "longrope" and keys.architecture in _LONG):
        return plain
    if kind == "linear":
        return _finite(keys, replace(plain, factor=factor))
    if kind != "yarn":
        raise UnsupportedError(
            f"positions scaled by {kind!r} are not supported",
            code="engine.key",
            field=keys.name("rope.scaling.type"),
            hint="none, linear and yarn are",
        )
    trained = keys.integer("context_length", most=MOST_CONTEXT)
    yarn = Yarn(
        keys.integer("rope.scaling.original_context_length", most=MOST_CONTEXT, default=trained),
        keys.number("rope.scaling.yarn_beta_fast", default=32.0),
        keys.number("rope.scaling.yarn_beta_slow", default=1.0),
        keys.number("rope.scaling.attn_factor", default=1.0),
        keys.value("rope.scaling.gpack_truncate") is not False,
    )
    return _finite(keys, replace(plain, factor=factor, yarn=yarn))


def with_long_rope(keys: Keys, w: Weights, h: Hyperparameters) -> Hyperparameters:
    """The same with LongRoPE's divisors of frequencies, where the model has them.

    Those for texts that fit into the context that was first trained on are taken, and texts are kept there: with the
    others every position of a longer text would be rotated in another way.
    """
    if _SHORT not in w:
        return h
    divisors = w.vector(_SHORT, h.rope.n_rotated // 2)
    w.note(_LONG_FACTORS)
    gain = keys.number("rope.scaling.attn_factor", default=1.0)
    rope = replace(h.rope, divisors=tuple(float(value) for value in divisors.values), gain=gain)
    if not rope.is_finite():
        raise w.refuse(_SHORT, "divides frequencies by zero, or by nearly that")
    first = keys.integer("rope.scaling.original_context_length", most=MOST_CONTEXT, default=h.n_context)
    return replace(h, rope=rope, most_context=first)


def _finite(keys: Keys, rope: Rope) -> Rope:
    if not rope.is_finite():
        raise keys.refuse("rope.scaling.factor", f"is {rope.factor!r}: angles are not finite")
    return rope


@dataclass(frozen=True)
class Model:
    """What an architecture traces.

    Attributes:
        h: The hyperparameters.
        w: The weights.
        n_vocab: Tokens of the vocabulary.
    """

    h: Hyperparameters
    w: Weights
    n_vocab: int

    def layer(self, number: int) -> Layer:
        """One layer."""
        return Layer(self, number)

    def embed(self, g: Graph) -> Value:
        """The embeddings of the batch's tokens."""
        return g.embed(self.w.matrix("token_embd.weight", self.h.n_embd, self.n_vocab))

    def norm(self, g: Graph, x: Value) -> Value:
        """The norm after the last layer."""
        return g.rms(x, self.w.vector("output_norm.weight", self.h.n_embd), self.h.epsilon)

    def output(self, g: Graph, x: Value, name: str | None = None, *, most: int | None = None) -> Value:
        """Logits: through the output matrix, or the embeddings where there is none.

        Args:
            name: Of another matrix.
            most: Only of so many tokens, the first ones; without a bias.
        """
        if name is None:
            name = "output.weight" if "output.weight" in self.w else "token_embd.weight"
        matrix = self.w.matrix(name, self.h.n_embd, self.n_vocab)
        if most is None or most >= self.n_vocab:
            return g.matmul(x, matrix, self.w.optional_vector("output.bias", self.n_vocab))
        return g.matmul(x, matrix.first(most))


@dataclass(frozen=True)
class Layer:
    """One layer of a model: `blk.N`."""

    model: Model
    number: int

    def norm(self, g: Graph, x: Value, name: str) -> Value:
        """An RMS norm of the hidden state."""
        h = self.model.h
        return g.rms(x, self.model.w.vector(self.name(f"{name}.weight"), h.n_embd), h.epsilon)

    def linear(self, g: Graph, x: Value, name: str, n_out: int) -> Value:
        """A matrix product, with a bias where the model has one."""
        w = self.model.w
        matrix = w.matrix(self.name(f"{name}.weight"), x.width, n_out)
        return g.matmul(x, matrix, w.optional_vector(self.name(f"{name}.bias"), n_out))

    def queries_keys_values(self, g: Graph, n: Value) -> tuple[Part, Part, Part]:
        """From three matrices or from one."""
        h = self.model.h
        widths = (h.n_head * h.head_dim, h.n_head_kv * h.head_dim, h.n_head_kv * h.head_dim)
        if self.name("attn_qkv.weight") in self.model.w:
            fused = self.linear(g, n, "attn_qkv", sum(widths))
            return (
                Part(fused, 0, widths[0]),
                Part(fused, widths[0], widths[1]),
                Part(fused, widths[0] + widths[1], widths[2]),
            )
        names = ("attn_q", "attn_k", "attn_v")
        q, k, v = (Part(self.linear(g, n, name, width), 0, width) for name, width in zip(names, widths, strict=True))
        return q, k, v

    def head_norms(self) -> tuple[Vector, Vector]:
        """Weights of the norms of each query's and each key's head."""
        w, size = self.model.w, self.model.h.head_dim
        return w.vector(self.name("attn_q_norm.weight"), size), w.vector(self.name("attn_k_norm.weight"), size)

    def attention(
        self,
        g: Graph,
        n: Value,
        *,
        norms: tuple[Vector, Vector] | None = None,
        rope: Rope | None = None,
        window: int = 0,
    ) -> Value:
        """Attention and its output matrix."""
        h = self.model.h
        q, k, v = self.queries_keys_values(g, n)
        q_norm, k_norm = norms or (None, None)
        mixed = g.attention(
            q,
            k,
            v,
            layer=self.number,
            n_head=h.n_head,
            n_head_kv=h.n_head_kv,
            rope=rope or h.rope,
            scale=h.scale,
            window=window,
            q_norm=q_norm,
            k_norm=k_norm,
            epsilon=h.epsilon,
        )
        return self.linear(g, mixed, "attn_output", h.n_embd)

    def feed_forward(self, g: Graph, n: Value, gate: Literal["silu", "gelu"] = "silu") -> Value:
        """down( act(gate n) · (up n) )."""
        h = self.model.h
        product = g.gate(self.linear(g, n, "ffn_gate", h.n_ff), self.linear(g, n, "ffn_up", h.n_ff), gate)
        return self.linear(g, product, "ffn_down", h.n_embd)

    def fused_feed_forward(self, g: Graph, n: Value) -> Value:
        """down( silu(gate n) · (up n) ), where the rows of gate and then those of up are one matrix, `ffn_up`."""
        h = self.model.h
        both = self.linear(g, n, "ffn_up", 2 * h.n_ff)
        gate, up = (g.columns(both, first, h.n_ff, 0, 1) for first in (0, h.n_ff))
        return self.linear(g, g.gate(gate, up, "silu"), "ffn_down", h.n_embd)

    def moe(self, g: Graph, n: Value) -> Value:
        """Σ p down( silu(gate n) · (up n) ) over the experts that the router chooses."""
        h = self.model.h
        routing = g.route(self.linear(g, n, "ffn_gate_inp", h.n_expert), h.n_used, h.expert_scale)
        gate, up, down = self.model.w.experts(self.number, h.n_embd, h.n_ff, h.n_expert)
        product = g.gate(g.expert_matmul(n, gate, routing), g.expert_matmul(n, up, routing), "silu")
        return g.mix(g.expert_matmul(product, down, routing), routing)

    def name(self, tensor: str) -> str:
        """The whole name of one of its tensors."""
        return f"blk.{self.number}.{tensor}"


def check_width(keys: Keys, h: Hyperparameters) -> None:
    """For architectures whose heads are the hidden state cut up.

    Raises:
        FormatError: `engine.key`: they are not.
    """
    if h.n_head * h.head_dim != h.n_embd:
        raise FormatError(
            f"{h.n_head} heads of {h.head_dim} are not the width of {h.n_embd}",
            code="engine.key",
            field=keys.name("attention.head_count"),
        )
