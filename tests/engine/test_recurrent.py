"""Recurrent layers: against float64, and bit for bit however a text's rows are put into steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from exhaustive import each_value
from numpy.typing import NDArray

from gpack.engine.backends.cpu.attention import RowsAt
from gpack.engine.backends.cpu.buffers import aligned
from gpack.engine.backends.cpu.cache import RecurrentLayer, StateLayout
from gpack.engine.backends.cpu.recurrent import Gates, convolution, delta_rule
from gpack.engine.backends.cpu.step import LoweredSegment, StepBlock
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.team import Program, Team
from gpack.engine.backends.cpu.variants import usable

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
VARIANTS = [variant.name for variant in usable()]


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@dataclass(frozen=True)
class Shape:
    """A layer: its heads of keys and values, and the convolution before them."""

    n_head_k: int
    n_head: int
    d_key: int
    d_value: int
    d_conv: int = 4
    tiled: bool = True

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.n_head_k * self.d_key, self.n_head_k * self.d_key, self.n_head * self.d_value


SHAPES = (
    Shape(2, 4, 128, 128),
    Shape(1, 1, 16, 32, d_conv=2),
    Shape(2, 6, 37, 41, tiled=False),
    Shape(3, 3, 24, 70, d_conv=5),
    Shape(2, 2, 8, 8, d_conv=1),
)
EPSILON = 1e-6


@dataclass
class Text:
    """Inputs of a text [n, channels], and its gates [n, heads]; the address of its state."""

    x: Floats
    decay: Floats
    beta: Floats
    states: list[Any] = field(default_factory=list)
    position: int = 0

    @classmethod
    def random(cls, shape: Shape, n: int, seed: int = 0) -> Text:
        rng = np.random.default_rng([seed, n])
        x, decay, beta = (
            rng.standard_normal((n, width)).astype(np.float32)
            for width in (sum(shape.widths), shape.n_head, shape.n_head)
        )
        decay[0, 0], beta[0, 0] = 25, -30  # the ends of softplus and sigmoid
        return cls(x, decay * 3, beta)

    def fresh(self) -> Text:
        return Text(self.x, self.decay, self.beta)


class Bed:
    """A program of one layer, the second of its set, which is the second of the step's."""

    def __init__(self, kernels: Kernels, shape: Shape, threads: int, max_rows: int = 64) -> None:
        self.shape = shape
        n_channels, n_out = sum(shape.widths), shape.n_head * shape.d_value
        sizes = RecurrentLayer(n_channels, shape.d_conv, shape.n_head, shape.d_key, shape.d_value)
        self.layout = StateLayout.of([sizes, sizes])
        layer = self.layout.layers[1]
        rng = np.random.default_rng(3)
        self.taps = rng.standard_normal((shape.d_conv, n_channels)).astype(np.float32)
        self.bias, self.factor = (rng.standard_normal(shape.n_head).astype(np.float32) for _ in range(2))
        self.factor = -np.abs(self.factor)
        self.x, self.made = (aligned((max_rows, n_channels), np.float32) for _ in range(2))
        self.gates, self.out = aligned((max_rows, 2 * shape.n_head), np.float32), aligned((max_rows, n_out), np.float32)
        self.step, self.program = StepBlock(max_rows, n_groups=1, n_sets=2), Program(kernels)
        made, gates = RowsAt(self.made.ctypes.data, 4 * n_channels), RowsAt(self.gates.ctypes.data, 8 * shape.n_head)
        convolution(
            self.program,
            self.step,
            layer,
            RowsAt(self.x.ctypes.data, 4 * n_channels),
            made,
            self.taps.ctypes.data,
            number=1,
        )
        starts = np.cumsum([0, *shape.widths])
        q, k, v = (RowsAt(made.address + 4 * int(start), made.row_bytes) for start in starts[:3])
        delta_rule(
            self.program,
            self.step,
            layer,
            q,
            k,
            v,
            Gates(
                gates,
                RowsAt(gates.address + 4 * shape.n_head, gates.row_bytes),
                self.bias.ctypes.data,
                self.factor.ctypes.data,
            ),
            RowsAt(self.out.ctypes.data, 4 * n_out),
            threads=threads,
            number=1,
            n_head_k=shape.n_head_k,
            tiled=shape.tiled,
            epsilon=EPSILON,
            scale=shape.d_key**-0.5,
        )
        self.team = Team(kernels, threads)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.team.close()

    def run(self, *chunks: tuple[Text, int], in_place: bool = True) -> list[Floats]:
        """Carries texts on by so many rows each; what the convolution and the rule made, side by side."""
        segments, first = [], 0
        for text, count in chunks:
            rows, taken = slice(first, first + count), slice(text.position, text.position + count)
            self.x[rows] = text.x[taken]
            self.gates[rows] = np.concatenate([text.decay[taken], text.beta[taken]], axis=1)
            read = text.states[-1].ctypes.data if text.states else 0
            if not text.states or not in_place:
                state = aligned((self.layout.nbytes,), np.uint8)
                state[:] = 0xFF
                text.states.append(state)
            states = (0, 0, read, text.states[-1].ctypes.data)
            segments.append(LoweredSegment(first, count, text.position, "F16", (0,), states))
            first += count
        self.step.fill(segments)
        self.team.run(self.program)
        made = np.concatenate([self.made, self.out], axis=1)
        for text, count in chunks:
            text.position += count
        return [made[segment.first_row : segment.first_row + segment.n_rows].copy() for segment in segments]

    def alone(self, text: Text, *counts: int, in_place: bool = True) -> Floats:
        fresh = text.fresh()
        return np.concatenate([self.run((fresh, count), in_place=in_place)[0] for count in counts])


