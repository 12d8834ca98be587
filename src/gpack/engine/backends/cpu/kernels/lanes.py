"""Code that works on several rows of a matrix at once: lane r of every vector belongs to row r.

A row of weights is long and its blocks carry their own scales, so rows side by side need no sums across lanes and no
scale more than once. What lies in memory row by row is turned by 4 x 4 transpositions inside 128 bits. All of it is
LLVM's own vector code; what no vector code of LLVM says (u8 x s8 products, byte tables) differs between variants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ..layout import TILE_ROWS
from ..variants import Variant

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, HALF = ir.FloatType(), ir.HalfType()
_AHEAD = 2  # tiles; one is too late where rows are short
_PAGE = 4096  # bytes; more on some machines, where this does no harm


def rows_of(variant: Variant) -> int:
    """Lanes of 32 bits that a variant's vectors have, which is the number of rows of a tile."""
    return TILE_ROWS[variant.name]


def _constant(kind: Any, value: float) -> Any:
    """A constant; integers may be given without a sign."""
    width = getattr(kind, "width", 0)
    return ir.Constant(kind, value - (1 << width) if width and value >= 1 << (width - 1) else value)


class Lanes:
    """Writes vector code for a variant with a builder.

    Attributes:
        count: Lanes of 32 bits.
        dwords, floats, bytes, shorts: The vector types.
    """

    def __init__(self, builder: Any, variant: Variant) -> None:
        self.builder, self.variant = builder, variant
        self.count = rows_of(variant)
        self.dwords = ir.VectorType(I32, self.count)
        self.floats = ir.VectorType(F32, self.count)
        self.bytes = ir.VectorType(I8, 4 * self.count)
        self.shorts = ir.VectorType(I16, 2 * self.count)
        self.halves = ir.VectorType(I16, self.count)

    # Constants and memory

    def fill(self, kind: Any, value: float) -> Any:
        """A vector constant with `value` in all elements."""
        return ir.Constant(kind, [_constant(kind.element, value)] * kind.count)

    def constants(self, kind: Any, values: Sequence[int]) -> Any:
        """A vector constant."""
        return ir.Constant(kind, [_constant(kind.element, value) for value in values])

    def dword(self, value: int) -> Any:
        """A constant of 32-bit integers; bytes as in 0x0f0f0f0f."""
        return self.fill(self.dwords, value)

    def number(self, value: int) -> Any:
        """A scalar int64."""
        return ir.Constant(I64, value)

    def at(self, address: Any, offset: int = 0) -> Any:
        """The address `offset` bytes further."""
        return self.builder.add(address, self.number(offset)) if offset else address

    def opaque(self, address: Any) -> Any:
        """The same address, of which LLVM shall not know how it follows from others: it would keep sums of its own."""
        return self.builder.call(ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0"), [address])

    def base(self, address: Any) -> Any:
        """The same address, in a register of its own where that is faster.

        Instructions with 512 bits that add two registers to find what they read are split in two: measured, products
        of several columns take 5 to 20 % longer with them. With 256 bits they do not.
        """
        return self.opaque(address) if self.count == TILE_ROWS["vnni"] else address

    def load(self, address: Any, kind: Any, align: int = 1) -> Any:
        """Reads a value of a type."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def store(self, address: Any, value: Any, align: int = 1) -> None:
        """Writes a value."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=align)

    def prefetch(self, address: Any) -> None:
        """Asks for a cache line that is needed soon, into the second level. Any address will do."""
        pointer = self.builder.inttoptr(address, I8.as_pointer())
        hints = [ir.Constant(I32, value) for value in (0, 2, 1)]  # for reading, how near, data
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *hints)

    def splat(self, value: Any) -> Any:
        """A scalar in all lanes."""
        kind = ir.VectorType(value.type, self.count)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(
            one, undefined, ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        )

    def broadcast(self, address: Any, kind: Any) -> Any:
        """A scalar from memory in all lanes."""
        return self.splat(self.load(address, kind))

    def shuffle(self, first: Any, second: Any, order: Sequence[int]) -> Any:
        """Elements of two vectors, as numbered through both."""
        return self.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(order)), list(order)))

    def loop(self, count: Any, carried: Sequence[Any], body: Any) -> list[Any]:
        """`for i in range(count): carried = body(i, carried)`; gives what was carried at the end.

        Args:
            body: Gets the index and the carried values; returns the new ones.
        """
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(self.number(0), before)
        values = [builder.phi(item.type) for item in carried]
        for value, item in zip(values, carried, strict=True):
            value.add_incoming(item, before)
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
        made = body(index, values)
        index.add_incoming(builder.add(index, self.number(1)), builder.block)
        for value, item in zip(values, made, strict=True):
            value.add_incoming(item, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return values

    # Arithmetic

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Calls an intrinsic of LLVM."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [item.type for item in arguments]), name)
        return self.builder.call(function, arguments)

    def and_(self, value: Any, mask: int) -> Any:
        """Keeps the bits of a mask of 32 bits."""
        return self.builder.and_(value, self.dword(mask))

    def right(self, value: Any, bits: int) -> Any:
        """Shifts 32-bit lanes right, zeros come in."""
        return self.builder.lshr(value, self.dword(bits)) if bits else value

    def left(self, value: Any, bits: int) -> Any:
        """Shifts 32-bit lanes left."""
        return self.builder.shl(value, self.dword(bits)) if bits else value

    def fields(self, value: Any, shift: int, bits: int) -> Any:
        """From each byte the `bits` bits that begin at bit `shift`."""
        mask = ((1 << bits) - 1) * 0x01010101
        return self.and_(self.right(value, shift), mask)

    def byte_number(self, value: Any, number: int, *, signed: bool = False) -> Any:
        """Byte `number` of each 32-bit lane as an int32."""
        if signed:
            return self.builder.ashr(self.left(value, 24 - 8 * number), self.dword(24))
        moved = self.right(value, 8 * number)
        return moved if number == 3 else self.and_(moved, 0xFF)

    def byte(self, value: Any, number: int, *, signed: bool = False) -> Any:
        """Byte `number` of each 32-bit lane as a float."""
        return self.builder.sitofp(self.byte_number(value, number, signed=signed), self.floats)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """The sum x y + z; rounded once where the variant can."""
        if self.variant.name == "portable":
            return self.builder.fadd(self.builder.fmul(x, y), z)
        return self.call(f"llvm.fma.v{self.count}f32", self.floats, x, y, z)

    def widen(self, halves: Any) -> Any:
        """16-bit floats, given as int16, as float32."""
        if self.variant.name != "portable":
            return self.builder.fpext(self.builder.bitcast(halves, ir.VectorType(HALF, self.count)), self.floats)
        # Without F16C: exponent and mantissa are moved into place and 2^112 corrects the bias, subnormals included.
        builder = self.builder
        wide = builder.zext(halves, self.dwords)
        magnitude = self.and_(wide, 0x7FFF)
        scaled = builder.fmul(builder.bitcast(self.left(magnitude, 13), self.floats), self.fill(self.floats, 2.0**112))
        special = builder.icmp_unsigned(">", magnitude, self.dword(0x7BFF))
        bits = builder.select(
            special, builder.or_(self.left(magnitude, 13), self.dword(0x7F800000)), builder.bitcast(scaled, self.dwords)
        )
        signs = self.left(self.and_(wide, 0x8000), 16)
        return builder.bitcast(builder.or_(bits, signs), self.floats)

    def low_half(self, dwords: Any) -> Any:
        """The 16-bit float in the low half of each lane."""
        return self.widen(self.builder.trunc(dwords, self.halves))

    def high_half(self, dwords: Any) -> Any:
        """The 16-bit float in the high half of each lane."""
        return self.widen(self.builder.trunc(self.right(dwords, 16), self.halves))

    def look_up(self, table: Sequence[int], codes: Any) -> Any:
        """Entries of a table of 16 bytes, for codes 0 to 15 in the bytes of each lane."""
        builder = self.builder
        codes = builder.bitcast(codes, self.bytes)
        if self.variant.name == "portable":
            name = f"look_up_{'_'.join(str(value & 0xFF) for value in table)}"
            found = self.apart(name, self.bytes, codes, lambda lanes, given: lanes._choose(table, given, 3))
        else:
            entries = self.constants(self.bytes, list(table) * (self.count // 4))
            name = "llvm.x86.avx512.pshuf.b.512" if self.count == 16 else "llvm.x86.avx2.pshuf.b"
            found = self.call(name, self.bytes, entries, codes)
        return builder.bitcast(found, self.dwords)

    def apart(self, name: str, kind: Any, argument: Any, body: Callable[[Lanes, Any], Any]) -> Any:
        """Calls a function of one argument that is written once, since its code is long: `body` gives its result."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [argument.type]), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            inside = Lanes(ir.IRBuilder(function.append_basic_block()), self.variant)
            inside.builder.ret(body(inside, function.args[0]))
        return self.builder.call(function, [argument])

    def _choose(self, table: Sequence[int], codes: Any, bit: int) -> Any:
        if len(table) == 1:
            return self.fill(self.bytes, table[0])
        half = len(table) // 2
        is_set = self.builder.icmp_unsigned(
            "!=", self.builder.and_(codes, self.fill(self.bytes, 1 << bit)), self.fill(self.bytes, 0)
        )
        high, low = self._choose(table[half:], codes, bit - 1), self._choose(table[:half], codes, bit - 1)
        return self.builder.select(is_set, high, low)


class Rows:
    """Rows of stored blocks, a lane for each, at one place in all of them."""

    def __init__(self, lanes: Lanes, first: Any, stride: Any) -> None:
        """Takes the addresses of the first row's bytes and the distance between rows."""
        self.lanes, self.first, self.stride = lanes, first, stride

    def address(self, row: int, offset: int) -> Any:
        """Where a row's byte lies. Few sums are kept: x86 adds an index times 1, 2, 4 or 8 for nothing."""
        builder, lanes = self.lanes.builder, self.lanes
        anchor = row // 5 * 5
        factor = row - anchor
        if factor == 3 and anchor:
            anchor, factor = anchor - 5, 8
        base = self.first
        if anchor:
            base = builder.add(base, builder.mul(self.stride, lanes.number(anchor)))
        if factor:
            base = builder.add(base, builder.mul(self.stride, lanes.number(factor)))
        return lanes.at(base, offset)

    def scalars(self, offset: int, kind: Any) -> Any:
        """A scalar of each row."""
        lanes = self.lanes
        made = ir.Constant(ir.VectorType(kind, lanes.count), ir.Undefined)
        for row in range(lanes.count):
            value = lanes.load(self.address(row, offset), kind)
            made = lanes.builder.insert_element(made, value, ir.Constant(I32, row))
        return made

    def half(self, offset: int) -> Any:
        """A 16-bit float of each row, as float32."""
        return self.lanes.widen(self.scalars(offset, I16))

    def dword(self, offset: int) -> Any:
        """Four bytes of each row."""
        return self.scalars(offset, I32)

    def dwords(self, offset: int) -> list[Any]:
        """Sixteen bytes of each row, as four vectors of four bytes of each."""
        return self._transpose(*self.side_by_side(offset))

    def sixteen(self, offset: int) -> list[Any]:
        """Sixteen bytes of codes of each row, as four vectors of what products take (here: four bytes of each)."""
        return self.dwords(offset)

    def thirty_two(self, offset: int) -> list[Any]:
        """Thirty-two bytes of codes of each row, as eight vectors."""
        return self.sixteen(offset) + self.sixteen(offset + 16)

    def whole(self, offset: int) -> tuple[list[Any], bool]:
        """Thirty-two codes of a byte each, as eight vectors; and whether a vector holds those of one row."""
        return self.thirty_two(offset), False

    def part(self) -> None:
        """Ends a part of a block whose code is best not mixed with what follows."""

    def side_by_side(self, offset: int) -> list[Any]:
        """Sixteen bytes of each row as they lie: vector k of four has those of rows k, k + 4 and so on."""
        lanes = self.lanes
        quad = ir.VectorType(I32, 4)
        loaded = []
        for first in range(4):
            parts = [lanes.load(self.address(row, offset), quad) for row in range(first, lanes.count, 4)]
            while len(parts) > 1:
                parts = [
                    lanes.shuffle(low, high, range(2 * low.type.count))
                    for low, high in zip(parts[::2], parts[1::2], strict=True)
                ]
            loaded.append(parts[0])
        return loaded

    def _transpose(self, a: Any, b: Any, c: Any, d: Any) -> list[Any]:
        ab, cd = self._zip(a, b, 0), self._zip(c, d, 0)
        ab_high, cd_high = self._zip(a, b, 2), self._zip(c, d, 2)
        return [
            self._zip_pairs(ab, cd, 0),
            self._zip_pairs(ab, cd, 2),
            self._zip_pairs(ab_high, cd_high, 0),
            self._zip_pairs(ab_high, cd_high, 2),
        ]

    def _zip(self, x: Any, y: Any, first: int) -> Any:
        """Elements first and first + 1 of each 128 bits, by turns from x and y."""
        count = self.lanes.count
        order = [start + at for start in range(first, count, 4) for at in (0, count, 1, count + 1)]
        return self.lanes.shuffle(x, y, order)

    def _zip_pairs(self, x: Any, y: Any, first: int) -> Any:
        count = self.lanes.count
        order = [start + at for start in range(first, count, 4) for at in (0, 1, count, count + 1)]
        return self.lanes.shuffle(x, y, order)


def totals(lanes: Lanes, vectors: Sequence[Any], add: Callable[[Any, Any], Any] | None = None) -> Any:
    """The sum of each vector, as one vector; in an order that is the same for all variants.

    Two vectors become one of the same length: halves of the first are added in its first half, and so on.

    Args:
        vectors: As many as a power of two.
        add: Adds two of them; floats unless it is given.
    """
    add = add or lanes.builder.fadd
    count = length = vectors[0].type.count  # elements of a vector; those that still belong to one sum
    found = list(vectors)
    while length > 1:
        starts = range(0, count, length)
        low, high = (
            [start + place for start in starts for place in range(first, first + length // 2)]
            for first in (0, length // 2)
        )
        if len(found) > 1:
            orders = [[*half, *(count + place for place in half)] for half in (low, high)]
            pairs = list(zip(found[::2], found[1::2], strict=True))
        else:
            orders, pairs, count = [low, high], [(found[0], found[0])], count // 2
        found = [add(*(lanes.shuffle(a, b, order) for order in orders)) for a, b in pairs]
        length //= 2
    return found[0]


def fetch_ahead(lanes: Lanes, tile: Any, tile_bytes: Any, block: Any, size: int) -> None:
    """Asks for the part of a tile to come that lies where this one's rows have a block.

    A tile is one piece of memory, but its rows are too many streams for the processor to foresee.

    Args:
        size: Bytes of a block.
    """
    builder = lanes.builder
    length = size * lanes.count
    ahead = builder.add(tile, builder.mul(tile_bytes, lanes.number(_AHEAD)))
    start = builder.add(ahead, builder.mul(block, lanes.number(length)))
    fetch(lanes, start, length)


def fetch(lanes: Lanes, start: Any, length: int) -> None:
    """Asks for so many bytes, and looks up where those a page further lie.

    Of a page whose address is not known yet nothing is fetched, it is only looked up: so it is asked for once before.
    """
    lanes.prefetch(lanes.at(start, length + _PAGE))
    for offset in range(0, length, 64):
        lanes.prefetch(lanes.at(start, offset))
