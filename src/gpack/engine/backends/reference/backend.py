"""The backend: `base.Backend` over numpy, one thread, no attention to speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....errors import UnsupportedError
from ...graph import operations as op
from ...graph.graph import Graph
from ...graph.states import StateId
from ...graph.weights import Experts, Matrix, PagedExperts
from .. import Compute, check_compute
from ..base import Memory, Segment, StateGroups, Step, StepOutput
from ..cpu.kernels import BLOCK_TYPES
from ..cpu.layout import CACHE_TYPES
from .operations import OPERATIONS, Run
from .rounding import check_cache_type
from .states import ArrayLayout, KeptLayout, States
from .weights import DenseWeights

_MOST_ROWS = 512


@dataclass(frozen=True, eq=False)
class ReferenceProgram:
    """Two graphs, and the groups by which texts have memory."""

    body: Graph
    head: Graph
    groups: StateGroups


class ReferenceBackend:
    """Computes in float64, in which states are kept too.

    The type of a text's cache says nothing here, unless caches are rounded: then keys and values have its values.

    The sums of a row may depend in their last bits on the other rows of its step: numpy's products do.

    Attributes:
        max_rows: Most rows of a step.
        round_caches: Whether keys and values are rounded.
        dtype: Of logits and hidden states.
        cache_types: How keys and values can be kept.
    """

    dtype: type[np.floating[Any]] = np.float64
    cache_types: tuple[str, ...] = CACHE_TYPES

    def __init__(self, *, compute: Compute = "f32", batch: int = _MOST_ROWS, round_caches: bool = False) -> None:
        """A backend, exact unless it is asked to round as the CPU does.

        Args:
            compute: `int8`: activations are rounded to 8 bits where the CPU's kernels do it, before products with
                weights in blocks.
            batch: Most rows of a step.
            round_caches: Keys and values have the precision of the type of a text's cache.

        Raises:
            UsageError: There is no such way to compute.
        """
        check_compute(compute)
        self.max_rows = batch
        self.round_caches = round_caches
        self._weights = DenseWeights(BLOCK_TYPES if compute == "int8" else ())

    def key_value_layout(self, states: Sequence[StateId], cache_type: str) -> ArrayLayout:
        """The layout of 64 positions of a group; that of all types of caches is the same.

        Raises:
            UsageError: There is no such type of cache.
        """
        check_cache_type(cache_type)
        return ArrayLayout.of(states)

    def recurrent_layout(self, states: Sequence[StateId]) -> ArrayLayout:
        """The layout of the recurrent states of a text."""
        return ArrayLayout.of(states)

    def kept_layout(self, body: Graph, rows: int) -> KeptLayout:
        """Rows of float64."""
        return KeptLayout.of(body, rows)

    def allocate(self, layout: Any) -> Memory:
        """Memory of zeros.

        Raises:
            MemoryError: There is no more.
        """
        values = np.zeros(layout.count)
        return Memory(int(values.ctypes.data), layout.nbytes, values)

    def copy(self, layout: Any, source: Memory, target: Memory) -> None:
        """Makes the contents of `target` those of `source`."""
        target.keep[:] = source.keep

    def lower(self, body: Graph, head: Graph, groups: StateGroups, cache_types: tuple[str, ...]) -> ReferenceProgram:
        """Checks that all operations are known; weights are read when they are first used.

        Raises:
            UnsupportedError: `engine.operation`: one is not.
            UsageError: There is no such type of cache.
        """
        for cache_type in cache_types:
            check_cache_type(cache_type)
        for graph in (body, head):
            for operation in graph.operations:
                if type(operation) not in OPERATIONS or (graph is body and isinstance(operation, op.Pick)):
                    raise UnsupportedError(f"the operation {operation} is not known here", code="engine.operation")
        return ReferenceProgram(body, head, groups)

    def run(self, program: ReferenceProgram, step: Step) -> StepOutput:
        """Runs a step, as `base.Backend` describes it."""
        states = States(program.groups, self.round_caches)
        with np.errstate(all="ignore"):  # what is not finite is the engine's to find
            hidden = Run(step, states, self._weights).compute(program.body)
            logits = np.empty((0, program.head.results[0].width))
            if len(step.wanted):
                logits = Run(step, states, self._weights, hidden[step.wanted]).compute(program.head)
        return StepOutput(hidden, logits, bool(np.isfinite(hidden).all() and np.isfinite(logits).all()))

    def lower_replay(self, body: Graph, groups: StateGroups) -> tuple[Graph, StateGroups]:
        """Nothing has to be made."""
        return body, groups

    def replay(self, program: tuple[Graph, StateGroups], segments: Sequence[Segment]) -> None:
        """The same operations over the rows that were kept."""
        body, groups = program
        for segment in segments:
            if segment.count:
                step = Step(np.zeros(segment.count, np.int32), [replace(segment, first_row=0)], np.zeros(0, np.int32))
                Run(step, States(groups, self.round_caches), self._weights).replay(body)

    def suspects(self, weights: Sequence[Matrix | Experts]) -> list[Matrix | Experts]:
        """Those of some weights that hold values that are not finite, and those that are not mapped."""
        return [each for each in weights if not self._is_finite(each)]

    def close(self) -> None:
        """Frees the weights."""
        self._weights.close()

    def _is_finite(self, weights: Matrix | Experts) -> bool:
        if isinstance(weights, Matrix):
            return bool(np.isfinite(weights.tensor.dequantize()).all())
        if isinstance(weights.stored, PagedExperts):
            return False
        experts = range(weights.n_expert)
        return all(np.isfinite(self._weights.expert(weights, number)).all() for number in experts)
