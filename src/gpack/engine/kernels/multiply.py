"""A panel times several tokens: each vector of the panel is read once for all of them, the sums stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from ..cpu import Variant
from .lanes import F32, I64, Lanes, rows_of
from .memory import floats, ints, longs
from .panels import group_bytes
from .products import Sum, tokens_of
from .x8 import SIZE, VALUES, Group8

# Words of the arguments. What a driver must set for each panel, and what stays for a step.
PANEL, LENGTH, X, X_ROW, X_LIST, COUNT, OUT, OUT_ROW, OUT_LIST, COLUMNS, BIAS, ADD, SCRATCH, PANEL_BYTES = range(14)
MULTIPLY_WORDS = 14


def scratch_bytes(variant: Variant) -> int:
    """What a multiplication needs in SCRATCH: addresses of tokens, and their results for a panel."""
    return _most(variant) * 8 + _most(variant) * rows_of(variant) * 4


def _most(variant: Variant) -> int:
    return max(tokens_of(variant), _FLOAT_TOKENS)


_FLOAT_TOKENS = 8
_Body = Callable[[Lanes, Any, Any, Sequence[Any], Any], None]


def _emitted(variant: Variant, tokens: int, body: _Body) -> Any:
    """Compiled code's function of: a panel, its length, addresses of tokens, and where to put the results."""

    @intrinsic
    def product(_typing: Any, panel: Any, length: Any, rows: Any, results: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
            lanes = Lanes(builder, variant)
            addresses = [lanes.load(lanes.at(given[2], 8 * token), I64, 8) for token in range(tokens)]
            body(lanes, given[0], given[1], addresses, given[3])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64), emit

    return product


def _codes_body(group: int, top: int, *, signed: bool, is_byte: bool) -> _Body:
    """`signed`: codes are; `is_byte`: they have an offset of 128. Neither needs minima."""

    def body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any], results: Any) -> None:
        """`length` counts 32 weights."""
        builder = lanes.builder
        vector = 4 * lanes.count
        size = group_bytes(lanes, group)

        def step(number: Any, sums: Sequence[Any]) -> list[Any]:
            made = list(sums)
            here = builder.add(panel, builder.mul(number, lanes.number(VALUES // group * size)))
            x_place = builder.mul(number, lanes.number(SIZE))
            for part in range(VALUES // group):
                start = lanes.at(here, part * size)
                values = [Group8(lanes, builder.add(row, x_place), part * group, group) for row in rows]
                state = [Sum(lanes, value.offset() if is_byte else None) for value in values]
                for place in range(group // 4):
                    weights = lanes.load(lanes.at(start, (2 + place) * vector), lanes.dwords)
                    for token, value in enumerate(values):
                        state[token].add(weights, value.codes(place), top, signed=signed)
                scale = lanes.load(start, lanes.floats)
                minimum = lanes.load(lanes.at(start, vector), lanes.floats)
                for token, value in enumerate(values):
                    total = builder.sitofp(state[token].finish(), lanes.floats)
                    made[token] = lanes.multiply_add(total, builder.fmul(scale, value.scale()), made[token])
                    if not signed and not is_byte:
                        made[token] = lanes.multiply_add(minimum, value.sum(), made[token])
            return made

        sums = lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)
        for token, total in enumerate(sums):
            lanes.store(lanes.at(results, token * vector), total)

    return body


def _floats_body(lanes: Lanes, panel: Any, length: Any, rows: Sequence[Any], results: Any) -> None:
    """`length` counts weights."""
    builder = lanes.builder
    vector = 4 * lanes.count

    def step(number: Any, sums: Sequence[Any]) -> list[Any]:
        weights = lanes.load(builder.add(panel, builder.mul(number, lanes.number(vector))), lanes.floats)
        x_place = builder.mul(number, lanes.number(4))
        return [
            lanes.multiply_add(weights, lanes.broadcast(builder.add(row, x_place), F32), total)
            for row, total in zip(rows, sums, strict=True)
        ]

    sums = lanes.loop(length, [lanes.fill(lanes.floats, 0.0)] * len(rows), step)
    for token, total in enumerate(sums):
        lanes.store(lanes.at(results, token * vector), total)


def _kernel(variant: Variant, tokens: int, body: _Body) -> Callable[..., None]:
    product = _emitted(variant, tokens, body)
    lanes = rows_of(variant)

    def multiply(args: Any, first: int, behind: int) -> None:
        """Arguments: see above. `first` to `behind`: the tiles; PANEL is that of the first."""
        x_list, out_list = ints(args[X_LIST]), ints(args[OUT_LIST])
        addresses = longs(args[SCRATCH])
        results = args[SCRATCH] + 8 * tokens
        made = floats(results)
        bias = floats(args[BIAS])
        count = args[COUNT]
        for start in range(0, count, tokens):
            for token in range(tokens):
                row = min(start + token, count - 1)
                if args[X_LIST] != 0:
                    row = x_list[row]
                addresses[token] = args[X] + row * args[X_ROW]
            for tile in range(first, behind):
                product(args[PANEL] + (tile - first) * args[PANEL_BYTES], args[LENGTH], args[SCRATCH], results)
                column = tile * lanes
                valid = min(lanes, args[COLUMNS] - column)
                for token in range(min(tokens, count - start)):
                    row = start + token
                    if args[OUT_LIST] != 0:
                        row = out_list[row]
                    out = floats(args[OUT] + row * args[OUT_ROW] + 4 * column)
                    for lane in range(valid):
                        value = made[token * lanes + lane]
                        if args[BIAS] != 0:
                            value += bias[column + lane]
                        if args[ADD] != 0:
                            value += out[lane]
                        out[lane] = value

    return multiply


def _codes(group: int, top: int, **kind: bool) -> Callable[[Variant], Callable[..., None]]:
    body = _codes_body(group, top, **{"signed": False, "is_byte": False, **kind})
    return lambda variant: _kernel(variant, tokens_of(variant), body)


BUILDERS = {
    "multiply_floats": lambda variant: _kernel(variant, _FLOAT_TOKENS, _floats_body),
    "multiply_32": _codes(32, 31),
    "multiply_16": _codes(16, 63),
    "multiply_bytes": _codes(32, 255, is_byte=True),
    "multiply_signed": _codes(32, 255, signed=True),
}
