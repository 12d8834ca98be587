"""Weights that are no finite numbers, in every type: found where they are, by every variant of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpack.engine.backends.cpu.finite import suspects
from gpack.engine.backends.cpu.matrices import ExpertsView, MatrixView
from gpack.engine.backends.cpu.team import Team
from gpack.engine.backends.cpu.variants import VARIANTS
from gpack.engine.finite import first_not_finite
from gpack.generated.constants import GgmlType
from gpack.quants import dequantize
from gpack.tensor import Tensor

from .products import HALVES, NUMBERS, Raw, kernels

ROWS = 5
# Where blocks hold 16-bit floats, of the types without kernels too.
SCALES = HALVES | {"IQ1_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q2_0": (0,)}
# NaN and infinities of floats, as they are stored; F64 also what float32 does not hold.
FLOATS = {
    "F32": ("<u4", (0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000)),
    "F16": ("<u2", (0x7E00, 0x7C01, 0x7C00, 0xFC00)),
    "BF16": ("<u2", (0x7FC0, 0x7F81, 0x7F80, 0xFF80)),
    "F64": ("<u8", (0x7FF8 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x47EFFFFFF0000000)),
}
# Of F32, BF16, F16 and F64, numbers that are just finite, and ones whose bits look like an exponent somewhere else.
LARGEST = {
    "F32": (0x7F7FFFFF, 0x807FFFFF, 0x00007C00),
    "F16": (0x7BFF, 0xFBFF, 0x03FF),
    "BF16": (0x7F7F, 0xFF7F, 0x007F),
    "F64": (0x47EFFFFFEFFFFFFF, 0xC7EFFFFFEFFFFFFF, 0x7FF0),
}
BLOCKED = [*SCALES, "IQ1_M", "NVFP4"]


def finite_blocks(name: str, count: int) -> Raw:
    """Random blocks of which every value is finite: uint8 [count, bytes of a block]."""
    number = NUMBERS[name]
    raw = np.random.default_rng(number).integers(0, 256, (40 * count, GgmlType.BYTES[number]), np.uint8)
    good = np.isfinite(dequantize(raw, number)).all(axis=1)
    return np.ascontiguousarray(raw[good][:count])


def tensor(kind: str, raw: Raw, *dims: int, name: str = "w") -> Tensor:
    return Tensor.over(memoryview(raw.tobytes()), name=name, ggml_type=NUMBERS[kind], dims=dims)


def found(variant: str, tensors: list[Tensor], threads: int = 2) -> list[str]:
    """Names of the tensors that hold something, in the order of memory; first from what was looked at in short."""
    with Team(kernels(variant), threads) as team:
        made = [MatrixView.of(item) if len(item.dims) == 2 else ExpertsView.of(item) for item in tensors]
        return [item.name for item in suspects(team, made)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", [name for name in SCALES if name != "MXFP4"])
def test_a_scale_in_any_block(kind: str, variant: str) -> None:
    number = NUMBERS[kind]
    n_in = 3 * GgmlType.BLOCK[number]
    good = finite_blocks(kind, 3 * ROWS)
    tensors, places = [tensor(kind, good, n_in, ROWS, name="good")], {}
    for block in (0, 3 * ROWS // 2, 3 * ROWS - 1):
        for offset in SCALES[kind]:
            for value in (0x7E00, 0x7C00, 0xFC00):  # NaN, infinity, -infinity
                raw = good.copy()
                raw[block, offset : offset + 2] = value & 0xFF, value >> 8
                name = f"{block} {offset} {value:x}"
                tensors.append(tensor(kind, raw, n_in, ROWS, name=name))
                places[name] = (block // 3, block % 3 * GgmlType.BLOCK[number])
    assert sorted(found(variant, tensors)) == sorted(places)
    assert {item.name: first_not_finite(item) for item in tensors} == {"good": None} | places


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("n_in", [8, 7, 1])
def test_a_float_in_any_place(kind: str, n_in: int, variant: str) -> None:
    """Rows that are no multiple of what is read at a time, too."""
    dtype, values = FLOATS[kind]
    good = np.zeros(ROWS * n_in, dtype)
    good[: len(LARGEST[kind])] = LARGEST[kind]
    good = good[::-1].copy()
    tensors, places = [tensor(kind, good.view(np.uint8), n_in, ROWS, name="good")], {}
    for place in (0, len(good) // 2, len(good) - 1):
        for value in values:
            raw = good.copy()
            raw[place] = value
            name = f"{place} {value:x}"
            tensors.append(tensor(kind, raw.view(np.uint8), n_in, ROWS, name=name))
            places[name] = divmod(place, n_in)
    assert sorted(found(variant, tensors)) == sorted(places)
    assert {item.name: first_not_finite(item) for item in tensors} == {"good": None} | places


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BLOCKED)
def test_random_bytes_are_judged_as_their_values_are(kind: str, variant: str) -> None:
    """IQ1_M's scale is spread over its block; of MXFP4's largest scales only large codes make infinities."""
    number, count = NUMBERS[kind], 400
    raw = np.random.default_rng(number).integers(0, 256, (count, GgmlType.BYTES[number]), np.uint8)
    if kind == "IQ1_M":
        raw[::2, 55] |= 0x70
    if kind == "MXFP4":
        raw[::2, 0] |= 0xFC
    n_in = GgmlType.BLOCK[number]
    bad = ~np.isfinite(dequantize(raw, number)).all(axis=1)
    assert bad.any() == (kind != "NVFP4")  # by ggml's definition none of its scales is NaN
    tensors = [tensor(kind, block, n_in, 1, name=str(i)) for i, block in enumerate(raw)]
    assert sorted(map(int, found(variant, tensors))) == np.flatnonzero(bad).tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_scales_that_codes_keep_small(variant: str) -> None:
    """MXFP4: 2^128 times nothing is no infinity; it is looked at value by value, and let go."""
    raw = finite_blocks("MXFP4", 4)
    raw[2] = 0
    raw[2, 0] = 0xFF
    assert found(variant, [tensor("MXFP4", raw, 32, 4)]) == ["w"]
    assert first_not_finite(tensor("MXFP4", raw, 32, 4)) is None
    raw[2, 9] = 0x70  # 6 in the high half: the 24th weight
    assert first_not_finite(tensor("MXFP4", raw, 32, 4)) == (2, 24)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_more_than_a_thread_takes_at_a_time(variant: str, threads: int) -> None:
    """Rows of a megabyte, with one bad value at each end of the pieces that threads take."""
    n_in, rows = 1 << 18, 3
    for place in (0, (1 << 16) - 1, 1 << 16, n_in * rows - 1):
        values = np.zeros(n_in * rows, np.float32)
        values[place] = np.nan
        made = tensor("F32", values.view(np.uint8), n_in, rows)
        assert found(variant, [made], threads) == ["w"]
        assert first_not_finite(made) == divmod(place, n_in)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("apart", [False, True])
def test_experts_each(variant: str, apart: bool) -> None:
    """Of a pack they do not lie in one piece: between them there are bytes of others, which count for nothing."""
    size, gap = 4 * 6 * 8, 16 if apart else 0
    for expert in range(4):
        data = np.full(4 * (size + gap), 0xFF, np.uint8)
        for number in range(4):
            values = np.ones(6 * 8, np.float32)
            if number == expert:
                values[13] = np.inf
            data[number * (size + gap) :][:size] = values.view(np.uint8)
        stride: Any = size + gap
        made = Tensor.over(memoryview(data.data), name="w", ggml_type=GgmlType.F32, dims=(8, 6, 4), stride=stride)
        assert found(variant, [made]) == ["w"]
        assert first_not_finite(made) == (expert, 1, 5)
    data[3 * (size + gap) :][:size] = np.ones(48, np.float32).view(np.uint8)
    assert found(variant, [made]) == []
