"""Memory for what texts keep: arrays of float64, whatever the type of the cache.

A block of keys and values has, for each state of its group, two arrays [64, n_head_kv, head_dim], and where there are
index keys a third, [64, index_dim]. The recurrent states of a text are one array each. All arrays of a piece of memory
lie one after the other; a step names it by its address.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import UnsupportedError
from ...graph.graph import Graph
from ...graph.states import Convolution, DeltaMatrices, IndexedKeyValues, KeyValues, StateId
from ..base import BLOCK, Segment, StateGroups
from .arrays import Array
from .rounding import as_cached

_ITEM = 8  # bytes of a float64


@dataclass(frozen=True)
class ArrayLayout:
    """The arrays of one block of a group, or of the recurrent states of a text.

    Attributes:
        shapes: Of the arrays of each state, in order.
    """

    shapes: tuple[tuple[StateId, tuple[tuple[int, ...], ...]], ...]

    @classmethod
    def of(cls, states: Sequence[StateId]) -> ArrayLayout:
        """The layout of some states."""
        return cls(tuple((state, _shapes(state)) for state in states))

    @property
    def count(self) -> int:
        """Elements of all arrays."""
        return sum(math.prod(shape) for _, shapes in self.shapes for shape in shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return _ITEM * self.count

    def arrays(self, address: int, state: StateId) -> list[Array]:
        """The arrays of one state in memory of this layout."""
        memory = np.ctypeslib.as_array((ctypes.c_double * self.count).from_address(address))
        first = 0
        for known, shapes in self.shapes:
            found = []
            for shape in shapes:
                found.append(memory[first : first + math.prod(shape)].reshape(shape))
                first += math.prod(shape)
            if known == state:
                return found
        raise KeyError(state)


@dataclass(frozen=True)
class KeptLayout:
    """Rows that are kept of an open chunk, [rows, width]: what each recurrent operation needs, side by side."""

    rows: int
    width: int

    @classmethod
    def of(cls, graph: Graph, rows: int) -> KeptLayout:
        """The layout for so many rows of a graph."""
        return cls(rows, sum(part.width for operation in graph.recurrences for part in operation.kept()))

    @property
    def count(self) -> int:
        """Elements."""
        return self.rows * self.width

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return _ITEM * self.count

    def array(self, address: int) -> Array:
        """The rows in memory of this layout."""
        memory = np.ctypeslib.as_array((ctypes.c_double * self.count).from_address(address))
        return memory.reshape(self.rows, self.width)


def _shapes(state: StateId) -> tuple[tuple[int, ...], ...]:
    kind = state.kind
    if isinstance(kind, KeyValues):
        index = ((BLOCK, kind.index_dim),) if isinstance(kind, IndexedKeyValues) else ()
        return (*((BLOCK, kind.n_head_kv, kind.head_dim),) * 2, *index)
    if isinstance(kind, Convolution):
        return ((kind.rows, kind.width),)
    if isinstance(kind, DeltaMatrices):
        return ((kind.n_head, kind.key_dim, kind.value_dim),)
    raise UnsupportedError(f"a state of the kind {type(kind).__name__} is not known", code="engine.operation")


@dataclass(frozen=True)
class States:
    """What operations read and write of the texts of a step.

    Attributes:
        groups: Of the program.
        round_caches: Keys and values are rounded as the type of the text's cache does.
    """

    groups: StateGroups
    round_caches: bool = False

    def write_positions(self, state: StateId, segment: Segment, keys: Array, values: Array) -> None:
        """Puts keys and values of a segment's rows, [rows, n_head_kv, head_dim], into its blocks."""
        if self.round_caches:
            keys, values = (as_cached(x, segment.cache_type) for x in (keys, values))
        self._write(state, segment, 0, keys)
        self._write(state, segment, 1, values)

    def write_index(self, state: StateId, segment: Segment, keys: Array) -> None:
        """Puts index keys of a segment's rows, [rows, index_dim], into its blocks."""
        self._write(state, segment, 2, keys)

    def _write(self, state: StateId, segment: Segment, which: int, rows: Array) -> None:
        for number, first in _blocks(segment.position, segment.position + segment.count):
            block = self._block(state, segment, number)[which]
            for row in range(max(0, first - segment.position), min(segment.count, first + BLOCK - segment.position)):
                block[segment.position + row - first] = rows[row]

    def read_positions(self, state: StateId, segment: Segment, first: int, end: int) -> tuple[Array, Array]:
        """Keys and values of the positions from `first` to before `end`, [positions, n_head_kv, head_dim]."""
        return self._read(state, segment, 0, first, end), self._read(state, segment, 1, first, end)

    def read_index(self, state: StateId, segment: Segment, end: int) -> Array:
        """Index keys of the positions to before `end`, [positions, index_dim]."""
        return self._read(state, segment, 2, 0, end)

    def _read(self, state: StateId, segment: Segment, which: int, first: int, end: int) -> Array:
        blocks = [self._block(state, segment, number)[which] for number, _ in _blocks(first, end)]
        begin = first // BLOCK * BLOCK
        made: Array = np.concatenate(blocks)[first - begin : end - begin]
        return made

    def read_recurrent(self, state: StateId, segment: Segment) -> Array:
        """A recurrent state before the segment's rows; the caller's own."""
        made = self._recurrent(state, segment.read or segment.write).copy()
        return made if segment.read else np.zeros_like(made)

    def write_recurrent(self, state: StateId, segment: Segment, values: Array) -> None:
        """A recurrent state after the segment's rows."""
        self._recurrent(state, segment.write)[...] = values

    def _block(self, state: StateId, segment: Segment, number: int) -> list[Array]:
        group = next(group for group, states in enumerate(self.groups.key_values) if state in states)
        return ArrayLayout.of(self.groups.key_values[group]).arrays(int(segment.tables[group][number]), state)

    def _recurrent(self, state: StateId, address: int) -> Array:
        return ArrayLayout.of(self.groups.recurrent).arrays(address, state)[0]


def _blocks(first: int, end: int) -> list[tuple[int, int]]:
    """The blocks that have positions from `first` to before `end`: their numbers and first positions."""
    return [(number, number * BLOCK) for number in range(first // BLOCK, -(-end // BLOCK))]
