"""A panel times several tokens: each vector of the panel is read once for all of them, the sums stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from ..layout import Q8_BYTES, Q8_VALUES
from ..variants import Variant
from .emit import Written
from .lanes import F32, I32, I64, Lanes
from .panels import group_bytes
from .products import Sum, tokens_of
from .q8 import GroupQ8

# Words of the arguments. What a driver must set for each panel, and what stays for a step.
PANEL, LENGTH, X, X_ROW, X_LIST, COUNT, OUT, OUT_ROW, OUT_LIST, COLUMNS, BIAS, ADD, SCRATCH, PANEL_BYTES = range(14)
MULTIPLY_WORDS = 14


_FLOAT_TOKENS = 8
# From a panel, its length and the addresses of some tokens to their sums.
_Body = Callable[[Lanes, Any, Any, Sequence[Any]], list[Any]]


def _codes_body(group: int, top: int, *, signed: bool, is_byte: bool) -> _Body:
    """`signed`: codes are; `is_byte`: they have an offset of 128. Neither needs minima."""

    def body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any]) -> list[Any]:
        """`length` counts 32 weights."""
        builder = lanes.builder
        vector = 4 * lanes.count
        size = group_bytes(lanes, group)

        def step(number: Any, sums: Sequence[Any]) -> list[Any]:
            made = list(sums)
            here = builder.add(panel, builder.mul(number, lanes.number(Q8_VALUES // group * size)))
            x_place = builder.mul(number, lanes.number(Q8_BYTES))
            for part in range(Q8_VALUES // group):
                start = lanes.at(here, part * size)
                values = [GroupQ8(lanes, builder.add(row, x_place), part * group, group) for row in rows]
                state = [Sum(lanes, value.offset() if is_byte else None) for value in values]
                for place in range(group // 4):
                    weights = lanes.load(lanes.at(start, (2 + place) * vector), lanes.dwords)
                    for token, value in enumerate(values):
                        state[token].add(weights, value.codes(place), top, signed=signed)
                scale = lanes.load(start, lanes.floats)
                minimum = lanes.load(lanes.at(start, vector), lanes.floats)
                for token, value in enumerate(values):
                    total = builder.sitofp(state[token].finish(), lanes.floats)
                    made[token] = lanes.multiply_add(total, builder.fmul(scale, value.scale()), made[token])
                    if not signed and not is_byte:
                        made[token] = lanes.multiply_add(minimum, value.sum(), made[token])
            return made

        return lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)

    return body


def _floats_body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any]) -> list[Any]:
    """`length` counts weights."""
    builder = lanes.builder
    vector = 4 * lanes.count

    def step(number: Any, sums: Sequence[Any]) -> list[Any]:
        weights = lanes.load(builder.add(panel, builder.mul(number, lanes.number(vector))), lanes.floats)
        x_place = builder.mul(number, lanes.number(4))
        return [
            lanes.multiply_add(weights, lanes.broadcast(builder.add(row, x_place), F32), total)
            for row, total in zip(rows, sums, strict=True)
        ]

    return lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)


def _multiply(tokens: int, body: _Body, lanes: Lanes, args: Sequence[Any], first: Any, behind: Any) -> None:
    """Arguments: see above. `first` to `behind`: the tiles; PANEL is that of the first."""
    builder = lanes.builder
    count, vector = args[COUNT], 4 * lanes.count
    last = builder.sub(count, lanes.number(1))
    blocks = builder.sdiv(builder.add(count, lanes.number(tokens - 1)), lanes.number(tokens))

    def some_tokens(block: Any, _carried: Sequence[Any]) -> list[Any]:
        start = builder.mul(block, lanes.number(tokens))
        # Behind the last token it is worked out again, and not stored.
        places = [builder.add(start, lanes.number(token)) for token in range(tokens)]
        able = [builder.select(builder.icmp_signed("<", place, last), place, last) for place in places]
        rows = [builder.mul(_listed(lanes, args, args[X_LIST], place), args[X_ROW]) for place in able]
        addresses = [builder.add(args[X], row) for row in rows]
        here = builder.sub(count, start)
        many = lanes.number(tokens)
        here = builder.select(builder.icmp_signed("<", here, many), here, many)

        def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
            panel = builder.add(args[PANEL], builder.mul(number, args[PANEL_BYTES]))
            for token, total in enumerate(body(lanes, panel, args[LENGTH], addresses)):
                lanes.store(lanes.at(args[SCRATCH], token * vector), total)
            column = builder.mul(builder.add(number, first), lanes.number(lanes.count))

            def one_token(token: Any, _carried: Sequence[Any]) -> list[Any]:
                row = builder.mul(_listed(lanes, args, args[OUT_LIST], builder.add(start, token)), args[OUT_ROW])
                made = builder.add(args[SCRATCH], builder.mul(token, lanes.number(vector)))
                _put(lanes, args, builder.add(args[OUT], row), column, made)
                return []

            lanes.loop(here, [], one_token)
            return []

        lanes.loop(builder.sub(behind, first), [], tile)
        return []

    lanes.loop(blocks, [], some_tokens)


def _listed(lanes: Lanes, args: Sequence[Any], numbers: Any, place: Any) -> Any:
    """The number at a place of a list of int32; without a list the place itself."""
    builder = lanes.builder
    is_none = builder.icmp_signed("==", numbers, lanes.number(0))
    address = builder.add(numbers, builder.mul(place, lanes.number(4)))
    number = lanes.load(builder.select(is_none, args[SCRATCH], address), I32, 4)
    return builder.select(is_none, place, builder.sext(number, I64))


def _put(lanes: Lanes, args: Sequence[Any], row: Any, column: Any, made: Any) -> None:
    """Stores a token's results of a tile, those of rows that there are, with the bias and what was there before.

    Args:
        made: Where the results are.
    """
    builder = lanes.builder
    start = builder.add(row, builder.mul(column, lanes.number(4)))
    bias = builder.add(args[BIAS], builder.mul(column, lanes.number(4)))
    left = builder.sub(args[COLUMNS], column)
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


def _kernel(variant: Variant, tokens: int, body: _Body) -> Written:
    return Written(variant, MULTIPLY_WORDS, partial(_multiply, tokens, body))


def _codes(group: int, top: int, **kind: bool) -> Callable[[Variant], Written]:
    body = _codes_body(group, top, **{"signed": False, "is_byte": False, **kind})
    return lambda variant: _kernel(variant, tokens_of(variant), body)


BUILDERS = {
    "multiply_floats": lambda variant: _kernel(variant, _FLOAT_TOKENS, _floats_body),
    "multiply_32": _codes(32, 31),
    "multiply_16": _codes(16, 63),
    "multiply_grid_32": _codes(32, 126),
    "multiply_grid_16": _codes(16, 126),
    "multiply_bytes": _codes(32, 255, is_byte=True),
    "multiply_signed": _codes(32, 255, signed=True),
}
