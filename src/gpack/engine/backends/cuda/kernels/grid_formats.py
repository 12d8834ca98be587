"""ggml's blocks of 2 and 3 bits whose codes are numbers of points of a grid; `formats` says what unpackers give."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dialect import device, from_half
from .table_layout import IQ2_S_AT, IQ2_XS_AT, IQ2_XXS_AT, IQ3_S_AT, IQ3_XXS_AT


@device
def _word(w: Any, at: Any) -> Any:
    return np.int64(w[at]) | (np.int64(w[at + 1]) << 16)


@device
def _byte(w: Any, at: Any, number: Any) -> Any:
    return (np.int64(w[at + (number >> 1)]) >> (8 * (number & 1))) & 255


@device
def _signed(tables: Any, at: Any, signs: Any) -> Any:
    """A point's four weights, negated where bit 0 to 3 says so; none of them is zero, so no byte carries."""
    ones = ((signs & 15) * 0x00204081) & 0x01010101
    return ((np.int64(tables[at]) & 0xFFFFFFFF) ^ (ones * 255)) + ones


@device
def _eight_signs(seven: Any) -> Any:
    """Signs of eight weights from seven bits: the number of negative ones is even."""
    seven = seven & 127
    parity = seven ^ (seven >> 4)
    parity = parity ^ (parity >> 2)
    parity = parity ^ (parity >> 1)
    return seven | ((parity & 1) << 7)


@device
def _level(d: Any, nibble: Any, factor: Any) -> Any:
    return d * (np.float32(nibble & 15) + np.float32(0.5)) * np.float32(factor)


