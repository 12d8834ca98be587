"""A device of NVIDIA's as a backend: arenas of weights, blocks of states, programs of launches."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...graph.graph import Graph
from ...graph.rope import Rope
from ...graph.states import StateId
from ...graph.weights import Experts, Matrix
from ...options import MOST_OPEN
from .. import Compute, check_compute
from ..base import Layout, Memory, Segment, StateGroups, Step, StepOutput
from .driver import Driver
from .kernels.table_layout import tables
from .launches import Launch, run
from .layout import CACHE_TYPES
from .lowering import Lowering, Place, based, weights_of
from .residency import Residency
from .states import KeptLayout, KeyValueLayout, RecurrentLayout
from .step import StepMemory

_LOGIT_BYTES = 32 << 20  # most bytes of logits that are worked out together


@dataclass
class CudaProgram:
    """The graphs of a model as launches.

    Attributes:
        hidden, logits, wanted, given: Addresses; `given` is 0 where no operation asks for rows that steps bring.
        head_rows: Rows that become logits at once.
    """

    body: list[Launch]
    head: list[Launch]
    step: StepMemory
    cache_types: tuple[str, ...]
    hidden: int
    logits: int
    wanted: int
    given: int
    n_embd: int
    n_vocab: int
    head_rows: int


@dataclass
class ReplayProgram:
    """The recurrent operations of a graph as launches."""

    launches: list[Launch]
    step: StepMemory


@dataclass
class RotationTables:
    """Cosines and sines of all positions so far, for each rotation, on the device."""

    driver: Driver
    _ropes: list[Rope] = field(default_factory=list)
    _tables: dict[str, tuple[int, int]] = field(default_factory=dict)  # address, positions

    def name(self, rope: Rope) -> str:
        """What steps call a rotation's table."""
        if rope not in self._ropes:
            self._ropes.append(rope)
        return f"angles_{self._ropes.index(rope)}"

    def reach(self, end: int) -> dict[str, int]:
        """Addresses of all tables, which have so many positions at least."""
        for rope in self._ropes:
            name = self.name(rope)
            address, known = self._tables.get(name, (0, 0))
            if known >= end:
                continue
            positions = max(256, 1 << (end - 1).bit_length())
            angles = np.arange(positions)[:, None] * rope.frequencies()
            both = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * rope.magnitude()
            made = self.driver.allocate(max(8, 4 * both.size))
            self.driver.upload(made, both.astype(np.float32))
            if address:
                self.driver.free(address)
            self._tables[name] = made, positions
        return {name: address for name, (address, _) in self._tables.items()}


