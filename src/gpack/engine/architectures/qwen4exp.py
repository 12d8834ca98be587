"""qwen4exp: Qwen 3.8, with hyper-connections, block-sparse attention and a table of n-gram rows.

Source: Qwen Team, Qwen3.8-Flash-Next (2026). What they call experimental is in `experimental`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from ...errors import UnsupportedError
from ...model.ngram import NgramHash
from ...sections.placement import PLE as NGRAM_TABLE
from ..graph import Graph, NgramTable, Part, Value
from ..hyperparameters import MOST_CONTEXT, MOST_HEADS, MOST_WIDTH, Keys
from ..weights import Weights
from .blocks import Layer, Model, Traced
from .experimental import HyperConnections, read_hash
from .llama import logits
from .qwen35 import MOST_TAPS, Qwen35, delta_net, draft_logits, gated_attention, moe, read_hybrid

__all__ = ["Qwen4Exp", "draft", "draft_logits", "logits", "read", "trace"]


@dataclass(frozen=True)
class Ngrams:
    """The layer whose streams get rows of the table.

    Attributes:
        layer: Its number.
        hash: Says which rows.
        width: Elements of a row.
        taps: Of the convolution after it, which steps over as many positions as the longest n-gram has tokens.
    """

    layer: int
    hash: NgramHash
    width: int
    taps: int


@dataclass(frozen=True)
class Qwen4Exp(Qwen35):
    """Also what its sparse attention and its streams need.

    Attributes:
        streams: The hyper-connections.
        ratios: For each layer, also for one that drafts, the positions of a block of sparse attention; 0: it is dense,
            or a delta net.
        budget: Positions in the blocks that a row sees.
        n_index_head, index_dim: Heads of index queries, and elements of each.
        ngrams: None where there are none.
    """

    streams: HyperConnections = field(default_factory=HyperConnections)
    ratios: tuple[int, ...] = ()
    budget: int = 0
    n_index_head: int = 0
    index_dim: int = 0
    ngrams: Ngrams | None = None


def read(keys: Keys, w: Weights) -> Qwen4Exp:
    """The hyperparameters."""
    h = read_hybrid(keys, is_moe=True)
    ratios = _ratios(keys, h, w)
    budget = n_index_head = index_dim = 0
    if any(ratios):
        budget = keys.integer("attention.indexer.top_k", most=MOST_CONTEXT)
        n_index_head = keys.integer("attention.indexer.head_count", most=MOST_HEADS)
        index_dim = keys.integer("attention.indexer.key_length", most=MOST_WIDTH)
        if budget < max(ratios):
            raise keys.refuse("attention.indexer.top_k", f"is {budget}, less than a block of {max(ratios)} positions")
        if index_dim < h.rope.n_rotated:
            what = f"is {index_dim}, less than the {h.rope.n_rotated} elements that are rotated"
            raise keys.refuse("attention.indexer.key_length", what)
    return Qwen4Exp(
        **vars(h),
        streams=HyperConnections.read(keys),
        ratios=ratios,
        budget=budget,
        n_index_head=n_index_head,
        index_dim=index_dim,
        ngrams=_ngrams(keys, h, w),
    )


def _ratios(keys: Keys, h: Qwen35, w: Weights) -> tuple[int, ...]:
    given = keys.value("attention.compress_ratios")
    count = h.n_layer + min(1, h.n_draft)
    if given is None:
        return (0,) * count
    fits = isinstance(given, list) and len(given) >= h.n_layer
    if not fits or not all(type(ratio) is int and 0 <= ratio <= MOST_CONTEXT for ratio in given):
        raise keys.refuse("attention.compress_ratios", f"is not a list of block sizes for {h.n_layer} layers")
    ratios = (*given[: h.n_layer], _ratio_of_draft(given, h, w))[:count]
    for number, (ratio, is_recurrent) in enumerate(zip(ratios, h.recurrent, strict=False)):
        if ratio and is_recurrent:
            raise keys.refuse("attention.compress_ratios", f"is {ratio} for layer {number}, which is a delta net")
    return ratios


def _ratio_of_draft(given: list[int], h: Qwen35, w: Weights) -> int:
    """Files whose list ends before the draft layer have its indexer all the same."""
    listed = given[h.n_layer] if len(given) > h.n_layer else 0
    return listed or (max(given) if f"blk.{h.n_layer}.indexer.q_proj.weight" in w else 0)


def _ngrams(keys: Keys, h: Qwen35, w: Weights) -> Ngrams | None:
    layers = keys.value("ple.layers")
    if not layers:
        if NGRAM_TABLE in w:
            raise keys.refuse("ple.layers", f"is missing, though the model has {NGRAM_TABLE}")
        return None
    if not isinstance(layers, list) or not all(type(number) is int and 0 <= number < h.n_layer for number in layers):
        raise keys.refuse("ple.layers", f"is not a list of layers below {h.n_layer}")
    if len(layers) > 1:
        raise UnsupportedError(
            f"n-gram rows in {len(layers)} layers are not supported",
            code="engine.key",
            field=keys.name("ple.layers"),
            hint="one layer is",
        )
    return Ngrams(
        layers[0],
        read_hash(keys, w.dims("token_embd.weight")[-1]),
        keys.integer("embedding_length_per_layer_input", most=MOST_WIDTH),
        keys.integer("ple.conv_kernel", most=MOST_TAPS, least=2),
    )


def trace(g: Graph, model: Model) -> Traced:
    """What the output reads of the streams, and the streams, where a draft layer goes on from them."""
    h = model.h
    if not isinstance(h, Qwen4Exp):
        raise TypeError(type(h).__name__)
    streams = h.streams
    x = streams.begin(g, model.embed(g))
    for number in range(h.n_layer):
        layer = model.layer(number)
        if h.ngrams is not None and number == h.ngrams.layer:
            x = with_ngrams(g, layer, h, h.ngrams, x)
        x = _through(g, layer, h, x)
    y = streams.end(g, model, x)
    return (y, x) if h.n_draft else y


def draft(g: Graph, model: Model) -> Traced:
    """A layer over the next token's embedding and the streams before it."""
    h, w = model.h, model.w
    if not isinstance(h, Qwen4Exp):
        raise TypeError(type(h).__name__)
    layer = model.layer(h.n_layer)
    own = layer.name("nextn.embed_tokens.weight")
    embedded = g.embed(w.matrix(own if own in w else "token_embd.weight", h.n_embd, model.n_vocab))
    x = h.streams.guess(g, layer, embedded, g.given(h.streams.count * h.n_embd))
    x = _through(g, layer, h, x)
    return h.streams.end(g, model, x, layer.name("nextn.hc_head")), x


