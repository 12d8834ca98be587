"""Graphs become launches of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ....errors import UnsupportedError
from ....generated.constants import GgmlType
from ...graph import operations as op
from ...graph.graph import Graph
from ...graph.rope import Rope
from ...graph.states import DeltaMatrices, KeyValues, StateId
from ...graph.values import Part, Routing, Value
from ...graph.weights import Experts, Matrix, PagedExperts, Vector
from ..base import StateGroups
from ..cpu.kernels import BLOCK_TYPES, PLAIN_TYPES
from .buffers import Key, Places, last_uses
from .launches import Late, Launch, Number
from .layout import (
    COLUMNS,
    DELTA_THREADS,
    MOST_EXPERTS,
    MOST_HEAD_DIM,
    PRODUCT_THREADS,
    ROUTE_THREADS,
    ROW_THREADS,
    lanes_shift,
    sum_threads,
)
from .residency import Residency
from .states import UNIT_SHIFT, KeptLayout, KeyValueLayout, RecurrentLayout, head_units
from .step import StepMemory

ACTIVATIONS = {"silu": 0, "gelu": 1, "sigmoid": 2}
_SINGLE, _MANY = COLUMNS
_GROUP = 32


def unsupported(what: str, field_: str | None = None) -> UnsupportedError:
    """The error for what has no kernel."""
    return UnsupportedError(
        f"{what} has no kernel for this device", code="engine.operation", field=field_, hint="--device cpu runs it"
    )


def type_name(weights: Matrix | Experts) -> str:
    """The name of a type that there are kernels for.

    Raises:
        UnsupportedError: `engine.operation`: there are none; the tensor is named.
    """
    name = GgmlType.NAMES[weights.ggml_type]
    if name not in BLOCK_TYPES and name not in PLAIN_TYPES:
        raise unsupported(f"tensor {weights.name} of type {name}", weights.name)
    return name


def weights_of(graphs: Sequence[Graph]) -> list[Matrix | Experts | Vector]:
    """All weights that operations name, each once."""
    found: dict[str, Matrix | Experts | Vector] = {}
    for graph in graphs:
        for operation in graph.operations:
            for value in operation.attributes().values():
                if isinstance(value, Matrix | Experts | Vector):
                    found.setdefault(value.name, value)
    return list(found.values())


@dataclass
class Lowering:
    """One graph at work of becoming launches. Addresses of values count from 0 until `based` moves them.

    Attributes:
        rows: Most rows that the graph is run for.
        count: What a step calls the number of its rows.
        outer: Addresses of values of another graph.
        angles: Gives the name by which a step calls a rotation's table.
        kept: How the rows of open chunks are kept; None where nothing is.
        given: Where rows go that steps bring; None where no operation asks for them.
    """

    weights: Residency
    step: StepMemory
    groups: StateGroups
    cache_types: tuple[str, ...]
    tables: int
    rows: int
    count: str
    round_activations: bool
    angles: Callable[[Rope], str]
    outer: dict[Value, int] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    launches: list[Launch] = field(default_factory=list)
    kept: KeptLayout | None = None
    given: Number | None = None
    _kept_column: int = 0

    def lower(self, graph: Graph) -> None:
        """Notes the launches of all operations.

        Raises:
            UnsupportedError: `engine.operation`: an operation or a type has no kernel.
        """
        last = last_uses(graph)
        for number, operation in enumerate(graph.operations):
            make = self.MAKERS.get(type(operation))
            if make is None:
                raise unsupported(f"the operation {operation.kind}")
            self._keep(operation, "keep_rows")
            make(self, operation)
            for value in last.get(number, ()):
                self.places.give_back((kind, value.number) for kind in ("x", "codes", "scales", "chosen", "shares"))

    def replay(self, graph: Graph) -> None:
        """Notes the launches of the recurrent operations alone, over rows that were kept."""
        for operation in graph.recurrences:
            for value in operation.inputs():
                if isinstance(value, Value) and self.places.known(("x", value.number)) is None:
                    self._take(value)
            self._keep(operation, "take_rows")
            self.MAKERS[type(operation)](self, operation)

    def at(self, value: Value) -> Number:
        """Where a value is."""
        if value in self.outer:
            return self.outer[value]
        found = self.places.known(("x", value.number))
        assert found is not None, value
        return self._value(found)

    # ------------------------------------------------------------ small parts

    @staticmethod
    def _value(place: int) -> Number:
        """A place among the values, whose memory is known when all places are."""
        return Place(place)

    def _times(self, times: int, per: int = 1) -> Late:
        return Late(self.count, times, per)

    def _take(self, value: Value, kind: str = "x", bytes_each: int | None = None) -> Number:
        size = 4 * value.width * value.per_token if bytes_each is None else bytes_each
        return self._value(self.places.take((kind, value.number), self.rows * size))

    def _launch(self, kernel: str, grid: tuple[int | Late, int | Late], threads: int, *args: Number) -> None:
        self.launches.append(Launch(kernel, grid, threads, args))

    def _each(self, kernel: str, times: int, *args: Number) -> None:
        """A thread for each of so many elements of a row."""
        self._launch(kernel, (self._times(times, ROW_THREADS), 1), ROW_THREADS, *args, self._times(times))

    def _vector(self, vector: Vector | None) -> int:
        return 0 if vector is None else self.weights.address(vector)

    def _keep(self, operation: op.Operation, kernel: str) -> None:
        for part in operation.kept():
            if self.kept is not None:
                self._each(
                    kernel,
                    part.width,
                    self.at(part.value),
                    part.value.width,
                    part.first,
                    part.width,
                    self.step.segments,
                    self.step.words,
                    self.step.segment_of,
                    0,
                    self._kept_column,
                    self.kept.width,
                )
            self._kept_column += part.width

    # ------------------------------------------------------------ rows

    def _embed(self, it: op.Embed) -> None:
        out, name, n_in = self._take(it.output), type_name(it.matrix), it.matrix.n_in
        w = self.weights.address(it.matrix)
        if name in PLAIN_TYPES:
            self._launch_flat(f"embed_{name}", n_in, w, n_in, self.step.tokens, self._times(1), out)
        else:
            groups = n_in // _GROUP
            args = (w, groups, self.step.tokens, self._times(1), out, self.tables)
            self._launch_flat(f"embed_{name}", groups, *args)

    def _launch_flat(self, kernel: str, times: int, *args: Number) -> None:
        self._launch(kernel, (self._times(times, ROW_THREADS), 1), ROW_THREADS, *args)

    def _pick(self, it: op.Pick) -> None:
        out = self._take(it.output)
        self._each("pick_rows", it.x.width, self.at(it.x), Late("wanted_at"), it.x.width, out)

    def _given(self, it: op.Given) -> None:
        self.given = self._take(it.output)

    def _concat(self, it: op.Concat) -> None:
        args = (self.at(it.x), it.x.width, self.at(it.y), it.y.width)
        self._each("concat", it.output.width, *args, self._take(it.output))

    def _rms_norm(self, it: op.RmsNorm) -> None:
        width = len(it.weight.values)
        pieces = it.x.width // width * it.x.per_token
        x, out = self.at(it.x), self._take(it.output)
        grid = (self._times(pieces), 1)
        self._launch("rms_norm", grid, sum_threads(width), x, self._vector(it.weight), width, it.epsilon, out)

    def _add(self, it: op.Add) -> None:
        x, y, size = self.at(it.x), self.at(it.y), it.output.width * it.output.per_token
        self._each("add", size, x, y, self._take(it.output))

    def _scale(self, it: op.Scale) -> None:
        x, size = self.at(it.x), it.output.width * it.output.per_token
        self._each("scale", size, x, it.factor, self._take(it.output))

    def _gate(self, it: op.Gate) -> None:
        gate, up, size = self.at(it.gate), self.at(it.up), it.output.width * it.output.per_token
        kind = ACTIVATIONS[it.activation]
        self._each("gate", size, gate, it.gate.width, up, it.up.width, kind, self._take(it.output))

    def _activate(self, it: op.Activate) -> None:
        x, size = self.at(it.x), it.output.width * it.output.per_token
        self._each("activate", size, x, ACTIVATIONS[it.activation], it.factor, it.scale, self._take(it.output))

    def _columns(self, it: op.Columns) -> None:
        x, width = self.at(it.x), it.output.width
        self._each("columns", width, x, it.x.width, it.first, it.size, it.step, width, self._take(it.output))

    def _soft_cap(self, it: op.SoftCap) -> None:
        x, size = self.at(it.x), it.output.width * it.output.per_token
        self._each("soft_cap", size, x, it.cap, self._take(it.output))

    # ------------------------------------------------------------ products

    def _rounded(self, x: Value) -> tuple[Number, Number]:
        """A value in 8 bits, made when it is first needed: codes and scales."""
        groups = x.width // _GROUP * x.per_token
        known = [self.places.known((kind, x.number)) for kind in ("codes", "scales")]
        if known[0] is not None and known[1] is not None:
            return self._value(known[0]), self._value(known[1])
        codes, scales = self._take(x, "codes", 32 * groups), self._take(x, "scales", 12 * groups)
        self._each("quantize_q8", groups, self.at(x), codes, scales)
        return codes, scales

    def _matmul(self, it: op.MatMul) -> None:
        matrix, x = it.matrix, it.x
        name = type_name(matrix)
        w, bias, has_bias = self.weights.address(matrix), self._vector(it.bias), int(it.bias is not None)
        shift = lanes_shift(matrix.n_in // _GROUP)
        at_once = min(PRODUCT_THREADS >> shift, matrix.n_out)
        blocks, threads = -(-matrix.n_out // at_once), at_once << shift
        count = self._times(x.per_token)
        head: tuple[Number, ...]
        tail: tuple[Number, ...] = ()
        if name in PLAIN_TYPES:
            head = (w, matrix.n_out, matrix.n_in, shift, self.at(x))
        elif not self.round_activations:
            raise unsupported(f"compute f32 with tensor {matrix.name} of type {name}", matrix.name)
        else:
            head = (w, matrix.n_out, matrix.n_in // _GROUP, shift, *self._rounded(x))
            tail = (self.tables,)
        out = self._take(it.output)
        # One of both has blocks: that for a single row, or that for many.
        for columns, which in ((_SINGLE, "single"), (_MANY, "many")):
            grid = (blocks, Late(f"{self.count}_{which}", x.per_token, columns))
            if x.per_token > 1 and columns == _SINGLE:
                continue
            if x.per_token > 1:
                grid = (blocks, self._times(x.per_token, columns))
            self._launch(f"matmul_{name}_{columns}", grid, threads, *head, count, bias, has_bias, out, *tail)

    def _expert_matmul(self, it: op.ExpertMatMul) -> None:
        experts, x, used = it.experts, it.x, it.routing.n_used
        name = type_name(experts)
        stored = experts.stored
        rows = experts.n_out if isinstance(stored, PagedExperts) else stored.dims[1]
        shift = lanes_shift(experts.n_in // _GROUP)
        at_once = min(PRODUCT_THREADS >> shift, experts.n_out)
        grid = (-(-experts.n_out // at_once), self._times(used))
        chosen = self._routing("chosen", it.routing)
        shares = (chosen, used // x.per_token)
        w = self.weights.address(experts)
        if name in PLAIN_TYPES:
            args: tuple[Number, ...] = (w, experts.first_row, rows, experts.n_out, experts.n_in, shift, self.at(x))
            self._launch(f"expert_matmul_{name}", grid, at_once << shift, *args, *shares, self._take(it.output))
            return
        if not self.round_activations:
            raise unsupported(f"compute f32 with tensor {experts.name} of type {name}", experts.name)
        codes, scales = self._rounded(x)
        args = (w, experts.first_row, rows, experts.n_out, experts.n_in // _GROUP, shift, codes, scales)
        out = self._take(it.output)
        self._launch(f"expert_matmul_{name}", grid, at_once << shift, *args, *shares, out, self.tables)

    # ------------------------------------------------------------ experts

    def _routing(self, kind: str, routing: Routing) -> Number:
        found = self.places.known((kind, routing.number))
        assert found is not None, routing
        return self._value(found)

    def _route(self, it: op.Route) -> None:
        n_expert, used, number = it.scores.width, it.output.n_used, it.output.number
        if n_expert > MOST_EXPERTS:
            raise unsupported(f"a layer of {n_expert} experts")
        size = 4 * self.rows * used
        keys: tuple[Key, Key] = (("chosen", number), ("shares", number))
        chosen, shares = (self._value(self.places.take(key, size)) for key in keys)
        args = (self.at(it.scores), n_expert, used, it.scale, chosen, shares)
        self._launch("route", (self._times(1), 1), ROUTE_THREADS, *args)

    def _mix(self, it: op.Mix) -> None:
        x, shares = self.at(it.x), self._routing("shares", it.routing)
        self._each("mix", it.output.width, x, shares, it.routing.n_used, it.output.width, self._take(it.output))

    # ------------------------------------------------------------ attention

    def _attention(self, it: op.Attention) -> None:
        kind, rope = it.state.kind, it.rope
        assert isinstance(kind, KeyValues)
        dim = kind.head_dim
        if dim > MOST_HEAD_DIM:
            raise unsupported(f"a head of {dim} elements")
        threads = 1
        while 8 * threads <= min(dim, 256):
            threads *= 2
        table = Late(self.angles(rope))

        def turned(part: Part, norm: Vector | None, rotated: int) -> tuple[Number, ...]:
            has = int(norm is not None)
            place = (self.at(part.value), part.value.width, part.first, dim, self._vector(norm), has, it.epsilon)
            return (*place, table, rotated, int(rope.interleaved), self.step.positions)

        queries = self._take(it.output, "queries")
        q_args = turned(it.q, it.q_norm, rope.n_rotated)
        self._launch("turn_heads", (self._times(1), it.n_head), threads, *q_args, queries)
        group = next(number for number, states in enumerate(self.groups.key_values) if it.state in states)
        of_step = (self.step.segment_of, self.step.segments, self.step.words, group, Late("tables"))
        out = self._take(it.output)
        for cache_type in self.cache_types:
            offset, units = self._keys_of(it.state, group, cache_type), head_units(cache_type, dim)
            pool = (0, UNIT_SHIFT[cache_type])
            rows, first = Late(f"rows_{cache_type}"), Late(f"first_{cache_type}")
            values_at = offset + 64 * kind.n_head_kv * units
            for part, norm, rotated, at in ((it.k, it.k_norm, rope.n_rotated, offset), (it.v, None, 0, values_at)):
                args = (*turned(part, norm, rotated), *of_step, *pool, at, units, first)
                self._launch(f"keep_heads_{cache_type}", (rows, kind.n_head_kv), threads, *args)
            args = (
                queries,
                kind.n_head_kv,
                it.n_head // kind.n_head_kv,
                dim,
                self.step.positions,
                *of_step,
                *pool,
                offset,
                units,
            )
            grid = (rows, it.n_head)
            self._launch(f"attend_{cache_type}", grid, threads, *args, kind.window, it.scale, first, out)
        self.places.give_back([("queries", it.output.number)])

    def _keys_of(self, state: StateId, group: int, cache_type: str) -> int:
        return KeyValueLayout.of(self.groups.key_values[group], cache_type).offset(state)

    # ------------------------------------------------------------ recurrent layers

    def _convolution(self, it: op.CausalConvolution) -> None:
        offset = RecurrentLayout.of(self.groups.recurrent).offset(it.state)
        args = (self.at(it.x), it.x.width, self._vector(it.weight), it.taps, it.dilation)
        grid = (-(-it.x.width // ROW_THREADS), Late("segments"))
        out = self._take(it.output)
        self._launch("conv_silu", grid, ROW_THREADS, *args, self.step.segments, self.step.words, 0, offset, out)

    def _delta_rule(self, it: op.DeltaRule) -> None:
        kind: Any = it.state.kind
        assert isinstance(kind, DeltaMatrices)
        if kind.key_dim > MOST_HEAD_DIM:
            raise unsupported(f"a head of {kind.key_dim} elements")
        offset = RecurrentLayout.of(self.groups.recurrent).offset(it.state)
        parts = [(self.at(part.value), part.value.width, part.first) for part in (it.q, it.k, it.v)]
        args = (*parts[0], *parts[1], *parts[2], self.at(it.alpha), self.at(it.beta))
        sizes = (kind.n_head, it.n_head_k, kind.key_dim, kind.value_dim, it.epsilon)
        of_step = (self.step.segments, self.step.words, 0, offset)
        out, threads = self._take(it.output), min(DELTA_THREADS, kind.value_dim)
        vectors = (self._vector(it.a), self._vector(it.dt_bias))
        self._launch("delta_rule", (kind.n_head, Late("segments")), threads, *args, *vectors, *sizes, *of_step, out)

    MAKERS: ClassVar[dict[type[op.Operation], Callable[..., None]]] = {
        op.Embed: _embed,
        op.Pick: _pick,
        op.Given: _given,
        op.Concat: _concat,
        op.RmsNorm: _rms_norm,
        op.MatMul: _matmul,
        op.Add: _add,
        op.Scale: _scale,
        op.Gate: _gate,
        op.Activate: _activate,
        op.Columns: _columns,
        op.SoftCap: _soft_cap,
        op.Attention: _attention,
        op.Route: _route,
        op.ExpertMatMul: _expert_matmul,
        op.Mix: _mix,
        op.CausalConvolution: _convolution,
        op.DeltaRule: _delta_rule,
    }


class Place(int):
    """A place among a program's values: its memory begins where the program says."""


def based(launches: Sequence[Launch], base: int) -> list[Launch]:
    """The launches with addresses in place of places."""
    return [
        Launch(
            each.kernel, each.grid, each.threads, tuple(int(n) + base if isinstance(n, Place) else n for n in each.args)
        )
        for each in launches
    ]
