"""Kernels that are written as LLVM IR: they are compiled without numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..variants import Variant
from .lanes import I64, Lanes

Body = Callable[[Lanes, Sequence[Any], Any, Any], None]


@dataclass(frozen=True)
class Written:
    """A kernel's code.

    Attributes:
        count: How many arguments it has.
        body: Writes the code. It gets the arguments, int64 each, and `ith` and `nth`.
    """

    variant: Variant
    count: int
    body: Body

    def module(self, symbol: str) -> str:
        """LLVM's assembly, with the kernel under this name. Products are fused where the code says so only."""
        module = ir.Module(symbol)
        kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
        function = ir.Function(module, kind, symbol)
        builder = ir.IRBuilder(function.append_basic_block())
        lanes = Lanes(builder, self.variant)
        _align_stack(builder)
        block, ith, nth = function.args
        start = builder.ptrtoint(block, I64)
        arguments = [lanes.load(lanes.at(start, 8 * place), I64, 8) for place in range(self.count)]
        self.body(lanes, arguments, ith, nth)
        builder.ret_void()
        return str(module)


def _align_stack(builder: Any) -> None:
    """Makes LLVM align the stack to cache lines: else it may put registers aside across two of them."""
    line = builder.alloca(ir.VectorType(I64, 8))
    line.align = 64
    builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), [line.type]), "", "r", side_effect=True), [line])
