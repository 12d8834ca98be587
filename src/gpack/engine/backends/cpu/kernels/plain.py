"""Weights that are floats already: F32, F16, BF16."""

from __future__ import annotations

from collections.abc import Callable
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
        value: The weights that a vector of `kind` holds, one of each row.
    """

    elements: int
    kind: Any
    values: Callable[[Lanes, Rows], list[Any]]
    value: Callable[[Lanes, Any], Any]

    def single(self, lanes: Lanes, start: Any, row_bytes: Any, place: Any) -> Any:
        """The weights of all rows at one place: those at a row's end that fill no 16 bytes."""
        builder = lanes.builder
        offset = builder.mul(place, lanes.number(16 // self.elements))
        return self.value(lanes, Rows(lanes, builder.add(start, offset), row_bytes).scalars(0, self.kind))


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
