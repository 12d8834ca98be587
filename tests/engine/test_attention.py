"""Attention over blocks of keys and values: against float64, and bit for bit however rows are put together.

The memory of every block is poisoned before it is written, and again once it is out of the window (see `cached`).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from exhaustive import each_value
from numpy.typing import NDArray

from gpack.engine.backends.cpu.attention import AttentionMemory
from gpack.engine.backends.cpu.cache import BlockLayout
from gpack.engine.backends.cpu.step import LoweredSegment, PickBlock, StepBlock
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.variants import usable
from gpack.errors import InternalError, UsageError

from .cached import Bed, Floats, Shape, Text, expected

VARIANTS = [variant.name for variant in usable()]
TYPES = ("F32", "F16", "Q8_0")
TOLERANCE = {"F32": 5e-6, "F16": 2e-3, "Q8_0": 0.02}  # F16, Q8_0: a key at the edge may be rounded either way
SHAPES = (
    Shape(9, 3, 64, n_rotated=64),
    Shape(4, 4, 32, window=70),
    Shape(8, 1, 80, n_rotated=40, interleaved=True),
    Shape(5, 5, 40, window=1, layers=2),
    Shape(6, 2, 256, window=300, normed=True, n_rotated=64, layers=3),
    Shape(16, 2, 128, normed=True),
    Shape(3, 1, 37),
    Shape(100, 1, 32, n_rotated=32),
)


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def chunks(total: int, *sizes: int) -> list[int]:
    """Sizes taken in turn until they are the whole."""
    made: list[int] = []
    for size in itertools.cycle(sizes):
        if sum(made) == total:
            return made
        made.append(min(size, total - sum(made)))
    return made


@each_value
@pytest.mark.parametrize("cache_type", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_bits(kernels: Kernels, shape: Shape, cache_type: str) -> None:
    """Whole prompts, odd chunks and single tokens, by 1, 2, 3 and 5 threads: the values, and one set of bits."""
    total = 331
    text = Text.random(shape, total, cache_type)
    with Bed(kernels, shape, 2, max_rows=total) as bed:
        made = bed.alone(text, [total])
        error = np.abs(made - expected(bed, text)).max()
        assert error < TOLERANCE[cache_type], error
        np.testing.assert_array_equal(made.view(np.int32), bed.alone(text, chunks(total, 7, 1, 64, 2)).view(np.int32))
    for threads in (1, 3, 5):
        with Bed(kernels, shape, threads, max_rows=total) as bed:
            for cut in (chunks(total, 100, 5), [256, 8, *[1] * (total - 264)]):
                again = bed.alone(text, cut)
                np.testing.assert_array_equal(made.view(np.int32), again.view(np.int32), err_msg=f"{threads} {cut}")


def bits(made: Floats) -> NDArray[np.int32]:
    return made.view(np.int32)


@pytest.mark.parametrize("window", [0, 90])
def test_many_texts_in_one_step(kernels: Kernels, window: int) -> None:
    """Texts of all types of cache, chunks beside single tokens, in any order: each has the bits it has alone."""
    shape = Shape(6, 2, 48, window, n_rotated=16)
    lengths = (5, 331, 70, 300, 129, 64, 257, 1, 9)
    texts = [
        Text.random(shape, length, cache_type, seed)
        for seed, (length, cache_type) in enumerate(itertools.product(lengths, TYPES))
    ]
    rng = np.random.default_rng(window)
    with Bed(kernels, shape, 2, max_rows=512) as bed:
        alone = [bed.alone(text, [len(text.q)]) for text in texts]
    for threads in (1, 2, 5):
        made: list[list[Floats]] = [[] for _ in texts]
        going = [text.fresh() for text in texts]
        with Bed(kernels, shape, threads, max_rows=512) as bed:
            while open_ := [number for number, text in enumerate(going) if text.position < len(text.q)]:
                chosen = rng.permutation(open_)[: rng.integers(1, 20)]
                left = [len(going[number].q) - going[number].position for number in chosen]
                counts = [min(most, int(rng.choice([1, 1, 3, 8, 9, 20]))) for most in left]
                chunks_ = [(going[number], count) for number, count in zip(chosen, counts, strict=True)]
                for number, rows in zip(chosen, bed.run(*chunks_), strict=True):
                    made[number].append(rows)
        for wanted, parts in zip(alone, made, strict=True):
            np.testing.assert_array_equal(bits(np.concatenate(parts)), bits(wanted))


@pytest.mark.parametrize("cache_type", TYPES)
def test_what_cannot_be_seen_changes_nothing(kernels: Kernels, cache_type: str) -> None:
    """NaN, infinities and the sign of zero in later rows of the same chunk leave earlier rows as they are."""
    shape = Shape(4, 2, 64)
    text = Text.random(shape, 80, cache_type)
    text.v[:40] = -0.0
    with Bed(kernels, shape, max_rows=80) as bed:
        before = bed.alone(text, [80])
        np.testing.assert_array_equal(before[:40], 0)
        for position, value in ((40, np.nan), (41, np.inf), (50, -np.inf), (63, 1e30), (64, np.nan)):
            spoiled = text.fresh()
            spoiled.k, spoiled.v = text.k.copy(), text.v.copy()
            spoiled.k[position], spoiled.v[position] = value, value
            after = bed.alone(spoiled, [80])
            np.testing.assert_array_equal(bits(after[:position]), bits(before[:position]))
            if not np.isfinite(value):
                assert not np.isfinite(after[position]).all()


def test_scores_that_differ_by_more_than_a_float_holds(kernels: Kernels) -> None:
    """Weights of 0 and largest scores that rise from part to part; then a row that sees nothing but -infinity."""
    shape = Shape(2, 2, 32, scale=1.0)
    text = Text.random(shape, 600, "F32")
    text.q[:], text.k[:] = 1.0, 0.0
    text.k[:, :, 0] = np.linspace(-3000, 3000, 600)[:, None]
    with Bed(kernels, shape, max_rows=600) as bed:
        np.testing.assert_allclose(bed.alone(text, [600]), expected(bed, text), rtol=1e-4, atol=1e-5)
        text.k = text.k[::-1].copy()
        np.testing.assert_allclose(bed.alone(text, [600]), expected(bed, text), rtol=1e-4, atol=1e-5)
        text.k[:] = -np.inf
        assert np.isnan(bed.alone(text, [3, 597])).all()


def stored(kernels: Kernels, cache_type: str, values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Keys and values of one head, positions 0 on, as they lie in a block: bytes."""
    shape = Shape(1, 1, values.shape[1])
    heads = values[:, None]
    text = Text(heads, heads, heads, cache_type)
    with Bed(kernels, shape, 1, max_rows=len(values)) as bed:
        with np.errstate(invalid="ignore"):
            bed.run((text, len(values)))
        layer = bed.layouts[cache_type].layers[0]
    block = text.blocks[0]
    return block[layer.keys :][: layer.head_bytes], block[layer.values :][: layer.head_bytes]


