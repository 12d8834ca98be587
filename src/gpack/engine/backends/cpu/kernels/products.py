"""What a group of weights adds to the sums of columns: the same for weights as they are stored and for panels.

Products of codes are summed in integers, exactly, four at a time in each lane: what differs most between processors.
Each column has one sum for each row of weights. A group adds to it first its products, then its minima; groups follow
in the order in which a type yields them. So a value's bits do not depend on the kernel that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from llvmlite import ir

from ..variants import Variant
from .lanes import F32, Lanes
from .q8 import BYTE_OFFSET, GroupQ8
from .units import Format, Group

MOST = 127  # activations are -127 to 127
_CHAINS = 2  # sums made by turns: one instruction's result is not ready for the next
_COLUMNS = {"vnni": (8, 4, 2, 1), "avx2": (4, 2, 1), "portable": (2, 1)}

# Makes new sums of the addresses of some columns' activations and their sums, one after the other.
Add = Callable[[Sequence[Any], Iterable[Any]], Iterable[Any]]
# Sums of a group's products with some columns, int32, exact.
Multiply = Callable[[Sequence[GroupQ8]], list[Any]]


def columns_of(variant: Variant) -> tuple[int, ...]:
    """How many columns are multiplied at once: as many as fit into a variant's registers, and fewer for the rest."""
    return _COLUMNS[variant.name]


def terms(lanes: Lanes, group: Group) -> tuple[Any, Any]:
    """A group's scale, and what it adds for each of its activations, or None. Offsets of 128 are not in it."""
    scale, minimum = group.floats(lanes)
    if group.offset and group.offset != BYTE_OFFSET:  # that is taken away in integers: it would cost precision
        minimum = lanes.builder.fmul(scale, lanes.fill(lanes.floats, -float(group.offset)))
    return scale, minimum


def add_scaled(
    lanes: Lanes, products: Sequence[Any], scale: Any, minimum: Any, values: Sequence[GroupQ8], totals: Iterable[Any]
) -> Iterator[Any]:
    """Adds a group to the sums of some columns, given the integer sums of its products with them."""
    builder = lanes.builder
    for product, value, total in zip(products, values, totals, strict=True):
        factor = builder.fmul(scale, value.scale())
        scaled = lanes.multiply_add(builder.sitofp(product, lanes.floats), factor, total)
        yield scaled if minimum is None else lanes.multiply_add(minimum, value.sum(), scaled)


def add_group(lanes: Lanes, form: Format, group: Group, multiply: Multiply) -> Add:
    """How a group that was unpacked is added."""
    scale, minimum = terms(lanes, group)

    def add(xs: Sequence[Any], totals: Iterable[Any]) -> Iterable[Any]:
        values = [GroupQ8(lanes, x, group.place * form.group, form.group) for x in xs]
        return add_scaled(lanes, multiply(values), scale, minimum, values, totals)

    return add


def add_floats(lanes: Lanes, weights: Sequence[Any]) -> Add:
    """How weights that are floats are added, one of each row after the other."""

    def add(xs: Sequence[Any], totals: Iterable[Any]) -> Iterable[Any]:
        made = list(totals)
        for number, weight in enumerate(weights):
            for column, x in enumerate(xs):
                value = lanes.broadcast(lanes.at(x, 4 * number), F32)
                made[column] = lanes.multiply_add(weight, value, made[column])
        return made

    return add


def sums_of_products(
    lanes: Lanes, codes: Iterable[Any], values: Sequence[GroupQ8], top: int, *, signed: bool, is_byte: bool
) -> list[Any]:
    """The sums of all products of a group with some columns, int32, exact; a lane for each row.

    Args:
        codes: Four of each row at a time.
        top: The highest of them.
        signed: They are signed bytes.
        is_byte: They are 128 too high.
    """
    sums = [Sum(lanes, value.offset() if is_byte else None) for value in values]
    for number, code in enumerate(codes):
        for total, value in zip(sums, values, strict=True):
            total.add(code, value.codes(number), top, signed=signed)
    return [total.finish() for total in sums]


