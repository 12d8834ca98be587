"""The arithmetic of blocks, as Python and as numba compiles it for the CPU, against ggml's own dequantisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.products import random_rows, values_of

from gpack.engine.backends.cpu.kernels import BLOCK_TYPES
from gpack.engine.backends.cuda.kernels.table_layout import TABLE_WORDS, tables

from .simulated import needs_simulator

pytestmark = needs_simulator


def formats() -> dict[str, Any]:
    from gpack.engine.backends.cuda.kernels.formats import FORMATS

    return FORMATS


def test_there_are_kernels_for_all_types_that_the_cpu_has() -> None:
    assert set(formats()) == set(BLOCK_TYPES)


def test_the_tables_have_the_length_that_kernels_count_with() -> None:
    assert len(tables()) == TABLE_WORDS


def unpacked(unpack: Any, form: Any, words: Any, group: int) -> Any:
    """The weights of a group of 32."""
    number, inside = divmod(group, form.groups)
    made = unpack(words, number * form.units, inside, tables())
    codes = np.array([int(word) & 0xFFFFFFFF for word in made[:8]], "<u4").view(np.int8).astype(np.float64)
    scales, minima = (np.repeat(np.array(pair, np.float64), 16) for pair in (made[8:10], made[10:12]))
    return scales * codes + minima


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_every_group_of_a_block(name: str) -> None:
    form, n_in = formats()[name], 512
    raw = random_rows(name, 2, n_in, seed=5)
    words = raw.reshape(-1).view("<u2" if form.unit == "u16" else "u1")
    made = np.concatenate([unpacked(form.unpack, form, words, group) for group in range(2 * n_in // 32)])
    wanted = values_of(name, raw).reshape(-1)
    assert wanted.std() > 0
    # A few of ggml's sums are rounded where ours are exact.
    np.testing.assert_allclose(made, wanted, rtol=2e-6, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "IQ3_S"])
def test_compiled_for_the_cpu(name: str) -> None:
    import numba

    form, n_in = formats()[name], 4096
    raw = random_rows(name, 1, n_in, seed=6)
    words = raw.reshape(-1).view("<u2")
    unpack = form.unpack

    @numba.njit  # type: ignore[untyped-decorator]
    def total(words: Any, groups: int, inside: int, units: int, tables: Any) -> float:
        made = 0.0
        for group in range(groups):
            c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m0, m1 = unpack(
                words, group // inside * units, group % inside, tables
            )
            first = second = 0
            for word in (c0, c1, c2, c3):
                for k in range(4):
                    first += ((word >> (8 * k) & 255) ^ 128) - 128
            for word in (c4, c5, c6, c7):
                for k in range(4):
                    second += ((word >> (8 * k) & 255) ^ 128) - 128
            made += s0 * first + s1 * second + 16 * (np.float64(m0) + m1)
        return made

    wanted = values_of(name, raw)
    made = total(words, n_in // 32, form.groups, form.units, tables())
    assert abs(made - wanted.sum()) < 1e-5 * np.abs(wanted).sum()
