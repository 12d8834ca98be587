"""Products with types that have no kernels: rows are turned into float32 a few at a time, the kernels of F32 multiply.

Numpy's own products would sum in an order that depends on how many rows they are given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ....quants import dequantize
from .buffers import Buffer
from .matrices import ExpertsView, MatrixView, stored_rows
from .store import KERNEL
from .team import Program
from .workspace import Workspace

Floats = npt.NDArray[np.float32]
# Products of weights [rows, n_in] and activations [columns, n_in], as [columns, rows].
Multiply = Callable[[Floats, Floats], Floats]
VALUES = 1 << 20  # float32 values that rows are turned into at a time


def rows_at_once(matrix: MatrixView | ExpertsView) -> int:
    """How many rows are turned into float32 at a time."""
    return max(1, min(matrix.n_out, VALUES // matrix.n_in))


def matmul(
    work: Workspace, matrix: MatrixView, x: Buffer, out: Buffer, multiply: Multiply, *, bias: Floats | None, add: bool
) -> Callable[[], None]:
    """What the host does for `engine.matmul.matmul`."""

    def run() -> None:
        count = work.n_tokens * x.per_token
        target = out.array[:count]
        product = _product(matrix.address, matrix, x.array[:count], multiply)
        if bias is not None:
            product += bias
        target[...] = target + product if add else product

    return run


def moe_matmul(
    work: Workspace, experts: ExpertsView, selected: npt.NDArray[np.int32], x: Buffer, out: Buffer, multiply: Multiply
) -> Callable[[], None]:
    """What the host does for `engine.matmul.moe_matmul`."""
    count = selected.shape[1]

    def run() -> None:
        chosen = selected[: work.n_tokens].reshape(-1)
        for expert in np.unique(chosen):
            pairs = np.flatnonzero(chosen == expert)
            source = pairs // count if x.per_token == 1 else pairs
            out.array[pairs] = _product(int(experts.addresses[expert]), experts, x.array[source], multiply)

    return run


def embed(work: Workspace, matrix: MatrixView, tokens: npt.NDArray[np.int32], out: Buffer) -> Callable[[], None]:
    """What the host does for `engine.matmul.embed`."""
    stored = stored_rows(matrix.address, matrix, 0, matrix.n_out)

    def run() -> None:
        count = work.n_tokens
        out.array[:count] = dequantize(stored[tokens[:count]], matrix.ggml_type)

    return run


def run_here(program: Program) -> None:
    """Runs a program of kernels in this thread.

    Counters are reset before, not after: an interrupt may come as soon as a kernel has ended.
    """
    for kernel, arguments, counter, _ in program.table().tolist():
        if counter:
            ctypes.c_int64.from_address(counter).value = 0
        KERNEL(kernel)(arguments, 0, 1)


def _product(address: int, matrix: MatrixView | ExpertsView, x: Floats, multiply: Multiply) -> Floats:
    """Of some columns [columns, n_in], as [columns, n_out]."""
    made = np.empty((len(x), matrix.n_out), np.float32)
    step = rows_at_once(matrix)
    for first in range(0, matrix.n_out, step):
        end = min(first + step, matrix.n_out)
        with np.errstate(all="ignore"):
            weights = dequantize(stored_rows(address, matrix, first, end), matrix.ggml_type)
        made[:, first:end] = multiply(weights, x)
    return made
