"""Memory for compiled code: typed pointers from addresses, atomic integers, calls through a pointer.

Kernels get addresses instead of arrays: an array costs reference counts, and its indices wrap around.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

INT64 = ir.IntType(64)
INT8_POINTER = ir.IntType(8).as_pointer()


def pointer_to(numba_type: Any) -> Any:
    """A function of compiled code that takes an address and gives a pointer: `p[i]` reads, `p[i] = x` writes."""
    pointer = types.CPointer(numba_type)

    @intrinsic
    def from_address(_typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), emit

    return from_address


floats = pointer_to(types.float32)
doubles = pointer_to(types.float64)
bytes_ = pointer_to(types.uint8)
signed_bytes = pointer_to(types.int8)
halves = pointer_to(types.uint16)
ints = pointer_to(types.int32)
longs = pointer_to(types.int64)


@intrinsic
def address_of(_typing: Any, pointer: Any) -> Any:
    """The address in a pointer."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], INT64)

    return types.int64(pointer), emit


@intrinsic
def as_float(_typing: Any, bits: Any) -> Any:
    """The float32 with these bits, given as int32."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), emit


@intrinsic
def as_bits(_typing: Any, value: Any) -> Any:
    """The bits of a float32, as int32."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), emit


@intrinsic
def atomic_add(_typing: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address; gives what was there before."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], INT64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def atomic_load(_typing: Any, address: Any) -> Any:
    """The int64 at an address; what its writer wrote before is seen from now on."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], INT64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def atomic_store(_typing: Any, address: Any, value: Any) -> Any:
    """Writes an int64; who reads it with `atomic_load` sees what was written before."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], INT64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def yield_processor(_typing: Any) -> Any:
    """Lets another thread run: sched_yield of the C library."""

    def emit(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        function = builder.module.globals.get("sched_yield") or ir.Function(builder.module, kind, "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def call_kernel(_typing: Any, kernel: Any, args: Any, ith: Any, nth: Any) -> Any:
    """Calls the kernel at an address."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [INT64.as_pointer(), INT64, INT64])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        block = builder.inttoptr(arguments[1], INT64.as_pointer())
        builder.call(function, [block, arguments[2], arguments[3]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), emit
