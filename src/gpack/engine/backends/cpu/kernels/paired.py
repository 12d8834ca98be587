"""A block times one token with AVX2: codes stay as they lie, two rows to a vector, and the sums are turned instead.

By then a group has four vectors of sums, not eight of codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .lanes import Lanes, Rows
from .products import MOST, pairs_of, widen_pairs
from .q8 import GroupQ8
from .units import Format, Group

_MOST_16 = 32767


class PairedRows(Rows):
    """Eight rows; vector k of `sixteen` holds bytes of row k and then of row k + 4."""

    def __init__(self, lanes: Lanes, first: Any, stride: Any) -> None:
        super().__init__(lanes, lanes.opaque(first), stride)  # LLVM would step through the rows by sums

    def address(self, row: int, offset: int) -> Any:
        """Where a row's byte lies: odd multiples of the stride stay in registers, and x86 doubles them for nothing."""
        builder, lanes = self.lanes.builder, self.lanes
        if not row:
            return lanes.at(self.first, offset)
        doubling = (row & -row).bit_length() - 1
        odd = builder.mul(self.stride, lanes.number(row >> doubling))
        return lanes.at(builder.add(self.first, builder.shl(odd, lanes.number(doubling))), offset)

    def sixteen(self, offset: int) -> list[Any]:
        """Sixteen bytes of codes of each row, as four vectors."""
        return self.side_by_side(offset)

    def whole(self, offset: int) -> tuple[list[Any], bool]:
        """Thirty-two codes of a byte each, a vector for each row: half as much to read."""
        lanes = self.lanes
        return [lanes.load(self.address(row, offset), lanes.dwords) for row in range(lanes.count)], True

    def part(self) -> None:
        """Nothing of what follows is read before: values that wait would not fit into 16 registers."""
        kind = ir.FunctionType(ir.VoidType(), [])
        self.lanes.builder.call(ir.InlineAsm(kind, "", "~{memory}", side_effect=True), [])


def is_paired(lanes: Lanes, form: Format) -> bool:
    """Whether a type's codes are best left as they lie."""
    return form.pairs and lanes.variant.name == "avx2"


def paired_sums(lanes: Lanes, form: Format, group: Group, values: Sequence[GroupQ8]) -> list[Any]:
    """The sums of a group's products with some columns, int32, exact; a lane for each row."""
    return [_sum(lanes, group, value, form.top) for value in values]


def _sum(lanes: Lanes, group: Group, values: GroupQ8, top: int) -> Any:
    sums = _Sums(lanes, group, values, top)
    for size in (1, 2, 4) if group.whole else (1, 2):
        sums.join(size)
    made = sums.widened()[0]
    return lanes.builder.add(made, values.negative()) if group.signed else made


class _Sums:
    """Sums of a group's products on their way to a lane for each row.

    At first there are four vectors of two rows each, or eight of one.

    Attributes:
        vectors: int16 or int32.
        most: What an int16 is at most, its sign aside.
    """

    def __init__(self, lanes: Lanes, group: Group, values: GroupQ8, top: int) -> None:
        self.lanes, self.most = lanes, 2 * top * MOST
        if group.whole:
            self.vectors = self._products(group.codes, values.all(), signed=group.signed)
            return
        self.vectors, *second = (
            self._products(group.codes[first : first + 4], values.sixteen(first // 4), signed=group.signed)
            for first in range(0, len(group.codes), 4)
        )
        for vectors in second:
            self.vectors = [lanes.builder.add(*pair) for pair in zip(self.vectors, vectors, strict=True)]
            self.most *= 2

    def _products(self, codes: Sequence[Any], x: Any, *, signed: bool) -> list[Any]:
        """Sums of two products each; of four as int32 where codes are signed, and then less `values.negative()`."""
        lanes, builder = self.lanes, self.lanes.builder
        if not signed:
            return [pairs_of(lanes, vector, x) for vector in codes]
        # |x| times w, or times -w - 1 where x is negative: that is w with all bits flipped, for any w.
        x, zero = builder.bitcast(x, lanes.bytes), lanes.fill(lanes.bytes, 0)
        size = lanes.call(f"llvm.abs.v{lanes.bytes.count}i8", lanes.bytes, x, ir.Constant(ir.IntType(1), 0))
        flips = builder.sext(builder.icmp_signed("<", x, zero), lanes.bytes)
        flipped = [builder.xor(builder.bitcast(vector, lanes.bytes), flips) for vector in codes]
        return [widen_pairs(lanes, pairs_of(lanes, size, vector)) for vector in flipped]

    def fit(self) -> bool:
        """Whether two sums may be added."""
        return 2 * self.most <= _MOST_16 or self.vectors[0].type == self.lanes.dwords

    def join(self, size: int) -> None:
        """Makes one vector of two (see `_join`), with half as many lanes to a row."""
        if not self.fit():
            self.vectors = self.widened()
        pairs = zip(self.vectors[::2], self.vectors[1::2], strict=True)
        self.vectors = [_join(self.lanes, *pair, size) for pair in pairs]
        self.most *= 2

    def widened(self) -> list[Any]:
        """The sums as int32."""
        if self.vectors[0].type == self.lanes.dwords:
            return self.vectors
        return [widen_pairs(self.lanes, vector) for vector in self.vectors]


def _join(lanes: Lanes, a: Any, b: Any, size: int) -> Any:
    """Adds the halves of either vector, and sets both sums by turns, `size` lanes of 32 bits (1, 2 or 4) of each.

    These are halves of every 128 bits; of the whole vector where `size` is 4.
    """
    builder, kind = lanes.builder, a.type
    a, b = builder.bitcast(a, lanes.dwords), builder.bitcast(b, lanes.dwords)
    if size == 4:
        first = [0, 1, 2, 3, 8, 9, 10, 11]
    else:  # within 128 bits
        turns = (0, 8, 1, 9) if size == 1 else (0, 1, 8, 9)
        first = [start + place for start in (0, 4) for place in turns]
    low, high = (lanes.shuffle(a, b, [place + half for place in first]) for half in (0, max(size, 2)))
    return builder.add(builder.bitcast(low, kind), builder.bitcast(high, kind))
