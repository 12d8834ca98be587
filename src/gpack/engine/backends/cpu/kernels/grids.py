"""ggml's blocks of 2 and 3 bits whose codes are numbers of points of a grid: 4 or 8 weights to a code.

The grids are those of the `gguf` package; they become constants of the machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir

from .....generated.constants import GgmlType
from .lanes import I32, I64, Lanes, Rows
from .units import Format, Group

# Points of the grids are 62 from 0 at most, IQ3_S's 15; with these offsets codes are unsigned. An offset that is much
# larger than the weights would cost precision.
_OFFSET, _TOP = 64, 126
_SMALL_OFFSET, _SMALL_TOP = 16, 31


def _grid(lanes: Lanes, name: str) -> Any:
    """The address of a grid's points, four int8 to a word."""
    module = lanes.builder.module
    known = module.globals.get(f"grid_{name}")
    if known is None:
        from gguf import quants

        codec = getattr(quants, name)
        codec.init_grid()
        words = np.ascontiguousarray(codec.grid, np.float32).astype(np.int8).reshape(-1).view("<i4")
        kind = ir.ArrayType(I32, len(words))
        known = ir.GlobalVariable(module, kind, f"grid_{name}")
        known.linkage, known.global_constant = "internal", True
        known.initializer = ir.Constant(kind, [ir.Constant(I32, int(word)) for word in words])
    return lanes.builder.ptrtoint(known, I64)


def _points(lanes: Lanes, name: str, places: Any) -> Any:
    """The words of a grid at a place for each lane."""
    return lanes.apart(f"points_{name}", lanes.dwords, places, lambda inside, given: _look_up(inside, name, given))


def _look_up(lanes: Lanes, name: str, places: Any) -> Any:
    builder = lanes.builder
    grid = _grid(lanes, name)
    made = ir.Constant(lanes.dwords, ir.Undefined)
    for lane in range(lanes.count):
        number = ir.Constant(I32, lane)
        place = builder.zext(builder.extract_element(places, number), I64)
        word = lanes.load(builder.add(grid, builder.shl(place, lanes.number(2))), I32, 4)
        made = builder.insert_element(made, word, number)
    return made


def _signed(lanes: Lanes, points: Any, signs: Any, offset: int = _OFFSET) -> Any:
    """Points, negated where a lane's bit 0 to 3 says so, with the offset that makes them unsigned."""
    builder = lanes.builder
    spread = builder.mul(lanes.and_(signs, 0xF), lanes.dword(0x00204081))
    ones = builder.bitcast(lanes.and_(spread, 0x01010101), lanes.bytes)
    masks = builder.sub(lanes.fill(lanes.bytes, 0), ones)
    negated = builder.sub(builder.xor(builder.bitcast(points, lanes.bytes), masks), masks)
    return builder.bitcast(builder.add(negated, lanes.fill(lanes.bytes, offset)), lanes.dwords)


def _eight_signs(lanes: Lanes, seven: Any) -> Any:
    """Signs of eight weights from seven bits: the number of negative ones is even."""
    builder = lanes.builder
    seven = lanes.and_(seven, 0x7F)
    parity = seven
    for shift in (4, 2, 1):
        parity = builder.xor(parity, lanes.right(parity, shift))
    return builder.or_(seven, lanes.left(lanes.and_(parity, 1), 7))


def _level(lanes: Lanes, d: Any, nibble: Any, factor: float) -> Any:
    """The scale d (1/2 + nibble) factor."""
    builder = lanes.builder
    level = builder.fadd(builder.sitofp(nibble, lanes.floats), lanes.fill(lanes.floats, 0.5))
    return builder.fmul(builder.fmul(d, level), lanes.fill(lanes.floats, factor))


def _eights(lanes: Lanes, grid: str, place: Any, signs: Any) -> list[Any]:
    """Codes of eight weights that one point of a grid stands for."""
    words = [_points(lanes, grid, builder_place) for builder_place in _pair(lanes, place)]
    return [_signed(lanes, words[0], signs), _signed(lanes, words[1], lanes.right(signs, 4))]


def _pair(lanes: Lanes, place: Any) -> tuple[Any, Any]:
    first = lanes.left(place, 1)
    return first, lanes.builder.or_(first, lanes.dword(1))


