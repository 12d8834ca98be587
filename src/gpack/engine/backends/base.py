"""What a backend offers to the engine: memory for states, programs made of graphs, and runs of steps.

The engine knows texts, positions, budgets and commits; a backend knows a device. Between them only plain values pass:
graphs, layouts of states, the rows of a step. A device is added by a class with these methods; nothing in
`architectures/`, in the engine or in sampling changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..graph.graph import Graph
from ..graph.states import StateId
from ..graph.weights import Experts, Matrix

BLOCK = 64  # positions of a block of keys and values


@dataclass(frozen=True)
class StateGroups:
    """The states of a graph as texts have memory for them.

    Attributes:
        key_values: Groups of keys and values that see equally many positions: a text has blocks of 64 positions for
            each group.
        windows: Of each of these groups: newest positions that are seen; 0: all.
        recurrent: All other states: a text has one piece of memory for all of them.
    """

    key_values: tuple[tuple[StateId, ...], ...]
    windows: tuple[int, ...]
    recurrent: tuple[StateId, ...]


class Layout(Protocol):
    """How a backend lays out one block of a group, or the recurrent states of a text.

    Equal ones are interchangeable.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of it."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory of one layout on a device.

    Attributes:
        id: What a step names it by: an address, where the device has such.
        nbytes: Bytes that count against the budget.
        keep: Lives as long as the memory is used.
    """

    id: int
    nbytes: int
    keep: Any


@dataclass(frozen=True)
class Segment:
    """Rows of a step that are consecutive positions of one text.

    Attributes:
        first_row, count: Which rows of the step.
        position: Of the first of them.
        cache_type: Of the text's keys and values.
        tables: For each group of keys and values an array int64 of the ids of its blocks, by position // 64; where
            blocks fell out of the window, 0. They hold memory for the new positions too.
        read, write: Ids of the recurrent states before these rows and after them. The states that a text begins with
            are zeros, and `read` is 0; both are 0 where there are none.
        keep: Id of memory that gets what recurrent states depend on of each row, for `Backend.replay`; 0: none does.
        previous: The text's tokens before these rows, as many as the graphs' operations read, fewer at its beginning.
    """

    first_row: int
    count: int
    position: int
    cache_type: str
    tables: tuple[npt.NDArray[np.int64], ...]
    read: int = 0
    write: int = 0
    keep: int = 0
    previous: Sequence[int] = ()


@dataclass(frozen=True)
class Step:
    """What one run computes.

    Attributes:
        tokens: int32 [rows].
        segments: Cover all rows in order; those of one cache type follow each other.
        wanted: int32; the rows whose logits are wanted.
        given: [rows, width], what `Given` gives; None where no operation asks for it.
    """

    tokens: npt.NDArray[np.int32]
    segments: Sequence[Segment]
    wanted: npt.NDArray[np.int32]
    given: npt.NDArray[Any] | None = None


class StepOutput(NamedTuple):
    """What a run computed. The arrays may be the program's own memory, which the next run overwrites.

    Attributes:
        hidden: [rows, n_embd].
        logits: [wanted rows, n_vocab].
        is_finite: Whether all of them are.
    """

    hidden: npt.NDArray[Any]
    logits: npt.NDArray[Any]
    is_finite: bool


class Backend(Protocol):
    """A device that computes.

    Attributes:
        max_rows: Most rows of a step.
        dtype: Of logits and hidden states: float32, or float64 for `reference`.
        cache_types: How keys and values can be kept.
    """

    max_rows: int
    dtype: type[np.floating[Any]]
    cache_types: tuple[str, ...]

    def key_value_layout(self, states: Sequence[StateId], cache_type: str) -> Layout:
        """The layout of 64 positions of a group.

        Raises:
            UsageError: There is no such type of cache.
        """

    def recurrent_layout(self, states: Sequence[StateId]) -> Layout:
        """The layout of the recurrent states of a text."""

    def kept_layout(self, body: Graph, rows: int) -> Layout:
        """The layout of what `replay` needs of so many rows of a graph."""

    def allocate(self, layout: Layout) -> Memory:
        """Memory, with anything in it.

        Raises:
            MemoryError: The device has no more.
        """

    def copy(self, layout: Layout, source: Memory, target: Memory) -> None:
        """Makes the contents of `target` those of `source`."""

    def lower(self, body: Graph, head: Graph, groups: StateGroups, cache_types: tuple[str, ...]) -> Any:
        """Makes a program of two graphs, and holds all weights that they name.

        Args:
            body: From tokens to hidden states, its only result.
            head: From picked rows of these to logits, its only result.
            cache_types: Those that segments of its steps may have.

        Raises:
            UnsupportedError: An operation or a type of weights is not known here.
        """

    def run(self, program: Any, step: Step) -> StepOutput:
        """Runs a step: writes the states of the new positions, and gives hidden states and logits.

        Raises:
            KeyboardInterrupt: The caller was interrupted. Positions that are not committed may hold anything.
        """

    def lower_replay(self, body: Graph, groups: StateGroups) -> Any:
        """Makes a program of a graph's recurrent operations alone.

        Raises:
            UnsupportedError: As `lower`.
        """

    def replay(self, program: Any, segments: Sequence[Segment]) -> None:
        """Brings recurrent states from `read` to `write` by the first `count` rows that a step kept in `keep`.

        They get the bits that a step of these rows gives them. Rows of the segments follow each other.

        Raises:
            KeyboardInterrupt: The caller was interrupted; what was to be written may be anything.
        """

    def suspects(self, weights: Sequence[Matrix | Experts]) -> list[Matrix | Experts]:
        """Those of some weights that may hold values that are not finite; all others surely hold none."""

    def close(self) -> None:
        """Frees what the backend holds; a second call does nothing."""
