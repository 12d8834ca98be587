"""Weights that are floats already: F32, F16, BF16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .lanes import I16, I32, Lanes, Rows


@dataclass(frozen=True)
class Plain:
    """A type of floats.

    Attributes:
        elements: Of 16 bytes.
        kind: LLVM's type of one, as an integer.
        values: The weights of 16 bytes of each row, one vector each.
        value: The weights that a vector of `kind` holds.
    """

    elements: int
    kind: Any
    values: Callable[[Lanes, Rows], list[Any]]
    value: Callable[[Lanes, Any], Any]


def _f32(lanes: Lanes, rows: Rows) -> list[Any]:
    return [lanes.builder.bitcast(item, lanes.floats) for item in rows.dwords(0)]


def _f16(lanes: Lanes, rows: Rows) -> list[Any]:
    return [value for item in rows.dwords(0) for value in (lanes.low_half(item), lanes.high_half(item))]


def _bf16(lanes: Lanes, rows: Rows) -> list[Any]:
    raw = [part for item in rows.dwords(0) for part in (lanes.left(item, 16), lanes.and_(item, 0xFFFF0000))]
    return [lanes.builder.bitcast(item, lanes.floats) for item in raw]


def _widen_bf16(lanes: Lanes, value: Any) -> Any:
    return lanes.builder.bitcast(lanes.left(lanes.builder.zext(value, lanes.dwords), 16), lanes.floats)


PLAIN: dict[str, Plain] = {
    "F32": Plain(4, I32, _f32, lambda lanes, value: lanes.builder.bitcast(value, lanes.floats)),
    "F16": Plain(8, I16, _f16, lambda lanes, value: lanes.widen(value)),
    "BF16": Plain(8, I16, _bf16, _widen_bf16),
}


def tail(
    form: Plain,
    lanes: Lanes,
    start: Any,
    row_bytes: Any,
    n_in: Any,
    carried: Sequence[Any],
    body: Callable[[Any, Any, Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Goes through the weights of a row that fill no 16 bytes: `carried = body(place, weights, carried)`."""
    builder = lanes.builder
    count = builder.srem(n_in, lanes.number(form.elements))
    begin = builder.sub(n_in, count)

    def one(number: Any, sums: Sequence[Any]) -> Sequence[Any]:
        place = builder.add(begin, number)
        rows = Rows(lanes, builder.add(start, builder.mul(place, lanes.number(16 // form.elements))), row_bytes)
        return body(place, form.value(lanes, rows.scalars(0, form.kind)), sums)

    return lanes.loop(count, carried, one)
