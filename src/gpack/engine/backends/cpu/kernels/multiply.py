"""A panel times several tokens: each vector of the panel is read once for all of them, the sums stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..layout import COUNT, LENGTH, PANEL, PANEL_BYTES, Q8_BYTES, Q8_VALUES, SCRATCH, TILE_WORDS
from ..variants import Variant
from .emit import Written
from .lanes import Lanes
from .panels import group_bytes
from .products import add_floats, add_scaled, columns_of, sums_of_products
from .q8 import GroupQ8
from .results import column_address, put
from .units import SIDES

_FLOAT_TOKENS = 8
# From a panel, its length and the addresses of some tokens to their sums.
_Body = Callable[[Lanes, Any, Any, Sequence[Any]], list[Any]]


def _codes_body(group: int, top: int, order: Sequence[int], *, signed: bool, is_byte: bool) -> _Body:
    """`signed`: codes are; `is_byte`: they have an offset of 128. Neither needs minima."""

    def body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any]) -> list[Any]:
        """`length` counts 32 weights."""
        builder = lanes.builder
        vector = 4 * lanes.count
        size = group_bytes(lanes, group)

        def step(number: Any, sums: Sequence[Any]) -> list[Any]:
            made = list(sums)
            here = builder.add(panel, builder.mul(number, lanes.number(len(order) * size)))
            x_place = builder.mul(number, lanes.number(len(order) * group // Q8_VALUES * Q8_BYTES))
            xs = [lanes.base(builder.add(row, x_place)) for row in rows]
            for place in order:
                start = lanes.at(here, place * size)
                values = [GroupQ8(lanes, x, place * group, group) for x in xs]
                codes = (lanes.load(lanes.at(start, (2 + item) * vector), lanes.dwords) for item in range(group // 4))
                products = sums_of_products(lanes, codes, values, top, signed=signed, is_byte=is_byte)
                scale = lanes.load(start, lanes.floats)
                has_minimum = not (signed or is_byte)
                minimum = lanes.load(lanes.at(start, vector), lanes.floats) if has_minimum else None
                made = list(add_scaled(lanes, products, scale, minimum, values, made))
            return made

        length = builder.sdiv(length, lanes.number(len(order) * group // Q8_VALUES))
        return lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)

    return body


def _floats_body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any]) -> list[Any]:
    """`length` counts weights."""
    builder = lanes.builder
    vector = 4 * lanes.count

    def step(number: Any, sums: Sequence[Any]) -> list[Any]:
        weights = lanes.load(builder.add(panel, builder.mul(number, lanes.number(vector))), lanes.floats)
        x_place = builder.mul(number, lanes.number(4))
        return list(add_floats(lanes, [weights])([lanes.base(builder.add(row, x_place)) for row in rows], sums))

    return lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)


def _multiply(tokens: int, body: _Body, lanes: Lanes, args: Sequence[Any], first: Any, stop: Any) -> None:
    """Arguments: see layout.py. `first` to `stop`: the tiles; PANEL is that of the first."""
    builder = lanes.builder
    count, vector = args[COUNT], 4 * lanes.count
    last = builder.sub(count, lanes.number(1))
    blocks = builder.sdiv(builder.add(count, lanes.number(tokens - 1)), lanes.number(tokens))

    def some_tokens(block: Any, _carried: Sequence[Any]) -> list[Any]:
        start = builder.mul(block, lanes.number(tokens))
        # Beyond the last token the last is computed again, and not stored.
        places = [builder.add(start, lanes.number(token)) for token in range(tokens)]
        able = [builder.select(builder.icmp_signed("<", place, last), place, last) for place in places]
        addresses = [column_address(lanes, args, place) for place in able]
        here = builder.sub(count, start)
        many = lanes.number(tokens)
        here = builder.select(builder.icmp_signed("<", here, many), here, many)

        def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
            panel = builder.add(args[PANEL], builder.mul(number, args[PANEL_BYTES]))
            for token, total in enumerate(body(lanes, panel, args[LENGTH], addresses)):
                lanes.store(lanes.at(args[SCRATCH], token * vector), total)
            first_row = builder.mul(builder.add(number, first), lanes.number(lanes.count))

            def one_token(token: Any, _carried: Sequence[Any]) -> list[Any]:
                made = builder.add(args[SCRATCH], builder.mul(token, lanes.number(vector)))
                put(lanes, args, builder.add(start, token), first_row, made)
                return []

            lanes.loop(here, [], one_token)
            return []

        lanes.loop(builder.sub(stop, first), [], tile)
        return []

    lanes.loop(blocks, [], some_tokens)


def _kernel(variant: Variant, tokens: int, body: _Body) -> Written:
    return Written(variant, TILE_WORDS, partial(_multiply, tokens, body))


def _codes(group: int, top: int, order: Sequence[int] = (0,), **kind: bool) -> Callable[[Variant], Written]:
    body = _codes_body(group, top, order, **{"signed": False, "is_byte": False, **kind})
    return lambda variant: _kernel(variant, columns_of(variant)[0], body)


BUILDERS = {
    "multiply_floats": lambda variant: _kernel(variant, _FLOAT_TOKENS, _floats_body),
    "multiply_32": _codes(32, 31),
    "multiply_16": _codes(16, 63, SIDES),
    "multiply_grid_32": _codes(32, 126),
    "multiply_grid_16": _codes(16, 126, (0, 1)),
    "multiply_bytes": _codes(32, 255, is_byte=True),
    "multiply_signed": _codes(32, 255, signed=True),
}
