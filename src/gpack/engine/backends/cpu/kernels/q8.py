"""The 8-bit form of activations: groups of 32 values, each with its scale and the sums that offsets and minima need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from ..layout import Q8_BYTES, Q8_CODES, Q8_HALF_SUMS, Q8_NEGATIVE, Q8_OFFSET, Q8_SCALE, Q8_SUM, Q8_VALUES
from .emit import Written
from .lanes import F32, I8, I32, Lanes, totals

BYTE_OFFSET = 128
_TOP = 127.0
# Added to a small number and taken away again, it leaves the nearest integer: 1.5 x 2^23.
_ROUNDER = 12582912.0
# Codes that the largest value is tried to have, before it is rounded; none gives more than 127. What fits best is up to
# a tenth closer than the first alone.
_TOPS = (127.0, 127.45, 126.5, 126.0)
_INFINITE = 0x7F800000
_SMALLEST = 0x03000000  # 2^-121, whose reciprocal times 127 is finite


class GroupQ8:
    """A group of 16 or 32 activations that meet a group of weights."""

    def __init__(self, lanes: Lanes, row: Any, first: int, count: int) -> None:
        """Takes the address of a row (of a block's part of it), and which of its values."""
        self.lanes, self.row = lanes, row
        self._start = first // Q8_VALUES * Q8_BYTES
        self._inside, self._count = first % Q8_VALUES, count

    def scale(self) -> Any:
        """In all lanes."""
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + Q8_SCALE), F32)

    def sum(self) -> Any:
        """The sum of the group's values, in all lanes."""
        place = Q8_SUM if self._count == Q8_VALUES else Q8_HALF_SUMS + 4 * (self._inside // self._count)
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + place), F32)

    def offset(self) -> Any:
        """What offsets of 128 in the codes of 32 weights take from the sum of products, in all lanes."""
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + Q8_OFFSET), I32)

    def codes(self, number: int) -> Any:
        """Four codes, in all lanes."""
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + Q8_CODES + self._inside + 4 * number), I32)

    def sixteen(self, number: int) -> Any:
        """Sixteen codes in each half of 256 bits."""
        lanes = self.lanes
        place = self._start + Q8_CODES + self._inside + 16 * number
        codes = lanes.load(lanes.at(self.row, place), ir.VectorType(I32, 4))
        return lanes.shuffle(codes, codes, 2 * [0, 1, 2, 3])

    def all(self) -> Any:
        """Thirty-two codes."""
        return self.lanes.load(self.lanes.at(self.row, self._start + Q8_CODES), self.lanes.dwords)

    def negative(self) -> Any:
        """The sum of the negative codes of 32, times -1, in all lanes."""
        return self.lanes.broadcast(self.lanes.at(self.row, self._start + Q8_NEGATIVE), I32)


def _quantize(lanes: Lanes, args: Sequence[Any], ith: Any, nth: Any) -> None:
    """Arguments: state, float32 rows, groups of a token, 8-bit form. Threads share all groups of the batch."""
    builder = lanes.builder
    state, values, groups, q8 = args
    count = builder.mul(lanes.load(state, groups.type, 8), groups)
    first = builder.sdiv(builder.mul(count, ith), nth)
    stop = builder.sdiv(builder.mul(count, builder.add(ith, lanes.number(1))), nth)

    def group(number: Any, _carried: Sequence[Any]) -> list[Any]:
        number = builder.add(number, first)
        source = builder.add(values, builder.mul(number, lanes.number(4 * Q8_VALUES)))
        _group(lanes, source, builder.add(q8, builder.mul(number, lanes.number(Q8_BYTES))))
        return []

    lanes.loop(builder.sub(stop, first), [], group)


