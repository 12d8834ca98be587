"""Weights times some columns: they are read once, in the form in which they are stored, and never written.

A block is unpacked group by group in registers, and each group meets all columns before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..layout import BLOCKS, COUNT, Q8_BYTES, Q8_VALUES, ROW_BYTES, SCRATCH, SCRATCH_SUMS, TILE_WORDS, WEIGHTS
from ..variants import Variant
from .blocks import FORMATS
from .emit import Written
from .lanes import I64, Lanes, Rows, fetch_ahead
from .paired import PairedRows, is_paired, paired_sums
from .plain import PLAIN, Plain
from .products import Add, add_floats, add_group, columns_of, sums_of_products
from .q8 import BYTE_OFFSET, GroupQ8
from .results import column_address, put
from .units import Format, Group

# Writes the sums of tiles: from the addresses of their weights, through columns that know how to be updated.
_Body = Callable[[Lanes, Sequence[Any], Sequence[Any], "_Columns"], None]
# Tiles of floats that one column meets at once: its next sum waits for the last one, another tile's does not. Sixteen
# rows are enough, and more would have no room in the first cache.
_TOGETHER = {"vnni": 1, "avx2": 2, "portable": 2}


class _Columns:
    """The columns and their sums. One column's address and sum are in registers, those of several in memory."""

    def __init__(self, lanes: Lanes, args: Sequence[Any], *, single: bool) -> None:
        self.lanes, self.count, self.single = lanes, args[COUNT], single
        self._totals: list[Any] = []  # of one column, for each tile
        self._sums = lanes.at(args[SCRATCH], SCRATCH_SUMS)
        self._addresses = args[SCRATCH]
        if single:
            self._address = column_address(lanes, args, lanes.number(0))
            return

        def address(number: Any, _carried: Sequence[Any]) -> list[Any]:
            lanes.store(self._place(self._addresses, number, 8), column_address(lanes, args, number), 8)
            return []

        lanes.loop(self.count, [], address)

    def _place(self, start: Any, number: Any, size: int) -> Any:
        return self.lanes.builder.add(start, self.lanes.builder.mul(number, self.lanes.number(size)))

    def sum_place(self, number: Any) -> Any:
        """Where a column's sum is when a tile is done."""
        return self._place(self._sums, number, 4 * self.lanes.count)

    def clear(self, tiles: int) -> None:
        """Sets all sums to 0, of some tiles where there is one column."""
        lanes, zero = self.lanes, self.lanes.fill(self.lanes.floats, 0.0)
        self._totals = [zero] * tiles

        def clear(number: Any, _carried: Sequence[Any]) -> list[Any]:
            lanes.store(self.sum_place(number), zero, 4)
            return []

        if not self.single:
            lanes.loop(self.count, [], clear)

    def through(self, count: Any, body: Callable[[Any], None]) -> None:
        """`for place in range(count): body(place)`, where `body` updates the sums."""

        def step(place: Any, carried: Sequence[Any]) -> list[Any]:
            self._totals = list(carried)
            body(place)
            return self._totals

        self._totals = self.lanes.loop(count, self._totals, step)

    def update(self, add: Add, offset: Any, tile: int = 0) -> None:
        """Adds to all sums.

        Args:
            add: Makes new sums of the addresses of some columns and their sums.
            offset: What is added to the addresses.
            tile: Which of several.
        """
        lanes, builder = self.lanes, self.lanes.builder
        if self.single:
            (self._totals[tile],) = add([builder.add(self._address, offset)], [self._totals[tile]])
            return
        done = lanes.number(0)
        for width in columns_of(lanes.variant):
            turns = builder.sdiv(builder.sub(self.count, done), lanes.number(width))

            def some(number: Any, _carried: Sequence[Any], done: Any = done, width: int = width) -> list[Any]:
                first = builder.add(done, builder.mul(number, lanes.number(width)))
                addresses = lanes.opaque(self._place(self._addresses, first, 8))
                sums = lanes.opaque(self.sum_place(first))
                starts = (lanes.load(lanes.at(addresses, 8 * k), I64, 8) for k in range(width))
                xs = [lanes.base(builder.add(start, offset)) for start in starts]
                places = [lanes.at(sums, 4 * lanes.count * k) for k in range(width)]
                before = (lanes.load(place, lanes.floats, 4) for place in places)  # late: registers are few
                for place, total in zip(places, add(xs, before), strict=True):
                    lanes.store(place, total, 4)
                return []

            lanes.loop(turns, [], some)
            done = builder.add(done, builder.mul(turns, lanes.number(width)))

    def finish(self, args: Sequence[Any], first_rows: Sequence[Any]) -> None:
        """Stores the results of tiles."""
        lanes = self.lanes
        if self.single:
            for total, first_row in zip(self._totals, first_rows, strict=True):
                lanes.store(self._sums, total, 4)
                put(lanes, args, lanes.number(0), first_row, self._sums)
            return

        def column(number: Any, _carried: Sequence[Any]) -> list[Any]:
            put(lanes, args, number, first_rows[0], self.sum_place(number))
            return []

        lanes.loop(self.count, [], column)


