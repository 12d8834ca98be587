"""What kernels are written in: pointers, a few instructions that Python has no word for, and the marks of kernels.

A pointer is indexed like an array. Integers of 32 bits are carried as Python's; only their low 32 bits count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

__all__ = ["IS_PTX", "KERNELS", "NUMPY", "Kernel", "device", "dot4", "float_bits", "from_half", "kernel", "to_half"]

# Chosen by the process that compiles kernels, before it imports this module.
IS_PTX = os.environ.get("GPACK_KERNEL_DIALECT") == "ptx"

KERNELS: dict[str, Kernel] = {}

# Parameters: a kernel's signature is a line of these words. A star marks a pointer.
NUMPY: dict[str, Any] = {"u8": np.uint8, "u16": np.uint16, "i32": np.int32, "i64": np.int64, "f32": np.float32}
_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        function: Plain Python, or what numba compiles.
        signature: One word for each parameter, such as `f32*` or `i32`.
        most_threads: Of a block.
    """

    name: str
    function: Callable[..., None]
    signature: str
    most_threads: int


def kernel(
    name: str, signature: str, *, most_threads: int = 128
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Notes a function as a kernel."""

    def note(function: Callable[..., None]) -> Callable[..., None]:
        function.__name__ = name
        KERNELS[name] = Kernel(name, function, signature, most_threads)
        return function

    return note


if IS_PTX:
    from .instructions import device, dot4, float_bits, from_half, to_half
else:
    from numba.extending import register_jitable

    # Stays a plain function, which compiled code may call too.
    device = register_jitable

    @device
    def dot4(a: Any, b: Any, total: Any) -> Any:
        """The products of four signed bytes each, added to a total: the instruction dp4a."""
        for place in range(4):
            left, right = (a >> (8 * place)) & 255, (b >> (8 * place)) & 255
            total += ((left ^ 128) - 128) * ((right ^ 128) - 128)
        return total

    @device
    def from_half(bits: Any) -> Any:
        """A float32 of the bits of a float16."""
        return _HALVES[bits]

    @device
    def float_bits(bits: Any) -> Any:
        """A float32 of its bits."""
        return np.uint32(bits).view(np.float32)

    def to_half(value: Any) -> Any:
        """The bits of the nearest float16, of equally near ones the even."""
        with np.errstate(over="ignore"):
            return int(np.float32(value).astype(np.float16).view(np.uint16))


def numba_type(word: str) -> Any:
    """A word of a signature as numba has it."""
    scalar = getattr(
        types, {"u8": "uint8", "u16": "uint16", "i32": "int32", "i64": "int64", "f32": "float32"}[word.rstrip("*")]
    )
    return types.CPointer(scalar) if word.endswith("*") else scalar
