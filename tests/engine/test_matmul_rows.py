"""A row's products have the same bits whichever other rows a step has, in any order, with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from exhaustive import each_pair
from numpy.typing import NDArray

from gpack.engine.backends import COMPUTE, Compute
from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.kernels import BLOCK_TYPES, PLAIN_TYPES
from gpack.engine.backends.cpu.layout import MOST_COLUMNS
from gpack.engine.backends.cpu.matmul import ExpertsView, MatrixView, embed, matmul, moe_matmul
from gpack.engine.backends.cpu.variants import VARIANTS
from gpack.generated.constants import GgmlType

from .products import BLOCKS, NUMBERS, PLAIN, Bed, Floats, Raw, random_rows, tensor

# On both sides of all that kernels take at once, and of where weights are unpacked into panels.
COUNTS = (1, 2, 3, 5, 8, 9, 16, 17, MOST_COLUMNS, MOST_COLUMNS + 1, 33)
MOST = max(COUNTS)
SLOW = tuple(name for name in ("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4") if name in NUMBERS)
EXPERTS, USED = 5, 2


def bits(values: Floats) -> NDArray[np.uint32]:
    return values.view(np.uint32)


def activations(width: int, seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((MOST, width)) * np.exp(rng.uniform(-4, 4, (MOST, 1)))).astype(np.float32)


def any_rows(name: str, rows: int, n_in: int) -> Raw:
    """Stored rows of types with and without kernels."""
    if name in BLOCKS or name in PLAIN:
        return random_rows(name, rows, n_in)
    size = n_in // GgmlType.BLOCK[NUMBERS[name]] * GgmlType.BYTES[NUMBERS[name]]
    return np.random.default_rng(rows).integers(0x10, 0x30, (rows, size), np.uint8)


def lengths(name: str) -> tuple[int, int]:
    """A short row and a long one, of floats no multiples of anything."""
    block = GgmlType.BLOCK[NUMBERS[name]]
    return (block, 1536) if name not in PLAIN else (13, 1037)


def steps() -> Iterator[NDArray[np.intp]]:
    """Rows of steps: each alone, then some of them in any order."""
    yield from np.arange(MOST)[:, None]
    for count in COUNTS[1:]:
        yield np.random.default_rng(count).permutation(MOST)[:count]


def test_all_types_with_kernels_are_tried() -> None:
    assert (*BLOCK_TYPES, *PLAIN_TYPES) == (*BLOCKS, *PLAIN)


@each_pair
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN])
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_of_a_row_are_its_own(variant: str, name: str, compute: Compute) -> None:
    _try_products(variant, name, compute)


@pytest.mark.parametrize("name", SLOW)
def test_products_with_types_without_kernels(name: str) -> None:
    _try_products("portable", name, "int8")


def _try_products(variant: str, name: str, compute: Compute) -> None:
    for n_out, n_in in zip((21, 37), lengths(name), strict=True):
        values, bias = activations(n_in), activations(n_out, 2)[0]
        matrix = MatrixView.of(tensor(name, any_rows(name, n_out, n_in), n_in))
        alone = np.zeros((MOST, n_out), np.float32)
        for threads in (1, 2, 3):
            bed = Bed(variant, compute, threads, max_batch=MOST)
            x, out = Activations(MOST, n_in), Buffer(MOST, n_out)
            matmul(bed.program, bed.work, matrix, x, out, bias=bias, add=True)
            with bed.team() as run:
                for rows in steps():
                    x.array[: len(rows)], out.array[:] = values[rows], -0.0
                    run(len(rows))
                    if len(rows) == 1 and threads == 1:
                        alone[rows] = out.array[:1]
                    assert np.array_equal(bits(out.array[: len(rows)]), bits(alone[rows])), (n_in, threads, rows)
        assert np.isfinite(alone).any()
        assert len(np.unique(alone)) > MOST


@each_pair
@pytest.mark.parametrize("per_token", [1, USED])
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "Q8_0", "IQ2_S", "F16", "F32", "IQ1_M"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_with_experts_are_those_with_their_matrices(
    variant: str, name: str, compute: Compute, per_token: int
) -> None:
    """However many of a step's tokens chose the same expert, and whichever others."""
    n_out, n_in = 21, lengths(name)[1]
    raw = any_rows(name, EXPERTS * n_out, n_in)
    values = activations(per_token * n_in).reshape(-1, n_in)
    made = []
    for number in range(EXPERTS):
        bed = Bed(variant, compute, 1, max_batch=len(values))
        x, out = Activations(len(values), n_in), Buffer(len(values), n_out)
        x.array[:] = values
        part = np.ascontiguousarray(raw[number * n_out :][:n_out])
        matmul(bed.program, bed.work, MatrixView.of(tensor(name, part, n_in)), x, out)
        bed.run(len(values))
        made.append(out.array)
    rng = np.random.default_rng(3)
    likely = np.array([0.5, 0.3, 0.1, 0.1, 0])  # one expert has most tokens, one a few, one none
    chosen = np.array([rng.choice(EXPERTS, USED, replace=False, p=likely) for _ in range(MOST)], np.int32)
    for threads in (1, 3):
        bed = Bed(variant, compute, threads, max_batch=MOST)
        x, out = Activations(MOST, n_in, per_token=per_token), Buffer(MOST, n_out, per_token=USED)
        selected = np.zeros((MOST, USED), np.int32)
        experts = ExpertsView.of(tensor(name, raw, n_in, n_out, EXPERTS))
        moe_matmul(bed.program, bed.work, experts, selected, x, out)
        with bed.team() as run:
            for rows in steps():
                count = len(rows)
                selected[:count] = chosen[rows]
                x.array[: count * per_token] = values.reshape(MOST, per_token, n_in)[rows].reshape(-1, n_in)
                run(count)
                for place, row in enumerate(rows):
                    for number, expert in enumerate(chosen[row]):
                        source = row * per_token + (number if per_token > 1 else 0)
                        found = out.array[place * USED + number]
                        assert np.array_equal(bits(found), bits(made[expert][source])), (threads, rows, row)


@pytest.mark.parametrize("name", ["Q4_K", "BF16", "IQ1_S"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_are_those_of_each_token_alone(variant: str, name: str) -> None:
    n_in = 512
    matrix = MatrixView.of(tensor(name, any_rows(name, MOST, n_in), n_in))
    alone = np.zeros((MOST, n_in), np.float32)
    for threads in (1, 2, 3):
        bed = Bed(variant, threads=threads, max_batch=MOST)
        tokens, out = np.zeros(MOST, np.int32), Buffer(MOST, n_in)
        embed(bed.program, bed.work, matrix, tokens, out)
        with bed.team() as run:
            for rows in steps():
                tokens[: len(rows)] = rows
                run(len(rows))
                if len(rows) == 1 and threads == 1:
                    alone[rows] = out.array[:1]
                assert np.array_equal(bits(out.array[: len(rows)]), bits(alone[rows]))
