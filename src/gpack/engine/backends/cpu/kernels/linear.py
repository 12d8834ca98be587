"""Weights that are floats already times one token: row after row, in the order in which they lie in memory.

There is nothing to unpack, so that eight rows at once would only be turned for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from ..variants import Variant
from .emit import Written
from .lanes import I32, Lanes, fetch, totals
from .plain import PLAIN, Plain

_SUMS = 4  # made by turns: a product would wait for the last one's sum
_AHEAD = 16384  # bytes


def _rows(form: Plain, lanes: Lanes, args: Sequence[Any], first: Any, behind: Any) -> None:
    """Arguments: weights, bytes of a row, weights of a row, float32 activations, results. `ith` to `nth`: tiles."""
    builder = lanes.builder
    weights, row_bytes, n_in, x, out = args
    size = 16 // form.elements
    kind = ir.VectorType(form.kind, lanes.count)

    def add(row: Any, place: Any, total: Any, *, single: bool) -> Any:
        """Adds the products of a vector of weights, or of one."""
        read = _first_lane if single else Lanes.load
        stored = read(lanes, builder.add(row, builder.mul(place, lanes.number(size))), kind)
        values = read(lanes, builder.add(x, builder.mul(place, lanes.number(4))), lanes.floats)
        return lanes.multiply_add(form.value(lanes, stored), values, total)

    def go_on(row: Any, begin: Any, sums: Sequence[Any], count: int, width: int) -> tuple[Any, list[Any]]:
        """Adds products, `width` for each of `count` sums at a time, as long as there are so many."""
        step = count * width
        turns = builder.sdiv(builder.sub(n_in, begin), lanes.number(step))

        def some(number: Any, so_far: Sequence[Any]) -> list[Any]:
            start = builder.add(begin, builder.mul(number, lanes.number(step)))
            if count > 1:
                here = builder.add(row, builder.mul(start, lanes.number(size)))
                fetch(lanes, lanes.at(here, _AHEAD), step * size)
            places = [builder.add(start, lanes.number(item * width)) for item in range(count)]
            made = [add(row, place, so_far[item], single=width == 1) for item, place in enumerate(places)]
            return [*made, *so_far[count:]]

        sums = lanes.loop(turns, sums, some)
        return builder.add(begin, builder.mul(turns, lanes.number(step))), list(sums)

    def product(number: Any, _carried: Sequence[Any]) -> list[Any]:
        number = builder.add(number, builder.mul(first, lanes.number(lanes.count)))
        row = builder.add(weights, builder.mul(number, row_bytes))
        place, sums = go_on(row, lanes.number(0), [lanes.fill(lanes.floats, 0.0)] * _SUMS, _SUMS, lanes.count)
        place, sums = go_on(row, place, sums, 1, lanes.count)
        _, sums = go_on(row, place, sums, 1, 1)
        lanes.store(builder.add(out, builder.mul(number, lanes.number(4))), _total(lanes, sums), 4)
        return []

    lanes.loop(builder.mul(builder.sub(behind, first), lanes.number(lanes.count)), [], product)


def _first_lane(lanes: Lanes, address: Any, kind: Any) -> Any:
    """A scalar in the first lane, 0 in the others."""
    scalar = lanes.load(address, kind.element)
    return lanes.builder.insert_element(ir.Constant(kind, None), scalar, ir.Constant(I32, 0))


def _total(lanes: Lanes, vectors: Sequence[Any]) -> Any:
    """The sum of all elements."""
    builder = lanes.builder
    while len(vectors) > 1:
        vectors = [builder.fadd(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return builder.extract_element(totals(lanes, vectors), ir.Constant(I32, 0))


def _kernel(form: Plain) -> Callable[[Variant], Written]:
    return lambda variant: Written(variant, 5, partial(_rows, form))


BUILDERS = {f"dot_{name}": _kernel(form) for name, form in PLAIN.items()}
