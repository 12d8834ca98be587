"""Columns of activations, and what becomes of a tile's sums: the same for all kernels that make products.

A value is finished by the same sums in the same order whichever kernel made it, so that its bits do not depend on how
many others are made with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from ..layout import ADD, BIAS, N_OUT, OUT, OUT_LIST, OUT_ROW, SCRATCH, X_LIST, X_ROW, X
from .lanes import F32, I32, I64, Lanes


def column_address(lanes: Lanes, args: Sequence[Any], number: Any) -> Any:
    """Where a column's activations are."""
    builder = lanes.builder
    return builder.add(args[X], builder.mul(_listed(lanes, args, args[X_LIST], number), args[X_ROW]))


def put(lanes: Lanes, args: Sequence[Any], number: Any, first_row: Any, made: Any) -> None:
    """Stores a column's results of a tile, those of rows that there are, with the bias and what was there before.

    Args:
        number: Of the column.
        first_row: Of the tile.
        made: Where the sums are.
    """
    builder = lanes.builder
    row = builder.mul(_listed(lanes, args, args[OUT_LIST], number), args[OUT_ROW])
    start = builder.add(builder.add(args[OUT], row), builder.mul(first_row, lanes.number(4)))
    bias = builder.add(args[BIAS], builder.mul(first_row, lanes.number(4)))
    left = builder.sub(args[N_OUT], first_row)
    with builder.if_else(builder.icmp_signed(">=", left, lanes.number(lanes.count))) as (whole, part):
        with whole:
            lanes.store(start, _finished(lanes, args, start, bias, lanes.load(made, lanes.floats, 4)), 4)
        with part:

            def one(lane: Any, _carried: Sequence[Any]) -> list[Any]:
                offset = builder.mul(lane, lanes.number(4))
                value = lanes.load(builder.add(made, offset), F32, 4)
                here = builder.add(start, offset)
                lanes.store(here, _finished(lanes, args, here, builder.add(bias, offset), value), 4)
                return []

            lanes.loop(left, [], one)


def _listed(lanes: Lanes, args: Sequence[Any], numbers: Any, place: Any) -> Any:
    """The number at a place of a list of int32; without a list the place itself."""
    builder = lanes.builder
    is_none = builder.icmp_signed("==", numbers, lanes.number(0))
    address = builder.add(numbers, builder.mul(place, lanes.number(4)))
    number = lanes.load(builder.select(is_none, args[SCRATCH], address), I32, 4)
    return builder.select(is_none, place, builder.sext(number, I64))


def _finished(lanes: Lanes, args: Sequence[Any], out: Any, bias: Any, value: Any) -> Any:
    """A value, or a vector of them, and what is added to it."""
    builder = lanes.builder
    zeros = ir.Constant(value.type, None)
    has_bias = builder.icmp_signed("!=", args[BIAS], lanes.number(0))
    shift = lanes.load(builder.select(has_bias, bias, out), value.type, 4)
    value = builder.fadd(value, builder.select(has_bias, shift, zeros))
    before = lanes.load(out, value.type, 4)
    is_added = builder.icmp_signed("!=", args[ADD], lanes.number(0))
    return builder.fadd(value, builder.select(is_added, before, zeros))
