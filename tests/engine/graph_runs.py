"""Graphs that were built by hand, run on any backend: texts, their memory, and steps made of rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpack.engine.backends.base import BLOCK, Backend, Memory, Segment, StateGroups, Step
from gpack.engine.graph import Graph, Matrix, Value, Vector
from gpack.engine.graph import operations as op
from gpack.engine.graph.states import KeyValues, StateId
from gpack.engine.graph.weights import Experts
from gpack.generated.constants import GgmlType
from gpack.tensor import Tensor

Doubles = npt.NDArray[np.float64]
F32 = GgmlType.F32


def stored(name: str, raw: npt.NDArray[Any], ggml_type: int, *dims: int) -> Tensor:
    """A tensor over bytes; `dims` in ggml's order."""
    return Tensor.over(memoryview(np.ascontiguousarray(raw).tobytes()), name=name, ggml_type=ggml_type, dims=dims)


def matrix(name: str, values: npt.ArrayLike) -> Matrix:
    """A matrix of F32."""
    array = np.asarray(values, "<f4")
    n_out, n_in = array.shape
    return Matrix(name, F32, n_out, n_in, stored(name, array, F32, n_in, n_out))


def quantised(name: str, raw: npt.NDArray[np.uint8], ggml_type: int, n_in: int) -> Matrix:
    """A matrix of stored rows."""
    return Matrix(name, ggml_type, len(raw), n_in, stored(name, raw, ggml_type, n_in, len(raw)))


def experts(name: str, values: npt.ArrayLike) -> Experts:
    """Experts of F32, [n_expert, n_out, n_in]."""
    array = np.asarray(values, "<f4")
    n_expert, n_out, n_in = array.shape
    return Experts(name, F32, n_expert, n_out, n_in, stored(name, array, F32, n_in, n_out, n_expert))


def vector(name: str, values: npt.ArrayLike) -> Vector:
    """A vector."""
    return Vector(name, np.ascontiguousarray(values, np.float32))


def random(seed: int, *shape: int, size: float = 1.0) -> npt.NDArray[np.float32]:
    """Random float32."""
    return (size * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@dataclass
class Pair:
    """The two graphs of a model: from tokens, which are the rows of `inputs`, to hidden states, and on to logits.

    The head adds nothing but a product by `output`: logits are the hidden states of the picked rows times it.
    """

    inputs: npt.NDArray[Any]
    body: Graph = field(default_factory=Graph)
    head: Graph | None = None
    output: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def begin(self) -> Value:
        """The inputs of the step's rows."""
        return self.body.embed(matrix("inputs", self.inputs))

    def end(self, x: Value) -> Pair:
        """Makes a value the hidden state."""
        self.body.result(x)
        self.head = self.body.following()
        self.output = random(x.width, 5, x.width)
        self.head.result(self.head.matmul(self.head.pick(x), matrix("output", self.output)))
        return self


def groups_of(states: Sequence[StateId]) -> StateGroups:
    """Keys and values by their window; all other states are recurrent."""
    by_window: dict[int, list[StateId]] = {}
    for state in states:
        if isinstance(state.kind, KeyValues):
            by_window.setdefault(state.kind.window, []).append(state)
    recurrent = tuple(state for state in states if not isinstance(state.kind, KeyValues))
    return StateGroups(tuple(map(tuple, by_window.values())), tuple(by_window), recurrent)


@dataclass
class Text:
    """The memory of a text: for each group the blocks by number, and what is recurrent, None before the first step."""

    blocks: list[dict[int, Memory]]
    recurrent: Memory | None
    cache_type: str
    position: int = 0
    tokens: list[int] = field(default_factory=list)


class Bed:
    """A backend with a lowered pair of graphs."""

    def __init__(self, backend: Backend, pair: Pair, *, cache_types: tuple[str, ...] = ("F32",)) -> None:
        assert pair.head is not None
        self.backend, self.pair = backend, pair
        self.groups = groups_of(pair.body.states)
        self.program = backend.lower(pair.body, pair.head, self.groups, cache_types)

    def text(self, cache_type: str = "F32") -> Text:
        """A new text."""
        return Text([{} for _ in self.groups.key_values], None, cache_type)

    def step(self, *rows: tuple[Text, Sequence[int]], wanted: Sequence[int] = ()) -> tuple[Doubles, Doubles]:
        """Runs one step of some texts' next tokens; gives hidden states of all rows and logits of the wanted ones."""
        segments: list[Segment] = []
        tokens: list[int] = []
        written: list[Memory | None] = []
        for text, added in rows:
            target = None
            if self.groups.recurrent:
                target = self.backend.allocate(self.backend.recurrent_layout(self.groups.recurrent))
            written.append(target)
            segments.append(
                Segment(
                    len(tokens),
                    len(added),
                    text.position,
                    text.cache_type,
                    self._tables(text, len(added)),
                    text.recurrent.id if text.recurrent is not None else 0,
                    target.id if target is not None else 0,
                    previous=text.tokens[len(text.tokens) - min(len(text.tokens), self.pair.body.history) :],
                )
            )
            tokens += added
        width = next((made.output.width for made in self.pair.body.operations if isinstance(made, op.Given)), 0)
        given = -self.pair.inputs[tokens, :width] if width else None
        step = Step(np.array(tokens, np.int32), segments, np.array(wanted, np.int32), given)
        hidden, logits = (np.array(made, np.float64) for made in self.backend.run(self.program, step)[:2])
        for (text, added), target in zip(rows, written, strict=True):
            text.position += len(added)
            text.tokens += added
            text.recurrent = target
        return hidden, logits

    def _tables(self, text: Text, count: int) -> tuple[npt.NDArray[np.int64], ...]:
        end, tables = text.position + count, []
        for states, window, blocks in zip(self.groups.key_values, self.groups.windows, text.blocks, strict=True):
            first = max(0, text.position - window + 1) // BLOCK if window else 0
            for number in [number for number in blocks if number < first]:
                del blocks[number]
            layout = self.backend.key_value_layout(states, text.cache_type)
            for number in range(first, -(-end // BLOCK)):
                if number not in blocks:
                    blocks[number] = self.backend.allocate(layout)
            ids = [blocks[number].id if number in blocks else 0 for number in range(-(-end // BLOCK))]
            tables.append(np.array(ids, np.int64))
        return tuple(tables)


def whole(backend: Backend, pair: Pair, tokens: Sequence[int], *, cache_type: str = "F32") -> Doubles:
    """Hidden states of one text in one step."""
    bed = Bed(backend, pair, cache_types=(cache_type,))
    return bed.step((bed.text(cache_type), tokens))[0]
