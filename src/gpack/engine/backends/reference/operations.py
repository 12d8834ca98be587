"""What each operation of a graph means, in numpy and float64.

Values are arrays [rows, per_token, width]. `OPERATIONS` has the function of each kind; the equations' sources stand in
`graph.operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...graph import operations as op
from ...graph.graph import Graph
from ...graph.states import Convolution
from ...graph.values import Part, Routing, Value
from ..base import Segment, Step
from .arrays import Array
from .equations import ACTIVATIONS, attend, pieces_of, rms, rotate, sigmoid, silu, softmax, unit_heads
from .states import KeptLayout, States
from .weights import DenseWeights

_LEAST_SUM = 2.0**-14  # of the chosen experts' probabilities, when they are divided by it


@dataclass(frozen=True)
class Chosen:
    """A router's choice: for each row the experts' numbers and their weights, both [rows, n_used]."""

    experts: npt.NDArray[np.int64]
    weights: Array


@dataclass
class Run:
    """One graph at work on one step.

    Attributes:
        picked: The rows of another graph's result that `Pick` gives.
        values, choices: What was computed so far, by number.
    """

    step: Step
    states: States
    weights: DenseWeights
    picked: Array | None = None
    values: dict[int, Array] = field(default_factory=dict)
    choices: dict[int, Chosen] = field(default_factory=dict)

    def compute(self, graph: Graph) -> Array:
        """All operations in order; gives the graph's only result, [rows, width]."""
        kept = 0
        for operation in graph.operations:
            kept = self._keep(graph, operation, kept)
            made = OPERATIONS[type(operation)](self, operation)
            if isinstance(operation.output, Routing):
                self.choices[operation.output.number] = made
            else:
                self.values[operation.output.number] = made
        (result,) = graph.results
        return self.values[result.number][:, 0]

    def replay(self, graph: Graph) -> None:
        """The recurrent operations alone, over kept rows; what else they read is zeros."""
        rows, kept = sum(segment.count for segment, _ in self.segments()), 0
        for operation in graph.recurrences:
            for value in operation.inputs():
                if isinstance(value, Value):
                    self.values[value.number] = np.zeros((rows, value.per_token, value.width))
            for part in operation.kept():
                for segment, of_segment in self.segments():
                    stored = KeptLayout.of(graph, segment.count).array(segment.keep)
                    columns = self.value(part.value)[of_segment, 0, part.first : part.first + part.width]
                    columns[...] = stored[:, kept : kept + part.width]
                kept += part.width
            OPERATIONS[type(operation)](self, operation)

    def _keep(self, graph: Graph, operation: op.Operation, kept: int) -> int:
        """Puts aside what a recurrent state depends on, from column `kept` of the kept rows on; returns the next."""
        for part in operation.kept():
            for segment, rows in self.segments():
                if segment.keep:
                    stored = KeptLayout.of(graph, segment.count).array(segment.keep)
                    columns = self.value(part.value)[rows, 0, part.first : part.first + part.width]
                    stored[:, kept : kept + part.width] = columns
            kept += part.width
        return kept

    def value(self, value: Value) -> Array:
        """[rows, per_token, width]."""
        return self.values[value.number]

    def heads(self, part: Part, count: int) -> Array:
        """Columns that are `count` heads side by side, as [rows, heads, elements of a head]."""
        columns = self.value(part.value)[:, 0, part.first : part.first + part.width]
        return columns.reshape(len(columns), count, -1)

    def segments(self) -> Iterator[tuple[Segment, slice]]:
        """The texts of the step, and which rows they have."""
        for segment in self.step.segments:
            yield segment, slice(segment.first_row, segment.first_row + segment.count)


# ---------------------------------------------------------------- row by row


def embed(run: Run, it: op.Embed) -> Array:
    """The matrix's row of each token."""
    return run.weights.rows(it.matrix, run.step.tokens)[:, None]


def pick(run: Run, _it: op.Pick) -> Array:
    """The rows of which logits are wanted."""
    assert run.picked is not None  # `lower` made sure that only the second graph picks
    return run.picked[:, None]


def given(run: Run, _it: op.Given) -> Array:
    """The rows that the step brings."""
    assert run.step.given is not None  # whoever asks for them brings them
    return np.asarray(run.step.given, np.float64)[:, None]


def concat(run: Run, it: op.Concat) -> Array:
    """Columns of one value, then of another."""
    return np.concatenate([run.value(it.x), run.value(it.y)], axis=-1)


def rms_norm(run: Run, it: op.RmsNorm) -> Array:
    """`rms` of each piece of a row."""
    x = run.value(it.x)
    pieces = x.reshape(*x.shape[:2], -1, len(it.weight.values))
    return rms(pieces, it.weight.values, it.epsilon).reshape(x.shape)


def matmul(run: Run, it: op.MatMul) -> Array:
    """Matrix · x (+ bias)."""
    y: Array = run.weights.seen(run.value(it.x), it.matrix) @ run.weights.matrix(it.matrix).T
    return y if it.bias is None else y + it.bias.values


