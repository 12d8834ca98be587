"""What the programs of a backend share: weights as they are held, tables of angles, and where states are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import InternalError, UnsupportedError
from ...graph import weights as graph
from ...graph.rope import Rope
from ...graph.states import Convolution, DeltaMatrices, StateId
from ..base import StateGroups
from .buffers import aligned
from .cache import BlockLayout, RecurrentLayer, StateLayout
from .matrices import ExpertsView, MatrixView
from .paging import ExpertPager
from .rope_table import RopeTable


@dataclass(frozen=True)
class StatePlaces:
    """Where the states of a graph are in the memory of texts.

    Attributes:
        groups: As the engine has them.
        layouts: Of each group of keys and values, for each type of cache that segments may have.
        recurrent: Of the other states.
    """

    groups: StateGroups
    layouts: tuple[tuple[BlockLayout, ...], ...]
    recurrent: StateLayout

    def find(self, state: StateId) -> tuple[int, int, int]:
        """The group of keys and values, which of its layers, and the group's window."""
        for number, (states, window) in enumerate(zip(self.groups.key_values, self.groups.windows, strict=True)):
            if state in states:
                return number, states.index(state), window
        raise InternalError(f"{state} has no place", code="internal")


def state_layout(states: Sequence[StateId]) -> StateLayout:
    """The layout of recurrent states, one after the other."""
    return StateLayout.of([_recurrent_layer(state) for state in states])


def _recurrent_layer(state: StateId) -> RecurrentLayer:
    kind = state.kind
    if isinstance(kind, Convolution):
        return RecurrentLayer(kind.width, kind.rows + 1, 0, 0, 0)
    if isinstance(kind, DeltaMatrices):
        return RecurrentLayer(0, 1, kind.n_head, kind.key_dim, kind.value_dim)
    raise UnsupportedError(f"the CPU has no memory for {state}", code="engine.operation")


class Shared:
    """What all programs of a backend share.

    Attributes:
        ropes: Tables of angles, by rotation.
        pager: Of experts that are not mapped.
        not_finite: int64 [1]; becomes 1 where a result holds values that are not finite.
    """

    def __init__(self) -> None:
        self.ropes: dict[Rope, RopeTable] = {}
        self.pager = ExpertPager()
        self.not_finite = aligned((1,), np.int64)
        self._held: dict[str, Any] = {}
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}

    def matrix(self, matrix: graph.Matrix) -> MatrixView:
        """A matrix where it is mapped."""
        known = self._held.get(matrix.name)
        if known is None:
            known = self._held[matrix.name] = MatrixView.hold(matrix)
        found: MatrixView = known
        return found

    def experts(self, experts: graph.Experts) -> ExpertsView:
        """The experts of a layer where they are mapped, or are brought to."""
        if isinstance(experts.stored, graph.PagedExperts):
            return self.pager.part(experts, experts.stored)
        known = self._held.get(experts.name)
        if known is None:
            known = self._held[experts.name] = ExpertsView.of(experts.stored)
        whole: ExpertsView = known
        return whole.rows(experts.first_row, experts.n_out)

    def vector(self, vector: graph.Vector) -> npt.NDArray[np.float32]:
        """A vector that begins at a cache line."""
        known = self._vectors.get(vector.name)
        if known is None:
            known = aligned(vector.values.shape, np.float32)
            known[:] = vector.values
            self._vectors[vector.name] = known  # when it is whole: what comes before may be interrupted
        return known

    def taps(self, vector: graph.Vector, taps: int) -> npt.NDArray[np.float32]:
        """The weights of a convolution, tap by tap: float32 [taps, channels]."""
        name = f"{vector.name} by taps"
        known = self._vectors.get(name)
        if known is None:
            known = aligned((taps, len(vector.values) // taps), np.float32)
            known[:] = vector.values.reshape(-1, taps).T
            self._vectors[name] = known
        return known

    def rope(self, rope: Rope) -> RopeTable:
        """The table of a rotation."""
        return self.ropes.setdefault(rope, RopeTable(rope))
