"""Which memory the values of a graph have while it is lowered."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....errors import InternalError
from ...graph import operations as op
from ...graph.values import Routing, Value
from .attention import float_bits
from .buffers import Activations
from .team import Program
from .workspace import Workspace


@dataclass
class ValueBuffers:
    """Gives values memory: a buffer is another value's as soon as nobody reads it any more.

    Attributes:
        program: Gets the steps.
        work: What the products share; its state block holds the number of rows.
        outer: Buffers of results of another graph, by the value's number.
    """

    program: Program
    work: Workspace
    outer: dict[Value, Activations] = field(default_factory=dict, kw_only=True)
    _buffers: dict[Value, Activations] = field(default_factory=dict, init=False)
    _free: dict[tuple[int, int], list[Activations]] = field(default_factory=dict, init=False)
    _temporary: list[tuple[Value, Activations]] = field(default_factory=list, init=False)  # of the present operation
    _last_use: dict[Value | Routing, int] = field(default_factory=dict, init=False)
    _number: int = field(default=0, init=False)  # of the present operation
    _adds_to: Activations | None = field(default=None, init=False)  # where it adds its result to

    def _out(self, value: Value) -> Activations:
        """The buffer that an operation writes to: a new one, or what it adds to."""
        if self._adds_to is not None:
            return self._adds_to
        made = self._buffers[value] = self._take(value)
        return made

    def _take(self, value: Value) -> Activations:
        free = self._free.get((value.width, value.per_token))
        if free:
            return free.pop()
        made = Activations(self.work.max_batch, value.width, per_token=value.per_token)
        self.program.keep(made)
        return made

    def _over(self, value: Value, made: Value) -> Activations:
        """The buffer of a value that is read for the last time, for the result; or a copy of it."""
        source = self._read(value)
        if self._last_use[value] == self._number and value in self._buffers:
            self._buffers[made] = self._buffers.pop(value)
            return source
        out = self._out(made)
        self._copy(source, out)
        return out

    def _own(self, value: Value) -> Activations:
        """A value's buffer that may be overwritten: its own where nobody reads it later, else a copy."""
        source = self._read(value)
        if self._last_use[value] == self._number and value in self._buffers:
            return source
        copy = self._take(value)
        self._temporary.append((value, copy))
        self._copy(source, copy)
        return copy

    def _copy(self, source: Activations, target: Activations) -> None:
        self._sum(target, source, 1.0, keep=False)

    def _read(self, value: Value) -> Activations:
        found = self._buffers.get(value) or self.outer.get(value)
        if found is None:
            raise InternalError(f"{value} is read before it is made", code="internal")
        return found

    def _give_back(self, operation: op.Operation, number: int) -> None:
        for value in {*operation.inputs(), operation.output}:
            if isinstance(value, Value) and self._last_use.get(value, number) == number and value in self._buffers:
                self._temporary.append((value, self._buffers.pop(value)))
        for value, buffer in self._temporary:
            self._free.setdefault((value.width, value.per_token), []).append(buffer)
        self._temporary.clear()

    def _sum(self, target: Activations, source: Activations, factor: float, *, keep: bool) -> None:
        row, rows = 4 * target.width, target.per_token
        if rows != 1:
            raise InternalError("sums of several rows of a token are not needed by any model", code="internal")
        self._kernel(
            "add", target.address, row, source.address, row, target.width, float_bits(factor), int(keep), writes=target
        )

    def _kernel(self, name: str, *arguments: int, writes: Activations | None = None) -> None:
        self.program.add(name, int(self.work.state.ctypes.data), *arguments)
        if writes is not None:
            writes.changed()
