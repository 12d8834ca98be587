"""Quantised weights times one token: they are read once, in the form in which they are stored, and never written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..layout import Q8_BYTES, Q8_VALUES
from ..variants import Variant
from .blocks import FORMATS
from .emit import Written
from .lanes import Lanes, Rows, fetch_ahead
from .paired import PairedRows, add_paired_block
from .products import sum_of_products
from .q8 import BYTE_OFFSET, GroupQ8
from .units import Format


def _quantized(form: Format, lanes: Lanes, args: Sequence[Any], first: Any, behind: Any) -> None:
    """Arguments: weights, bytes of a row, blocks of a row, activations in 8 bits, results. `ith` to `nth`: tiles."""
    builder = lanes.builder
    weights, row_bytes, n_blocks, q8, out = args
    tile_bytes = builder.mul(row_bytes, lanes.number(lanes.count))
    zero = lanes.fill(lanes.floats, 0.0)
    is_paired = form.pairs and lanes.variant.name == "avx2"
    kind, add_block = (PairedRows, add_paired_block) if is_paired else (Rows, _add_block)

    def tile(number: Any, _carried: Sequence[Any]) -> list[Any]:
        number = builder.add(number, first)
        start = builder.add(weights, builder.mul(number, tile_bytes))

        def block(place: Any, sums: Sequence[Any]) -> list[Any]:
            rows = kind(lanes, builder.add(start, builder.mul(place, lanes.number(form.size))), row_bytes)
            x = builder.add(q8, builder.mul(place, lanes.number(form.elements // Q8_VALUES * Q8_BYTES)))
            made = add_block(form, lanes, rows, x, sums)
            rows.part()  # asked for in between, what is ahead would delay the block itself
            fetch_ahead(lanes, start, tile_bytes, place, form.size)
            return made

        total, rest = lanes.loop(n_blocks, [zero, zero], block)
        lanes.store(builder.add(out, builder.mul(number, lanes.number(4 * lanes.count))), builder.fadd(total, rest))
        return []

    lanes.loop(builder.sub(behind, first), [], tile)


def _add_block(form: Format, lanes: Lanes, rows: Rows, x: Any, sums: Sequence[Any]) -> list[Any]:
    """Adds a block's products to the sums: those of scales, and those of offsets and minima."""
    builder = lanes.builder
    total, rest = sums
    for group in form.groups(lanes, rows):
        values = GroupQ8(lanes, x, group.place * form.group, form.group)
        is_byte = group.offset == BYTE_OFFSET  # taken away in integers: so large an offset would cost precision
        start = values.offset() if is_byte else None
        products = sum_of_products(lanes, group.codes, values, form.top, signed=group.signed, start=start)
        scale, minimum = group.floats(lanes)
        if group.offset and not is_byte:
            minimum = builder.fmul(scale, lanes.fill(lanes.floats, -float(group.offset)))
        factor = builder.fmul(scale, values.scale())
        total = lanes.multiply_add(builder.sitofp(products, lanes.floats), factor, total)
        if minimum is not None:
            rest = lanes.multiply_add(minimum, values.sum(), rest)
    return [total, rest]


def _quantized_kernel(form: Format) -> Callable[[Variant], Written]:
    return lambda variant: Written(variant, 5, partial(_quantized, form))


BUILDERS = {f"dot_{name}": _quantized_kernel(form) for name, form in FORMATS.items()}
