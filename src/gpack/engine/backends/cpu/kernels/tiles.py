"""A small matrix product whose result stays in registers: what attention is made of."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..variants import Variant
from .memory import INT64
from .vectors import LANES, emit_fma, emit_prefetch, halves_at

_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
LINE = 64  # bytes of a cache line


def vectors_of(variant: Variant) -> int:
    """How many vectors of a row go through a product together: as many as 4 rows of them fit into registers."""
    return 4 if variant.name == "vnni" else 1


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def load_vector(builder: Any, address: Any, variant: Variant, *, half: bool) -> Any:
    """Sixteen floats; `half`: that lie there as 16-bit floats."""
    if not half:
        return builder.load(_at(builder, address, _VECTOR), align=4)
    return halves_at(builder, address, variant)


def tile_product(variant: Variant, rows: int, vectors: int, *, half: bool, ahead: bool = False) -> Any:
    """Compiled code's function for C[rows, 16 vectors] = or += A[rows, n] B[n, 16 vectors].

    Its arguments, all int64: addresses of A (float32) and the bytes between its rows; of B (float32, or 16-bit floats
    where `half`), the bytes between its rows and between its vectors; of C (float32), the bytes between its rows (its
    vectors follow each other); n; whether C is added to; and where `ahead` the address of memory that is needed next:
    half as many bytes of it are asked for as are read of B. Each sum is a chain of `emit_fma` in the order of n, in a
    product of any shape. For functions without fast mathematics: numba adds a caller's flags.
    """
    at_once = 2 if variant.name == "portable" else rows  # of those whose sums are in registers

    @intrinsic
    def product(
        _typing: Any,
        a: Any,
        a_row: Any,
        b: Any,
        b_row: Any,
        b_vector: Any,
        c: Any,
        c_row: Any,
        n: Any,
        add: Any,
        needed: Any,
    ) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            for first in range(0, rows, at_once):
                _emit_rows(builder, arguments, range(first, min(first + at_once, rows)))
            return _context.get_dummy_value()

        def _emit_rows(builder: Any, arguments: Any, rows: range) -> None:
            a, a_row, b, b_row, b_vector, c, c_row, n, add, needed = arguments
            places = [(row, vector) for row in rows for vector in range(vectors)]
            sums = {place: cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES)) for place in places}

            def offset(base: Any, step: Any, count: int) -> Any:
                return builder.add(base, builder.mul(step, ir.Constant(INT64, count)))

            def target(row: int, vector: int) -> Any:
                start = builder.add(offset(c, c_row, row), ir.Constant(INT64, vector * LANES * 4))
                return _at(builder, start, _VECTOR)

            for sum_ in sums.values():
                builder.store(ir.Constant(_VECTOR, [0.0] * LANES), sum_)
            with builder.if_then(builder.icmp_signed("!=", add, ir.Constant(INT64, 0))):
                for place, sum_ in sums.items():
                    builder.store(builder.load(target(*place), align=4), sum_)
            with cgutils.for_range(builder, n, intp=INT64) as loop:
                b_at = builder.add(b, builder.mul(loop.index, b_row))
                a_at = builder.add(a, builder.mul(loop.index, ir.Constant(INT64, 4)))
                if ahead:
                    asked = vectors * LANES * (2 if half else 4) // 2
                    place = builder.add(needed, builder.mul(loop.index, ir.Constant(INT64, asked)))
                    for line in range(0, asked, LINE):
                        emit_prefetch(builder, builder.add(place, ir.Constant(INT64, line)))
                right = [
                    load_vector(builder, offset(b_at, b_vector, vector), variant, half=half)
                    for vector in range(vectors)
                ]
                for row in rows:
                    left = _splat(builder, builder.load(_at(builder, offset(a_at, a_row, row), _F32), align=4))
                    for vector in range(vectors):
                        sum_ = sums[row, vector]
                        builder.store(emit_fma(builder, variant, left, right[vector], builder.load(sum_)), sum_)
            for place, sum_ in sums.items():
                builder.store(builder.load(sum_), target(*place), align=4)

        return types.void(*[types.int64] * 10), emit

    return product
