"""Sums of products of codes, four at a time in each lane: what differs most between processors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llvmlite import ir

from ..variants import Variant
from .lanes import Lanes

MOST = 127  # activations are -127 to 127
_TOKENS = {"vnni": 8, "avx2": 4, "portable": 2}


class Values(Protocol):
    """Activations that meet a group of weights."""

    def codes(self, number: int) -> Any:
        """Four signed codes, in all lanes; never -128."""


def tokens_of(variant: Variant) -> int:
    """Tokens whose sums fit into a variant's registers."""
    return _TOKENS[variant.name]


class Sum:
    """Sums being made, one in each lane: int32 totals, and with AVX2 sums of pairs that 16 bits still hold."""

    def __init__(self, lanes: Lanes, start: Any = None, *, chains: int = 1) -> None:
        """Begins with nothing, or with `start`.

        Args:
            chains: Sums that are made by turns, since one instruction's result is not ready for the next.
        """
        self.lanes, self.chains = lanes, chains
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
        so_far = self.totals.pop(0) if len(self.totals) == self.chains else lanes.dword(0)
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


def sum_of_products(
    lanes: Lanes, weights: Sequence[Any], values: Values, top: int, *, signed: bool, start: Any = None
) -> Any:
    """The sums of all products of a group, int32, exact."""
    made = Sum(lanes, start, chains=2)
    for number, codes in enumerate(weights):
        made.add(codes, values.codes(number), top, signed=signed)
    return made.finish()


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
