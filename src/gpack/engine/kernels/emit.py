"""Kernels whose body is written as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from ..cpu import Variant
from .lanes import I64, Lanes

Body = Callable[[Lanes, Sequence[Any], Any, Any], None]


def kernel(variant: Variant, count: int, body: Body) -> Callable[..., None]:
    """A kernel for numba to compile.

    Args:
        count: How many arguments it has.
        body: Writes the code. It gets the arguments, int64 each, and `ith` and `nth`.
    """

    @intrinsic
    def emitted(_typing: Any, args: Any, ith: Any, nth: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
            lanes = Lanes(builder, variant)
            block = builder.ptrtoint(given[0], I64)
            body(lanes, [lanes.load(lanes.at(block, 8 * place), I64, 8) for place in range(count)], given[1], given[2])
            return context.get_dummy_value()

        return types.void(types.CPointer(types.int64), types.int64, types.int64), emit

    def run(args: Any, ith: int, nth: int) -> None:
        emitted(args, ith, nth)

    # Products are fused where the code says so, and nowhere else: the results are the same on all variants of a kind.
    run.fast_math = False  # type: ignore[attr-defined]
    return run
