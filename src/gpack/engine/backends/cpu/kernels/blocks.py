"""ggml's blocks of 32 and 256 weights, unpacked for several rows at once.

All of them say: weight = scale (code - offset) + minimum, with one scale and minimum for a group of 16 or 32. A format
yields its groups in the order in which they are cheapest to unpack, each with its place in the block. Bits and rounding
are those of ggml's own dequantisers; names of fields too (d, dmin, qs, qh, sc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .....generated.constants import GgmlType
from .grids import GRID_FORMATS
from .lanes import I8, Lanes, Rows
from .units import Format, Group, Level


def wide_codes(lanes: Lanes) -> bool:
    """Whether codes of 8 bits are best signed: AVX2 multiplies u8 x s8 into 16 bits, which 255 x 127 overflows."""
    return lanes.variant.name == "avx2"


def _low(lanes: Lanes, raw: list[Any]) -> list[Any]:
    return [lanes.fields(item, 0, 4) for item in raw]


def _high(lanes: Lanes, raw: list[Any]) -> list[Any]:
    return [lanes.fields(item, 4, 4) for item in raw]


def _nibbles(lanes: Lanes, raw: list[Any]) -> list[Any]:
    """Codes 0 to 15 from the low halves of sixteen bytes, 16 to 31 from the high ones."""
    return _low(lanes, raw) + _high(lanes, raw)


def _q4_0(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    yield Group(0, _nibbles(lanes, rows.sixteen(2)), 8, rows.half(0))


def _q4_1(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    both = rows.dword(0)
    codes = _nibbles(lanes, rows.sixteen(4))
    yield Group(0, codes, 0, lanes.low_half(both), lanes.high_half(both))


def _fifth_bits(lanes: Lanes, high: Any) -> list[Any]:
    """Bit k of each lane as bit 4 of byte k, for 32 codes."""
    builder = lanes.builder
    # Four bits, twice in a lane: products with powers of two, added, put each where it belongs.
    low = builder.or_(lanes.and_(high, 0xFFFF), lanes.left(high, 16))
    upper = builder.or_(lanes.right(high, 16), lanes.and_(high, 0xFFFF0000))
    factors = lanes.dword(1 << 4 | 1 << 11 | (1 << 2 | 1 << 9) << 16)
    made = []
    for place in range(8):
        source = builder.bitcast((low, upper)[place // 4], lanes.shorts)
        shift = lanes.fill(lanes.shorts, 4 * (place % 4))
        bits = builder.and_(builder.lshr(source, shift), lanes.fill(lanes.shorts, 0xF))
        spread = builder.mul(bits, builder.bitcast(factors, lanes.shorts))
        made.append(lanes.and_(builder.bitcast(spread, lanes.dwords), 0x10101010))
    return made


def _with_bits(lanes: Lanes, codes: list[Any], bits: list[Any]) -> list[Any]:
    return [lanes.builder.or_(code, bit) for code, bit in zip(codes, bits, strict=True)]


def _q5_0(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    codes = _with_bits(lanes, _nibbles(lanes, rows.dwords(6)), _fifth_bits(lanes, rows.dword(2)))
    yield Group(0, codes, 16, rows.half(0))


def _q5_1(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    both = rows.dword(0)
    codes = _with_bits(lanes, _nibbles(lanes, rows.dwords(8)), _fifth_bits(lanes, rows.dword(4)))
    yield Group(0, codes, 0, lanes.low_half(both), lanes.high_half(both))


def _q8_0(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    codes, is_whole = rows.whole(2)
    scale = rows.half(0)
    if wide_codes(lanes):
        yield Group(0, codes, 0, scale, signed=True, whole=is_whole)
    else:
        yield Group(0, [lanes.builder.xor(code, lanes.dword(0x80808080)) for code in codes], 128, scale)


def _q2_k(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    both = rows.dword(80)
    d, dmin = lanes.low_half(both), builder.fneg(lanes.high_half(both))
    packed = rows.dwords(0)
    scales, minima = ([lanes.fields(item, shift, 4) for item in packed] for shift in (0, 4))
    for half in range(2):
        for side in range(2):
            raw = rows.sixteen(16 + 32 * half + 16 * side)
            for pair in (0, 2, 1, 3):
                place = 8 * half + 2 * pair + side
                scale, minimum = Level(d, scales[place // 4], place % 4), Level(dmin, minima[place // 4], place % 4)
                yield Group(place, [lanes.fields(item, 2 * pair, 2) for item in raw], 0, scale, minimum)


def _q3_k(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    d = rows.half(108)
    low, middle, top = rows.dword(96), rows.dword(100), rows.dword(104)
    packed = [
        _less(lanes, builder.or_(lanes.fields(source, shift, 4), lanes.left(lanes.fields(top, 2 * number, 2), 4)), 32)
        for number, (source, shift) in enumerate(((low, 0), (middle, 0), (low, 4), (middle, 4)))
    ]
    masks = [rows.sixteen(16 * side) for side in range(2)]
    for half in range(2):
        for side in range(2):
            raw = rows.sixteen(32 + 32 * half + 16 * side)
            for pair in (0, 2, 1, 3):
                place = 8 * half + 2 * pair + side
                bits = [lanes.left(lanes.fields(item, 4 * half + pair, 1), 2) for item in masks[side]]
                codes = _with_bits(lanes, [lanes.fields(item, 2 * pair, 2) for item in raw], bits)
                rows.part()
                yield Group(place, codes, 4, Level(d, packed[place // 4], place % 4, signed=True))


def _less(lanes: Lanes, values: Any, amount: int) -> Any:
    """Bytes less a number each."""
    builder = lanes.builder
    return builder.bitcast(
        builder.sub(builder.bitcast(values, lanes.bytes), lanes.fill(lanes.bytes, amount)), lanes.dwords
    )


def _scales_k4(lanes: Lanes, rows: Rows) -> Callable[[int], tuple[Level, Level]]:
    """Scale and minimum of a group of Q4_K or Q5_K, whose first sixteen bytes hold d, dmin and 6 bits of each."""
    builder = lanes.builder
    both, first, second, third = rows.dwords(0)
    d, dmin = lanes.low_half(both), builder.fneg(lanes.high_half(both))

    def late(shift: int, source: Any) -> Any:
        return builder.or_(lanes.fields(third, shift, 4), lanes.left(lanes.fields(source, 6, 2), 4))

    scales = (lanes.fields(first, 0, 6), late(0, first))
    minima = (lanes.fields(second, 0, 6), late(4, second))

    def of_group(place: int) -> tuple[Level, Level]:
        return Level(d, scales[place // 4], place % 4), Level(dmin, minima[place // 4], place % 4)

    return of_group


def _q4_k(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    of_group = _scales_k4(lanes, rows)
    for pair in range(4):
        raw = rows.thirty_two(16 + 32 * pair)
        yield Group(2 * pair, _low(lanes, raw), 0, *of_group(2 * pair))
        yield Group(2 * pair + 1, _high(lanes, raw), 0, *of_group(2 * pair + 1))


def _q5_k(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    of_group = _scales_k4(lanes, rows)
    high = rows.thirty_two(16)
    for pair in range(4):
        raw = rows.thirty_two(48 + 32 * pair)
        for side, codes in enumerate((_low(lanes, raw), _high(lanes, raw))):
            place = 2 * pair + side
            bits = [lanes.left(lanes.fields(item, place, 1), 4) for item in high]
            rows.part()
            yield Group(place, _with_bits(lanes, codes, bits), 0, *of_group(place))


def _q6_k(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    d = rows.half(208)
    packed = rows.dwords(192)
    for half in range(2):
        for side in range(2):
            high = rows.sixteen(128 + 32 * half + 16 * side)
            for which in range(2):  # ql's first or second 32 bytes
                raw = rows.sixteen(64 * half + 32 * which + 16 * side)
                for late in range(2):  # low or high halves of the bytes
                    quarter = 2 * late + which
                    place = 8 * half + 2 * quarter + side
                    bits = [lanes.left(lanes.fields(item, 2 * quarter, 2), 4) for item in high]
                    codes = _with_bits(lanes, [lanes.fields(item, 4 * late, 4) for item in raw], bits)
                    rows.part()
                    yield Group(place, codes, 32, Level(d, packed[place // 4], place % 4, signed=True))


# Values of IQ4_NL's and IQ4_XS's codes.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of E2M1.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_E2M1_TOP = 12


def _iq4_group(lanes: Lanes, place: int, raw: list[Any], scale: Any) -> Group:
    offset = 0 if wide_codes(lanes) else 128
    table = [value + offset for value in _IQ4]
    codes = [lanes.look_up(table, item) for item in _nibbles(lanes, raw)]
    return Group(place, codes, offset, scale, signed=not offset)


def _iq4_nl(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    yield _iq4_group(lanes, 0, rows.sixteen(2), rows.half(0))


def _iq4_xs(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    both, low = rows.dword(0), rows.dword(4)
    d = lanes.low_half(both)
    for place in range(8):
        under = lanes.and_(lanes.right(low, 4 * place), 0xF)
        over = lanes.left(lanes.and_(lanes.right(both, 16 + 2 * place), 3), 4)
        level = builder.sitofp(builder.sub(builder.or_(under, over), lanes.dword(32)), lanes.floats)
        yield _iq4_group(lanes, place, rows.sixteen(8 + 16 * place), builder.fmul(d, level))


def _mxfp4(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    exponent = builder.zext(rows.scalars(0, I8), lanes.dwords)
    # Half of 2^(e - 127), since the table is doubled; the two smallest are subnormal.
    normal = lanes.left(builder.sub(exponent, lanes.dword(1)), 23)
    tiny = builder.select(
        builder.icmp_unsigned("==", exponent, lanes.dword(0)), lanes.dword(0x00200000), lanes.dword(0x00400000)
    )
    bits = builder.select(builder.icmp_unsigned("<", exponent, lanes.dword(2)), tiny, normal)
    table = [value + _E2M1_TOP for value in _E2M1]
    codes = [lanes.look_up(table, item) for item in _nibbles(lanes, rows.sixteen(1))]
    yield Group(0, codes, _E2M1_TOP, builder.bitcast(bits, lanes.floats))


def _format(
    ggml_type: int, group: int, top: int, groups: Callable[[Lanes, Rows], Iterator[Group]], *, pairs: bool = True
) -> Format:
    return Format(GgmlType.BLOCK[ggml_type], GgmlType.BYTES[ggml_type], group, top, groups, pairs)


FORMATS: dict[str, Format] = {
    "Q4_0": _format(GgmlType.Q4_0, 32, 15, _q4_0),
    "Q4_1": _format(GgmlType.Q4_1, 32, 15, _q4_1),
    "Q5_0": _format(GgmlType.Q5_0, 32, 31, _q5_0, pairs=False),
    "Q5_1": _format(GgmlType.Q5_1, 32, 31, _q5_1, pairs=False),
    "Q8_0": _format(GgmlType.Q8_0, 32, 255, _q8_0),
    "Q2_K": _format(GgmlType.Q2_K, 16, 3, _q2_k),
    "Q3_K": _format(GgmlType.Q3_K, 16, 7, _q3_k),
    "Q4_K": _format(GgmlType.Q4_K, 32, 15, _q4_k),
    "Q5_K": _format(GgmlType.Q5_K, 32, 31, _q5_k),
    "Q6_K": _format(GgmlType.Q6_K, 16, 63, _q6_k),
    "IQ4_NL": _format(GgmlType.IQ4_NL, 32, 255, _iq4_nl),
    "IQ4_XS": _format(GgmlType.IQ4_XS, 32, 255, _iq4_xs),
    "MXFP4": _format(GgmlType.MXFP4, 32, 24, _mxfp4),
    **GRID_FORMATS,
}
