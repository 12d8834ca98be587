"""From a graph to a program: gives values their memory, and adds the steps of each operation.

A buffer is another value's as soon as nobody reads it any more. What fits into the step before costs none of its own: a
sum goes into the product, the norm or the mixture that made its second part; an operation that may overwrite what it
reads does so where that is read for the last time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ....errors import UnsupportedError
from ...graph import operations as op
from ...graph import weights as graph
from ...graph.graph import Graph
from ...graph.values import Part, Routing, Value
from ..base import Step
from . import matmul
from .attention import AttentionMemory, HeadOptions, RowsAt, attention, float_bits
from .buffers import Activations, aligned
from .cache import KeptLayout
from .recurrent import Gates, convolution, delta_rule
from .shared import Shared, StatePlaces
from .step import StepBlock
from .value_buffers import ValueBuffers

# Kernels whose threads make the same groups of elements that they round afterwards.
_PRODUCTS = ("matmul", "moe_matmul")
_IN_GROUPS = ("rms_norm", "silu_gate", "gelu_gate", "sigmoid_gate")
_CAN_ADD = (op.RmsNorm, op.MatMul, op.Mix)


@dataclass(frozen=True)
class Choice:
    """Memory for a router's choice.

    Attributes:
        chosen: int32 [rows, n_used].
        weights: float32 [rows, n_used].
    """

    chosen: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]


@dataclass
class Lowering(ValueBuffers):
    """Lowers one graph into a program.

    Attributes:
        step: What kernels read of the rows of a step.
        tokens: int32 [rows].
        places: Where the states of the graph are in the blocks of texts.
        given: The buffer of rows that steps bring; None where there are none.
        before: What is to be done before each run of the program.
        methods: What adds the steps of further kinds of operations.
    """

    step: StepBlock
    tokens: npt.NDArray[np.int32]
    shared: Shared
    places: StatePlaces
    memory: AttentionMemory
    _choices: dict[Routing, Choice] = field(default_factory=dict)
    _brought: set[Routing] = field(default_factory=set)
    given: Activations | None = None
    before: list[Callable[[Step], None]] = field(default_factory=list)
    methods: ClassVar[dict[type[op.Operation], Callable[[Any, Any], None]]] = {}

    def lower(self, traced: Graph) -> list[Activations]:
        """Adds the steps of all operations; returns the buffers of the results, which no other value gets."""
        operations = traced.operations
        for number, operation in enumerate(operations):
            for value in operation.inputs():
                self._last_use[value] = number
        for result in traced.results:
            self._last_use[result] = len(operations)
        skip, kept, kept_row = False, 0, KeptLayout.of(traced).row_bytes
        for number, operation in enumerate(operations):
            if skip:
                skip = False
                continue
            self._number = number
            kept = self.keep(operation, kept, kept_row)
            following = operations[number + 1] if number + 1 < len(operations) else None
            first = len(self.program)
            target = self._sum_target(operation, following)
            if target is not None and isinstance(following, op.Add):
                skip = True
                self._adds_to = self._buffers[target]
                self._emit(operation)
                self._buffers[following.output] = self._buffers.pop(target)
                self._adds_to = None
            else:
                self._emit(operation)
            self._join(operations, number, first)
            self._give_back(operation, number)
            if skip and following is not None:
                self._give_back(following, number + 1)
        found = [self._buffers[result] for result in traced.results]
        for buffer in found:
            at = self.shared.not_finite.ctypes.data
            self._kernel("check_finite", buffer.address, 4 * buffer.width, buffer.width, at)
        return found

    def keep(self, operation: op.Operation, kept: int, kept_row: int, kernel: str = "keep_rows") -> int:
        """Adds the steps that put aside what a recurrent state depends on, or bring it back; returns where they end.

        Args:
            kept: Bytes of a kept row that earlier operations have.
            kept_row: Bytes of a kept row.
            kernel: `keep_rows` or `take_rows`.
        """
        for part in operation.kept():
            place = self._place(part, owned=False)
            self._kernel(kernel, *place, part.width, self.step.keep_word, kept, kept_row)
            if kernel == "keep_rows":
                self.program.join(len(self.program) - 1)  # what follows reads the rows too, and nothing that was kept
            kept += 4 * part.width
        return kept

    def replay(self, traced: Graph) -> None:
        """Adds the recurrent operations of a graph alone, over kept rows; their results are not used."""
        kept, kept_row = 0, KeptLayout.of(traced).row_bytes
        for operation in traced.recurrences:
            inputs = [value for value in dict.fromkeys(operation.inputs()) if isinstance(value, Value)]
            for value in inputs:
                self._buffers[value] = self._take(value)
            kept = self.keep(operation, kept, kept_row, "take_rows")
            self._emit(operation)
            for value in [value for value in (*inputs, operation.output) if isinstance(value, Value)]:
                self._free.setdefault((value.width, value.per_token), []).append(self._buffers.pop(value))

    def _emit(self, operation: op.Operation) -> None:
        method = _METHODS.get(type(operation)) or self.methods.get(type(operation))
        if method is None:
            raise UnsupportedError(f"the CPU does not compute {operation.kind}", code="engine.operation")
        method(self, operation)

    def _sum_target(self, operation: op.Operation, following: op.Operation | None) -> Value | None:
        """The value that the next operation adds this one's result to, where this one can do it in the same step."""
        if not isinstance(following, op.Add) or not isinstance(operation, _CAN_ADD):
            return None
        made = operation.output
        if self._last_use.get(made) != self._number + 1 or following.x == following.y:
            return None
        other = following.x if following.y == made else following.y
        free = self._last_use[other] == self._number + 1 and other in self._buffers
        return other if free and other not in tuple(operation.inputs()) else None

    # ------------------------------------------------------------ operations

    def _embed(self, o: op.Embed) -> None:
        matmul.embed(self.program, self.work, self.shared.matrix(o.matrix), self.tokens, self._out(o.output))

    def _pick(self, o: op.Pick) -> None:
        source, out = self._read(o.x), self._out(o.output)
        row = 4 * source.width
        self._kernel("pick_rows", source.address, row, out.address, row, source.width, writes=out)

    def _given(self, o: op.Given) -> None:
        # Memory of its own: it is filled before the program begins, when nothing may have been written there yet.
        self.given = self._buffers[o.output] = Activations(self.work.max_batch, o.output.width)
        self.program.keep(self.given)

    def _concat(self, o: op.Concat) -> None:
        out, first = self._out(o.output), 0
        for value in (o.x, o.y):
            x = self._read(value)
            at = out.address + 4 * first
            self._kernel("columns", x.address, 4 * x.width, at, 4 * out.width, 0, x.width, 0, 1, writes=out)
            first += x.width

    def _rms_norm(self, o: op.RmsNorm) -> None:
        x, out = self._read(o.x), self._out(o.output)
        size = len(o.weight.values)
        rows, row, adds = x.per_token * (x.width // size), 4 * size, int(self._adds_to is not None)
        self._kernel(
            "rms_norm",
            x.address,
            row,
            self._vector(o.weight),
            out.address,
            row,
            size,
            float_bits(o.epsilon),
            adds,
            rows,
            writes=out,
        )

    def _matmul(self, o: op.MatMul) -> None:
        x, out = self._read(o.x), self._out(o.output)
        bias = None if o.bias is None else self.shared.vector(o.bias)
        matrix, adds = self.shared.matrix(o.matrix), self._adds_to is not None
        matmul.matmul(self.program, self.work, matrix, x, out, bias=bias, add=adds)

    def _add(self, o: op.Add) -> None:
        x, y = (o.x, o.y) if self._last_use[o.x] == self._number else (o.y, o.x)
        source = self._read(y)
        self._sum(self._over(x, o.output), source, 1.0, keep=True)

    def _scale(self, o: op.Scale) -> None:
        target = self._over(o.x, o.output)
        self._sum(target, target, o.factor, keep=False)

    def _gate(self, o: op.Gate) -> None:
        up, gate = self._read(o.up), self._read(o.gate)
        if gate.width == 1 and up.width > 1:
            self._scale_by_gate(o, gate, up)
            return
        out = gate
        if self._last_use[o.gate] == self._number and o.gate in self._buffers:
            self._buffers[o.output] = self._buffers.pop(o.gate)
        else:
            out = self._out(o.output)
        row, kernel = 4 * gate.width, f"{o.activation}_gate"
        self._kernel(
            kernel, gate.address, row, up.address, row, out.address, row, gate.width, gate.per_token, writes=out
        )

    def _scale_by_gate(self, o: op.Gate, gate: Activations, up: Activations) -> None:
        if o.activation != "sigmoid" or up.per_token != 1:
            raise UnsupportedError(f"the CPU has no kernel for {o}", code="engine.operation")
        out, row = self._out(o.output), 4 * up.width
        self._kernel("sigmoid_scale", gate.address, 4, up.address, row, out.address, row, up.width, writes=out)

    def _columns(self, o: op.Columns) -> None:
        x, out = self._read(o.x), self._out(o.output)
        rows = 4 * x.width, 4 * out.width
        self._kernel("columns", x.address, rows[0], out.address, rows[1], o.first, o.size, o.step, o.count, writes=out)

    def _soft_cap(self, o: op.SoftCap) -> None:
        out = self._over(o.x, o.output)
        self._kernel("soft_cap", out.address, 4 * out.width, out.width, float_bits(o.cap), writes=out)

    def _attention(self, o: op.Attention, rows: int = 0) -> tuple[RowsAt, RowsAt]:
        """Of all rows, or of those that a state block tells of: where queries are, and results."""
        q, k, v = self._place(o.q, owned=True), self._place(o.k, owned=True), self._place(o.v, owned=False)
        out = self._out(o.output)
        place = RowsAt(out.address, 4 * out.width)
        group, layer, window = self.places.find(o.state)
        q_norm, k_norm = (0 if norm is None else self._vector(norm) for norm in (o.q_norm, o.k_norm))
        rope = self.program.keep(self.shared.rope(o.rope)).cell.ctypes.data
        heads = HeadOptions(o.rope.n_rotated, o.rope.interleaved, rope, q_norm, k_norm, o.epsilon)
        attention(
            self.program,
            self.step,
            self.memory,
            q,
            k,
            v,
            place,
            n_head=o.n_head,
            layouts=self.places.layouts[group],
            layer=layer,
            group=group,
            scale=o.scale,
            window=window,
            heads=heads,
            rows=rows,
        )
        out.changed()
        return q, place

    def _place(self, part: Part, *, owned: bool) -> RowsAt:
        buffer = self._own(part.value) if owned else self._read(part.value)
        if owned:
            buffer.changed()
        return RowsAt(buffer.address + 4 * part.first, 4 * buffer.width)

    def _causal_convolution(self, o: op.CausalConvolution) -> None:
        x, out = self._place(Part.of(o.x), owned=False), self._out(o.output)
        layer = self.places.recurrent.layers[self.places.groups.recurrent.index(o.state)]
        taps = self.program.keep(self.shared.taps(o.weight, o.taps)).ctypes.data
        place = RowsAt(out.address, 4 * out.width)
        convolution(self.program, self.step, layer, x, place, taps, number=0, dilation=o.dilation)
        out.changed()

    def _delta_rule(self, o: op.DeltaRule) -> None:
        q, k, v = (self._place(part, owned=False) for part in (o.q, o.k, o.v))
        alpha, beta = (self._place(Part.of(value), owned=False) for value in (o.alpha, o.beta))
        out = self._out(o.output)
        layer = self.places.recurrent.layers[self.places.groups.recurrent.index(o.state)]
        delta_rule(
            self.program,
            self.step,
            layer,
            q,
            k,
            v,
            Gates(alpha, beta, self._vector(o.dt_bias), self._vector(o.a)),
            RowsAt(out.address, 4 * out.width),
            threads=self.work.threads,
            number=0,
            n_head_k=o.n_head_k,
            tiled=True,
            epsilon=o.epsilon,
            scale=1 / math.sqrt(layer.d_key),
        )
        out.changed()

    def _route(self, o: op.Route) -> None:
        scores, rows, n_used = self._own(o.scores), self.work.max_batch, o.output.n_used
        made = Choice(aligned((rows, n_used), np.int32), aligned((rows, n_used), np.float32))
        self._choices[o.output] = self.program.keep(made)
        chosen, weights = made.chosen.ctypes.data, made.weights.ctypes.data
        row = 4 * scores.width
        self._kernel("route", scores.address, row, scores.width, n_used, chosen, weights, float_bits(o.scale))
        scores.changed()

    def _expert_matmul(self, o: op.ExpertMatMul) -> None:
        choice, stored = self._choices[o.routing], o.experts.stored
        if isinstance(stored, graph.PagedExperts) and o.routing not in self._brought:
            self._brought.add(o.routing)
            self.program.host(self.shared.pager.bring(stored, choice.chosen, self.work.state))
        x = self._read(o.x)
        matmul.moe_matmul(
            self.program, self.work, self.shared.experts(o.experts), choice.chosen, x, self._out(o.output)
        )

    def _mix(self, o: op.Mix) -> None:
        x, out = self._read(o.x), self._out(o.output)
        weights = self._choices[o.routing].weights.ctypes.data
        adds = int(self._adds_to is not None)
        row = 4 * x.width
        self._kernel("mix", out.address, row, x.address, row, o.routing.n_used, weights, x.width, adds, writes=out)

    # ------------------------------------------------------------ steps

    def _vector(self, vector: graph.Vector) -> int:
        return int(self.program.keep(self.shared.vector(vector)).ctypes.data)

    def _join(self, operations: list[op.Operation], number: int, first: int) -> None:
        """Looks where threads need not wait for one another before the steps of an operation, the first being `first`.

        Products of the same values are independent; values are rounded by the thread that made them.
        """
        names, operation = self.program.names, operations[number]
        if not number or not first or first == len(names):
            return
        before, source = operations[number - 1], _multiplied(operation)
        if source is None:
            return
        if names[first] in _PRODUCTS and names[first - 1] in _PRODUCTS and _multiplied(before) == source:
            self.program.join(first - 1)
        if names[first].startswith("quantize") and names[first - 1] in _IN_GROUPS and before.output == source:
            self.program.join(first - 1)


def _multiplied(operation: op.Operation) -> Value | None:
    """What a product multiplies."""
    return operation.x if isinstance(operation, op.MatMul | op.ExpertMatMul) else None


_METHODS: dict[type[op.Operation], Callable[[Lowering, Any], Any]] = {
    op.Embed: Lowering._embed,
    op.Pick: Lowering._pick,
    op.Given: Lowering._given,
    op.Concat: Lowering._concat,
    op.RmsNorm: Lowering._rms_norm,
    op.MatMul: Lowering._matmul,
    op.Add: Lowering._add,
    op.Scale: Lowering._scale,
    op.Gate: Lowering._gate,
    op.Columns: Lowering._columns,
    op.SoftCap: Lowering._soft_cap,
    op.Attention: Lowering._attention,
    op.CausalConvolution: Lowering._causal_convolution,
    op.DeltaRule: Lowering._delta_rule,
    op.Route: Lowering._route,
    op.ExpertMatMul: Lowering._expert_matmul,
    op.Mix: Lowering._mix,
}