def add(run: Run, it: op.Add) -> Array:
    """The sum."""
    return run.value(it.x) + run.value(it.y)


def scale(run: Run, it: op.Scale) -> Array:
    """Factor · x."""
    return it.factor * run.value(it.x)


def gate(run: Run, it: op.Gate) -> Array:
    """Activation of one value, times the other."""
    return ACTIVATIONS[it.activation](run.value(it.gate)) * run.value(it.up)


def columns(run: Run, it: op.Columns) -> Array:
    """Pieces of each row, side by side."""
    places = np.arange(it.count)[:, None] * it.step + it.first + np.arange(it.size)
    return run.value(it.x)[..., places.reshape(-1)]


def activate(run: Run, it: op.Activate) -> Array:
    """Scale · activation(factor · x)."""
    made: Array = it.scale * ACTIVATIONS[it.activation](it.factor * run.value(it.x))
    return made


def piece_norm(run: Run, it: op.PieceNorm) -> Array:
    """`rms` of each piece of a row, with weights of its own."""
    x = run.value(it.x)
    return rms(pieces_of(x, it.count), it.weight.values.reshape(it.count, -1), it.epsilon).reshape(x.shape)


def mean_pieces(run: Run, it: op.MeanPieces) -> Array:
    """The mean of a row's pieces."""
    mean: Array = pieces_of(run.value(it.x), it.count).mean(axis=-2)
    return mean


def add_to_pieces(run: Run, it: op.AddToPieces) -> Array:
    """x_c + weights[c] · y."""
    x, weights = run.value(it.x), run.value(it.weights)
    added: Array = pieces_of(x, it.weights.width) + weights[..., None] * run.value(it.y)[..., None, :]
    return added.reshape(x.shape)


def piece_gate(run: Run, it: op.PieceGate) -> Array:
    """σ(sign(s) sqrt(max(|s|, 1e-6))) · v for each piece; s = k_c · q_c · scale."""
    k, q = (pieces_of(run.value(x), it.count) for x in (it.k, it.q))
    s = (k * q).sum(axis=-1, keepdims=True) * it.scale
    gates = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6)))
    gated: Array = gates * run.value(it.v)[..., None, :]
    return gated.reshape(*gated.shape[:2], -1)


def soft_cap(run: Run, it: op.SoftCap) -> Array:
    """Cap · tanh(x / cap)."""
    capped: Array = it.cap * np.tanh(run.value(it.x) / it.cap)
    return capped


# ---------------------------------------------------------------- experts


def route(run: Run, it: op.Route) -> Chosen:
    """The most probable experts, and their shares of the sum of their probabilities."""
    p = softmax(run.value(it.scores)[:, 0])
    experts = np.argsort(-p, axis=-1, kind="stable")[:, : it.output.n_used]  # of equals the lower number is first
    kept = np.take_along_axis(p, experts, -1)
    return Chosen(experts, kept / np.maximum(kept.sum(-1, keepdims=True), _LEAST_SUM) * it.scale)


def expert_matmul(run: Run, it: op.ExpertMatMul) -> Array:
    """A product for each chosen expert."""
    chosen = run.choices[it.routing.number].experts
    x = run.weights.seen(run.value(it.x), it.experts)
    x = np.broadcast_to(x, (*chosen.shape, it.experts.n_in))
    y = np.empty((*chosen.shape, it.experts.n_out))
    for number in np.unique(chosen):
        y[chosen == number] = x[chosen == number] @ run.weights.expert(it.experts, int(number)).T
    return y


def mix(run: Run, it: op.Mix) -> Array:
    """Σ weight · result over a row's experts."""
    weights = run.choices[it.routing.number].weights
    mixed: Array = (weights[..., None] * run.value(it.x)).sum(axis=1, keepdims=True)
    return mixed


# ---------------------------------------------------------------- text by text


def ngram_rows(run: Run, it: op.NgramRows) -> Array:
    """The table's rows of each token's n-grams, side by side."""
    table = it.table
    out = np.empty((len(run.step.tokens), table.hash.n_rows, table.width))
    for segment, rows in run.segments():
        out[rows] = table.source.values(table.hash.rows(run.step.tokens[rows], segment.previous))
    return out.reshape(len(out), 1, -1)


def attention(run: Run, it: op.Attention) -> Array:
    """Norm and rotation of heads; keys and values are kept; then `attend`, text by text."""
    kind: Any = it.state.kind
    q, k, v = run.heads(it.q, it.n_head), run.heads(it.k, kind.n_head_kv), run.heads(it.v, kind.n_head_kv)
    if it.q_norm is not None:
        q = rms(q, it.q_norm.values, it.epsilon)
    if it.k_norm is not None:
        k = rms(k, it.k_norm.values, it.epsilon)
    out = np.empty(q.shape)
    for segment, rows in run.segments():
        positions = np.arange(segment.position, segment.position + segment.count)
        turned_q, turned_k = (rotate(x[rows], positions, it.rope) for x in (q, k))
        run.states.write_positions(it.state, segment, turned_k, v[rows])
        first = max(0, segment.position - kind.window + 1) if kind.window else 0
        keys, values = run.states.read_positions(it.state, segment, first, segment.position + segment.count)
        seen = np.arange(first, segment.position + segment.count)[None, :]
        is_seen = seen <= positions[:, None]
        if kind.window:
            is_seen &= seen > positions[:, None] - kind.window
        if isinstance(it, op.SparseAttention):
            is_seen &= chosen_positions(run, it, segment, rows)
        out[rows] = attend(turned_q, keys, values, it.scale, is_seen)
    return out.reshape(len(out), 1, -1)


