"""Kernels in the simulator against the reference in float64: every operation and every type of weights.

A text's bits are also compared alone and among others, and in chunks of one row and of many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.graph_runs import Bed, Doubles, Pair, quantised
from engine.products import BLOCKS, NUMBERS, PLAIN
from engine.test_parity import CASES, Build, attention, built, rows_of_type
from exhaustive import thinned

from gpack.engine.backends.cuda.lowering import Lowering
from gpack.engine.backends.reference import ReferenceBackend
from gpack.engine.backends.reference.rounding import as_8_bits
from gpack.errors import UnsupportedError
from gpack.generated.constants import GgmlType

from .simulated import needs_simulator, simulated

pytestmark = needs_simulator

ROWS = 4
KNOWN = {kind.__name__ for kind in Lowering.MAKERS}
LEFT_OUT = {"PieceNorm", "MeanPieces", "AddToPieces", "PieceGate", "NgramRows", "SparseAttention"}


def runs(backend: Any, pair: Pair, cache_type: str) -> tuple[Doubles, Doubles]:
    """Hidden states of a text in chunks of 1, 2 and 1 rows, the second beside another text; and all logits."""
    bed = Bed(backend, pair, cache_types=(cache_type,))
    one, two = bed.text(cache_type), bed.text(cache_type)
    hidden, logits = [], []
    for first, end in ((0, 1), (1, 3), (3, ROWS)):
        parts = [(one, list(range(first, end)))]
        if first == 1:
            parts.insert(0, (two, [7, 8]))
        rows = sum(len(part) for _, part in parts)
        made = bed.step(*parts, wanted=list(range(rows)))
        hidden.append(made[0][rows - (end - first) :])
        logits.append(made[1][rows - (end - first) :])
    return np.concatenate(hidden), np.concatenate(logits)


def check(
    build: Build,
    *,
    width: int = 32,
    compute: Any = "f32",
    cache_type: str = "F32",
    most: float = 1e-5,
    least: float = 0.05,
) -> None:
    pair = built(build, width)
    with simulated(compute=compute) as backend:
        hidden, logits = runs(backend, pair, cache_type)
        bed = Bed(backend, pair, cache_types=(cache_type,))
        together = bed.step((bed.text(cache_type), list(range(ROWS))), wanted=list(range(ROWS)))
    reference = ReferenceBackend(compute=compute, batch=16, round_caches=True)
    wanted = runs(reference, pair, cache_type)
    for made, right, whole in zip((hidden, logits), wanted, together, strict=True):
        assert right.std() > least
        np.testing.assert_allclose(made, right, rtol=0, atol=most * right.std())
        # `Given` rows are those of a step, so only what depends on tokens alone is the same in another cut.
        assert np.array_equal(made, whole)


def test_what_has_no_kernel_is_known() -> None:
    assert set(CASES) == KNOWN | LEFT_OUT


@pytest.mark.parametrize(
    "name", thinned([f"{kind}: {case}" for kind, cases in CASES.items() if kind in KNOWN for case in cases], 3)
)
def test_operations(name: str) -> None:
    kind, case = name.split(": ")
    # Rows of the delta rule are small: keys are normed, and the state begins as zeros.
    check(CASES[kind][case], width=64 if kind == "Columns" else 32, least=0.03 if kind == "DeltaRule" else 0.05)


@pytest.mark.parametrize("kind", sorted(LEFT_OUT))
def test_operations_without_a_kernel_are_refused_by_name(kind: str) -> None:
    for build in CASES[kind].values():
        pair = built(build)
        with simulated(compute="f32") as backend, pytest.raises(UnsupportedError) as caught:
            Bed(backend, pair)
        assert caught.value.code == "engine.operation"


@pytest.mark.parametrize("cache_type", thinned(["Q8_0", "F16"], 2))
def test_caches(cache_type: str) -> None:
    """But for numbers that float32 and float64 round to different neighbours."""
    from gpack.engine.graph.rope import Rope

    check(attention(Rope(16, 1000.0, interleaved=False), norms=True, head_dim=40), cache_type=cache_type, most=2e-2)


@pytest.mark.parametrize("compute", ["int8"])
@pytest.mark.parametrize("name", thinned([*BLOCKS, *PLAIN], 4))
def test_products(name: str, compute: str) -> None:
    n_in = max(64, GgmlType.BLOCK[NUMBERS[name]])
    weights = quantised("m", rows_of_type(name, 8, n_in), NUMBERS[name], n_in)
    check(lambda pair, x: pair.body.matmul(x, weights), width=n_in, compute=compute)


@pytest.mark.parametrize("name", thinned([*BLOCKS, *PLAIN], 7))
def test_rows_of_tokens(name: str) -> None:
    n_in = max(64, GgmlType.BLOCK[NUMBERS[name]])
    pair = Pair(np.zeros((9, n_in)))
    pair.end(pair.body.embed(quantised("m", rows_of_type(name, 9, n_in), NUMBERS[name], n_in)))
    with simulated() as backend:
        made = runs(backend, pair, "F32")[0]
    wanted = runs(ReferenceBackend(batch=16), pair, "F32")[0]
    np.testing.assert_allclose(made, wanted, rtol=2e-6, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["F64", "TQ1_0"])
def test_types_without_a_kernel_are_refused_with_the_tensor(name: str) -> None:
    n_in = max(64, GgmlType.BLOCK[NUMBERS[name]])
    weights = quantised("blk.0.w", rows_of_type(name, 8, n_in), NUMBERS[name], n_in)
    pair = built(lambda pair, x: pair.body.matmul(x, weights), n_in)
    with simulated() as backend, pytest.raises(UnsupportedError, match=rf"blk\.0\.w of type {name}") as caught:
        Bed(backend, pair)
    assert caught.value.field == "blk.0.w"


def test_activations_are_rounded_as_the_cpu_rounds_them() -> None:
    """Codes and scales bit for bit: random groups, halves, equal values, the smallest and the largest, no numbers."""
    rng = np.random.default_rng(0)
    wide = [np.ldexp(rng.standard_normal((2, 32)), power) for power in (-140, -121, -120, 0, 120)]
    halves = np.rint(40 * rng.standard_normal((16, 32))) / 2
    x = np.concatenate([rng.standard_normal((40, 32)), halves, np.zeros((1, 32)), np.ones((1, 32)), *wide])
    x = np.concatenate([x, rng.standard_normal((3, 32))]).astype(np.float32)
    x[-1, 3], x[-2, 7], x[-3, 3] = np.nan, np.inf, -np.inf
    with simulated() as backend:
        driver, count = backend.driver, len(x)
        source, codes, scales = (driver.allocate(size * count) for size in (128, 32, 12))
        driver.upload(source, x)
        driver.launch("quantize_q8", (1, 1), count, (source, codes, scales, count))
        got, of = np.empty((count, 32), np.int8), np.empty((count, 3), np.float32)
        driver.download(codes, got)
        driver.download(scales, of)
    with np.errstate(invalid="ignore"):
        made = got * of[:, :1].astype(np.float64)
    assert np.array_equal(made, as_8_bits(x.astype(np.float64)), equal_nan=True)
    halved = got[:-3].reshape(-1, 2, 16).sum(axis=-1, dtype=np.int64) * of[:-3, :1].astype(np.float64)
    np.testing.assert_allclose(of[:-3, 1:], halved, rtol=1e-7)
