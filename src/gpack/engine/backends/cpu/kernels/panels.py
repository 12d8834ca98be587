"""Panels: a tile of rows, unpacked once for many tokens.

A panel of codes holds for each group of weights its scales and minima, a float32 of each row, and then the codes, four
of each row at a time. A panel of floats holds the weights themselves, one of each row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..layout import BLOCKS, PANEL, ROW_BYTES, TILE_WORDS, WEIGHTS
from ..variants import Variant
from .blocks import FORMATS
from .emit import Written
from .lanes import Lanes, Rows, fetch_ahead
from .plain import PLAIN, Plain
from .products import terms
from .units import Format, Group

_Write = Callable[[Lanes, Group, Any], None]


def group_bytes(lanes: Lanes, group: int) -> int:
    """Bytes of a group of weights in a panel of codes."""
    return 4 * lanes.count * (2 + group // 4)


def _pack(form: Format, write: _Write, width: int, lanes: Lanes, args: Sequence[Any], first: Any, stop: Any) -> None:
    """Arguments: see layout.py. `first` to `stop`: the tiles; their panels follow each other.

    Args:
        width: Bytes that a block takes in a panel.
    """
    builder = lanes.builder
    weights, row_bytes, n_blocks, panels = args[WEIGHTS], args[ROW_BYTES], args[BLOCKS], args[PANEL]
    tile_bytes = builder.mul(row_bytes, lanes.number(lanes.count))
    panel_bytes = builder.mul(n_blocks, lanes.number(width))

    def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
        start = builder.add(weights, builder.mul(builder.add(number, first), tile_bytes))
        panel = builder.add(panels, builder.mul(number, panel_bytes))

        def block(place: Any, _sums: Sequence[Any]) -> list[Any]:
            rows = Rows(lanes, builder.add(start, builder.mul(place, lanes.number(form.size))), row_bytes)
            fetch_ahead(lanes, start, tile_bytes, place, form.size)
            target = builder.add(panel, builder.mul(place, lanes.number(width)))
            for group in form.groups(lanes, rows):
                write(lanes, group, target)
            return []

        lanes.loop(n_blocks, [], block)
        return []

    lanes.loop(builder.sub(stop, first), [], tile)


def _write_codes(form: Format, lanes: Lanes, group: Group, block: Any) -> None:
    vector = 4 * lanes.count
    target = lanes.at(block, group.place * group_bytes(lanes, form.group))
    scale, minimum = terms(lanes, group)
    if minimum is None:
        minimum = lanes.fill(lanes.floats, 0.0)
    for number, vectors in enumerate((scale, minimum, *group.codes)):
        lanes.store(lanes.at(target, number * vector), vectors)


def _write_floats(form: Format, lanes: Lanes, group: Group, block: Any) -> None:
    """Rounded as ggml rounds: the product, then the sum."""
    builder = lanes.builder
    scale, minimum = group.floats(lanes)
    for place in range(form.group):
        code = lanes.byte_number(group.codes[place // 4], place % 4, signed=group.signed)
        if group.offset:
            code = builder.sub(code, lanes.dword(group.offset))
        weight = builder.fmul(builder.sitofp(code, lanes.floats), scale)
        if minimum is not None:
            weight = builder.fadd(weight, minimum)
        lanes.store(lanes.at(block, 4 * lanes.count * (group.place * form.group + place)), weight)


def _pack_plain(form: Plain, lanes: Lanes, args: Sequence[Any], first: Any, stop: Any) -> None:
    """As `_pack`, where BLOCKS counts the weights of a row, of any number."""
    builder = lanes.builder
    weights, row_bytes, n_in, panels = args[WEIGHTS], args[ROW_BYTES], args[BLOCKS], args[PANEL]
    vector = lanes.number(4 * lanes.count)
    tile_bytes = builder.mul(row_bytes, lanes.number(lanes.count))

    def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
        start = builder.add(weights, builder.mul(builder.add(number, first), tile_bytes))
        panel = builder.add(panels, builder.mul(number, builder.mul(n_in, vector)))

        def write(place: Any, values: Sequence[Any]) -> list[Any]:
            for offset, value in enumerate(values):
                at = builder.add(place, lanes.number(offset))
                lanes.store(builder.add(panel, builder.mul(at, vector)), value)
            return []

        def block(place: Any, _sums: Sequence[Any]) -> list[Any]:
            rows = Rows(lanes, builder.add(start, builder.mul(place, lanes.number(16))), row_bytes)
            fetch_ahead(lanes, start, tile_bytes, place, 16)
            return write(builder.mul(place, lanes.number(form.elements)), form.values(lanes, rows))

        def single(place: Any, _sums: Sequence[Any]) -> list[Any]:
            place = builder.add(place, builder.mul(blocks, lanes.number(form.elements)))
            return write(place, [form.single(lanes, start, row_bytes, place)])

        blocks = builder.sdiv(n_in, lanes.number(form.elements))
        lanes.loop(blocks, [], block)
        lanes.loop(builder.srem(n_in, lanes.number(form.elements)), [], single)
        return []

    lanes.loop(builder.sub(stop, first), [], tile)


def _codes(form: Format) -> Callable[[Variant], Written]:
    def build(variant: Variant) -> Written:
        def body(lanes: Lanes, *rest: Any) -> None:
            width = form.elements // form.group * group_bytes(lanes, form.group)
            _pack(form, partial(_write_codes, form), width, lanes, *rest)

        return Written(variant, TILE_WORDS, body)

    return build


def _floats(form: Format) -> Callable[[Variant], Written]:
    def build(variant: Variant) -> Written:
        def body(lanes: Lanes, *rest: Any) -> None:
            _pack(form, partial(_write_floats, form), 4 * lanes.count * form.elements, lanes, *rest)

        return Written(variant, TILE_WORDS, body)

    return build


def _plain(form: Plain) -> Callable[[Variant], Written]:
    return lambda variant: Written(variant, TILE_WORDS, partial(_pack_plain, form))


BUILDERS = {
    **{f"codes_{name}": _codes(form) for name, form in FORMATS.items()},
    **{f"floats_{name}": _floats(form) for name, form in FORMATS.items()},
    **{f"floats_{name}": _plain(form) for name, form in PLAIN.items()},
}
