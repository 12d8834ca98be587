"""The CPU as a backend: programs of kernels, run by threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ....machine import usable_cores
from ...graph import weights as graph
from ...graph.graph import Graph
from ...graph.states import IndexedKeyValues, KeyValues, StateId
from ...options import MOST_OPEN, count_option
from .. import Compute, base, check_compute
from ..base import Layout, Memory, StateGroups, Step, StepOutput
from .attention import AttentionMemory
from .buffers import aligned
from .cache import BlockLayout, KeptLayout
from .finite import suspects
from .layout import CACHE_TYPES
from .lowering import Lowering
from .lowering_streams import StreamLowering
from .ngrams import RowThread
from .shared import Shared, StatePlaces, state_layout
from .step import LoweredSegment, PickBlock, StepBlock
from .store import Kernels
from .team import MOST_THREADS, Program, Team
from .variants import choose
from .workspace import Workspace

_LOGIT_BYTES = 32 << 20  # most bytes of logits that are worked out together


@dataclass
class CpuProgram:
    """The graphs of a model as programs.

    Attributes:
        whole: From tokens to the logits of the first picked rows.
        head: The logits of more picked rows.
        step: What kernels read of the rows of a step.
        picked: Which rows become logits.
        tokens: int32 [max_rows].
        hidden: float32 [max_rows, n_embd].
        logits: float32 [rows, n_vocab]: of so many picked rows at a time; `more` is that of `head`.
        given: float32 [max_rows, width], where the graph asks for rows that steps bring.
        before: What is done before each run.
    """

    whole: Program
    head: Program
    step: StepBlock
    picked: PickBlock
    tokens: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]
    more: npt.NDArray[np.float32]
    given: npt.NDArray[np.float32] | None = None
    before: Sequence[Callable[[Step], None]] = ()


@dataclass
class ReplayProgram:
    """The recurrent operations of a graph as a program.

    Attributes:
        step: What kernels read of the kept rows.
    """

    program: Program
    step: StepBlock


class CpuBackend:
    """Kernels of a variant and the threads that run them. See `base.Backend` for the methods.

    Attributes:
        max_rows: Most rows of a step.
        cache_types: How keys and values can be kept.
        variant: The name of the kernels.
    """

    dtype = np.float32
    cache_types: tuple[str, ...] = CACHE_TYPES

    def __init__(self, *, threads: int | None, compute: Compute, batch: int, cpu: str | None) -> None:
        """Starts the threads.

        Raises:
            UsageError: An option makes no sense, or the system allows fewer threads.
            UnsupportedError: `engine.numba`: llvmlite is not installed.
        """
        self.max_rows = batch
        check_compute(compute)
        self._compute = compute
        self.variant = choose(cpu).name
        self._kernels = kernels_of(self.variant)
        self._team = Team(self._kernels, count_threads(threads))
        # Threads end with the backend where nobody closed it; when Python ends, they stop without being waited for.
        weakref.finalize(self, self._team.close).atexit = False
        self._reading = RowThread()
        weakref.finalize(self, self._reading.close).atexit = False
        self._shared = Shared()

    # ------------------------------------------------------------ states

    def key_value_layout(self, states: Sequence[StateId], cache_type: str) -> Layout:
        """64 positions of a group of layers."""
        return self._block_layout(states, cache_type)

    def recurrent_layout(self, states: Sequence[StateId]) -> Layout:
        """The recurrent states of a text."""
        return state_layout(states)

    def kept_layout(self, body: Graph, rows: int) -> Layout:
        """Rows of float32."""
        return KeptLayout.of(body, rows)

    def allocate(self, layout: Layout) -> Memory:
        """Memory at an address."""
        array = aligned((layout.nbytes,), np.uint8)
        return Memory(int(array.ctypes.data), layout.nbytes, array)

    def copy(self, layout: Layout, source: Memory, target: Memory) -> None:
        """Copies bytes."""
        target.keep[:] = source.keep

    # ------------------------------------------------------------ programs

    def lower(self, body: Graph, head: Graph, groups: StateGroups, cache_types: tuple[str, ...]) -> CpuProgram:
        """Programs of both graphs; weights stay where they are mapped."""
        n_vocab = head.results[0].width
        head_rows = max(1, min(self.max_rows, _LOGIT_BYTES // (4 * n_vocab)))
        step = StepBlock(self.max_rows, n_groups=len(groups.key_values), n_sets=min(1, len(groups.recurrent)))
        picked = PickBlock(head_rows)
        tokens = aligned((self.max_rows,), np.int32)
        whole, more = Program(self._kernels), Program(self._kernels)
        layouts = tuple(tuple(self._block_layout(states, kind) for kind in cache_types) for states in groups.key_values)
        places = StatePlaces(groups, layouts, state_layout(groups.recurrent))
        memory = AttentionMemory(self._team.threads, self.max_rows)
        made = []
        work = self._workspace(step.words, self.max_rows)
        head_work = self._workspace(picked.words, head_rows)
        body_lowering = StreamLowering(whole, work, step, tokens, self._shared, places, memory, reading=self._reading)
        (hidden,) = body_lowering.lower(body)
        given = None if body_lowering.given is None else body_lowering.given.array
        for program in (whole, more):
            lowering = Lowering(program, head_work, step, tokens, self._shared, places, memory)
            lowering.outer[body.results[0]] = hidden
            made += lowering.lower(head)
        arrays = hidden.array, made[0].array, made[1].array
        return CpuProgram(whole, more, step, picked, tokens, *arrays, given, body_lowering.before)

    def lower_replay(self, body: Graph, groups: StateGroups) -> ReplayProgram:
        """The same kernels as those of a step, over rows that are brought back."""
        rows = MOST_OPEN
        step, program = StepBlock(rows, n_groups=0, n_sets=1), Program(self._kernels)
        places = StatePlaces(groups, (), state_layout(groups.recurrent))
        memory = AttentionMemory(self._team.threads, rows)
        work = self._workspace(step.words, rows)
        Lowering(program, work, step, aligned((rows,), np.int32), self._shared, places, memory).replay(body)
        return ReplayProgram(program, step)

    def replay(self, program: ReplayProgram, segments: Sequence[base.Segment]) -> None:
        """One run of the threads for as many rows as there are buffers for."""
        waiting = [item for item in segments if item.count]
        while waiting:
            batch: list[LoweredSegment] = []
            rows = 0
            while waiting and rows + waiting[0].count <= program.step.max_rows:
                item = waiting.pop(0)
                states = (item.read, item.write)
                batch.append(LoweredSegment(rows, item.count, 0, item.cache_type, (), states, item.keep))
                rows += item.count
            batch.sort(key=lambda segment: segment.cache_type)
            program.step.fill(batch)
            self._team.run(program.program)

    def _block_layout(self, states: Sequence[StateId], cache_type: str) -> BlockLayout:
        sizes = []
        for state in states:
            kind = state.kind
            if isinstance(kind, KeyValues):
                index_dim = kind.index_dim if isinstance(kind, IndexedKeyValues) else 0
                sizes.append((kind.n_head_kv, kind.head_dim, index_dim))
        return BlockLayout.of(cache_type, sizes)

    def _workspace(self, state: npt.NDArray[np.int64], rows: int) -> Workspace:
        return Workspace(self._kernels, state, max_batch=rows, threads=self._team.threads, compute=self._compute)

    def run(self, program: CpuProgram, step: Step) -> StepOutput:
        """Runs a step: one run of the threads, and one more for each further part of the logits."""
        rows, end = len(step.tokens), max([segment.position + segment.count for segment in step.segments])
        for table in self._shared.ropes.values():
            table.reach(end)
        program.tokens[:rows] = step.tokens
        if program.given is not None:
            program.given[:rows] = step.given
        program.step.fill([_segment(item) for item in step.segments])
        for prepare in program.before:
            prepare(step)
        self._shared.not_finite[0] = 0
        at_once, wanted = len(program.logits), len(step.wanted)
        program.picked.fill(step.wanted[:at_once])
        self._team.run(program.whole)
        logits = program.logits[:wanted]
        if wanted > at_once:
            logits = np.empty((wanted, program.logits.shape[1]), np.float32)
            logits[:at_once] = program.logits
            for first in range(at_once, wanted, at_once):
                part = step.wanted[first : first + at_once]
                program.picked.fill(part)
                self._team.run(program.head)
                logits[first : first + len(part)] = program.more[: len(part)]
        return StepOutput(program.hidden[:rows], logits, not self._shared.not_finite[0])

    def suspects(self, weights: Sequence[graph.Matrix | graph.Experts]) -> list[graph.Matrix | graph.Experts]:
        """Those of which a scale or an exponent looks as if a value were not finite."""
        held = [
            self._shared.matrix(item) if isinstance(item, graph.Matrix) else self._shared.experts(item)
            for item in weights
        ]
        found = {id(item) for item in suspects(self._team, held)}
        return [item for item, kept in zip(weights, held, strict=True) if id(kept) in found]

    def close(self) -> None:
        """Ends the threads."""
        self._team.close()
        self._reading.close()


def count_threads(threads: int | None) -> int:
    """The number of threads of a backend.

    Raises:
        UsageError: It is not from 1 to 1024.
    """
    return count_option(threads, "threads", usable_cores(), MOST_THREADS)


@cache
def kernels_of(variant: str) -> Kernels:
    """The kernels of a variant, shared by all engines of the process."""
    return Kernels(variant)


def _segment(given: base.Segment) -> LoweredSegment:
    """A segment as kernels have it: addresses instead of arrays."""
    tables = tuple([table.ctypes.data for table in given.tables])
    states = (given.read, given.write) if given.write else ()
    return LoweredSegment(given.first_row, given.count, given.position, given.cache_type, tables, states, given.keep)
