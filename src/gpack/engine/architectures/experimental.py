"""What the makers of qwen4exp call experimental and may change: its hyper-connections, and the hash of its n-grams.

The hidden state is several streams side by side, all of which begin as the embedding. A block reads one mixture of
them, in which a network of low rank weighs each element of each stream, and its result is added to every stream with a
weight of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from ...model.ngram import NgramHash
from ..graph import Graph, Value
from ..hyperparameters import MOST_WIDTH, Keys
from .blocks import Layer, Model

_MOST_STREAMS = 64
_SIGNED = 1 << 63  # from here on products of the hash mean different things to different makers' code


@dataclass(frozen=True)
class HyperConnections:
    """How blocks read and write the streams.

    Attributes:
        count: Streams.
        rank: Width of the networks that weigh their elements.
    """

    count: int = 1
    rank: int = 1

    @classmethod
    def read(cls, keys: Keys) -> HyperConnections:
        """As the metadata has them.

        Raises:
            FormatError: `engine.key`.
        """
        count = keys.integer("hyper_connection.count", most=_MOST_STREAMS, least=2)
        return cls(count, keys.integer("hyper_connection.low_rank", most=MOST_WIDTH))

    def begin(self, g: Graph, x: Value) -> Value:
        """All streams, each of them the embedding."""
        return g.columns(x, 0, x.width, 0, self.count)

    def take(self, g: Graph, layer: Layer, name: str, x: Value) -> tuple[Value, Value]:
        """What a block reads of the streams, and the weights with which they take its result."""
        normed = self._norm(g, layer.model, layer.name(f"{name}_norm.weight"), x)
        inject = layer.linear(g, normed, f"{name}_inject", self.count)
        weights = g.activate(inject, "sigmoid", factor=1 / self.count, scale=2.0)
        return self._mix(g, layer.model, layer.name(name), normed), weights

    def give(self, g: Graph, x: Value, y: Value, weights: Value) -> Value:
        """The streams with a block's result."""
        return g.add_to_pieces(x, y, weights)

    def end(self, g: Graph, model: Model, x: Value, name: str = "output_hc") -> Value:
        """What the output reads."""
        return self._mix(g, model, name, self._norm(g, model, f"{name}_norm.weight", x))

    def guess(self, g: Graph, layer: Layer, embedded: Value, x: Value) -> Value:
        """The streams with which a draft layer begins: from the next token's embedding and the streams before it.

        Some makers' code norms these streams together; here each has a norm of its own, as in llama.cpp. Only how many
        drafts are accepted depends on it.
        """
        normed = self._norm(g, layer.model, layer.name("nextn.hnorm.weight"), x)
        width = layer.model.h.n_embd
        matrix = layer.model.w.matrix(layer.name("nextn.eh_proj.weight"), 2 * width, width)
        e = layer.norm(g, embedded, "nextn.enorm")
        made = [
            g.matmul(g.concat(e, g.columns(normed, stream * width, width, 0, 1)), matrix)
            for stream in range(self.count)
        ]
        return reduce(g.concat, made)

    def _norm(self, g: Graph, model: Model, name: str, x: Value) -> Value:
        return g.piece_norm(x, model.w.vector(name, x.width), self.count, model.h.epsilon)

    def _mix(self, g: Graph, model: Model, name: str, normed: Value) -> Value:
        down = model.w.matrix(f"{name}_down.weight", normed.width, self.rank)
        up = model.w.matrix(f"{name}_up.weight", self.rank, normed.width)
        inner = g.activate(g.matmul(normed, down), "silu", factor=1 / self.count)
        return g.mean_pieces(g.gate(g.matmul(inner, up), normed, "sigmoid"), self.count)


def read_hash(keys: Keys, n_vocab: int) -> NgramHash:
    """The n-gram hash, as the metadata has its constants.

    Raises:
        FormatError: `ple.hash`: one is missing, does not fit the others or is out of range; `engine.key`: a product
            with a token's number is beyond 63 bits, where signed and unsigned remainders differ.
    """
    prefix = keys.name("")
    made = NgramHash.from_metadata(lambda key: keys.value(key.removeprefix(prefix)), keys.architecture)
    largest = max(made.multipliers)
    if largest * max(n_vocab - 1, made.eos_token_id) >= _SIGNED:
        raise keys.refuse("ple.layer_multipliers", f"has {largest}, whose product with a token is beyond 63 bits")
    return made