class Sum:
    """Sums being made, one in each lane: int32 totals, and with AVX2 sums of pairs that 16 bits still hold."""

    def __init__(self, lanes: Lanes, start: Any = None) -> None:
        """Begins with nothing, or with `start`."""
        self.lanes = lanes
        self.totals: list[Any] = [] if start is None else [start]
        self.pairs: Any = None
        self.room = 0

    def add(self, weights: Any, values: Any, top: int, *, signed: bool) -> None:
        """Adds four products in each lane.

        Args:
            weights: Unsigned bytes up to `top`, or signed ones.
            values: Signed bytes without -128.
        """
        name = self.lanes.variant.name
        if name == "vnni":
            self._add_vnni(weights, values)
        elif name == "portable":
            self._add_total(_portable(self.lanes, weights, values))
        elif signed:
            self._add_total(widen_pairs(self.lanes, _signed_pairs(self.lanes, weights, values)))
        else:
            self._add_pairs(pairs_of(self.lanes, weights, values), top)

    def finish(self) -> Any:
        """The sums, int32."""
        self._flush()
        total = self.totals[0]
        for other in self.totals[1:]:
            total = self.lanes.builder.add(total, other)
        return total

    def _add_vnni(self, weights: Any, values: Any) -> None:
        lanes = self.lanes
        so_far = self.totals.pop(0) if len(self.totals) == _CHAINS else lanes.dword(0)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes.count}"
        self.totals.append(lanes.call(name, lanes.dwords, so_far, weights, values))

    def _add_total(self, total: Any) -> None:
        self.totals = [self.lanes.builder.add(self.totals[0], total) if self.totals else total]

    def _add_pairs(self, pairs: Any, top: int) -> None:
        self.pairs = pairs if self.pairs is None else self.lanes.builder.add(self.pairs, pairs)
        self.room = (self.room or 32767 // (2 * top * MOST)) - 1
        if self.room <= 0:
            self._flush()

    def _flush(self) -> None:
        if self.pairs is not None:
            self._add_total(widen_pairs(self.lanes, self.pairs))
        self.pairs, self.room = None, 0


def pairs_of(lanes: Lanes, unsigned: Any, signed: Any) -> Any:
    """Sums of two products each, u8 x s8, as int16."""
    builder = lanes.builder
    unsigned, signed = builder.bitcast(unsigned, lanes.bytes), builder.bitcast(signed, lanes.bytes)
    return lanes.call("llvm.x86.avx2.pmadd.ub.sw", lanes.shorts, unsigned, signed)


def _signed_pairs(lanes: Lanes, weights: Any, values: Any) -> Any:
    """|w| times x with w's sign; |w| is at most 128, so that two products fit into 16 bits."""
    builder = lanes.builder
    weights, values = builder.bitcast(weights, lanes.bytes), builder.bitcast(values, lanes.bytes)
    size = lanes.call(f"llvm.abs.v{lanes.bytes.count}i8", lanes.bytes, weights, ir.Constant(ir.IntType(1), 0))
    return pairs_of(lanes, size, lanes.call("llvm.x86.avx2.psign.b", lanes.bytes, values, weights))


def widen_pairs(lanes: Lanes, pairs: Any) -> Any:
    """Neighbours of int16 added, as int32."""
    return lanes.call("llvm.x86.avx2.pmadd.wd", lanes.dwords, pairs, lanes.fill(lanes.shorts, 1))


def _portable(lanes: Lanes, weights: Any, values: Any) -> Any:
    builder = lanes.builder
    total = None
    for place in range(4):
        weight = lanes.byte_number(weights, place)
        product = builder.mul(weight, lanes.byte_number(values, place, signed=True))
        total = product if total is None else builder.add(total, product)
    return total
