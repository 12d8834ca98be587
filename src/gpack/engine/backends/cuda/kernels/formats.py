"""ggml's blocks, a group of 32 weights at a time.

All of them say: weight = scale · code + minimum, with one scale and minimum for each half of a group. An unpacker takes
`w`, 16-bit words (bytes of MXFP4), the number of the block's first, the number of the group in the block, and the
tables; it gives eight words of four signed codes each, in the order of the weights, two scales and two minima.
Names of fields (d, qs, qh, sc) are ggml's own. What codes are offset by is part of the minimum: the sum of a group's
activations is exact where their codes are, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .....generated.constants import GgmlType
from .dialect import device, float_bits, from_half
from .table_layout import E2M1_AT, IQ4_AT

_LOW, _TWO, _ONE = 0x0F0F0F0F, 0x03030303, 0x01010101


@device
def word(w: Any, at: Any) -> Any:
    """32 bits that two words hold."""
    return np.int64(w[at]) | (np.int64(w[at + 1]) << 16)


@device
def byte(w: Any, at: Any, number: Any) -> Any:
    """One byte of those from a word on."""
    return (np.int64(w[at + (number >> 1)]) >> (8 * (number & 1))) & 255


@device
def spread(bits: Any) -> Any:
    """Four bits, each as the lowest of a byte."""
    return ((bits & 15) * 0x00204081) & _ONE


@device
def look_up(tables: Any, at: Any, places: Any) -> Any:
    """A byte of a table of sixteen for each byte of a word, which are from 0 to 15."""
    made = np.int64(tables[at + (places & 15)]) & 255
    made |= (np.int64(tables[at + ((places >> 8) & 15)]) & 255) << 8
    made |= (np.int64(tables[at + ((places >> 16) & 15)]) & 255) << 16
    made |= (np.int64(tables[at + ((places >> 24) & 15)]) & 255) << 24
    return made


@device
def q4_0(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d = from_half(w[b])
    v0, v1, v2, v3 = word(w, b + 1), word(w, b + 3), word(w, b + 5), word(w, b + 7)
    m = np.float32(-8) * d
    h0, h1, h2, h3 = (v0 >> 4) & _LOW, (v1 >> 4) & _LOW, (v2 >> 4) & _LOW, (v3 >> 4) & _LOW
    return v0 & _LOW, v1 & _LOW, v2 & _LOW, v3 & _LOW, h0, h1, h2, h3, d, d, m, m


@device
def q4_1(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, m = from_half(w[b]), from_half(w[b + 1])
    v0, v1, v2, v3 = word(w, b + 2), word(w, b + 4), word(w, b + 6), word(w, b + 8)
    h0, h1, h2, h3 = (v0 >> 4) & _LOW, (v1 >> 4) & _LOW, (v2 >> 4) & _LOW, (v3 >> 4) & _LOW
    return v0 & _LOW, v1 & _LOW, v2 & _LOW, v3 & _LOW, h0, h1, h2, h3, d, d, m, m


@device
def _fives(w: Any, at: Any, qh: Any) -> Any:
    v0, v1, v2, v3 = word(w, at), word(w, at + 2), word(w, at + 4), word(w, at + 6)
    c0, c1 = (v0 & _LOW) | (spread(qh) << 4), (v1 & _LOW) | (spread(qh >> 4) << 4)
    c2, c3 = (v2 & _LOW) | (spread(qh >> 8) << 4), (v3 & _LOW) | (spread(qh >> 12) << 4)
    c4, c5 = ((v0 >> 4) & _LOW) | (spread(qh >> 16) << 4), ((v1 >> 4) & _LOW) | (spread(qh >> 20) << 4)
    c6, c7 = ((v2 >> 4) & _LOW) | (spread(qh >> 24) << 4), ((v3 >> 4) & _LOW) | (spread(qh >> 28) << 4)
    return c0, c1, c2, c3, c4, c5, c6, c7


@device
def q5_0(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d = from_half(w[b])
    m = np.float32(-16) * d
    c0, c1, c2, c3, c4, c5, c6, c7 = _fives(w, b + 3, word(w, b + 1))
    return c0, c1, c2, c3, c4, c5, c6, c7, d, d, m, m


@device
def q5_1(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, m = from_half(w[b]), from_half(w[b + 1])
    c0, c1, c2, c3, c4, c5, c6, c7 = _fives(w, b + 4, word(w, b + 2))
    return c0, c1, c2, c3, c4, c5, c6, c7, d, d, m, m


@device
def q8_0(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, m = from_half(w[b]), np.float32(0)
    c0, c1, c2, c3 = word(w, b + 1), word(w, b + 3), word(w, b + 5), word(w, b + 7)
    c4, c5, c6, c7 = word(w, b + 9), word(w, b + 11), word(w, b + 13), word(w, b + 15)
    return c0, c1, c2, c3, c4, c5, c6, c7, d, d, m, m


@device
def _twos(w: Any, at: Any, shift: Any, mask: Any) -> Any:
    """Eight words from a place on, shifted and masked."""
    c0, c1 = (word(w, at) >> shift) & mask, (word(w, at + 2) >> shift) & mask
    c2, c3 = (word(w, at + 4) >> shift) & mask, (word(w, at + 6) >> shift) & mask
    c4, c5 = (word(w, at + 8) >> shift) & mask, (word(w, at + 10) >> shift) & mask
    c6, c7 = (word(w, at + 12) >> shift) & mask, (word(w, at + 14) >> shift) & mask
    return c0, c1, c2, c3, c4, c5, c6, c7


@device
def q2_k(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, dmin = from_half(w[b + 40]), -from_half(w[b + 41])
    both = np.int64(w[b + group])
    s0, s1 = d * np.float32(both & 15), d * np.float32((both >> 8) & 15)
    m0, m1 = dmin * np.float32((both >> 4) & 15), dmin * np.float32((both >> 12) & 15)
    c0, c1, c2, c3, c4, c5, c6, c7 = _twos(w, b + 8 + 16 * (group >> 2), 2 * (group & 3), _TWO)
    return c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, m0, m1


@device
def _q3_scale(w: Any, b: Any, place: Any) -> Any:
    number, lane = place >> 2, place & 3
    low = byte(w, b + 48, 4 * (number & 1) + lane) >> (4 * (number >> 1))
    top = byte(w, b + 52, lane) >> (2 * number)
    return np.float32(((low & 15) | ((top & 3) << 4)) - 32)


@device
def q3_k(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d = from_half(w[b + 54])
    s0, s1 = d * _q3_scale(w, b, 2 * group), d * _q3_scale(w, b, 2 * group + 1)
    c0, c1, c2, c3, c4, c5, c6, c7 = _twos(w, b + 16 + 16 * (group >> 2), 2 * (group & 3), _TWO)
    h0, h1, h2, h3, h4, h5, h6, h7 = _twos(w, b, group, _ONE)
    c0, c1, c2, c3 = c0 | (h0 << 2), c1 | (h1 << 2), c2 | (h2 << 2), c3 | (h3 << 2)
    c4, c5, c6, c7 = c4 | (h4 << 2), c5 | (h5 << 2), c6 | (h6 << 2), c7 | (h7 << 2)
    return c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, np.float32(-4) * s0, np.float32(-4) * s1


@device
def _k4(w: Any, b: Any, group: Any) -> Any:
    """Scale and minimum of a group of Q4_K or Q5_K: 6 bits each of twelve bytes, without a branch."""
    d, dmin = from_half(w[b]), -from_half(w[b + 1])
    lane, late = group & 3, group >> 2
    first, second, third = byte(w, b + 2, lane), byte(w, b + 4, lane), byte(w, b + 6, lane)
    if late:
        scale, minimum = (third & 15) | ((first >> 6) << 4), (third >> 4) | ((second >> 6) << 4)
    else:
        scale, minimum = first & 63, second & 63
    return d * np.float32(scale), dmin * np.float32(minimum)


@device
def q4_k(w: Any, b: Any, group: Any, tables: Any) -> Any:
    s, m = _k4(w, b, group)
    c0, c1, c2, c3, c4, c5, c6, c7 = _twos(w, b + 8 + 16 * (group >> 1), 4 * (group & 1), _LOW)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m


@device
def q5_k(w: Any, b: Any, group: Any, tables: Any) -> Any:
    s, m = _k4(w, b, group)
    c0, c1, c2, c3, c4, c5, c6, c7 = _twos(w, b + 24 + 16 * (group >> 1), 4 * (group & 1), _LOW)
    h0, h1, h2, h3, h4, h5, h6, h7 = _twos(w, b + 8, group, _ONE)
    c0, c1, c2, c3 = c0 | (h0 << 4), c1 | (h1 << 4), c2 | (h2 << 4), c3 | (h3 << 4)
    c4, c5, c6, c7 = c4 | (h4 << 4), c5 | (h5 << 4), c6 | (h6 << 4), c7 | (h7 << 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m


@device
def q6_k(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d = from_half(w[b + 104])
    both = np.int64(w[b + 96 + group])
    s0, s1 = d * np.float32(((both & 255) ^ 128) - 128), d * np.float32(((both >> 8) ^ 128) - 128)
    half, quarter = group >> 2, group & 3
    at = b + 32 * half + 16 * (quarter & 1)
    c0, c1, c2, c3, c4, c5, c6, c7 = _twos(w, at, 4 * (quarter >> 1), _LOW)
    h0, h1, h2, h3, h4, h5, h6, h7 = _twos(w, b + 64 + 16 * half, 2 * quarter, _TWO)
    c0, c1, c2, c3 = c0 | (h0 << 4), c1 | (h1 << 4), c2 | (h2 << 4), c3 | (h3 << 4)
    c4, c5, c6, c7 = c4 | (h4 << 4), c5 | (h5 << 4), c6 | (h6 << 4), c7 | (h7 << 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, s0, s1, np.float32(-32) * s0, np.float32(-32) * s1


@device
def _sixteens(w: Any, at: Any, tables: Any, table: Any) -> Any:
    v0, v1, v2, v3 = word(w, at), word(w, at + 2), word(w, at + 4), word(w, at + 6)
    c0, c1, c2, c3 = (
        look_up(tables, table, v0),
        look_up(tables, table, v1),
        look_up(tables, table, v2),
        look_up(tables, table, v3),
    )
    c4, c5, c6, c7 = (
        look_up(tables, table, v0 >> 4),
        look_up(tables, table, v1 >> 4),
        look_up(tables, table, v2 >> 4),
        look_up(tables, table, v3 >> 4),
    )
    return c0, c1, c2, c3, c4, c5, c6, c7


@device
def iq4_nl(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, m = from_half(w[b]), np.float32(0)
    c0, c1, c2, c3, c4, c5, c6, c7 = _sixteens(w, b + 1, tables, IQ4_AT)
    return c0, c1, c2, c3, c4, c5, c6, c7, d, d, m, m


@device
def iq4_xs(w: Any, b: Any, group: Any, tables: Any) -> Any:
    d, m = from_half(w[b]), np.float32(0)
    low = byte(w, b + 2, group >> 1) >> (4 * (group & 1))
    level = (low & 15) | (((np.int64(w[b + 1]) >> (2 * group)) & 3) << 4)
    s = d * np.float32(level - 32)
    c0, c1, c2, c3, c4, c5, c6, c7 = _sixteens(w, b + 4 + 8 * group, tables, IQ4_AT)
    return c0, c1, c2, c3, c4, c5, c6, c7, s, s, m, m


@device
def _bytes_word(w: Any, at: Any) -> Any:
    """32 bits that four bytes hold."""
    low = np.int64(w[at]) | (np.int64(w[at + 1]) << 8)
    return low | (np.int64(w[at + 2]) << 16) | (np.int64(w[at + 3]) << 24)


@device
def mxfp4(w: Any, b: Any, group: Any, tables: Any) -> Any:
    exponent = np.int64(w[b])
    # Half of 2^(e - 127), since the table is doubled; the two smallest are subnormal.
    bits = np.int64(0x00200000) << exponent
    if exponent >= 2:
        bits = (exponent - 1) << 23
    d, m = float_bits(bits), np.float32(0)
    v0, v1, v2, v3 = _bytes_word(w, b + 1), _bytes_word(w, b + 5), _bytes_word(w, b + 9), _bytes_word(w, b + 13)
    c0, c1 = look_up(tables, E2M1_AT, v0), look_up(tables, E2M1_AT, v1)
    c2, c3 = look_up(tables, E2M1_AT, v2), look_up(tables, E2M1_AT, v3)
    c4, c5 = look_up(tables, E2M1_AT, v0 >> 4), look_up(tables, E2M1_AT, v1 >> 4)
    c6, c7 = look_up(tables, E2M1_AT, v2 >> 4), look_up(tables, E2M1_AT, v3 >> 4)
    return c0, c1, c2, c3, c4, c5, c6, c7, d, d, m, m


@dataclass(frozen=True)
class Format:
    """A type of blocks.

    Attributes:
        unpack: A group of 32.
        groups: Groups of a block.
        unit: Word of a signature that the blocks are read in.
        units: Of these in a block.
    """

    unpack: Callable[..., Any]
    groups: int
    unit: str
    units: int


def _format(name: str, unpack: Callable[..., Any], unit: str = "u16") -> Format:
    number = getattr(GgmlType, name)
    return Format(unpack, GgmlType.BLOCK[number] // 32, unit, GgmlType.BYTES[number] // (2 if unit == "u16" else 1))


def _formats() -> dict[str, Format]:
    from . import grid_formats as grids

    halves = {
        "Q4_0": q4_0,
        "Q4_1": q4_1,
        "Q5_0": q5_0,
        "Q5_1": q5_1,
        "Q8_0": q8_0,
        "Q2_K": q2_k,
        "Q3_K": q3_k,
        "Q4_K": q4_k,
        "Q5_K": q5_k,
        "Q6_K": q6_k,
        "IQ4_NL": iq4_nl,
        "IQ4_XS": iq4_xs,
        "IQ2_XXS": grids.iq2_xxs,
        "IQ2_XS": grids.iq2_xs,
        "IQ2_S": grids.iq2_s,
        "IQ3_XXS": grids.iq3_xxs,
        "IQ3_S": grids.iq3_s,
    }
    return {name: _format(name, unpack) for name, unpack in halves.items()} | {"MXFP4": _format("MXFP4", mxfp4, "u8")}


FORMATS = _formats()
