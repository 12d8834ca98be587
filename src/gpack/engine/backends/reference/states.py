"""Memory for what texts keep: arrays of float64, whatever the type of the cache.

A block of keys and values has, for each state of its group, two arrays [64, n_head_kv, head_dim]. The recurrent states
of a text are one array each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....errors import UnsupportedError
from ...graph.states import Convolution, DeltaMatrices, KeyValues, StateId
from ..base import BLOCK, Segment, StateGroups
from .arrays import Array
from .rounding import as_cached

_ITEM = 8  # bytes of a float64


@dataclass(frozen=True)
class ArrayLayout:
    """The arrays of one block of a group, or of the recurrent states of a text.

    Attributes:
        states: Each with the shapes of its arrays.
    """

    states: tuple[tuple[StateId, tuple[tuple[int, ...], ...]], ...]

    @classmethod
    def of(cls, states: Sequence[StateId]) -> ArrayLayout:
        """The layout of some states."""
        return cls(tuple((state, _shapes(state)) for state in states))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(_ITEM * int(np.prod(shape)) for _, shapes in self.states for shape in shapes)


def _shapes(state: StateId) -> tuple[tuple[int, ...], ...]:
    kind = state.kind
    if isinstance(kind, KeyValues):
        return ((BLOCK, kind.n_head_kv, kind.head_dim),) * 2
    if isinstance(kind, Convolution):
        return ((kind.rows, kind.width),)
    if isinstance(kind, DeltaMatrices):
        return ((kind.n_head, kind.key_dim, kind.value_dim),)
    raise UnsupportedError(f"a state of the kind {type(kind).__name__} is not known", code="engine.state")


class StateArrays:
    """The arrays of one piece of memory, zeros at first."""

    def __init__(self, layout: ArrayLayout) -> None:
        self.arrays = {state: tuple(np.zeros(shape) for shape in shapes) for state, shapes in layout.states}

    def clear(self) -> None:
        """Zeros."""
        for arrays in self.arrays.values():
            for array in arrays:
                array[...] = 0

    def fill(self, source: StateArrays) -> None:
        """Copies what another piece of the same layout holds."""
        for state, arrays in self.arrays.items():
            for target, given in zip(arrays, source.arrays[state], strict=True):
                target[...] = given


@dataclass(frozen=True)
class States:
    """What operations read and write of the texts of a step.

    Attributes:
        memory: By the ids that segments have.
        groups: Of the program.
        round_caches: Keys and values are rounded as the type of the text's cache does.
    """

    memory: Mapping[int, StateArrays]
    groups: StateGroups
    round_caches: bool = False

    def write_positions(self, state: StateId, segment: Segment, keys: Array, values: Array) -> None:
        """Puts keys and values of a segment's rows, [rows, n_head_kv, head_dim], into its blocks."""
        table = self._table(state, segment)
        for row, position in enumerate(range(segment.position, segment.position + segment.count)):
            arrays = self.memory[int(table[position // BLOCK])].arrays[state]
            for target, given in zip(arrays, (keys[row], values[row]), strict=True):
                target[position % BLOCK] = as_cached(given, segment.cache_type) if self.round_caches else given

    def read_positions(self, state: StateId, segment: Segment, first: int, end: int) -> tuple[Array, Array]:
        """Keys and values of the positions from `first` to before `end`, [positions, n_head_kv, head_dim]."""
        table = self._table(state, segment)
        blocks = [self.memory[int(table[number])].arrays[state] for number in range(first // BLOCK, -(-end // BLOCK))]
        begin = first // BLOCK * BLOCK
        keys, values = (np.concatenate(parts)[first - begin : end - begin] for parts in zip(*blocks, strict=True))
        return keys, values

    def read_recurrent(self, state: StateId, segment: Segment) -> Array:
        """A recurrent state before the segment's rows; the caller's own."""
        return self.memory[segment.read].arrays[state][0].copy()

    def write_recurrent(self, state: StateId, segment: Segment, values: Array) -> None:
        """A recurrent state after the segment's rows."""
        self.memory[segment.write].arrays[state][0][...] = values

    def _table(self, state: StateId, segment: Segment) -> Sequence[int]:
        group = next(number for number, states in enumerate(self.groups.key_values) if state in states)
        return segment.tables[group]  # type: ignore[return-value]
