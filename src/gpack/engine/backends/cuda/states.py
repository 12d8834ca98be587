"""How blocks of keys and values, and what is recurrent, lie in device memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import UnsupportedError, UsageError
from ...graph.graph import Graph
from ...graph.states import Convolution, DeltaMatrices, IndexedKeyValues, KeyValues, StateId
from .layout import BLOCK_POSITIONS, CACHE_TYPES

# The logarithm of the bytes of a unit of each type of cache; and units of 32 elements of Q8_0: a scale, and words of
# two codes each.
UNIT_SHIFT = {"F32": 2, "F16": 1, "Q8_0": 1}
_Q8_UNITS = 17


def head_units(cache_type: str, head_dim: int) -> int:
    """Units of one head of one position."""
    return -(-head_dim // 32) * _Q8_UNITS if cache_type == "Q8_0" else head_dim


@dataclass(frozen=True)
class KeyValueLayout:
    """64 positions of a group: for each state all keys [64, heads, units], then all values.

    Attributes:
        offsets: Where each state's keys begin, in units.
    """

    cache_type: str
    offsets: tuple[tuple[StateId, int], ...]
    units: int

    @classmethod
    def of(cls, states: Sequence[StateId], cache_type: str) -> KeyValueLayout:
        """The layout of a group.

        Raises:
            UsageError: There is no such type of cache.
            UnsupportedError: A state has more than keys and values.
        """
        if cache_type not in CACHE_TYPES:
            raise UsageError(
                f"there is no cache of type {cache_type!r}",
                code="usage",
                field="cache_type",
                hint=", ".join(CACHE_TYPES),
            )
        offsets, end = [], 0
        for state in states:
            kind = state.kind
            if not isinstance(kind, KeyValues) or isinstance(kind, IndexedKeyValues):
                raise UnsupportedError(f"{state} is not known on this device", code="engine.operation")
            offsets.append((state, end))
            end += 2 * BLOCK_POSITIONS * kind.n_head_kv * head_units(cache_type, kind.head_dim)
        return cls(cache_type, tuple(offsets), end)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.units << UNIT_SHIFT[self.cache_type]

    def offset(self, state: StateId) -> int:
        """Where a state's keys begin."""
        return dict(self.offsets)[state]


@dataclass(frozen=True)
class RecurrentLayout:
    """The recurrent states of a text one after the other, float32.

    Attributes:
        offsets: Where each begins, in elements.
    """

    offsets: tuple[tuple[StateId, int], ...]
    count: int

    @classmethod
    def of(cls, states: Sequence[StateId]) -> RecurrentLayout:
        """The layout of some states.

        Raises:
            UnsupportedError: A kind of state is not known.
        """
        offsets, end = [], 0
        for state in states:
            offsets.append((state, end))
            kind = state.kind
            if isinstance(kind, Convolution):
                end += kind.rows * kind.width
            elif isinstance(kind, DeltaMatrices):
                end += math.prod((kind.n_head, kind.key_dim, kind.value_dim))
            else:
                raise UnsupportedError(f"{state} is not known on this device", code="engine.operation")
        return cls(tuple(offsets), end)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return 4 * self.count

    def offset(self, state: StateId) -> int:
        """Where a state begins."""
        return dict(self.offsets)[state]


@dataclass(frozen=True)
class KeptLayout:
    """Rows that are kept of an open chunk, float32 [rows, width]."""

    rows: int
    width: int

    @classmethod
    def of(cls, graph: Graph, rows: int) -> KeptLayout:
        """The layout for so many rows of a graph."""
        return cls(rows, sum(part.width for operation in graph.recurrences for part in operation.kept()))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return 4 * self.rows * self.width
