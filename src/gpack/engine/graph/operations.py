"""The operations of a graph: plain values, with no address, thread or processor in them.

Each says what is computed for every row of a step, in terms of the values that it reads. A value is made by one
operation and never changed; backends may give two values the same memory where nobody can tell. What an operation means
exactly is written in `backends/reference`, a few lines of float64 for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from .rope import Rope
from .states import StateId
from .values import Part, Routing, Value
from .weights import Experts, Matrix, NgramTable, Vector

Activation = Literal["silu", "gelu", "sigmoid"]


@dataclass(frozen=True)
class Operation:
    """What all operations have: what it makes; every other value or part among its fields is read."""

    output: Value | Routing

    @property
    def kind(self) -> str:
        """The name of the operation."""
        return type(self).__name__

    def inputs(self) -> Iterator[Value | Routing]:
        """The values that the operation reads, in the order of its fields."""
        for item in fields(self):
            given = getattr(self, item.name)
            if item.name == "output":
                continue
            if isinstance(given, Part):
                yield given.value
            elif isinstance(given, Value | Routing):
                yield given

    def kept(self) -> tuple[Part, ...]:
        """What of its inputs brings its recurrent state from row to row; nothing where it has none.

        Run again on these alone, the rest being anything, it changes the state as it did.
        """
        return ()

    def attributes(self) -> dict[str, Any]:
        """All fields that are neither read nor made."""
        values = (Value, Routing, Part)
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in given.items() if not isinstance(value, values)}

    def __str__(self) -> str:
        attributes = [f"{item.name}={getattr(self, item.name)}" for item in fields(self) if item.name != "output"]
        return f"{self.output} = {self.kind}({', '.join(attributes)})"


@dataclass(frozen=True)
class ValueOperation(Operation):
    """An operation that makes a value."""

    output: Value


@dataclass(frozen=True)
class Embed(ValueOperation):
    """The matrix's row of each token."""

    matrix: Matrix


@dataclass(frozen=True)
class Pick(ValueOperation):
    """The rows of a value of another graph of which logits are wanted."""

    x: Value


@dataclass(frozen=True)
class Given(ValueOperation):
    """Rows that the step brings: hidden states of another graph."""


@dataclass(frozen=True)
class Concat(ValueOperation):
    """x and y side by side."""

    x: Value
    y: Value


@dataclass(frozen=True)
class RmsNorm(ValueOperation):
    """x / sqrt(mean(x²) + epsilon) · weight, for each piece of a row that is as wide as the weight.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """

    x: Value
    weight: Vector
    epsilon: float


@dataclass(frozen=True)
class MatMul(ValueOperation):
    """Matrix · x (+ bias)."""

    x: Value
    matrix: Matrix
    bias: Vector | None


@dataclass(frozen=True)
class Add(ValueOperation):
    """x + y."""

    x: Value
    y: Value


@dataclass(frozen=True)
class Scale(ValueOperation):
    """Factor · x."""

    x: Value
    factor: float


@dataclass(frozen=True)
class Gate(ValueOperation):
    """activation(gate) · up, element by element, gelu in its tanh form; a gate of one element is for the whole row."""

    gate: Value
    up: Value
    activation: Activation


@dataclass(frozen=True)
class Columns(ValueOperation):
    """Columns of x side by side: `size` of them from `first` on, and again every `step` columns, `count` times."""

    x: Value
    first: int
    size: int
    step: int
    count: int


@dataclass(frozen=True)
class Activate(ValueOperation):
    """Scale · activation(factor · x), element by element."""

    x: Value
    activation: Activation
    factor: float
    scale: float


@dataclass(frozen=True)
class PieceNorm(ValueOperation):
    """As RmsNorm, for each of `count` pieces of a row, each of which has weights of its own."""

    x: Value
    weight: Vector
    count: int
    epsilon: float


@dataclass(frozen=True)
class MeanPieces(ValueOperation):
    """The mean of `count` pieces of each row, element by element."""

    x: Value
    count: int


@dataclass(frozen=True)
class AddToPieces(ValueOperation):
    """x_c + weights[c] · y for each piece c of a row of x; there are as many as the weights have columns."""

    x: Value
    y: Value
    weights: Value


@dataclass(frozen=True)
class PieceGate(ValueOperation):
    """g_c · v for each of `count` pieces c of k and q: g_c = σ(sign(s) sqrt(max(|s|, 10⁻⁶))), s = k_c · q_c · scale."""

    k: Value
    q: Value
    v: Value
    count: int
    scale: float