def chosen_positions(run: Run, it: op.SparseAttention, segment: Segment, rows: slice) -> npt.NDArray[np.bool_]:
    """Which positions are in the best whole blocks of each row, or in its tail: [rows, positions]."""
    size, end = it.block, segment.position + segment.count
    run.states.write_index(it.state, segment, run.heads(it.index_k, 1)[rows, 0])
    raw = run.states.read_index(it.state, segment, end)
    firsts = np.arange(0, end // size * size, size)
    means = raw[: len(firsts) * size].reshape(len(firsts), size, raw.shape[1]).mean(axis=1)
    keys = rotate(rms(means, it.index_k_norm.values, it.epsilon)[:, None], firsts, it.rope)[:, 0]
    positions = np.arange(segment.position, end)
    q = rms(run.heads(it.index_q, it.n_index_head)[rows], it.index_q_norm.values, it.epsilon)
    scores = np.maximum(rotate(q, positions, it.rope) @ keys.T, 0).sum(axis=1)
    chosen = np.zeros((segment.count, end), np.bool_)
    for row, position in enumerate(positions):
        whole = (position + 1) // size
        best = np.argsort(-scores[row, :whole], kind="stable")[: it.n_blocks]
        for block in best:
            chosen[row, block * size : (block + 1) * size] = True
        chosen[row, whole * size :] = True
    return chosen


def causal_convolution(run: Run, it: op.CausalConvolution) -> Array:
    """silu( Σ_j weight[c, j] x[t - (taps - 1 - j) dilation, c] ), text by text."""
    x, taps, dilation = run.value(it.x)[:, 0], it.taps, it.dilation
    weight = it.weight.values.reshape(-1, taps).astype(np.float64)
    assert isinstance(it.state.kind, Convolution)
    out = np.empty(x.shape)
    for segment, rows in run.segments():
        # The row at t is (taps - 1) · dilation further on, since the earlier positions come before.
        inputs = np.concatenate([run.states.read_recurrent(it.state, segment), x[rows]])
        starts = range(0, taps * dilation, dilation)
        out[rows] = sum(weight[:, j] * inputs[start : start + segment.count] for j, start in enumerate(starts))
        run.states.write_recurrent(it.state, segment, inputs[len(inputs) - (taps - 1) * dilation :])
    return silu(out)[:, None]


def delta_rule(run: Run, it: op.DeltaRule) -> Array:
    """M ← exp(decay) M; M ← M + k (β (v - Mᵀ k))ᵀ; output Mᵀ q / sqrt(key_dim): for each position of each text."""
    kind: Any = it.state.kind
    q, k = (unit_heads(run.heads(part, it.n_head_k), it.epsilon) for part in (it.q, it.k))
    v = run.heads(it.v, kind.n_head)
    beta = sigmoid(run.value(it.beta)[:, 0])
    decay = it.a.values * np.logaddexp(0, run.value(it.alpha)[:, 0] + it.dt_bias.values)  # log(1 + exp(x))
    key_head = np.arange(kind.n_head) % it.n_head_k
    out = np.empty(v.shape)
    for segment, rows in run.segments():
        m = run.states.read_recurrent(it.state, segment)
        for t in range(rows.start, rows.stop):
            for h in range(kind.n_head):
                key, query = k[t, key_head[h]], q[t, key_head[h]]
                m[h] *= math.exp(decay[t, h])
                m[h] += np.outer(key, beta[t, h] * (v[t, h] - m[h].T @ key))
                out[t, h] = m[h].T @ query / math.sqrt(kind.key_dim)
        run.states.write_recurrent(it.state, segment, m)
    return out.reshape(len(out), 1, -1)


OPERATIONS: dict[type[op.Operation], Callable[[Run, Any], Any]] = {
    op.Embed: embed,
    op.Pick: pick,
    op.Given: given,
    op.Concat: concat,
    op.RmsNorm: rms_norm,
    op.MatMul: matmul,
    op.Add: add,
    op.Scale: scale,
    op.Gate: gate,
    op.Columns: columns,
    op.Activate: activate,
    op.PieceNorm: piece_norm,
    op.MeanPieces: mean_pieces,
    op.AddToPieces: add_to_pieces,
    op.PieceGate: piece_gate,
    op.NgramRows: ngram_rows,
    op.SoftCap: soft_cap,
    op.Attention: attention,
    op.SparseAttention: attention,
    op.Route: route,
    op.ExpertMatMul: expert_matmul,
    op.Mix: mix,
    op.CausalConvolution: causal_convolution,
    op.DeltaRule: delta_rule,
}
