"""Sixteen floats at a time: a type of compiled code for what LLVM does not turn into vector code by itself.

LLVM gives up where arrays may overlap and where a sum must keep its order. A vector is a value like any other here;
processors with narrower registers hold it in several. Nothing is reordered.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from ..variants import Variant
from .arithmetic import EXP_SERIES, HIGHEST, LN2_HIGH, LN2_LOW, LOG2_E, LOWEST, MAGIC, MAGIC_BITS, has_half, widen_half

LANES = 16
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


class Floats16(types.Type):  # type: ignore[misc]
    """Numba's type of sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="floats16")


@register_model(Floats16)
class _Floats16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _FLOATS)


floats16 = Floats16()


def _fill(value: Any) -> Any:
    return ir.Constant(_FLOATS, [float(value)] * LANES)


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_INTS, [0] * LANES))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """A b + c, fused where the processor can."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def has_fma(variant: Variant) -> bool:
    """Whether the variant's CPUs multiply and add in one step; elsewhere LLVM would call a library for it."""
    return any("fma" in need for need in variant.needs)


def emit_fma(builder: Any, variant: Variant, a: Any, b: Any, c: Any) -> Any:
    """Writes code for a b + c: rounded once where the variant's CPUs can, twice elsewhere, and always the same way."""
    if not has_fma(variant):
        return builder.fadd(builder.fmul(a, b), c)
    name = f"llvm.fma.v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "llvm.fma.f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [a, b, c])


@cache
def fma16_of(variant: Variant) -> Any:
    """Compiled code's a b + c whose bits the compiler does not choose (see `emit_fma`)."""

    @intrinsic
    def fused(_typing: Any, a: Any, b: Any, c: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return emit_fma(builder, variant, *arguments)

        return floats16(floats16, floats16, floats16), emit

    return fused


def emit_prefetch(builder: Any, address: Any) -> None:
    """Writes code that asks for a cache line which is needed soon. Any address will do."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    hints = [ir.Constant(_INT, value) for value in (0, 3, 1)]  # for reading, how near, data
    builder.call(function, [builder.inttoptr(address, pointer), *hints])


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Compiled code's `emit_prefetch`."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def load16(_typing: Any, address: Any) -> Any:
    """Sixteen floats from an address."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _FLOATS.as_pointer()), align=4)

    return floats16(types.int64), emit


@intrinsic
def store16(_typing: Any, address: Any, vector: Any) -> Any:
    """Sixteen floats to an address."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, floats16), emit


@cache
def load_halves16(variant: Variant) -> Any:
    """Compiled code's function that reads sixteen 16-bit floats from an address."""

    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return halves_at(builder, arguments[0], variant)

        return floats16(types.int64), emit

    return load


def halves_at(builder: Any, address: Any, variant: Variant) -> Any:
    """Writes code that reads sixteen 16-bit floats."""
    element = ir.HalfType() if has_half(variant) else ir.IntType(16)
    pointer = builder.inttoptr(address, ir.VectorType(element, LANES).as_pointer())
    loaded = builder.load(pointer, align=2)
    return builder.fpext(loaded, _FLOATS) if has_half(variant) else widen_half(builder, loaded)


@intrinsic
def load_codes16(_typing: Any, address: Any) -> Any:
    """Sixteen signed bytes from an address, as floats."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.VectorType(ir.IntType(8), LANES).as_pointer())
        return builder.sitofp(builder.load(pointer, align=1), _FLOATS)

    return floats16(types.int64), emit


@intrinsic
def splat16(_typing: Any, value: Any) -> Any:
    """One float in all places."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return floats16(types.float32), emit


@intrinsic
def add16(_typing: Any, a: Any, b: Any) -> Any:
    """A + b."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return floats16(floats16, floats16), emit


@intrinsic
def sub16(_typing: Any, a: Any, b: Any) -> Any:
    """A - b."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fsub(*arguments)

    return floats16(floats16, floats16), emit


@intrinsic
def mul16(_typing: Any, a: Any, b: Any) -> Any:
    """A b."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments)

    return floats16(floats16, floats16), emit


@intrinsic
def div16(_typing: Any, a: Any, b: Any) -> Any:
    """A / b."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fdiv(*arguments)

    return floats16(floats16, floats16), emit


@intrinsic
def fma16(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A b + c."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _multiply_add(builder, *arguments)

    return floats16(floats16, floats16, floats16), emit


@intrinsic
def max16(_typing: Any, a: Any, b: Any) -> Any:
    """The larger of each two; b where one is not a number."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        a, b = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    return floats16(floats16, floats16), emit


def _fold(builder: Any, vector: Any, combine: Any) -> Any:
    count = LANES // 2
    while count:
        order = [lane + count if lane < count else 0 for lane in range(LANES)]
        other = builder.shuffle_vector(vector, vector, ir.Constant(_INTS, order))
        vector = combine(vector, other)
        count //= 2
    return builder.extract_element(vector, ir.Constant(_INT, 0))


@intrinsic
def sum16(_typing: Any, vector: Any) -> Any:
    """The sum of all places."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _fold(builder, arguments[0], builder.fadd)

    return types.float32(floats16), emit


@intrinsic
def most16(_typing: Any, vector: Any) -> Any:
    """The largest of all places."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return _fold(builder, arguments[0], larger)

    return types.float32(floats16), emit


def _emit_exp(builder: Any, x: Any, multiply_add: Any) -> Any:
    is_low = builder.fcmp_ordered("<", x, _fill(LOWEST))
    x = builder.select(is_low, _fill(LOWEST), x)
    x = builder.select(builder.fcmp_ordered(">", x, _fill(HIGHEST)), _fill(HIGHEST), x)
    shifted = multiply_add(builder, x, _fill(LOG2_E), _fill(MAGIC))
    whole = builder.fsub(shifted, _fill(MAGIC))
    r = multiply_add(builder, whole, _fill(-LN2_HIGH), x)
    r = multiply_add(builder, whole, _fill(-LN2_LOW), r)
    series = _fill(EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:]:
        series = multiply_add(builder, series, r, _fill(coefficient))
    value = builder.fadd(multiply_add(builder, builder.fmul(series, r), r, r), _fill(1.0))
    exponent = builder.add(builder.bitcast(shifted, _INTS), ir.Constant(_INTS, [127 - int(MAGIC_BITS)] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
    return builder.select(is_low, _fill(0.0), builder.fmul(value, power))


@intrinsic
def _exp16(_typing: Any, vector: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _emit_exp(builder, arguments[0], _multiply_add)

    return floats16(floats16), emit


@njit(error_model="numpy", fastmath=False)
def exp16(x: Any) -> Any:
    """E to the x, as `exp32`; 0 below -87.

    A function of its own: numba adds a caller's flags to all that its intrinsics emit, and here the order matters.
    """
    return _exp16(x)


@cache
def exp16_of(variant: Variant) -> Any:
    """Compiled code's `exp16` whose bits the compiler does not choose. For functions without fast mathematics."""

    def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return emit_fma(builder, variant, a, b, c)

    @intrinsic
    def exp(_typing: Any, vector: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return _emit_exp(builder, arguments[0], multiply_add)

        return floats16(floats16), emit

    return exp


_ONE, _ZERO = np.float32(1), np.float32(0)


@njit(error_model="numpy")
def sigmoid16(x: Any) -> Any:
    """1 / (1 + e to the -x)."""
    one = splat16(_ONE)
    return div16(one, add16(one, exp16(sub16(splat16(_ZERO), x))))
