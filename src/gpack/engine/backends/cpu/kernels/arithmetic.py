"""Arithmetic that compiled code needs and does not have: exp that can be vectorised, 16-bit floats on any CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ..variants import Variant
from .memory import as_bits, as_float

# Fast mathematics for what may be reordered, but for NaN and infinite values, which stay what they are.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}

HALF_POINTER = ir.HalfType().as_pointer()

LOG2_E = np.float32(1.44269504)
# ln 2 in two parts: n times the first is exact for the n that occur.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
# Added to a small number, it leaves the nearest integer in the last bits.
MAGIC = np.float32(12582912.0)
MAGIC_BITS = np.int32(0x4B400000)
# exp(r) = 1 + r + r² P(r) for |r| <= ln(2) / 2: coefficients of the Cephes library's expf, highest power first.
EXP_SERIES = tuple(
    np.float32(value)
    for value in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_P5, _P4, _P3, _P2, _P1, _P0 = EXP_SERIES
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_ATANH = tuple(np.float32(1 / n) for n in range(17, 0, -2))


@njit(error_model="numpy", fastmath=False)  # the order of operations matters
def exp32(x: Any) -> Any:
    """E to the x as float32, within two units of the last place; x is cut to -87..88, NaN stays NaN."""
    x = max(x, LOWEST)
    x = min(x, HIGHEST)
    shifted = x * LOG2_E + MAGIC
    whole = shifted - MAGIC
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    series = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
    power = as_float(np.int32(np.int32(as_bits(shifted) - MAGIC_BITS + np.int32(127)) << np.int32(23)))
    return (series * r * r + r + _ONE) * power


@njit(error_model="numpy", fastmath=False)
def round32(x: Any) -> Any:
    """The nearest integer as int32, ties to even; of numbers below 2**22."""
    return np.int32(as_bits(x + MAGIC) - MAGIC_BITS)


@intrinsic
def root32(_typing: Any, x: Any) -> Any:
    """The square root of a float32, by the instruction for it."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
        function = builder.module.globals.get("llvm.sqrt.f32") or ir.Function(builder.module, kind, "llvm.sqrt.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32), emit


@njit(error_model="numpy", fastmath=False)
def sigmoid32(x: Any) -> Any:
    """1 / (1 + e to the -x)."""
    return _ONE / (_ONE + exp32(-x))


@njit(error_model="numpy", fastmath=False)
def softplus32(x: Any) -> Any:
    """Log(1 + e to the x), within some units of the last place; NaN stays NaN."""
    t = exp32(-abs(x))
    # log(1 + t) = 2 atanh(z) with z = t / (2 + t), which is at most 1/3.
    z = t / (_TWO + t)
    square = z * z
    series = _ATANH[0]
    for coefficient in _ATANH[1:]:
        series = series * square + coefficient
    return max(x, _ZERO) + _TWO * z * series


@intrinsic
def _native_half_at(_typing: Any, address: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.inttoptr(arguments[0], HALF_POINTER), align=2)
        return builder.fpext(value, ir.FloatType())

    return types.float32(types.int64), emit


@intrinsic
def _native_put_half(_typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[1], ir.HalfType())
        builder.store(half, builder.inttoptr(arguments[0], HALF_POINTER), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


def widen_half(builder: Any, bits: Any) -> Any:
    """float32 from the bits of 16-bit floats, one i16 or a vector of them, without the instruction for it."""
    vector = isinstance(bits.type, ir.VectorType)

    def of(element: Any) -> Any:
        return ir.VectorType(element, bits.type.count) if vector else element

    def constant(element: Any, value: Any) -> Any:
        return ir.Constant(of(element), [value] * bits.type.count if vector else value)

    i32 = ir.IntType(32)
    wide = builder.zext(bits, of(i32))
    magnitude = builder.and_(wide, constant(i32, 0x7FFF))
    shifted = builder.bitcast(builder.shl(magnitude, constant(i32, 13)), of(ir.FloatType()))
    # The exponent's bias differs by 112; a product is right for subnormals too.
    scaled = builder.bitcast(builder.fmul(shifted, constant(ir.FloatType(), float(2**112))), of(i32))
    special = builder.icmp_unsigned(">=", magnitude, constant(i32, 0x7C00))
    scaled = builder.or_(scaled, builder.select(special, constant(i32, 0x7F800000), constant(i32, 0)))
    sign = builder.shl(builder.and_(wide, constant(i32, 0x8000)), constant(i32, 16))
    return builder.bitcast(builder.or_(scaled, sign), of(ir.FloatType()))


@intrinsic
def _portable_half_at(_typing: Any, address: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.load(builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()), align=2)
        return widen_half(builder, bits)

    return types.float32(types.int64), emit


def _narrow_half(builder: Any, value: Any) -> Any:
    """The bits of the 16-bit float nearest to a float32, ties to even."""
    i32, f32 = ir.IntType(32), ir.FloatType()

    def number(bits: int) -> Any:
        return ir.Constant(i32, bits)

    bits = builder.bitcast(value, i32)
    sign = builder.and_(builder.lshr(bits, number(16)), number(0x8000))
    magnitude = builder.and_(bits, number(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, number(13)), number(1))
    normal = builder.lshr(
        builder.add(builder.add(magnitude, number((15 - 127 << 23) + 0xFFF & 0xFFFFFFFF)), odd), number(13)
    )
    # Below 2**-14: adding one half puts the mantissa's last bit where the addition rounds.
    magic = number((127 - 15 + 23 - 10 + 1) << 23)
    small = builder.fadd(builder.bitcast(magnitude, f32), builder.bitcast(magic, f32))
    small = builder.sub(builder.bitcast(small, i32), magic)
    half = builder.select(builder.icmp_unsigned("<", magnitude, number(113 << 23)), small, normal)
    infinite = builder.select(builder.icmp_unsigned(">", magnitude, number(255 << 23)), number(0x7E00), number(0x7C00))
    half = builder.select(builder.icmp_unsigned(">=", magnitude, number((127 + 16) << 23)), infinite, half)
    return builder.trunc(builder.or_(half, sign), ir.IntType(16))


@intrinsic
def _portable_put_half(_typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        half = _narrow_half(builder, arguments[1])
        builder.store(half, builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


def has_half(variant: Variant) -> bool:
    """Whether the variant's CPUs convert 16-bit floats; elsewhere LLVM would call a library that is not there."""
    return any("f16c" in need for need in variant.needs)


def half_at(variant: Variant) -> Callable[[int], float]:
    """Compiled code's function that reads a 16-bit float at an address."""
    made: Callable[[int], float] = _native_half_at if has_half(variant) else _portable_half_at
    return made


def put_half(variant: Variant) -> Callable[[int, Any], None]:
    """Compiled code's function that writes a float32 to an address as a 16-bit float."""
    made: Callable[[int, Any], None] = _native_put_half if has_half(variant) else _portable_put_half
    return made