def _group(lanes: Lanes, source: Any, target: Any) -> None:
    """Rounds a group. Where a value is NaN or infinite the scale is too, and so is all that comes of it."""
    builder = lanes.builder
    wide = ir.VectorType(F32, Q8_VALUES)
    whole = ir.VectorType(I32, Q8_VALUES)
    x = lanes.load(source, wide, 4)
    magnitudes = builder.and_(builder.bitcast(x, whole), lanes.fill(whole, 0x7FFFFFFF))
    # As integers, magnitudes are ordered like the numbers, and NaN is the largest.
    largest = lanes.call(f"llvm.vector.reduce.smax.v{Q8_VALUES}i32", I32, magnitudes)
    is_finite = builder.icmp_signed("<", largest, ir.Constant(I32, _INFINITE))
    # What is so small that its reciprocal overflows counts as 0.
    is_usable = builder.and_(is_finite, builder.icmp_signed(">=", largest, ir.Constant(I32, _SMALLEST)))
    unit = builder.fmul(builder.bitcast(largest, F32), ir.Constant(F32, 1.0 / _TOP))
    inverse = builder.fdiv(ir.Constant(F32, _TOP), builder.bitcast(largest, F32))
    found, product, square = _best(lanes, builder.fmul(x, _spread(lanes, inverse, wide)))
    fitted = builder.select(is_usable, builder.fdiv(product, square), ir.Constant(F32, 0.0))
    scale = builder.fmul(unit, builder.select(is_finite, fitted, ir.Constant(F32, 1.0)))
    codes = builder.select(is_usable, found, ir.Constant(whole, None))
    lanes.store(lanes.at(target, Q8_SCALE), scale, 4)
    below = lanes.call("llvm.smin.v32i32", whole, codes, ir.Constant(whole, None))
    halves = [[lanes.shuffle(of, of, range(first, first + 16)) for first in (0, 16)] for of in (codes, below)]
    together = totals(lanes, [*halves[0], *[builder.add(*halves[1])] * 2], builder.add)
    first, second, negative = (builder.extract_element(together, ir.Constant(I32, place)) for place in range(3))
    both = builder.add(first, second)
    for offset, total in ((Q8_SUM, both), (Q8_HALF_SUMS, first), (Q8_HALF_SUMS + 4, second)):
        lanes.store(lanes.at(target, offset), builder.fmul(builder.sitofp(total, F32), scale), 4)
    lanes.store(lanes.at(target, Q8_OFFSET), builder.mul(both, ir.Constant(I32, -BYTE_OFFSET)), 4)
    lanes.store(lanes.at(target, Q8_NEGATIVE), builder.neg(negative), 4)
    lanes.store(lanes.at(target, Q8_CODES), builder.trunc(codes, ir.VectorType(I8, Q8_VALUES)))


def _best(lanes: Lanes, x: Any) -> tuple[Any, Any, Any]:
    """Codes for values up to 127 in magnitude, of those that some scales give the ones that lie closest.

    With codes c the scale that fits best is Σxc / Σc², and what it leaves of Σx² is the less, the larger (Σxc)² / Σc².

    Returns:
        The codes as int32, Σxc and Σc².
    """
    builder, rounder = lanes.builder, lanes.fill(x.type, _ROUNDER)
    tried = []
    for top in _TOPS:
        scaled = x if top == _TOP else builder.fmul(x, lanes.fill(x.type, top / _TOP))
        tried.append(builder.fsub(builder.fadd(scaled, rounder), rounder))
    factors = [*((x, codes) for codes in tried), *((codes, codes) for codes in tried)]
    sums = totals(lanes, [builder.fmul(*pair) for pair in factors])
    n = len(_TOPS)
    products, squares = (lanes.shuffle(sums, sums, range(first, first + n)) for first in (0, n))
    closeness = builder.fdiv(builder.fmul(products, products), squares)
    best: list[Any] = []
    for number, top in enumerate(_TOPS):
        at = ir.Constant(I32, number)
        made = [builder.extract_element(vector, at) for vector in (products, squares, closeness)]
        made.append(ir.Constant(F32, top / _TOP))
        if best:
            is_closer = builder.fcmp_ordered(">", made[2], best[2])
            made = [builder.select(is_closer, new, old) for new, old in zip(made, best, strict=True)]
        best = made
    # The codes are made once more: to choose among vectors LLVM would branch, and no processor foresees these branches.
    raised = builder.fadd(builder.fmul(x, _spread(lanes, best[3], x.type)), rounder)
    whole = ir.VectorType(I32, Q8_VALUES)
    codes = builder.sub(builder.bitcast(raised, whole), builder.bitcast(rounder, whole))  # the last bits are integers
    return codes, best[0], best[1]


def _spread(lanes: Lanes, value: Any, kind: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    one = lanes.builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return lanes.shuffle(one, undefined, [0] * kind.count)


BUILDERS = {"quantize_q8": lambda variant: Written(variant, 4, _quantize)}