class CudaBackend:
    """Kernels on a device. See `base.Backend` for the methods.

    Attributes:
        max_rows: Most rows of a step.
        cache_types: How keys and values can be kept.
        driver: The device.
        weights: What is on it.
    """

    dtype = np.float32
    cache_types: tuple[str, ...] = CACHE_TYPES

    def __init__(self, driver: Driver, *, compute: Compute, batch: int) -> None:
        """A backend on a device, which is closed with it."""
        check_compute(compute)
        self.max_rows = batch
        self.driver = driver
        self._rounds = compute == "int8"
        self._closed = False
        self.weights = Residency(driver)
        self._rotations = RotationTables(driver)
        words = tables()
        self._tables = driver.allocate(words.nbytes)
        driver.upload(self._tables, words)
        weakref.finalize(self, driver.close).atexit = False

    # ------------------------------------------------------------ states

    def key_value_layout(self, states: Sequence[StateId], cache_type: str) -> Layout:
        """64 positions of a group of layers."""
        return KeyValueLayout.of(states, cache_type)

    def recurrent_layout(self, states: Sequence[StateId]) -> Layout:
        """The recurrent states of a text."""
        return RecurrentLayout.of(states)

    def kept_layout(self, body: Graph, rows: int) -> Layout:
        """Rows of float32."""
        return KeptLayout.of(body, rows)

    def allocate(self, layout: Layout) -> Memory:
        """Device memory, which is given back when nobody refers to it."""
        address = self.driver.allocate(layout.nbytes)
        keep = _Kept()
        weakref.finalize(keep, self._free, address).atexit = False
        return Memory(address, layout.nbytes, keep)

    def _free(self, address: int) -> None:
        if not self._closed:
            self.driver.free(address)

    def copy(self, layout: Layout, source: Memory, target: Memory) -> None:
        """Copies bytes on the device."""
        self.driver.copy(source.id, target.id, layout.nbytes)

    # ------------------------------------------------------------ programs

    def lower(self, body: Graph, head: Graph, groups: StateGroups, cache_types: tuple[str, ...]) -> CudaProgram:
        """Brings weights to the device that are not there yet, and makes programs of both graphs."""
        self.weights.ensure(weights_of([body, head]))
        n_vocab = head.results[0].width
        head_rows = max(1, min(self.max_rows, _LOGIT_BYTES // (4 * n_vocab)))
        step = StepMemory(self.driver, self.max_rows, len(groups.key_values))
        made = self._lowering(step, groups, cache_types, self.max_rows, "rows")
        made.kept = KeptLayout.of(body, MOST_OPEN) if groups.recurrent else None
        made.lower(body)
        values = self.driver.allocate(made.places.end)
        (result,) = body.results
        hidden = _address(made.at(result), values)
        last = self._lowering(step, groups, cache_types, head_rows, "wanted")
        last.outer[result] = hidden
        last.lower(head)
        more = self.driver.allocate(last.places.end)
        return CudaProgram(
            body=based(made.launches, values),
            head=based(last.launches, more),
            step=step,
            cache_types=cache_types,
            hidden=hidden,
            logits=_address(last.at(head.results[0]), more),
            wanted=self.driver.allocate(4 * self.max_rows),
            given=0 if made.given is None else _address(made.given, values),
            n_embd=result.width,
            n_vocab=n_vocab,
            head_rows=head_rows,
        )

    def _lowering(
        self, step: StepMemory, groups: StateGroups, cache_types: tuple[str, ...], rows: int, count: str
    ) -> Lowering:
        return Lowering(
            self.weights, step, groups, cache_types, self._tables, rows, count, self._rounds, self._rotations.name
        )

    def run(self, program: CudaProgram, step: Step) -> StepOutput:
        """Runs a step; logits of many rows come in parts."""
        rows = len(step.tokens)
        program.step.fill(step.tokens, step.segments)
        if program.given and step.given is not None:
            self.driver.upload(program.given, np.ascontiguousarray(step.given, np.float32))
        end = max(segment.position + segment.count for segment in step.segments)
        numbers = {
            **_counts("rows", rows),
            **_typed(step.segments, program.cache_types),
            **self._rotations.reach(end),
            "segments": len(step.segments),
            "tables": program.step.tables,
        }
        run(self.driver, program.body, numbers)
        hidden = np.empty((rows, program.n_embd), np.float32)
        self.driver.download(program.hidden, hidden)
        logits = np.empty((len(step.wanted), program.n_vocab), np.float32)
        if len(step.wanted):
            self.driver.upload(program.wanted, np.ascontiguousarray(step.wanted, np.int32))
        for first in range(0, len(step.wanted), program.head_rows):
            count = min(program.head_rows, len(step.wanted) - first)
            now = numbers | _counts("wanted", count) | {"wanted_at": program.wanted + 4 * first}
            run(self.driver, program.head, now)
            self.driver.download(program.logits, logits[first : first + count])
        return StepOutput(hidden, logits, bool(np.isfinite(hidden).all() and np.isfinite(logits).all()))

    def lower_replay(self, body: Graph, groups: StateGroups) -> ReplayProgram:
        """The same kernels as those of a step, over rows that are brought back."""
        self.weights.ensure(weights_of([body]))
        step = StepMemory(self.driver, MOST_OPEN, 0)
        made = self._lowering(step, groups, (), MOST_OPEN, "rows")
        made.kept = KeptLayout.of(body, MOST_OPEN)
        made.replay(body)
        return ReplayProgram(based(made.launches, self.driver.allocate(made.places.end)), step)

    def replay(self, program: ReplayProgram, segments: Sequence[Segment]) -> None:
        """One text after the other."""
        for item in segments:
            if item.count:
                one = Segment(0, item.count, 0, item.cache_type, (), item.read, item.write, item.keep)
                program.step.fill(np.zeros(item.count, np.int32), [one])
                run(self.driver, program.launches, {**_counts("rows", item.count), "segments": 1, "tables": 0})

    def suspects(self, weights: Sequence[Matrix | Experts]) -> list[Matrix | Experts]:
        """All of them: the host looks at them where they are mapped."""
        return list(weights)

    def close(self) -> None:
        """Gives the device back."""
        self._closed = True
        self.driver.close()


class _Kept:
    """Lives as long as a piece of device memory is used."""


def _address(place: object, base: int) -> int:
    assert isinstance(place, Place)
    return base + int(place)


def _counts(name: str, count: int) -> dict[str, int]:
    """A number of rows, and by which kernels of products they go: one row alone, or several."""
    return {name: count, f"{name}_single": int(count == 1), f"{name}_many": 0 if count == 1 else count}


def _typed(segments: Sequence[Segment], cache_types: Sequence[str]) -> dict[str, int]:
    """For each type of cache its rows, which follow each other, and the first of them."""
    found = {}
    for cache_type in cache_types:
        of_type = [segment for segment in segments if segment.cache_type == cache_type]
        found[f"rows_{cache_type}"] = sum(segment.count for segment in of_type)
        found[f"first_{cache_type}"] = of_type[0].first_row if of_type else 0
    return found
