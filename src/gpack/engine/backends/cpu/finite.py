"""Looks for weights that may not be finite, at the speed of memory.

Of a block of weights only the scale can be such a value; of a float only its exponent is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....generated.constants import GgmlType
from .buffers import aligned
from .matrices import ExpertsView, MatrixView
from .team import Program, Team

_WORD = 8  # bytes that the kernel reads at a time
_HALF, _HALF_CARRY, _HALF_TEST = 0x7FFF, 0x0400, 0x8000  # 16-bit floats: an exponent of ones carries into the sign


@dataclass(frozen=True)
class _Unit:
    """What the kernel looks at; `kernels.finite.find_not_finite` says how.

    Attributes:
        stride: Bytes from unit to unit.
        offset: Of the 8 bytes that are read of each.
    """

    stride: int
    offset: int
    mask: int
    add: int
    test: int


def _block(ggml_type: int, first: int, size: int, mask: int, add: int, test: int) -> _Unit:
    """A block whose scales are the `size` bytes from byte `first` on: they end the 8 bytes or begin them."""
    stride = GgmlType.BYTES[ggml_type]
    offset = min(first, stride - _WORD)
    shift = 8 * (first - offset)
    assert 0 <= first - offset <= _WORD - size
    return _Unit(stride, offset, mask << shift, add << shift, test << shift)


def _halves(ggml_type: int, first: int, count: int = 1) -> _Unit:
    """A block whose scales, and minima, are 16-bit floats."""
    ones = sum(1 << 16 * place for place in range(count))
    return _block(ggml_type, first, 2 * count, ones * _HALF, ones * _HALF_CARRY, ones * _HALF_TEST)


def _floats(bits: int, infinite: int) -> _Unit:
    """Floats of so many bits, of which those from `infinite` on are not finite."""
    ones = sum(1 << place for place in range(0, 64, bits))
    sign = 1 << bits - 1
    return _Unit(_WORD, 0, ones * (sign - 1), ones * (sign - infinite), ones * sign)


_G = GgmlType
_UNITS: dict[int, _Unit] = {
    _G.F32: _floats(32, 0x7F800000),
    _G.F16: _floats(16, 0x7C00),
    _G.BF16: _floats(16, 0x7F80),
    _G.F64: _floats(64, 0x47EFFFFFF0000000),  # from here on float32 is infinite
    **{kind: _halves(kind, 0) for kind in (_G.Q4_0, _G.Q5_0, _G.Q8_0, _G.IQ4_NL, _G.IQ4_XS, _G.Q1_0, _G.Q2_0)},
    **{kind: _halves(kind, 0) for kind in (_G.IQ1_S, _G.IQ2_XXS, _G.IQ2_XS, _G.IQ2_S, _G.IQ3_XXS, _G.IQ3_S)},
    **{kind: _halves(kind, 0, 2) for kind in (_G.Q4_1, _G.Q5_1, _G.Q4_K, _G.Q5_K)},
    _G.Q2_K: _halves(_G.Q2_K, 80, 2),
    _G.Q3_K: _halves(_G.Q3_K, 108),
    _G.Q6_K: _halves(_G.Q6_K, 208),
    _G.TQ1_0: _halves(_G.TQ1_0, 52),
    _G.TQ2_0: _halves(_G.TQ2_0, 64),
    # The scale's exponent is bits 60 to 62 and 46 to 47 of 8 bytes; ones between them hand the carry on.
    _G.IQ1_M: _block(_G.IQ1_M, 48, 8, 0x7000C00000000000, 0x0FFF400000000000, 1 << 63),
    # 2^(e - 127) times at most 6 is beyond float32 from here on, where the codes are large enough.
    _G.MXFP4: _block(_G.MXFP4, 0, 2, 0xFF, 0x100 - 0xFD, 0x100),
}
# All that these can hold is finite: of NVFP4's scales 0x7F is 0 by ggml's definition, and 0xFF a number.
_ALWAYS_FINITE = (_G.NVFP4, _G.I8, _G.I16, _G.I32, _G.I64)


def suspects(team: Team, weights: Sequence[MatrixView | ExpertsView]) -> list[MatrixView | ExpertsView]:
    """Of some matrices those that may hold such a value; all others surely hold none. Read in the order of memory."""
    program, found = Program(team.kernels), aligned((len(weights),), np.int64)
    order = sorted(range(len(weights)), key=lambda number: _addresses(weights[number])[0])
    for number in order:
        matrix = weights[number]
        length, unit = matrix.n_out * matrix.row_bytes, _UNITS.get(matrix.ggml_type)
        if matrix.ggml_type in _ALWAYS_FINITE:
            continue
        if unit is None or length < _WORD:
            found[number] = 1
            continue
        table = program.keep(np.ascontiguousarray(_addresses(matrix), np.int64))
        words = (unit.mask, unit.add, unit.test - (unit.test >> 63 << 64))
        program.add(
            "find_not_finite",
            table.ctypes.data,
            len(table),
            length,
            unit.stride,
            unit.offset,
            *words,
            found[number:].ctypes.data,
            counter=True,
        )
    team.run(program)
    return [weights[number] for number in order if found[number]]


def _addresses(matrix: MatrixView | ExpertsView) -> Any:
    return matrix.addresses if isinstance(matrix, ExpertsView) else np.array([matrix.address], np.int64)
