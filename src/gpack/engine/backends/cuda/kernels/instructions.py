"""Instructions of PTX that Python has no word for, for the dialect `ptx`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda.extending import intrinsic

_F32, _I16, _I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)


def device(function: Any) -> Any:
    """A function that is part of each kernel that calls it."""
    return cuda.jit(device=True, inline="always")(function)


def _narrow(builder: Any, value: Any, kind: Any) -> Any:
    return value if value.type == kind else builder.trunc(value, kind)


@intrinsic
def dot4(_context: Any, _a: Any, _b: Any, _total: Any) -> Any:
    """The products of four signed bytes each, added to a total."""

    def write(_: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32] * 3)
        code = ir.InlineAsm(kind, "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", side_effect=False)
        return builder.call(code, [_narrow(builder, each, _I32) for each in args])

    return types.int32(types.int64, types.int64, types.int32), write


@intrinsic
def from_half(_context: Any, _bits: Any) -> Any:
    """A float32 of the bits of a float16."""

    def write(_: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_I16])
        code = ir.InlineAsm(kind, "cvt.f32.f16 $0, $1;", "=f,h", side_effect=False)
        return builder.call(code, [_narrow(builder, args[0], _I16)])

    return types.float32(types.int64), write


@intrinsic
def to_half(_context: Any, _value: Any) -> Any:
    """The bits of the nearest float16, of equally near ones the even."""

    def write(_: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I16, [_F32])
        code = ir.InlineAsm(kind, "cvt.rn.f16.f32 $0, $1;", "=h,f", side_effect=False)
        return builder.call(code, [args[0]])

    return types.uint16(types.float32), write


@intrinsic
def float_bits(_context: Any, _bits: Any) -> Any:
    """A float32 of its bits."""

    def write(_: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(_narrow(builder, args[0], _I32), _F32)

    return types.float32(types.int64), write
