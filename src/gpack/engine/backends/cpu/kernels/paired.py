"""A block times one token with AVX2: codes stay as they lie, two rows to a vector, and the sums are turned instead.

By then a group has four vectors of sums, not eight of codes. Scales that are small integers are multiplied while sums
are integers, which is a step that AVX2 has to take anyway to make 32 bits of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .lanes import I64, Lanes, Rows
from .products import MOST, pairs_of, widen_pairs
from .q8 import GroupQ8
from .units import Format, Group, Level

_MOST_16 = 32767
_SIGNED_UNIT = 256  # a signed byte is taken as the upper half of 16 bits
_ROWS_OF_HALF = (0, 1, 2, 3)
_ZERO = 0xFF  # as a place: a byte of zeros


class PairedRows(Rows):
    """Eight rows; vector k of `sixteen` holds bytes of row k and then of row k + 4."""

    def __init__(self, lanes: Lanes, first: Any, stride: Any) -> None:
        # LLVM shall not know how this address follows from the last block's: it would step through the rows by sums.
        kind = ir.FunctionType(I64, [I64])
        super().__init__(lanes, lanes.builder.call(ir.InlineAsm(kind, "", "=r,0"), [first]), stride)

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


def add_paired_block(form: Format, lanes: Lanes, rows: Rows, x: Any, sums: Sequence[Any]) -> list[Any]:
    """Adds a block's products to the sums: those of scales, and those of offsets and minima."""
    builder = lanes.builder
    total, rest = sums
    by_level: Any = None  # what is still to be multiplied by the block's unit of scales
    by_minimum: Any = None  # and by that of minima
    for group in form.groups(lanes, rows):
        values = GroupQ8(lanes, x, group.place * form.group, form.group)
        if isinstance(group.scale, Level):
            products = builder.sitofp(_sum_of_levels(lanes, group, group.scale, values, form.top), lanes.floats)
            by_level = _add_product(lanes, products, values.scale(), by_level)
            if group.minimum is not None:
                by_minimum = _add_product(lanes, _floats(lanes, group.minimum), values.sum(), by_minimum)
            continue
        products = builder.sitofp(_sum(lanes, group, values, form.top), lanes.floats)
        total = lanes.multiply_add(products, builder.fmul(group.scale, values.scale()), total)
        minimum = group.minimum
        if group.offset:
            minimum = builder.fmul(group.scale, lanes.fill(lanes.floats, -float(group.offset)))
        if minimum is not None:
            rest = lanes.multiply_add(minimum, values.sum(), rest)
    if by_level is not None:
        unit = group.scale.unit
        if group.scale.signed:
            unit = builder.fmul(unit, lanes.fill(lanes.floats, 1 / _SIGNED_UNIT))
        total = lanes.multiply_add(unit, by_level, total)
    if by_minimum is not None:
        rest = lanes.multiply_add(group.minimum.unit, by_minimum, rest)
    return [total, rest]


def _add_product(lanes: Lanes, x: Any, y: Any, so_far: Any) -> Any:
    return lanes.builder.fmul(x, y) if so_far is None else lanes.multiply_add(x, y, so_far)


def _sum(lanes: Lanes, group: Group, values: GroupQ8, top: int) -> Any:
    """The sums of a group's products, int32, exact; a lane for each row."""
    sums = _Sums(lanes, group, values, top)
    for size in (1, 2, 4) if group.whole else (1, 2):
        sums.join(size)
    made = sums.widened()[0]
    return lanes.builder.add(made, values.negative()) if group.signed else made


def _sum_of_levels(lanes: Lanes, group: Group, level: Level, values: GroupQ8, top: int) -> Any:
    """The sums of a group's products, less its offset, times the level (256 times that where it is signed)."""
    sums = _Sums(lanes, group, values, top)
    if group.offset:  # what overflows 16 bits comes back with it: of eight codes it leaves at most 8 x 32 x 127
        sums.join(1, wraps=True)
        sums.join(2, wraps=True)
        sums.vectors = [lanes.builder.sub(sums.vectors[0], values.offsets(group.offset))]
        return sums.times([_words(lanes, level, _ROWS_OF_HALF)])[0]
    sums.join(1)
    if not sums.fit():
        low, high = sums.times([_words(lanes, level, (0, 1, 0, 1)), _words(lanes, level, (2, 3, 2, 3))])
        return _join(lanes, low, high, 2)
    sums.join(2)
    return sums.times([_words(lanes, level, _ROWS_OF_HALF)])[0]


def _words(lanes: Lanes, level: Level, rows: Sequence[int]) -> Any:
    """A level as int16, twice in each lane: of these rows in the first 128 bits, of those 4 further in the second."""
    order: list[int] = []
    for row in rows:
        byte = 4 * row + level.number
        order += 2 * ([_ZERO, byte] if level.signed else [byte, _ZERO])
    return lanes.builder.bitcast(_bytes(lanes, level, order), lanes.shorts)


def _floats(lanes: Lanes, level: Level) -> Any:
    """The bytes of a level, which are not signed, as floats."""
    order = [place for row in range(4) for place in (4 * row + level.number, _ZERO, _ZERO, _ZERO)]
    return lanes.builder.sitofp(lanes.builder.bitcast(_bytes(lanes, level, order), lanes.dwords), lanes.floats)


def _bytes(lanes: Lanes, level: Level, order: Sequence[int]) -> Any:
    """Bytes of each 128 bits of a level in this order."""
    packed = lanes.builder.bitcast(level.packed, lanes.bytes)
    return lanes.call("llvm.x86.avx2.pshuf.b", lanes.bytes, packed, lanes.constants(lanes.bytes, 2 * list(order)))


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

    def join(self, size: int, *, wraps: bool = False) -> None:
        """Makes one vector of two (see `_join`), with half as many lanes to a row."""
        if not wraps and not self.fit():
            self.vectors = self.widened()
        pairs = zip(self.vectors[::2], self.vectors[1::2], strict=True)
        self.vectors = [_join(self.lanes, *pair, size) for pair in pairs]
        self.most *= 2

    def widened(self) -> list[Any]:
        """The sums as int32."""
        if self.vectors[0].type == self.lanes.dwords:
            return self.vectors
        return [widen_pairs(self.lanes, vector) for vector in self.vectors]

    def times(self, factors: Sequence[Any]) -> list[Any]:
        """int16 sums times int16 factors, int32: two of 32512 times -32768 at most."""
        lanes = self.lanes
        pairs = zip(self.vectors, factors, strict=True)
        return [lanes.call("llvm.x86.avx2.pmadd.wd", lanes.dwords, *pair) for pair in pairs]


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