def _tiles(body: _Body, together: int, lanes: Lanes, args: Sequence[Any], first: Any, stop: Any) -> None:
    """Arguments: see layout.py. `first` to `stop`: the tiles, all of which have all their rows.

    Args:
        together: Tiles that one column meets at once.
    """
    builder = lanes.builder
    tile_bytes = builder.mul(args[ROW_BYTES], lanes.number(lanes.count))

    def tiles(columns: _Columns, begin: Any, count: int) -> Any:
        """Goes through tiles, so many at once, while there are so many; gives the first that is left."""
        turns = builder.sdiv(builder.sub(stop, begin), lanes.number(count))

        def some(number: Any, _carried: Sequence[Any]) -> list[Any]:
            here = builder.add(begin, builder.mul(number, lanes.number(count)))
            numbers = [builder.add(here, lanes.number(place)) for place in range(count)]
            columns.clear(count)
            body(lanes, args, [builder.add(args[WEIGHTS], builder.mul(tile, tile_bytes)) for tile in numbers], columns)
            columns.finish(args, [builder.mul(tile, lanes.number(lanes.count)) for tile in numbers])
            return []

        lanes.loop(turns, [], some)
        return builder.add(begin, builder.mul(turns, lanes.number(count)))

    with builder.if_else(builder.icmp_signed("==", args[COUNT], lanes.number(1))) as (one, several):
        with one:
            columns, begin = _Columns(lanes, args, single=True), first
            for count in sorted({together, 1}, reverse=True):
                begin = tiles(columns, begin, count)
        with several:
            tiles(_Columns(lanes, args, single=False), first, 1)


def _quantized(form: Format, lanes: Lanes, args: Sequence[Any], starts: Sequence[Any], columns: _Columns) -> None:
    builder, (start,) = lanes.builder, starts
    paired = columns.single and is_paired(lanes, form)
    tile_bytes = builder.mul(args[ROW_BYTES], lanes.number(lanes.count))

    def block(place: Any) -> None:
        first = builder.add(start, builder.mul(place, lanes.number(form.size)))
        rows = PairedRows(lanes, first, args[ROW_BYTES]) if paired else Rows(lanes, first, args[ROW_BYTES])
        offset = builder.mul(place, lanes.number(form.elements // Q8_VALUES * Q8_BYTES))
        for group in form.groups(lanes, rows):
            multiply = partial(paired_sums if paired else _sums, lanes, form, group)
            columns.update(add_group(lanes, form, group, multiply), offset)
        rows.part()  # asked for in between, what is ahead would delay the block itself
        fetch_ahead(lanes, start, tile_bytes, place, form.size)

    columns.through(args[BLOCKS], block)


def _sums(lanes: Lanes, form: Format, group: Group, values: Sequence[GroupQ8]) -> list[Any]:
    is_byte = group.offset == BYTE_OFFSET
    return sums_of_products(lanes, group.codes, values, form.top, signed=group.signed, is_byte=is_byte)


def _plain(form: Plain, lanes: Lanes, args: Sequence[Any], starts: Sequence[Any], columns: _Columns) -> None:
    builder = lanes.builder
    tile_bytes = builder.mul(args[ROW_BYTES], lanes.number(lanes.count))
    step = lanes.number(form.elements)
    blocks = builder.sdiv(args[BLOCKS], step)

    def block(place: Any) -> None:
        offset = builder.mul(place, lanes.number(4 * form.elements))
        for tile, start in enumerate(starts):
            rows = Rows(lanes, builder.add(start, builder.mul(place, lanes.number(16))), args[ROW_BYTES])
            columns.update(add_floats(lanes, form.values(lanes, rows)), offset, tile)
            fetch_ahead(lanes, start, tile_bytes, place, 16)

    def single(place: Any) -> None:
        place = builder.add(place, builder.mul(blocks, step))
        for tile, start in enumerate(starts):
            weights = form.single(lanes, start, args[ROW_BYTES], place)
            columns.update(add_floats(lanes, [weights]), builder.mul(place, lanes.number(4)), tile)

    columns.through(blocks, block)
    columns.through(builder.srem(args[BLOCKS], step), single)


def _kernel(variant: Variant, body: _Body, together: int = 1) -> Written:
    return Written(variant, TILE_WORDS, partial(_tiles, body, together))


def _quantized_kernel(form: Format) -> Callable[[Variant], Written]:
    return lambda variant: _kernel(variant, partial(_quantized, form))


def _plain_kernel(form: Plain) -> Callable[[Variant], Written]:
    return lambda variant: _kernel(variant, partial(_plain, form), _TOGETHER[variant.name])


BUILDERS = {
    **{f"dot_{name}": _quantized_kernel(form) for name, form in FORMATS.items()},
    **{f"dot_{name}": _plain_kernel(form) for name, form in PLAIN.items()},
}
