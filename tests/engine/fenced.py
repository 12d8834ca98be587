"""Memory between pages that may not be touched: a step beyond a buffer ends the process.

`installed` gives every buffer that the CPU's programs compute in, and every matrix of weights, such a place of its own:
the buffer's last byte is the last before the fence, or its first the first after one.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpack.engine.backends import cpu
from gpack.engine.backends.cpu import matrices
from gpack.engine.backends.cpu.buffers import aligned
from gpack.engine.backends.cpu.team import Program
from gpack.tensor import Tensor

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_library = ctypes.CDLL(None, use_errno=True)
_library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def room(size: int, *, at_end: bool) -> npt.NDArray[np.uint8]:
    """So many zeroed bytes between two fences: up to the second one, or from the first one on."""
    pages = max(-(-size // PAGE), 1)
    view = np.frombuffer(mmap.mmap(-1, (pages + 2) * PAGE), np.uint8)
    for fence in (0, (pages + 1) * PAGE):
        if _library.mprotect(view.ctypes.data + fence, PAGE, _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (pages * PAGE - size if at_end else 0)
    return view[start : start + size]


def copied(array: npt.NDArray[Any], *, at_end: bool) -> npt.NDArray[Any]:
    """A copy between fences."""
    plain = np.ascontiguousarray(array)
    made = room(plain.nbytes, at_end=at_end)
    made[:] = plain.reshape(-1).view(np.uint8)
    return made.view(plain.dtype).reshape(plain.shape)


@contextmanager
def installed(*, at_end: bool) -> Iterator[None]:
    """Meanwhile, in this process; programs that were made before keep their memory."""

    def fenced(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        return room(math.prod(shape) * kind.itemsize, at_end=at_end).view(kind).reshape(tuple(shape))

    contiguous, experts, table = matrices._contiguous, matrices.ExpertsView.of, Program.table

    def hold(tensor: Tensor, size: int) -> npt.NDArray[Any]:
        return copied(contiguous(tensor, size), at_end=at_end)

    def experts_of(tensor: Tensor) -> matrices.ExpertsView:
        parts = [copied(part, at_end=at_end) for part in np.asarray(tensor)]
        addresses = copied(np.array([part.ctypes.data for part in parts], np.int64), at_end=at_end)
        return replace(experts(tensor), addresses=addresses, keep=parts)

    def steps(program: Program) -> npt.NDArray[np.int64]:
        if program._table is None:
            program._table = copied(table(program), at_end=at_end)
        return program._table

    with pytest.MonkeyPatch.context() as patch:
        for found in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
            module = import_module(found.name)
            if getattr(module, "aligned", None) is aligned:
                patch.setattr(module, "aligned", fenced)
        patch.setattr(matrices, "_contiguous", hold)
        patch.setattr(matrices.ExpertsView, "of", experts_of)
        patch.setattr(Program, "table", steps)
        yield
