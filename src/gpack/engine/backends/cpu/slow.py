"""Products with types that have no kernels: rows are turned into float32 a few at a time, numpy multiplies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ....quants import dequantize
from .buffers import Buffer
from .matrices import Experts, Matrix, stored_rows
from .workspace import Workspace

Floats = npt.NDArray[np.float32]
_VALUES = 1 << 20  # float32 values that rows are turned into at a time


def matmul(
    work: Workspace, matrix: Matrix, x: Buffer, out: Buffer, *, bias: Floats | None, add: bool
) -> Callable[[], None]:
    """What the host does for `engine.matmul.matmul`."""

    def run() -> None:
        count = work.n_tokens * x.per_token
        target = out.array[:count]
        product = _product(matrix.address, matrix, x.array[:count])
        if bias is not None:
            product += bias
        target[...] = target + product if add else product

    return run


def moe_matmul(
    work: Workspace, experts: Experts, selected: npt.NDArray[np.int32], x: Buffer, out: Buffer
) -> Callable[[], None]:
    """What the host does for `engine.matmul.moe_matmul`."""
    count = selected.shape[1]

    def run() -> None:
        chosen = selected[: work.n_tokens].reshape(-1)
        for expert in np.unique(chosen):
            pairs = np.flatnonzero(chosen == expert)
            source = pairs // count if x.per_token == 1 else pairs
            out.array[pairs] = _product(int(experts.addresses[expert]), experts, x.array[source])

    return run


def embed(work: Workspace, matrix: Matrix, tokens: npt.NDArray[np.int32], out: Buffer) -> Callable[[], None]:
    """What the host does for `engine.matmul.embed`."""
    stored = stored_rows(matrix.address, matrix, 0, matrix.n_out)

    def run() -> None:
        count = work.n_tokens
        out.array[:count] = dequantize(stored[tokens[:count]], matrix.ggml_type)

    return run


def _product(address: int, matrix: Matrix | Experts, x: Floats) -> Floats:
    """Of some tokens [tokens, n_in], as [tokens, n_out]."""
    made = np.empty((len(x), matrix.n_out), np.float32)
    step = max(1, _VALUES // matrix.n_in)
    with np.errstate(all="ignore"):
        for first in range(0, matrix.n_out, step):
            behind = min(first + step, matrix.n_out)
            weights = dequantize(stored_rows(address, matrix, first, behind), matrix.ggml_type)
            for row, values in zip(made, x, strict=True):
                row[first:behind] = _sums(weights * values)
    return made


def _sums(products: Floats) -> Floats:
    """The sums of rows: halves are added until one column is left, whatever the number of rows."""
    while (width := products.shape[1]) > 1:
        half = width // 2
        left = products[:, 2 * half :]  # one column where the width is odd
        products = np.concatenate([products[:, :half] + products[:, half : 2 * half], left], axis=1)
    return products[:, 0]