def _iq2_xxs(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    grid, d = "IQ2_XXS", rows.half(0)
    for pair in range(4):
        words = rows.dwords(2 + 16 * pair)
        for side in range(2):
            places, packed = words[2 * side], words[2 * side + 1]
            codes = []
            for part in range(4):
                signs = _eight_signs(lanes, lanes.right(packed, 7 * part))
                codes += _eights(lanes, grid, lanes.byte_number(places, part), signs)
            yield Group(2 * pair + side, codes, _OFFSET, _level(lanes, d, lanes.right(packed, 28), 0.25))


def _iq2_xs(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    grid, d = "IQ2_XS", rows.half(0)
    nibbles = (rows.dword(66), rows.dword(70))
    for pair in range(4):
        words = rows.dwords(2 + 16 * pair)
        for quarter in range(4):  # 16 weights: two codes of 9 bits for the point and 7 for signs
            place = 4 * pair + quarter
            codes = []
            for shift in (0, 16):
                code = lanes.right(words[quarter], shift)
                signs = _eight_signs(lanes, lanes.right(code, 9))
                codes += _eights(lanes, grid, lanes.and_(code, 0x1FF), signs)
            nibble = lanes.and_(lanes.right(nibbles[place // 8], 4 * (place % 8)), 0xF)
            yield Group(place, codes, _OFFSET, _level(lanes, d, nibble, 0.25))


def _iq2_s(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    grid, d = "IQ2_S", rows.half(0)
    high, nibbles = (rows.dword(66), rows.dword(70)), (rows.dword(74), rows.dword(78))
    for quad in range(2):
        low, signs = rows.dwords(2 + 16 * quad), rows.dwords(34 + 16 * quad)
        for part in range(4):  # 32 weights
            upper = lanes.byte_number(high[quad], part)
            for half in range(2):
                place = 8 * quad + 2 * part + half
                codes = []
                for number in (2 * half, 2 * half + 1):
                    top = lanes.left(lanes.and_(lanes.right(upper, 2 * number), 3), 8)
                    point = builder.or_(lanes.byte_number(low[part], number), top)
                    codes += _eights(lanes, grid, point, lanes.byte_number(signs[part], number))
                nibble = lanes.and_(lanes.right(nibbles[quad], 4 * (place % 8)), 0xF)
                yield Group(place, codes, _OFFSET, _level(lanes, d, nibble, 0.25))


def _iq3_xxs(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    grid, d = "IQ3_XXS", rows.half(0)
    for pair in range(4):
        words = rows.dwords(2 + 16 * pair)
        for side in range(2):
            place = 2 * pair + side
            packed = rows.dword(66 + 4 * place)
            codes = []
            for number in range(8):
                signs = _eight_signs(lanes, lanes.right(packed, 7 * (number // 2)))
                point = lanes.byte_number(words[2 * side + number // 4], number % 4)
                codes.append(_signed(lanes, _points(lanes, grid, point), lanes.right(signs, 4 * (number % 2))))
            yield Group(place, codes, _OFFSET, _level(lanes, d, lanes.right(packed, 28), 0.5))


def _iq3_s(lanes: Lanes, rows: Rows) -> Iterator[Group]:
    builder = lanes.builder
    grid, d = "IQ3_S", rows.half(0)
    high, nibbles = (rows.dword(66), rows.dword(70)), rows.dword(106)
    for pair in range(4):
        words = rows.dwords(2 + 16 * pair)
        for side in range(2):
            place = 2 * pair + side
            upper = lanes.byte_number(high[place // 4], place % 4)
            signs = rows.dword(74 + 4 * place)
            codes = []
            for number in range(8):
                top = lanes.left(lanes.and_(lanes.right(upper, number), 1), 8)
                point = builder.or_(lanes.byte_number(words[2 * side + number // 4], number % 4), top)
                sign = lanes.right(signs, 4 * number)
                codes.append(_signed(lanes, _points(lanes, grid, point), sign, _SMALL_OFFSET))
            nibble = lanes.and_(lanes.right(nibbles, 4 * place), 0xF)
            level = builder.sitofp(builder.or_(lanes.left(nibble, 1), lanes.dword(1)), lanes.floats)
            yield Group(place, codes, _SMALL_OFFSET, builder.fmul(d, level))


def _format(ggml_type: int, group: int, groups: Callable[[Lanes, Rows], Iterator[Group]], top: int = _TOP) -> Format:
    return Format(GgmlType.BLOCK[ggml_type], GgmlType.BYTES[ggml_type], group, top, groups)


GRID_FORMATS: dict[str, Format] = {
    "IQ2_XXS": _format(GgmlType.IQ2_XXS, 32, _iq2_xxs),
    "IQ2_XS": _format(GgmlType.IQ2_XS, 16, _iq2_xs),
    "IQ2_S": _format(GgmlType.IQ2_S, 16, _iq2_s),
    "IQ3_XXS": _format(GgmlType.IQ3_XXS, 32, _iq3_xxs),
    "IQ3_S": _format(GgmlType.IQ3_S, 32, _iq3_s, _SMALL_TOP),
}
