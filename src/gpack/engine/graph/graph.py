"""Traces a model's forward pass: architectures say what is computed, and a list of operations comes of it.

n = g.rms(x, attn_norm)
x = g.add(x, g.matmul(g.matmul(n, up), down))
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import operations as op
from .operations import Activation, Operation
from .rope import Rope
from .states import Convolution, DeltaMatrices, IndexedKeyValues, KeyValues, LayerState, StateId
from .values import Part, Routing, Value
from .weights import Experts, Matrix, NgramTable, Vector


@dataclass
class Graph:
    """Operations in the order in which they were traced; each reads what earlier ones made.

    Attributes:
        operations: What is computed.
        states: What texts keep from step to step, in the order in which operations first name them.
        results: Values that are read when a step has run, or by another graph.
        history: How many tokens before its rows a text's operations read.
    """

    operations: list[Operation] = field(default_factory=list)
    states: list[StateId] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    history: int = 0
    _count: int = 0

    def __str__(self) -> str:
        lines = [str(operation) for operation in self.operations]
        return "\n".join([*lines, f"results: {', '.join(map(str, self.results))}"])

    @property
    def recurrences(self) -> list[Operation]:
        """The operations that change a recurrent state, in order."""
        return [operation for operation in self.operations if operation.kept()]

    def embed(self, matrix: Matrix) -> Value:
        """The rows of the step's tokens."""
        return self._note(op.Embed(self._value(matrix.n_in), matrix))

    def pick(self, x: Value) -> Value:
        """The rows of another graph's result of which logits are wanted."""
        return self._note(op.Pick(self._value(x.width), x))

    def given(self, width: int) -> Value:
        """Rows that the step brings."""
        return self._note(op.Given(self._value(width)))

    def concat(self, x: Value, y: Value) -> Value:
        """The columns of x, then those of y."""
        return self._note(op.Concat(self._value(x.width + y.width), x, y))

    def rms(self, x: Value, weight: Vector, epsilon: float) -> Value:
        """x / sqrt(mean(x²) + epsilon) · weight."""  # noqa: D403
        return self._note(op.RmsNorm(self._value(x.width, x.per_token), x, weight, epsilon))

    def matmul(self, x: Value, matrix: Matrix, bias: Vector | None = None) -> Value:
        """Matrix · x (+ bias)."""
        return self._note(op.MatMul(self._value(matrix.n_out, x.per_token), x, matrix, bias))

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""  # noqa: D403
        return self._note(op.Add(self._value(x.width, x.per_token), x, y))

    def scale(self, x: Value, factor: float) -> Value:
        """Factor · x."""
        return self._note(op.Scale(self._value(x.width, x.per_token), x, factor))

    def gate(self, gate: Value, up: Value, activation: Activation) -> Value:
        """activation(gate) · up, element by element."""
        return self._note(op.Gate(self._value(up.width, up.per_token), gate, up, activation))

    def columns(self, x: Value, first: int, size: int, step: int, count: int) -> Value:
        """`size` columns from `first` on, and again every `step` columns, `count` times."""
        return self._note(op.Columns(self._value(size * count), x, first, size, step, count))

    def activate(self, x: Value, activation: Activation, *, factor: float = 1.0, scale: float = 1.0) -> Value:
        """Scale · activation(factor · x)."""
        return self._note(op.Activate(self._value(x.width, x.per_token), x, activation, factor, scale))

    def piece_norm(self, x: Value, weight: Vector, count: int, epsilon: float) -> Value:
        """An RMS norm of each of `count` pieces of a row, with weights of their own."""
        return self._note(op.PieceNorm(self._value(x.width), x, weight, count, epsilon))

    def mean_pieces(self, x: Value, count: int) -> Value:
        """The mean of `count` pieces of each row."""
        return self._note(op.MeanPieces(self._value(x.width // count), x, count))

    def add_to_pieces(self, x: Value, y: Value, weights: Value) -> Value:
        """x_c + weights[c] · y for each piece of x."""
        return self._note(op.AddToPieces(self._value(x.width), x, y, weights))

    def piece_gate(self, k: Value, q: Value, v: Value, count: int, scale: float) -> Value:
        """v times a gate for each of `count` pieces of k and q: `operations.PieceGate` has the equation."""  # noqa: D403
        return self._note(op.PieceGate(self._value(v.width * count), k, q, v, count, scale))

    def ngram_rows(self, table: NgramTable) -> Value:
        """The table's rows that the step's tokens touch, those of a token side by side."""
        self.history = max(self.history, table.hash.ngram_size - 1)
        return self._note(op.NgramRows(self._value(table.hash.n_rows * table.width), table))

    def soft_cap(self, x: Value, cap: float) -> Value:
        """Cap · tanh(x / cap)."""
        return self._note(op.SoftCap(self._value(x.width, x.per_token), x, cap))

    def attention(
        self,
        q: Part,
        k: Part,
        v: Part,
        *,
        layer: int,
        n_head: int,
        n_head_kv: int,
        rope: Rope,
        scale: float,
        window: int = 0,
        q_norm: Vector | None = None,
        k_norm: Vector | None = None,
        epsilon: float = 0.0,
    ) -> Value:
        """Causal attention of every head over the layer's keys and values, to which k and v are added.

        Args:
            q, k, v: Heads side by side.
            layer: Whose keys and values they are.
            window: Newest positions that a row sees; 0: all.
            q_norm, k_norm: Weights of an RMS norm of each head, before the rotation.
        """
        head_dim = q.width // n_head
        state = self._state(layer, KeyValues(n_head_kv, head_dim, window))
        output = self._value(n_head * head_dim)
        return self._note(op.Attention(output, q, k, v, state, n_head, rope, scale, q_norm, k_norm, epsilon))

    def sparse_attention(
        self,
        q: Part,
        k: Part,
        v: Part,
        *,
        index_q: Part,
        index_k: Part,
        layer: int,
        n_head: int,
        n_head_kv: int,
        n_index_head: int,
        rope: Rope,
        scale: float,
        q_norm: Vector,
        k_norm: Vector,
        index_q_norm: Vector,
        index_k_norm: Vector,
        epsilon: float,
        block: int,
        n_blocks: int,
    ) -> Value:
        """Attention over chosen blocks of positions and the tail: `operations.SparseAttention` says which.

        Args:
            q, k, v, index_q: Heads side by side.
            index_k: One index key.
            block: Positions of a block.
            n_blocks: Blocks that a row sees at most.
        """
        state = self._state(layer, IndexedKeyValues(n_head_kv, q.width // n_head, 0, index_k.width))
        return self._note(
            op.SparseAttention(
                self._value(q.width),
                q,
                k,
                v,
                state,
                n_head,
                rope,
                scale,
                q_norm,
                k_norm,
                epsilon,
                index_q,
                index_k,
                n_index_head,
                index_q_norm,
                index_k_norm,
                block,
                n_blocks,
            )
        )

    def route(self, scores: Value, n_used: int, scale: float) -> Routing:
        """The experts with the highest probabilities, and these divided by their sum."""
        self._count += 1
        made = Routing(self._count - 1, n_used)
        self.operations.append(op.Route(made, scores, scale))
        return made

    def expert_matmul(self, x: Value, experts: Experts, routing: Routing) -> Value:
        """The products with the chosen experts: a row for each of them."""
        return self._note(op.ExpertMatMul(self._value(experts.n_out, routing.n_used), x, experts, routing))

    def mix(self, x: Value, routing: Routing) -> Value:
        """The sum of each row's experts' results, times their weights."""
        return self._note(op.Mix(self._value(x.width), x, routing))

    def convolution(
        self, x: Value, weight: Vector, taps: int, *, layer: int, dilation: int = 1, role: str = ""
    ) -> Value:
        """silu of a causal convolution of each channel over the text's newest positions.

        Args:
            dilation: Positions from one tap to the next.
            role: Tells it apart from other convolutions of the layer.
        """  # noqa: D403
        state = self._state(layer, Convolution((taps - 1) * dilation, x.width), role)
        return self._note(op.CausalConvolution(self._value(x.width), x, weight, taps, state, dilation))

    def delta_rule(
        self,
        q: Part,
        k: Part,
        v: Part,
        alpha: Value,
        beta: Value,
        *,
        layer: int,
        a: Vector,
        dt_bias: Vector,
        n_head: int,
        n_head_k: int,
        epsilon: float,
    ) -> Value:
        """The gated delta rule over the layer's matrices, which it changes.

        `operations.DeltaRule` has the equations.
        """
        kind = DeltaMatrices(n_head, q.width // n_head_k, v.width // n_head)
        state = self._state(layer, kind)
        output = self._value(v.width)
        return self._note(op.DeltaRule(output, q, k, v, alpha, beta, a, dt_bias, n_head_k, epsilon, state))

    def following(self) -> Graph:
        """An empty graph that may pick rows of this one's results; no value of either is also one of the other."""
        return Graph(_count=self._count)

    def result(self, x: Value) -> Value:
        """The value is read after the step, or by another graph."""
        self.results.append(x)
        return x

    def _value(self, width: int, per_token: int = 1) -> Value:
        self._count += 1
        return Value(self._count - 1, width, per_token)

    def _note(self, operation: op.ValueOperation) -> Value:
        self.operations.append(operation)
        return operation.output

    def _state(self, layer: int, kind: LayerState, role: str = "") -> StateId:
        made = StateId(layer, kind, role)
        if made not in self.states:
            self.states.append(made)
        return made