def test_16_bit_floats_are_numpy_s(kernels: Kernels) -> None:
    """Every 16-bit float there and back, and float32 numbers between, at and beyond them, rounded to even."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].astype(np.float32)
    between = (finite + np.nextafter(finite, np.float32(1e9), dtype=np.float32)) / 2
    random = np.random.default_rng(0).integers(0, 1 << 32, 50_000, dtype=np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 65504, 65519.99, 65520, 1e-8, 2.98e-8, 2.99e-8, -0.0], np.float32)
    halfway = (np.sort(finite)[:-1] + np.sort(finite)[1:]) / 2
    numbers = np.concatenate([every.astype(np.float32), between, random, special, halfway])
    numbers = np.resize(numbers, (-(-len(numbers) // 4096), 4096)).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = numbers.astype(np.float16)
    assert len(numbers) <= 64
    keys, rows_ = stored(kernels, "F16", numbers)
    as_values = rows_.view(np.float16).reshape(64, 4096)[: len(numbers)]
    as_keys = keys.view(np.float16).reshape(4, 4096, 16).transpose(0, 2, 1).reshape(64, 4096)[: len(numbers)]
    good = ~np.isnan(wanted)
    for made in (as_values, as_keys):
        np.testing.assert_array_equal(np.isnan(made), ~good)
        np.testing.assert_array_equal(made[good].view(np.uint16), wanted[good].view(np.uint16))


def test_the_cache_of_8_bits(kernels: Kernels) -> None:
    """Codes are the value over a 127th of the largest of 32, rounded."""
    values = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32) * 5
    values[3, :32] = 0
    keys, rows_ = stored(kernels, "Q8_0", values)
    row_bytes, tile_bytes = 64 + 4, 64 * 16 + 2 * 16 * 2
    for position in range(20):
        row = rows_[position * row_bytes :][:row_bytes]
        tile = keys[position // 16 * tile_bytes :][:tile_bytes]
        codes, scales = row[:64].view(np.int8), row[64:].view(np.float16)
        np.testing.assert_array_equal(tile[: 64 * 16].view(np.int8)[position % 16 :: 16], codes)
        np.testing.assert_array_equal(tile[64 * 16 :].view(np.float16)[position % 16 :: 16], scales)
        for block in range(2):
            part = values[position, 32 * block : 32 * block + 32]
            scale = np.abs(part).max() / 127
            assert scales[block] == np.float16(scale)
            wanted = np.rint(part / scale) if scale else np.zeros(32)
            assert np.abs(codes[32 * block :][: len(part)] - wanted).max() <= 1


def test_a_layout_by_hand() -> None:
    """Two layers: one head of 40, padded to 64 with two scales a position, and three of 32."""
    made = BlockLayout.of("Q8_0", [(1, 40), (3, 32)])
    first, second = made.layers
    assert (first.padded, first.head_bytes, first.keys, first.values) == (64, 64 * 68, 0, 64 * 68)
    assert (second.padded, second.head_bytes) == (32, 64 * 34)
    assert (second.keys, second.values, made.nbytes) == (2 * 64 * 68, 2 * 64 * 68 + 3 * 64 * 34, 2 * 64 * (68 + 102))
    assert BlockLayout.of("F16", [(2, 40)]).nbytes == 2 * 2 * 64 * 48 * 2
    with pytest.raises(UsageError, match="Q4_0"):
        BlockLayout.of("Q4_0", [(1, 32)])


def test_a_step_that_makes_no_sense_is_refused() -> None:
    step = StepBlock(8)

    def segment(first: int, count: int, cache_type: str = "F16") -> LoweredSegment:
        return LoweredSegment(first, count, 0, cache_type, (0,))

    for segments in (
        [],
        [segment(0, 9)],
        [segment(1, 2)],
        [segment(0, 2), segment(3, 1)],
        [segment(0, 1), segment(1, 1, "F32"), segment(2, 1)],
        [segment(0, 2), segment(1, 2)],
    ):
        with pytest.raises(InternalError):
            step.fill(segments)
    with pytest.raises(InternalError):
        PickBlock(2).fill([1, 2, 3])


def test_memory_for_parts_grows_with_the_longest_texts(kernels: Kernels) -> None:
    """A text of 5,000 positions, whose parts many threads share, after a short one."""
    shape = Shape(2, 1, 32)
    text = Text.random(shape, 5000, "F16")
    with Bed(kernels, shape, 3, max_rows=5000, n_ctx=5000) as bed:
        short = Text.random(shape, 10, "F16")
        bed.alone(short, [1] * 10)
        made = bed.alone(text, [4990, 1, 1, 8])
        np.testing.assert_array_equal(bits(made), bits(bed.alone(text, [1000, 3990, 9, 1])))
        np.testing.assert_allclose(made[-3:], expected_end(bed, text, 3), atol=1e-3)


def expected_end(bed: Bed, text: Text, n: int) -> NDArray[np.float64]:
    """The last rows of `expected`, whose scores of all rows would be many."""
    k, v = (x.astype(np.float16).astype(np.float64) for x in (text.k, text.v))
    made = np.empty((n, *text.q.shape[1:]))
    for row, head in itertools.product(range(n), range(text.q.shape[1])):
        end = len(text.q) - n + row + 1
        weights = np.exp(k[:end, 0] @ text.q[end - 1, head].astype(np.float64) * bed.shape.head_dim**-0.5)
        made[row, head] = weights @ v[:end, 0] / weights.sum()
    return made.reshape(n, -1)


def test_threads_of_different_sizes_share_no_memory() -> None:
    """They go from the texts of one type of cache to those of the next without waiting for one another."""
    memory, threads = AttentionMemory(3, 8), 3
    sizes = [(16, 2), (32, 2), (16, 2), (64, 1), (32, 2)]
    places = {memory.scratch(padded, group) for padded, group in sizes}
    assert len({each for _, each in places}) == 3
    ends = sorted((address, address + threads * each) for address, each in places)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