@dataclass(frozen=True)
class NgramRows(ValueOperation):
    """The rows of a table that each token and those before it in its text touch, side by side."""

    table: NgramTable


@dataclass(frozen=True)
class SoftCap(ValueOperation):
    """Cap · tanh(x / cap)."""

    x: Value
    cap: float


@dataclass(frozen=True)
class Attention(ValueOperation):
    """softmax(q kᵀ · scale) v for every head, causal, over the text's keys and values, to which k and v are added.

    Attributes:
        q, k, v: Heads side by side: n_head of them, and n_head_kv; query head h reads key/value head
            h // (n_head / n_head_kv).
        q_norm, k_norm: Weights of an RMS norm of each head, before the rotation; None: there is none.
        rope: The rotation of queries and keys by their position.
    """

    q: Part
    k: Part
    v: Part
    state: StateId
    n_head: int
    rope: Rope
    scale: float
    q_norm: Vector | None
    k_norm: Vector | None
    epsilon: float


@dataclass(frozen=True)
class SparseAttention(Attention):
    """As Attention, but over chosen blocks of positions and the tail: a row at position t has c = (t + 1) // block
    whole blocks before it and sees the best min(n_blocks, c) of them, and all positions from c · block to t.

    Block b has the key K_b = rotate(rms(mean of its index keys; k_norm)), at its first position. Its score is
    Σ_h max(0, q_h · K_b); the lower number is first where two are equal. Index queries are normed and rotated as
    queries are.

    Attributes:
        index_q: n_index_head heads of index queries.
        index_k: One index key.
        index_q_norm, index_k_norm: Weights of the RMS norms of index queries and of the keys of blocks.
        block: Positions of a block.
        n_blocks: Blocks that a row sees at most, beside the tail.
    """

    index_q: Part
    index_k: Part
    n_index_head: int
    index_q_norm: Vector
    index_k_norm: Vector
    block: int
    n_blocks: int


@dataclass(frozen=True)
class Route(Operation):
    """The n_used most probable of softmax(scores), the lower number first where two are equal.

    Their weights are their probabilities, divided by the sum of these (at least 2⁻¹⁴) and times `scale`.
    """

    output: Routing
    scores: Value
    scale: float


@dataclass(frozen=True)
class ExpertMatMul(ValueOperation):
    """The products with the chosen experts: a row for each of them, in the order in which they were chosen.

    `x` has one row for each row of the step, or one for each chosen expert.
    """

    x: Value
    experts: Experts
    routing: Routing


@dataclass(frozen=True)
class Mix(ValueOperation):
    """The sum of each row's experts' results, times their weights."""

    x: Value
    routing: Routing


@dataclass(frozen=True)
class CausalConvolution(ValueOperation):
    """silu of a depthwise convolution over earlier positions of the text: Σ_j weight[c, j] x[t - (taps - 1 - j) d, c].

    Attributes:
        weight: float32 [channels · taps], a channel's taps side by side; the last tap meets the row itself.
        state: The inputs of the last (taps - 1) · dilation positions; zeros before the text begins.
        dilation: d: Positions from one tap to the next.
    """

    x: Value
    weight: Vector
    taps: int
    state: StateId
    dilation: int = 1

    def kept(self) -> tuple[Part, ...]:
        """The inputs."""
        return (Part.of(self.x),)


@dataclass(frozen=True)
class DeltaRule(ValueOperation):
    """The gated delta rule, one position after the other, for each head h with key head h mod n_head_k.

    q and k are divided by sqrt(Σ² + epsilon) for each head. M ← exp(decay) M; d = β (v - Mᵀ k); M ← M + k dᵀ;
    output = Mᵀ q / sqrt(key_dim). Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks (2024).

    Attributes:
        q, k: n_head_k heads of key_dim.
        v: n_head heads of value_dim.
        alpha, beta: Rows of n_head: β = sigmoid(beta), decay = a · softplus(alpha + dt_bias).
        a, dt_bias: float32 [n_head]; a is negative.
    """

    q: Part
    k: Part
    v: Part
    alpha: Value
    beta: Value
    a: Vector
    dt_bias: Vector
    n_head_k: int
    epsilon: float
    state: StateId

    def kept(self) -> tuple[Part, ...]:
        """Keys, values, and what decay and β are made of; no state depends on queries."""
        return (self.k, self.v, Part.of(self.alpha), Part.of(self.beta))
