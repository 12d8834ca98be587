"""Matrix times one vector: weights are read once, in the form in which they are stored, and never written anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..cpu import Variant
from .blocks import FORMATS, Format
from .emit import kernel
from .lanes import Lanes, Rows
from .products import sum_of_products
from .x8 import SIZE, VALUES, Group8


def _quantized(form: Format, lanes: Lanes, args: Sequence[Any], first: Any, behind: Any) -> None:
    """Arguments: weights, bytes of a row, blocks of a row, activations in 8 bits, results. `ith` to `nth`: the tiles."""
    builder = lanes.builder
    weights, row_bytes, n_blocks, x8, out = args
    tile_bytes = builder.mul(row_bytes, lanes.number(lanes.count))
    zero = lanes.fill(lanes.floats, 0.0)

    def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
        number = builder.add(number, first)
        start = builder.add(weights, builder.mul(number, tile_bytes))

        def block(place: Any, sums: Sequence[Any]) -> list[Any]:
            rows = Rows(lanes, builder.add(start, builder.mul(place, lanes.number(form.size))), row_bytes)
            x = builder.add(x8, builder.mul(place, lanes.number(form.elements // VALUES * SIZE)))
            return _block(form, lanes, rows, x, sums)

        total, rest = lanes.loop(n_blocks, [zero, zero], block)
        lanes.store(
            builder.add(out, builder.mul(number, lanes.number(4 * lanes.count))), builder.fadd(total, rest)
        )  # fmt: skip
        return []

    lanes.loop(builder.sub(behind, first), [], tile)


def _block(form: Format, lanes: Lanes, rows: Rows, x: Any, sums: Sequence[Any]) -> list[Any]:
    """Adds a block's products to the sums: those of scales, and those of offsets and minima."""
    builder = lanes.builder
    total, rest = sums
    for group in form.groups(lanes, rows):
        values = Group8(lanes, x, group.place * form.group, form.group)
        products = sum_of_products(
            lanes, group.codes.__getitem__, values.codes, len(group.codes), form.top, signed=group.signed
        )
        scale = builder.fmul(group.scale, values.scale())
        total = lanes.multiply_add(builder.sitofp(products, lanes.floats), scale, total)
        if group.offset:
            minimum = builder.fmul(group.scale, lanes.fill(lanes.floats, -float(group.offset)))
            rest = lanes.multiply_add(minimum, values.sum(), rest)
        elif group.minimum is not None:
            rest = lanes.multiply_add(group.minimum, values.sum(), rest)
    return [total, rest]


def _builder(form: Format) -> Callable[[Variant], Callable[..., None]]:
    return lambda variant: kernel(variant, 5, partial(_quantized, form))


BUILDERS = {f"dot_{name}": _builder(form) for name, form in FORMATS.items()}
