"""Every type, variant and way to compute, against float64 products of the dequantised weights."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from exhaustive import each_value

from gpack.engine.backends import COMPUTE, Compute
from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.matmul import MatrixView, embed, matmul
from gpack.engine.backends.cpu.variants import VARIANTS
from gpack.errors import FormatError
from gpack.generated.constants import GgmlType
from gpack.quants import dequantize

from .products import (
    BLOCKS,
    HALVES,
    NUMBERS,
    ORACLE,
    PLAIN,
    Bed,
    Floats,
    multiply,
    random_rows,
    rounded,
    seen,
    tensor,
    values_of,
)

needs_oracle = pytest.mark.skipif(not ORACLE.exists(), reason="blocks of llama.cpp: no ../shared/oracle here")
# Rows that fill no tile of 8 or 16; the last batch has more tokens than any kernel takes at once.
N_OUT, COUNTS = 37, (1, 2, 3, 5, 9, 33)


def n_in_of(name: str) -> int:
    """A few blocks, no power of two; for floats no multiple of anything."""
    return 3 * GgmlType.BLOCK[NUMBERS[name]] if name in BLOCKS else 45


def activations(tokens: int, n_in: int, seed: int = 7) -> Floats:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((tokens, n_in)) * np.exp(rng.uniform(-3, 3, (tokens, 1)))).astype(np.float32)


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN])
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_equal_those_of_the_values(variant: str, name: str, compute: Compute) -> None:
    n_in = n_in_of(name)
    raw = random_rows(name, N_OUT, n_in)
    weights = values_of(name, raw)
    bed = Bed(variant, compute, threads=1 + NUMBERS[name] % 3)
    x, out = Activations(40, n_in), Buffer(40, N_OUT)
    x.array[:] = activations(40, n_in)
    bias = np.arange(N_OUT, dtype=np.float32)
    matrix = MatrixView.of(tensor(name, raw, n_in))
    matmul(bed.program, bed.work, matrix, x, out, bias=bias, add=True)
    source = seen(name, compute, x.array)
    expected = source @ weights.T
    size = np.abs(source) @ np.abs(weights.T)
    for count in COUNTS:
        out.array[:] = 3
        bed.run(count)
        error = np.abs(out.array[:count] - (expected[:count] + bias + 3))
        assert np.all(error <= 1e-6 * size[:count] + 1e-5)
        assert np.all(out.array[count:] == 3)  # nothing is written after the batch


@pytest.mark.parametrize("name", BLOCKS)
def test_eight_bits_are_off_by_about_half_a_step_at_most(name: str) -> None:
    n_in = 2 * GgmlType.BLOCK[NUMBERS[name]]
    raw, x = random_rows(name, 16, n_in), activations(3, n_in)
    weights = values_of(name, raw)
    steps = np.repeat(np.abs(x).reshape(3, -1, 32).max(-1) / 126, 32, axis=1)  # the coarsest scale that is tried
    made = multiply(name, raw, x, "portable")
    assert np.all(np.abs(made - x.astype(np.float64) @ weights.T) <= (steps / 2) @ np.abs(weights.T) * (1 + 1e-5))
    assert np.any(made != multiply(name, raw, x, "portable", compute="f32"))


# Bytes of blocks in which groups have their scales and minima.
LEVELS = {"Q2_K": (0, 16), "Q3_K": (96, 108), "Q4_K": (4, 16), "Q5_K": (4, 16), "Q6_K": (192, 208)}
ENDS = (0x00, 0x0F, 0x77, 0x7F, 0x80, 0xF0, 0xFF)  # 7: MXFP4's largest


@each_value
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_extremes_of_codes_scales_and_activations(variant: str, name: str) -> None:
    """Where 16 bits could overflow: codes and levels at the ends of their ranges, activations of 127, -127, 0 steps."""
    n_in, size = 2 * GgmlType.BLOCK[NUMBERS[name]], GgmlType.BYTES[NUMBERS[name]]
    pairs = list(product(ENDS, ENDS))
    blocks = np.array([code for code, _ in pairs], np.uint8)[:, None, None].repeat(2, 1).repeat(size, 2)
    blocks[:, :, slice(*LEVELS.get(name, (0, 0)))] = np.array([level for _, level in pairs], np.uint8)[:, None, None]
    kept = random_rows(name, len(pairs), n_in).reshape(blocks.shape)
    for place in _scale_places(name):
        blocks[:, :, place] = kept[:, :, place]
    raw = blocks.reshape(len(pairs), -1)
    weights = values_of(name, raw)
    # Runs as long as this, of one sign and then of the other, or of zeros.
    late = np.array([np.arange(n_in) // length % 2 for length in (1, 2, 4, 8, 16, n_in)], np.float32)
    early = 1 - late
    x = np.concatenate([early, -early, late, -late, early - late, late - early]) * np.float32(2.5)
    seen_x = rounded(x)
    expected, sizes = seen_x @ weights.T, np.abs(seen_x) @ np.abs(weights.T)
    largest = np.outer(np.abs(seen_x).sum(1), np.abs(weights).max(1))  # weights of 0 are codes less their offset
    for count in (1, len(x)):
        made = [multiply(name, raw, x[first : first + count], variant) for first in range(0, len(x), count)]
        assert np.all(np.abs(np.concatenate(made) - expected) <= 1e-5 * sizes + 1e-7 * largest)


def _scale_places(name: str) -> list[int]:
    return [0] if name == "MXFP4" else [at for first in HALVES[name] for at in (first, first + 1)]


@each_value
@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "MXFP4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scales_without_a_number_stay_in_their_rows(variant: str, name: str) -> None:
    n_in = 2 * GgmlType.BLOCK[NUMBERS[name]]
    healthy = np.array([row not in (3, 18) for row in range(20)])
    for place in HALVES[name]:  # scales and minima
        raw = random_rows(name, 20, n_in)
        raw[3, place : place + 2] = (0x00, 0x7E)  # NaN
        raw[18, place : place + 2] = (0x00, 0x7C)  # infinite
        raw[5, place : place + 2] = (0x01, 0x00)  # the smallest subnormal: 2^-24
        weights = values_of(name, raw)[healthy]
        for tokens in (1, 9):
            x = activations(tokens, n_in)
            made = multiply(name, raw, x, variant)
            assert not np.isfinite(made[:, ~healthy]).any()
            size = np.abs(rounded(x)) @ np.abs(weights.T)
            assert np.all(np.abs(made[:, healthy] - rounded(x) @ weights.T) <= 1e-6 * size)


@pytest.mark.parametrize("variant", VARIANTS)
def test_subnormal_scales_are_exact(variant: str) -> None:
    raw = np.zeros((16, 34), np.uint8)
    raw[:, 0] = np.arange(1, 17)  # scales of 1 to 16 times 2^-24
    raw[:, 2] = 5
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127
    assert multiply("Q8_0", raw, x, variant)[0].tolist() == [127 * 5 * number * 2.0**-24 for number in range(1, 17)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_activations_without_a_number_spoil_their_token_only(variant: str, compute: Compute, bad: float) -> None:
    for name, tokens in product(("Q4_0", "Q8_0", "Q5_K", "Q6_K", "F16"), (2, 9)):
        raw, x = random_rows(name, 16, 256), activations(tokens, 256)
        x[1, 40] = bad
        made = multiply(name, raw, x, variant, compute=compute)
        assert not np.isfinite(made[1]).any()
        assert np.isfinite(np.delete(made, 1, axis=0)).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_activations_of_nothing_and_of_next_to_nothing(variant: str) -> None:
    raw = random_rows("Q8_0", 16, 64)
    x = np.zeros((3, 64), np.float32)
    x[1], x[2, 0] = 1e-40, 1e30
    made = multiply("Q8_0", raw, x, variant)
    assert np.all(made[:2] == 0)  # the reciprocal of 1e-40 would be infinite
    assert np.allclose(made[2], values_of("Q8_0", raw)[:, 0] * 1e30, rtol=1e-6)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "F16"])
def test_variants_agree(name: str) -> None:
    n_in = n_in_of(name)
    raw, x = random_rows(name, 40, n_in), activations(9, n_in)
    made = []
    for variant in VARIANTS:
        try:
            made.append(multiply(name, raw, x, variant))
        except pytest.skip.Exception:
            continue
    size = np.abs(x) @ np.abs(values_of(name, raw).T)
    for other in made[1:]:
        assert np.all(np.abs(made[0] - other) <= 1e-6 * size)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_do_not_change_the_bits(threads: int) -> None:
    raw, x = random_rows("Q4_K", 200, 512), activations(12, 512)
    alone = multiply("Q4_K", raw, x, "portable", threads=1)
    assert np.array_equal(alone, multiply("Q4_K", raw, x, "portable", threads=threads))


@pytest.mark.parametrize("n_out", [1, 7, 8, 16, 17, 1025])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_any_number(variant: str, n_out: int) -> None:
    raw, x = random_rows("Q5_1", n_out, 32), activations(4, 32)
    expected = rounded(x) @ values_of("Q5_1", raw).T
    assert np.allclose(multiply("Q5_1", raw, x, variant), expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(multiply("Q5_1", raw, x[:1], variant), expected[:1], rtol=1e-5, atol=1e-5)


@each_value
@pytest.mark.parametrize("n_in", [1, 3, 4, 8, 11, 64, 147])  # one token takes up to 64 at a time
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("variant", VARIANTS)
def test_floats_in_rows_of_any_length(variant: str, name: str, n_in: int) -> None:
    raw, x = random_rows(name, 18, n_in), activations(5, n_in)
    weights = values_of(name, raw)
    expected, sizes = x.astype(np.float64) @ weights.T, np.abs(x) @ np.abs(weights.T)
    for tokens in (1, 5):
        made = multiply(name, raw, x[:tokens], variant)
        assert np.all(np.abs(made - expected[:tokens]) <= 1e-6 * sizes[:tokens])


@needs_oracle
@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN[1:]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_have_the_bits_of_llama_cpp(variant: str, name: str) -> None:
    with np.load(ORACLE) as oracle:
        raw, expected = oracle[f"{name}.raw"], oracle[f"{name}.f32"]
    assert np.array_equal(_embedded(name, raw, variant).view(np.uint32), expected[::-1].view(np.uint32))


@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN])
@pytest.mark.parametrize("variant", VARIANTS)
def test_embeddings_of_any_bytes(variant: str, name: str) -> None:
    """Infinite, subnormal and negative scales; a NaN is a NaN, whatever its bits."""
    number = NUMBERS[name]
    row = 4 * GgmlType.BYTES[number] if name in BLOCKS else 20
    raw = np.random.default_rng(number).integers(0, 256, (8, row), np.uint8)
    expected = dequantize(raw, number)[::-1]
    made = _embedded(name, raw, variant)
    same = made.view(np.uint32) == expected.view(np.uint32)
    assert np.all(same | (np.isnan(made) & np.isnan(expected)))


def _embedded(name: str, raw: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], variant: str) -> Floats:
    """All rows, the last one first."""
    number = NUMBERS[name]
    n_in = raw.shape[1] // GgmlType.BYTES[number] * GgmlType.BLOCK[number]
    bed = Bed(variant, max_batch=len(raw))
    out = Activations(len(raw), n_in)
    tokens = np.arange(len(raw), dtype=np.int32)[::-1].copy()
    embed(bed.program, bed.work, MatrixView.of(tensor(name, raw, n_in)), tokens, out)
    bed.run(len(raw))
    return out.array


SLOW = ["IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4", "Q1_0", "Q2_0"]


@needs_oracle
@pytest.mark.parametrize("name", SLOW)
def test_types_without_kernels(name: str) -> None:
    with np.load(ORACLE) as oracle:
        raw, values = oracle[f"{name}.raw"], oracle[f"{name}.f32"]
    x = activations(3, values.shape[1])
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    size = np.abs(x) @ np.abs(values.T)
    assert np.all(np.abs(multiply(name, raw, x, "portable") - expected) <= 1e-5 * size)
    assert np.array_equal(_embedded(name, raw, "portable").view(np.uint32), values[::-1].view(np.uint32))
    bed = Bed("portable", max_batch=3)
    source, out = Activations(3, values.shape[1]), Buffer(3, len(raw))
    source.array[:], out.array[:] = x, 5
    bias = np.ones(len(raw), np.float32)
    matrix = MatrixView.of(tensor(name, raw, values.shape[1]))
    matmul(bed.program, bed.work, matrix, source, out, bias=bias, add=True)
    bed.run(3)
    assert np.allclose(out.array, expected + 6, rtol=1e-4, atol=1e-4)


def test_one_rounding_serves_several_products() -> None:
    bed = Bed("portable")
    x, out = Activations(4, 64), Activations(4, 64)
    square = MatrixView.of(tensor("Q4_0", random_rows("Q4_0", 64, 64), 64))
    for _ in range(3):
        matmul(bed.program, bed.work, square, x, out)
    assert bed.program.names == ["quantize_q8", "matmul", "matmul", "matmul"]
    matmul(bed.program, bed.work, square, out, x)  # `out` was written to, now `x` is
    matmul(bed.program, bed.work, square, x, out)
    assert bed.program.names[4:] == ["quantize_q8", "matmul", "quantize_q8", "matmul"]


def test_sizes_that_do_not_fit_are_named() -> None:
    bed = Bed("portable")
    matrix = MatrixView.of(tensor("Q4_0", random_rows("Q4_0", 5, 64), 64))
    for x, out in ((Activations(4, 32), Buffer(4, 5)), (Activations(4, 64), Buffer(4, 6))):
        with pytest.raises(FormatError, match=r"Q4_0\.weight.*5 rows of 64") as caught:
            matmul(bed.program, bed.work, matrix, x, out)
        assert caught.value.code == "engine.shape"
    with pytest.raises(FormatError, match="a bias"):
        matmul(bed.program, bed.work, matrix, Activations(4, 64), Buffer(4, 5), bias=np.zeros(4, np.float32))
    with pytest.raises(FormatError, match="do not become 2"):
        matmul(bed.program, bed.work, matrix, Activations(4, 64), Buffer(4, 5, per_token=2))
    with pytest.raises(FormatError, match="rows of 64"):
        embed(bed.program, bed.work, matrix, np.zeros(4, np.int32), Buffer(4, 65))
    with pytest.raises(FormatError, match="not a matrix"):
        MatrixView.of(tensor("Q4_0", random_rows("Q4_0", 4, 64), 64, 2, 2))
    assert len(bed.program) == 0