def expected(bed: Bed, text: Text) -> Doubles:
    """The convolution and the rule, token by token in float64."""
    shape, n = bed.shape, len(text.x)
    padded = np.concatenate([np.zeros((shape.d_conv - 1, text.x.shape[1])), text.x])
    c = sum(padded[tap : tap + n] * bed.taps[tap].astype(float) for tap in range(shape.d_conv))
    c = c / (1 + np.exp(-c))
    q, k, v = np.split(c, np.cumsum(shape.widths)[:2], axis=1)
    q, k = q.reshape(n, -1, shape.d_key), k.reshape(n, -1, shape.d_key)
    v = v.reshape(n, -1, shape.d_value)
    q, k = (a / np.sqrt((a**2).sum(-1, keepdims=True) + EPSILON) for a in (q, k))
    g = bed.factor.astype(float) * np.logaddexp(0, text.decay + bed.bias.astype(float))
    beta = 1 / (1 + np.exp(-text.beta.astype(float)))
    out = np.zeros((n, shape.n_head, shape.d_value))
    for head in range(shape.n_head):
        kh = head % shape.n_head_k if shape.tiled else head // (shape.n_head // shape.n_head_k)
        m = np.zeros((shape.d_key, shape.d_value))
        for t in range(n):
            m *= np.exp(g[t, head])
            d = beta[t, head] * (v[t, head] - k[t, kh] @ m)
            m += np.outer(k[t, kh], d)
            out[t, head] = q[t, kh] @ m * shape.d_key**-0.5
    return np.concatenate([c, out.reshape(n, -1)], axis=1)


@each_value
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_bits(kernels: Kernels, shape: Shape) -> None:
    text = Text.random(shape, 60)
    with Bed(kernels, shape, 2) as bed:
        made = bed.alone(text, 60)
        wanted = expected(bed, text)
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)
        assert np.abs(wanted[:, sum(shape.widths) :]).max() > 0.01
    for threads in (1, 2, 3, 5):
        with Bed(kernels, shape, threads) as bed:
            for in_place in (True, False):
                for cut in ([1] * 60, [2, 3, 55], [31, 1, 28]):
                    again = bed.alone(text, *cut, in_place=in_place)
                    np.testing.assert_array_equal(again.view(np.int32), made.view(np.int32))


def test_many_texts_in_one_step(kernels: Kernels) -> None:
    shape = SHAPES[2]
    texts = [Text.random(shape, length, length) for length in (1, 7, 30, 31, 52)]
    rng = np.random.default_rng(0)
    with Bed(kernels, shape, 2) as bed:
        alone = [bed.alone(text, len(text.x)) for text in texts]
        made: list[list[Floats]] = [[] for _ in texts]
        going = [text.fresh() for text in texts]
        while open_ := [number for number, text in enumerate(going) if text.position < len(text.x)]:
            chosen = rng.permutation(open_)
            counts = [
                min(int(rng.choice([1, 1, 2, 9])), len(going[number].x) - going[number].position) for number in chosen
            ]
            chunks = [(going[number], count) for number, count in zip(chosen, counts, strict=True)]
            for number, rows in zip(chosen, bed.run(*chunks, in_place=bool(rng.integers(2))), strict=True):
                made[number].append(rows)
    for wanted, parts in zip(alone, made, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts).view(np.int32), wanted.view(np.int32))


def test_a_state_that_was_read_is_as_it_was(kernels: Kernels) -> None:
    """A step that writes elsewhere can be run again, or taken back."""
    shape = SHAPES[3]
    text = Text.random(shape, 20)
    with Bed(kernels, shape, 2) as bed:
        going = text.fresh()
        bed.run((going, 9))
        before = going.states[0].copy()
        first = bed.run((going, 11), in_place=False)[0]
        np.testing.assert_array_equal(going.states[0], before)
        del going.states[1]
        going.position = 9
        np.testing.assert_array_equal(bed.run((going, 11))[0].view(np.int32), first.view(np.int32))


def test_what_is_not_finite_stays_with_its_text(kernels: Kernels) -> None:
    shape = SHAPES[0]
    good, bad = Text.random(shape, 12), Text.random(shape, 12, 1)
    bad.decay[5, 0] = np.nan
    bad.x[6, 3] = np.inf
    with Bed(kernels, shape, 2) as bed:
        wanted = bed.alone(good, 12)
        spoiled, made = bed.run((bad, 12), (good.fresh(), 12))
        np.testing.assert_array_equal(made.view(np.int32), wanted.view(np.int32))
        assert np.isfinite(spoiled[:5]).all()
        assert np.isnan(spoiled[5:, sum(shape.widths)]).all()


def test_a_state_by_hand() -> None:
    """A window of 3 x 5 floats, in whole lines, and two heads of 3 x 40, whose columns are padded to 64."""
    first, second = StateLayout.of([RecurrentLayer(5, 4, 2, 3, 40)] * 2).layers
    assert (first.window, first.matrices) == (0, 64)
    assert (second.window, second.matrices) == (64 + 2 * 3 * 64 * 4, 128 + 2 * 3 * 64 * 4)
    assert StateLayout.of([RecurrentLayer(16, 3, 0, 0, 0)]).nbytes == 128