@device
def iq2_xxs(w: Any, b: Any, group: Any, tables: Any) -> Any:
    at = b + 1 + 4 * group
    packed, t = _word(w, at + 2), IQ2_XXS_AT
    s, m = _level(from_half(w[b]), packed >> 28, 0.25), np.float32(0)
    p0, p1 = t + 2 * _byte(w, at, 0), t + 2 * _byte(w, at, 1)
    p2, p3 = t + 2 * _byte(w, at, 2), t + 2 * _byte(w, at, 3)
    g0, g1 = _eight_signs(packed), _eight_signs(packed >> 7)
    g2, g3 = _eight_signs(packed >> 14), _eight_signs(packed >> 21)
    c0, c1 = _signed(tables, p0, g0), _signed(tables, p0 + 1, g0 >> 4)
    c2, c3 = _signed(tables, p1, g1), _signed(tables, p1 + 1, g1 >> 4)
    c4, c5 = _signed(tables, p2, g2), _signed(tables, p2 + 1, g2 >> 4)
    c6, c7 = _signed(tables, p3, g3), _signed(tables, p3 + 1, g3 >> 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m


@device
def iq2_xs(w: Any, b: Any, group: Any, tables: Any) -> Any:
    at, t, m = b + 1 + 4 * group, IQ2_XS_AT, np.float32(0)
    d, nibbles = from_half(w[b]), _byte(w, b + 33, group)
    s0, s1 = _level(d, nibbles, 0.25), _level(d, nibbles >> 4, 0.25)
    e0, e1, e2, e3 = np.int64(w[at]), np.int64(w[at + 1]), np.int64(w[at + 2]), np.int64(w[at + 3])
    p0, p1, p2, p3 = t + 2 * (e0 & 511), t + 2 * (e1 & 511), t + 2 * (e2 & 511), t + 2 * (e3 & 511)
    g0, g1, g2, g3 = _eight_signs(e0 >> 9), _eight_signs(e1 >> 9), _eight_signs(e2 >> 9), _eight_signs(e3 >> 9)
    c0, c1 = _signed(tables, p0, g0), _signed(tables, p0 + 1, g0 >> 4)
    c2, c3 = _signed(tables, p1, g1), _signed(tables, p1 + 1, g1 >> 4)
    c4, c5 = _signed(tables, p2, g2), _signed(tables, p2 + 1, g2 >> 4)
    c6, c7 = _signed(tables, p3, g3), _signed(tables, p3 + 1, g3 >> 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m, m


@device
def iq2_s(w: Any, b: Any, group: Any, tables: Any) -> Any:
    at, t, m = b + 1 + 2 * group, IQ2_S_AT, np.float32(0)
    d, nibbles, upper = from_half(w[b]), _byte(w, b + 37, group), _byte(w, b + 33, group)
    s0, s1 = _level(d, nibbles, 0.25), _level(d, nibbles >> 4, 0.25)
    p0, p1 = _byte(w, at, 0) | ((upper & 3) << 8), _byte(w, at, 1) | (((upper >> 2) & 3) << 8)
    p2, p3 = _byte(w, at, 2) | (((upper >> 4) & 3) << 8), _byte(w, at, 3) | (((upper >> 6) & 3) << 8)
    p0, p1, p2, p3 = t + 2 * p0, t + 2 * p1, t + 2 * p2, t + 2 * p3
    g0, g1, g2, g3 = _byte(w, at + 16, 0), _byte(w, at + 16, 1), _byte(w, at + 16, 2), _byte(w, at + 16, 3)
    c0, c1 = _signed(tables, p0, g0), _signed(tables, p0 + 1, g0 >> 4)
    c2, c3 = _signed(tables, p1, g1), _signed(tables, p1 + 1, g1 >> 4)
    c4, c5 = _signed(tables, p2, g2), _signed(tables, p2 + 1, g2 >> 4)
    c6, c7 = _signed(tables, p3, g3), _signed(tables, p3 + 1, g3 >> 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m, m


@device
def iq3_xxs(w: Any, b: Any, group: Any, tables: Any) -> Any:
    at, t, m = b + 1 + 4 * group, IQ3_XXS_AT, np.float32(0)
    packed = _word(w, b + 33 + 2 * group)
    s = _level(from_half(w[b]), packed >> 28, 0.5)
    g0, g1 = _eight_signs(packed), _eight_signs(packed >> 7)
    g2, g3 = _eight_signs(packed >> 14), _eight_signs(packed >> 21)
    c0, c1 = _signed(tables, t + _byte(w, at, 0), g0), _signed(tables, t + _byte(w, at, 1), g0 >> 4)
    c2, c3 = _signed(tables, t + _byte(w, at, 2), g1), _signed(tables, t + _byte(w, at, 3), g1 >> 4)
    c4, c5 = _signed(tables, t + _byte(w, at, 4), g2), _signed(tables, t + _byte(w, at, 5), g2 >> 4)
    c6, c7 = _signed(tables, t + _byte(w, at, 6), g3), _signed(tables, t + _byte(w, at, 7), g3 >> 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m


@device
def _iq3_s_four(w: Any, at: Any, number: Any, upper: Any, signs: Any, tables: Any) -> Any:
    point = _byte(w, at, number) | (((upper >> number) & 1) << 8)
    return _signed(tables, IQ3_S_AT + point, signs >> (4 * number))


@device
def iq3_s(w: Any, b: Any, group: Any, tables: Any) -> Any:
    at, m = b + 1 + 4 * group, np.float32(0)
    upper, signs = _byte(w, b + 33, group), _word(w, b + 37 + 2 * group)
    nibble = (_byte(w, b + 53, group >> 1) >> (4 * (group & 1))) & 15
    s = from_half(w[b]) * np.float32(2 * nibble + 1)
    c0, c1 = _iq3_s_four(w, at, 0, upper, signs, tables), _iq3_s_four(w, at, 1, upper, signs, tables)
    c2, c3 = _iq3_s_four(w, at, 2, upper, signs, tables), _iq3_s_four(w, at, 3, upper, signs, tables)
    c4, c5 = _iq3_s_four(w, at, 4, upper, signs, tables), _iq3_s_four(w, at, 5, upper, signs, tables)
    c6, c7 = _iq3_s_four(w, at, 6, upper, signs, tables), _iq3_s_four(w, at, 7, upper, signs, tables)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m
