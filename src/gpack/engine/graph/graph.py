"""Traces a model's forward pass into a program: architectures say what is computed, this says with which steps.

    n = g.rms(x, attn_norm)
    x = g.add(x, g.matmul(g.matmul(n, up), down))

Operations are noted first. `finish` then gives each value a buffer, which another value gets once nobody reads it
any more, and adds the steps. What fits into the step before costs none of its own: a sum goes into the product, the
norm or the mixture that made its second part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InternalError
from ..backends.cpu import matmul as products
from ..backends.cpu.buffers import Activations, aligned
from ..backends.cpu.cache import KeyValueCache
from ..backends.cpu.matmul import Experts, Matrix, Workspace
from ..backends.cpu.team import Program
from .rope import Rope, RopeTable
from .values import Part, Routing, Value, Vector

__all__ = ["Graph", "Part", "Routing", "Value", "Vector", "float_bits"]

# As kernels/attention.py has them; that file imports numba.
_ROWS, _BLOCK, _BLOCK_ROWS, _PARTS_PER_THREAD = 4, 64, 96, 2
_FINISHED_BYTES = 128
# Kernels whose threads make the same groups of elements that they round afterwards.
_PRODUCTS = ("matmul", "moe_matmul")
_IN_GROUPS = ("rms_norm", "silu_gate", "gelu_gate")


@dataclass
class _Operation:
    """A step to be: `emit(out, add)` adds it to the program.

    Attributes:
        can_add: The step can add to what is there.
        add: It does.
        product_of: What it multiplies, where it is a product with a matrix.
    """

    emit: Callable[[Value | None, bool], None]
    reads: tuple[Value, ...]
    out: Value | None
    can_add: bool = False
    add: bool = False
    product_of: Value | None = None


@dataclass
class Graph:
    """One program being traced.

    Attributes:
        program: Gets the steps.
        work: What the products share; its state block holds the number of tokens and the first one's position.
        cache: Of keys and values.
        tokens: int32 [max_batch].
        threads: That will run it.
    """

    program: Program
    work: Workspace
    cache: KeyValueCache
    tokens: npt.NDArray[np.int32]
    threads: int
    ropes: dict[Rope, RopeTable] = field(default_factory=dict)
    _operations: list[_Operation] = field(default_factory=list)
    _free: dict[tuple[int, int], list[Activations]] = field(default_factory=dict)

    # ------------------------------------------------------------ operations

    def embed(self, matrix: Matrix) -> Value:
        """The rows of the batch's tokens."""
        return self._note(
            lambda out, _add: products.embed(self.program, self.work, matrix, self.tokens, out.memory()),
            (),
            Value(matrix.n_in),
        )

    def rms(self, x: Value, weight: Vector, epsilon: float) -> Value:
        """X / sqrt(mean(x²) + epsilon) · weight."""

        def emit(out: Value, add: bool) -> None:
            source, target = x.memory(), out.memory()
            self._kernel(
                "rms_norm",
                source.address,
                4 * source.width,
                self._vector(weight),
                target.address,
                4 * target.width,
                x.width,
                float_bits(epsilon),
                int(add),
                writes=out,
            )

        return self._note(emit, (x,), Value(x.width), can_add=True)

    def matmul(self, x: Value, matrix: Matrix, bias: Vector | None = None) -> Value:
        """Matrix · x (+ bias)."""
        made = self._note(
            lambda out, add: products.matmul(
                self.program, self.work, matrix, x.memory(), out.memory(), bias=bias, add=add
            ),
            (x,),
            Value(matrix.n_out, x.per_token),
            can_add=True,
        )
        self._operations[-1].product_of = x
        return made

    def add(self, x: Value, y: Value) -> Value:
        """X + y; x is overwritten and cannot be read any more."""
        last = self._operations[-1]
        if last.out is y and last.can_add and y.width == x.width:
            last.reads = (*last.reads, x)
            last.out, last.add = x, True
            return x
        return self._sum(x, y, 1.0, keep=True)

    def scale(self, x: Value, factor: float) -> Value:
        """Factor · x; x is overwritten."""
        return self._sum(x, x, factor, keep=False)

    def _sum(self, x: Value, y: Value, factor: float, *, keep: bool) -> Value:
        def emit(out: Value, _add: bool) -> None:
            target, source = out.memory(), y.memory()
            self._kernel(
                "add",
                target.address,
                4 * target.width,
                source.address,
                4 * source.width,
                x.width,
                float_bits(factor),
                int(keep),
                writes=out,
            )

        return self._note(emit, (x, y), x)

    def silu_gate(self, gate: Value, up: Value) -> Value:
        """silu(gate) · up; gate is overwritten."""
        return self._gate("silu_gate", gate, up)

    def gelu_gate(self, gate: Value, up: Value) -> Value:
        """gelu(gate) · up with the tanh form of gelu; gate is overwritten."""
        return self._gate("gelu_gate", gate, up)

    def _gate(self, kernel: str, gate: Value, up: Value) -> Value:
        def emit(out: Value, _add: bool) -> None:
            g, u = gate.memory(), up.memory()
            row = 4 * g.width
            self._kernel(kernel, g.address, row, u.address, row, g.address, row, gate.width, gate.per_token, writes=out)

        return self._note(emit, (gate, up), gate)

    def soft_cap(self, x: Value, cap: float) -> Value:
        """Cap · tanh(x / cap); x is overwritten."""

        def emit(out: Value, _add: bool) -> None:
            target = out.memory()
            self._kernel("soft_cap", target.address, 4 * target.width, x.width, float_bits(cap), writes=out)

        return self._note(emit, (x,), x)

    def attention(
        self,
        q: Part,
        k: Part,
        v: Part,
        *,
        layer: int,
        n_head: int,
        n_kv: int,
        rope: Rope,
        scale: float,
        window: int = 0,
        q_norm: Vector | None = None,
        k_norm: Vector | None = None,
        epsilon: float = 0.0,
    ) -> Value:
        """Softmax(q kᵀ · scale) v of every head over the cache, to which k and v are added; causal.

        Args:
            q, k, v: Heads side by side; q and k are overwritten.
            layer: Of the cache.
            window: How many of the newest positions are visible; 0: all.
            q_norm, k_norm: Weights of an RMS norm of each head, before the rotation.
        """
        width = q.width // n_head
        out = Value(n_head * width)

        def emit(out: Value, _add: bool) -> None:
            cached = self.cache.layer(layer, n_kv, width)
            kind = self.cache.kind.lower()
            self._kernel(
                f"heads_{kind}",
                *q.place(),
                *k.place(),
                *v.place(),
                n_head,
                n_kv,
                width,
                cached.padded,
                rope.n_rotated,
                int(rope.neighbours),
                self._table(rope).address,
                self._vector(q_norm),
                self._vector(k_norm),
                float_bits(epsilon),
                cached.keys,
                cached.head_bytes,
                cached.values,
                cached.head_bytes,
            )
            group = n_head // n_kv
            scratch, scratch_bytes, parts, finished = self._attention_memory(cached.padded, group, n_kv)
            target = out.memory()
            self._kernel(
                f"attention_{kind}",
                *q.place(),
                target.address,
                4 * target.width,
                cached.keys,
                cached.head_bytes,
                cached.values,
                cached.head_bytes,
                n_head,
                n_kv,
                width,
                cached.padded,
                float_bits(scale),
                window,
                scratch,
                scratch_bytes,
                parts,
                finished,
                counter=True,
                writes=out,
            )

        return self._note(emit, (q.value, k.value, v.value), out)

    def route(self, scores: Value, n_used: int, scale: float) -> Routing:
        """The experts with the highest probabilities, and these divided by their sum; scores are overwritten."""
        batch = self.work.max_batch
        made = Routing(aligned((batch, n_used), np.int32), aligned((batch, n_used), np.float32))

        def emit(_out: Value | None, _add: bool) -> None:
            source = scores.memory()
            self._kernel(
                "route",
                source.address,
                4 * source.width,
                scores.width,
                n_used,
                made.chosen.ctypes.data,
                made.weights.ctypes.data,
                float_bits(scale),
                writes=scores,
            )
            self.program.keep(made)

        self._operations.append(_Operation(emit, (scores,), None))
        return made

    def host(self, action: Callable[[], None]) -> None:
        """Something that Python does between the steps."""
        self._operations.append(_Operation(lambda _out, _add: self.program.host(action), (), None))

    def expert_matmul(self, x: Value, experts: Experts, routing: Routing) -> Value:
        """The products with the chosen experts: a row for each of them."""
        made = self._note(
            lambda out, _add: products.moe_matmul(
                self.program, self.work, experts, routing.chosen, x.memory(), out.memory()
            ),
            (x,),
            Value(experts.n_out, routing.chosen.shape[1]),
        )
        self._operations[-1].product_of = x
        return made

    def mix(self, x: Value, routing: Routing) -> Value:
        """The sum of each token's rows, times the experts' weights."""

        def emit(out: Value, add: bool) -> None:
            source, target = x.memory(), out.memory()
            self._kernel(
                "mix",
                target.address,
                4 * target.width,
                source.address,
                4 * source.width,
                x.per_token,
                routing.weights.ctypes.data,
                x.width,
                int(add),
                writes=out,
            )

        return self._note(emit, (x,), Value(x.width), can_add=True)

    def pick(self, x: Value) -> Value:
        """Rows of a value of another graph, kept there: as many as this graph's batch has, from its first one on."""

        def emit(out: Value, _add: bool) -> None:
            source, target = x.memory(), out.memory()
            self._kernel(
                "pick_rows", source.address, 4 * source.width, target.address, 4 * target.width, x.width, writes=out
            )

        return self._note(emit, (x,), Value(x.width))

    def keep(self, x: Value) -> Value:
        """The value outlives the trace: its buffer is given to no other."""
        x.fixed = True
        return x

    # ------------------------------------------------------------ steps

    def finish(self) -> None:
        """Gives buffers to values, and adds all steps to the program."""
        for number, operation in enumerate(self._operations):
            for value in (*operation.reads, *([operation.out] if operation.out else [])):
                value.last_use = number
        for number, operation in enumerate(self._operations):
            if operation.out is not None and operation.out.buffer is None:
                operation.out.buffer = self._take(operation.out)
            first = len(self.program)
            operation.emit(operation.out, operation.add)
            self._join(number, first)
            for value in (*operation.reads, *([operation.out] if operation.out else [])):
                if value.last_use == number and value.buffer is not None and not value.fixed:
                    self._give_back(value)
        self._operations.clear()

    def _join(self, number: int, first: int) -> None:
        """Looks where threads need not wait for one another before the steps of an operation, the first being `first`.

        Products of the same values are independent; values are rounded by the thread that made them.
        """
        names, operation = self.program.names, self._operations[number]
        before = self._operations[number - 1] if number else None
        if before is None or not first:
            return
        source = operation.product_of
        if source is None or first == len(names):
            return
        if names[first] in _PRODUCTS and names[first - 1] in _PRODUCTS and before.product_of is source:
            self.program.join(first - 1)
        if names[first] == "quantize_q8" and names[first - 1] in _IN_GROUPS and before.out is source:
            self.program.join(first - 1)

    def _note(
        self, emit: Callable[[Value, bool], None], reads: tuple[Value, ...], out: Value, *, can_add: bool = False
    ) -> Value:
        def checked(given: Value | None, add: bool) -> None:
            if given is None:
                raise InternalError("an operation has lost its result", code="internal")
            emit(given, add)

        self._operations.append(_Operation(checked, reads, out, can_add))
        return out

    def _take(self, value: Value) -> Activations:
        free = self._free.get((value.width, value.per_token))
        if free:
            return free.pop()
        made = Activations(self.work.max_batch, value.width, per_token=value.per_token)
        self.program.keep(made)
        return made

    def _give_back(self, value: Value) -> None:
        buffer, value.buffer = value.memory(), None
        free = self._free.setdefault((value.width, value.per_token), [])
        if all(buffer is not other for other in free):
            free.append(buffer)

    def _kernel(self, name: str, *arguments: int, writes: Value | None = None, counter: bool = False) -> None:
        self.program.add(name, int(self.work.state.ctypes.data), *arguments, counter=counter)
        if writes is not None:
            writes.memory().changed()

    def _vector(self, weight: Vector | None) -> int:
        """The address of a weight vector, which is kept."""
        if weight is None:
            return 0
        self.program.keep(weight)
        return int(weight.ctypes.data)

    def _table(self, rope: Rope) -> RopeTable:
        table = self.ropes.get(rope)
        if table is None:
            table = self.ropes[rope] = RopeTable(rope, self.cache.n_ctx)
        return table

    def _attention_memory(self, padded: int, group: int, n_kv: int) -> tuple[int, int, int, int]:
        """Addresses: scratch memory with its bytes for each thread, results of parts, counts of finished parts."""
        rows = -(-max(_BLOCK_ROWS, group) // _ROWS) * _ROWS
        each = -(-4 * (2 * rows * (padded + 1) + _ROWS * _BLOCK + 2 * _BLOCK * padded) // 64) * 64
        parts = 4 * n_kv * _PARTS_PER_THREAD * self.threads * group * (padded + 2)
        sizes = (each * self.threads, parts, n_kv * _FINISHED_BYTES)
        made: list[npt.NDArray[Any]] = [self._scratch(f"attention {i}", size) for i, size in enumerate(sizes)]
        scratch, results, finished = (int(array.ctypes.data) for array in made)
        return scratch, each, results, finished

    def _scratch(self, name: str, size: int) -> npt.NDArray[Any]:
        """Memory that all steps of one kind share; a larger one is made where that is too small."""
        known = self._scratches.get(name)
        if known is None or known.nbytes < size:
            known = self._scratches[name] = self.program.keep(aligned((size,), np.uint8))
        return known

    _scratches: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def float_bits(value: float) -> int:
    """A float32 as a kernel's argument: its bits."""
    return int(np.array(value, np.float32).view(np.int32))