def _through(g: Graph, layer: Layer, h: Qwen4Exp, x: Value) -> Value:
    """The streams after a layer; those that only draft have attention."""
    n, weights = h.streams.take(g, layer, "hc_attn", x)
    is_recurrent = layer.number < h.n_layer and h.recurrent[layer.number]
    mixed = delta_net(g, layer, h, n, "sigmoid") if is_recurrent else attention(g, layer, h, n)
    x = h.streams.give(g, x, mixed, weights)
    n, weights = h.streams.take(g, layer, "hc_ffn", x)
    return h.streams.give(g, x, moe(g, layer, h, n), weights)


def attention(g: Graph, layer: Layer, h: Qwen4Exp, n: Value) -> Value:
    """Gated attention, over the blocks that the indexer chooses where the layer has one."""
    size = h.ratios[layer.number]
    if not size:
        return gated_attention(g, layer, h, n)
    w = layer.model.w
    choose = partial(
        g.sparse_attention,
        index_q=Part.of(layer.linear(g, n, "indexer.q_proj", h.n_index_head * h.index_dim)),
        index_k=Part.of(layer.linear(g, n, "indexer.k_proj", h.index_dim)),
        n_index_head=h.n_index_head,
        index_q_norm=w.vector(layer.name("indexer.q_norm.weight"), h.index_dim),
        index_k_norm=w.vector(layer.name("indexer.k_norm.weight"), h.index_dim),
        block=size,
        n_blocks=h.budget // size,
    )
    return gated_attention(g, layer, h, n, choose)


def with_ngrams(g: Graph, layer: Layer, h: Qwen4Exp, ngrams: Ngrams, x: Value) -> Value:
    """The streams, to each of which the n-grams' value is added through a gate, and a convolution of that."""
    w, count = layer.model.w, h.streams.count

    def norm(name: str, y: Value) -> Value:
        return g.piece_norm(y, w.vector(layer.name(f"{name}.weight"), y.width), count, h.epsilon)

    table: NgramTable = w.ngram_table(ngrams.hash, ngrams.width)
    rows = g.ngram_rows(table)
    key = norm("ple_norm_key", layer.linear(g, rows, "ple_key", x.width))
    value = layer.linear(g, rows, "ple_value", h.n_embd)
    gated = g.piece_gate(key, norm("ple_norm_query", x), value, count, 1 / math.sqrt(h.n_embd))
    taps = w.vector(layer.name("ple_conv1d.weight"), ngrams.taps, x.width)
    y = g.convolution(
        norm("ple_norm_conv", gated),
        taps,
        ngrams.taps,
        layer=layer.number,
        dilation=ngrams.hash.ngram_size,
        role="n-grams",
    )
    return g.add(g.add(x, gated), y)
