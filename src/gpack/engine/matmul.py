"""Products of weight matrices and activations, as steps of a program.

    work = Workspace(kernels, state, max_batch=512, threads=2)
    x, y = Activations(512, 576), Activations(512, 1536)
    embed(program, work, Matrix.of(token_embd), tokens, x)
    matmul(program, work, Matrix.of(ffn_up), x, y)

All of them read how many tokens the batch has from `state[0]` when the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, UsageError
from ..quants import dequantize
from ..tensor import Tensor, array_layout
from .buffers import Activations, Buffer
from .store import Kernels
from .team import Program, Words

__all__ = ["Activations", "Buffer", "Experts", "Matrix", "Workspace", "embed", "matmul", "moe_matmul"]

Floats = npt.NDArray[np.float32]
Compute = Literal["int8", "f32"]
N_TOKENS = 0  # the word of the state that says how many tokens the batch has
_SCRATCH_VALUES = 1 << 20  # float32 values that a slow type's rows are turned into at a time


@dataclass(frozen=True)
class Matrix:
    """A view on weights: n_out rows of n_in elements, as they are stored.

    Attributes:
        address: Of the first row.
        keep: What must live as long as the address is used.
    """

    address: int
    ggml_type: int
    n_out: int
    n_in: int
    row_bytes: int
    name: str
    keep: Any

    @classmethod
    def of(cls, tensor: Tensor) -> Matrix:
        """The weights of a tensor with two axes; nothing is copied.

        Raises:
            FormatError: `engine.shape`: it has another number of axes.
        """
        if len(tensor.dims) != 2:
            raise _shape(tensor, "a matrix")
        n_in, n_out = tensor.dims
        kind, row_bytes = _row(tensor)
        plain = _contiguous(tensor, n_out * row_bytes)
        return cls(int(plain.ctypes.data), kind, n_out, n_in, row_bytes, tensor.name, plain)


@dataclass(frozen=True)
class Experts:
    """The same matrix of all experts of a layer.

    Attributes:
        addresses: int64 [n_expert], of the first row of each; a step of the host may fill it in before it is used.
    """

    addresses: Words
    ggml_type: int
    n_out: int
    n_in: int
    row_bytes: int
    name: str
    keep: Any

    @property
    def n_expert(self) -> int:
        """How many there are."""
        return len(self.addresses)

    @classmethod
    def of(cls, tensor: Tensor) -> Experts:
        """The experts of a tensor [n_expert, n_out, n_in]; their slices may lie apart. Nothing is copied.

        Raises:
            FormatError: `engine.shape`: it has another number of axes.
        """
        if len(tensor.dims) != 3:
            raise _shape(tensor, "a stack of matrices")
        n_in, n_out, n_expert = tensor.dims
        kind, row_bytes = _row(tensor)
        plain = np.asarray(tensor)
        first, stride = int(plain.ctypes.data), int(plain.strides[0])
        addresses = first + stride * np.arange(n_expert, dtype=np.int64)
        return cls(addresses, kind, n_out, n_in, row_bytes, tensor.name, plain)

    @classmethod
    def of_slices(cls, slices: Sequence[Tensor]) -> Experts:
        """The experts of one tensor each, all of one type and shape.

        Raises:
            FormatError: `engine.shape`: they differ.
        """
        matrices = [Matrix.of(item) for item in slices]
        first = matrices[0]
        for item in matrices:
            if (item.ggml_type, item.n_out, item.n_in) != (first.ggml_type, first.n_out, first.n_in):
                raise FormatError("experts of one layer differ in type or shape", code="engine.shape", field=item.name)
        addresses = np.array([item.address for item in matrices], np.int64)
        return cls(
            addresses, first.ggml_type, first.n_out, first.n_in, first.row_bytes, first.name,
            [item.keep for item in matrices],
        )  # fmt: skip


class Workspace:
    """What the products of one model share: the state block, scratch memory, and how they compute.

    Attributes:
        state: int64 [16]; word 0 is the number of tokens of the batch.
        compute: `int8`: activations are rounded to 8 bits, 32 to a scale, where the weights are quantised. `f32`:
            never.
    """

    def __init__(
        self, kernels: Kernels, state: Words, *, max_batch: int, threads: int, compute: Compute = "int8"
    ) -> None:
        if compute not in ("int8", "f32"):
            raise UsageError(f"there is no way to compute {compute!r}", code="usage", hint="int8, f32")
        self.kernels, self.state = kernels, state
        self.max_batch, self.threads, self.compute = max_batch, threads, compute

    @property
    def n_tokens(self) -> int:
        """Of the batch that runs now."""
        return int(self.state[N_TOKENS])


def matmul(
    program: Program, work: Workspace, matrix: Matrix, x: Activations, out: Buffer, *,
    bias: Floats | None = None, add: bool = False, rows: Literal["all", "last"] = "all",
) -> None:  # fmt: skip
    """Adds a step: out[t] = matrix x[t] (+ bias) (+ out[t] where `add`) for all tokens of the batch.

    Args:
        bias: float32 [n_out].
        rows: `last`: only the product of the last token, which goes to the first row of `out`.

    Raises:
        FormatError: `engine.shape`: the sizes do not fit each other.
    """
    _check(matrix, x, out)
    if bias is not None:
        bias = np.ascontiguousarray(bias, np.float32)
        if bias.shape != (matrix.n_out,):
            raise FormatError(f"a bias {list(bias.shape)} for {matrix.n_out} rows", code="engine.shape")
    program.keep((work, matrix, x, out, bias))
    if isinstance(out, Activations):
        out.changed()

    def run() -> None:
        count = work.n_tokens * x.per_token
        first = count - 1 if rows == "last" else 0
        target = out.array[: count - first]
        product = _product(matrix.address, matrix, x.array[first:count])
        if bias is not None:
            product += bias
        target[...] = target + product if add else product

    program.host(run)


def moe_matmul(
    program: Program, work: Workspace, experts: Experts, selected: npt.NDArray[np.int32], x: Activations, out: Buffer
) -> None:
    """Adds a step: the products with the experts that were selected for each token; no other expert is read.

    out[t * K + j] = experts[selected[t, j]] x[t], or x[t * K + j] where `x` has K rows per token.

    Args:
        selected: int32 [max_batch, K], in memory that stays where it is; the numbers are those of the run.
        out: With K rows per token.

    Raises:
        FormatError: `engine.shape`: the sizes do not fit each other.
    """
    count = selected.shape[1]
    _check(experts, x, out, per_token=count)
    program.keep((work, experts, selected, x, out))
    if isinstance(out, Activations):
        out.changed()

    def run() -> None:
        chosen = selected[: work.n_tokens].reshape(-1)
        for expert in np.unique(chosen):
            pairs = np.flatnonzero(chosen == expert)
            source = pairs if x.per_token == count else pairs // count
            out.array[pairs] = _product(int(experts.addresses[expert]), experts, x.array[source])

    program.host(run)


def embed(program: Program, work: Workspace, matrix: Matrix, tokens: npt.NDArray[np.int32], out: Buffer) -> None:
    """Adds a step: out[t] = row tokens[t] of the matrix, for all tokens of the batch.

    Args:
        tokens: int32 [max_batch], in memory that stays where it is.

    Raises:
        FormatError: `engine.shape`: the rows of `out` are not those of the matrix.
    """
    if out.width != matrix.n_in:
        raise FormatError(f"rows of {matrix.n_in} do not fit {out.width}", code="engine.shape", field=matrix.name)
    program.keep((work, matrix, tokens, out))
    if isinstance(out, Activations):
        out.changed()
    stored = _stored(matrix.address, matrix, 0, matrix.n_out)

    def run() -> None:
        chosen = tokens[: work.n_tokens]
        out.array[: work.n_tokens] = dequantize(stored[chosen], matrix.ggml_type)

    program.host(run)


def _stored(address: int, matrix: Matrix | Experts, first: int, behind: int) -> npt.NDArray[np.uint8]:
    """Rows as they are stored, uint8 [rows, row bytes]."""
    import ctypes

    size = (behind - first) * matrix.row_bytes
    memory = (ctypes.c_uint8 * size).from_address(address + first * matrix.row_bytes)
    return np.frombuffer(memory, np.uint8).reshape(behind - first, matrix.row_bytes)


def _product(address: int, matrix: Matrix | Experts, x: Floats) -> Floats:
    """X times the transposed matrix, its rows turned into float32 a few at a time."""
    made = np.empty((len(x), matrix.n_out), np.float32)
    step = max(1, _SCRATCH_VALUES // matrix.n_in)
    with np.errstate(all="ignore"):
        for first in range(0, matrix.n_out, step):
            behind = min(first + step, matrix.n_out)
            weights = dequantize(_stored(address, matrix, first, behind), matrix.ggml_type)
            np.matmul(x, weights.T, out=made[:, first:behind])
    return made


def _check(matrix: Matrix | Experts, x: Buffer, out: Buffer, per_token: int = 1) -> None:
    if x.width != matrix.n_in or out.width != matrix.n_out:
        raise FormatError(
            f"a matrix of {matrix.n_out} rows of {matrix.n_in} does not take {x.width} to {out.width}",
            code="engine.shape", field=matrix.name,
        )  # fmt: skip
    if out.per_token not in (per_token, x.per_token) or x.per_token not in (1, out.per_token):
        raise FormatError(
            f"{x.per_token} rows per token cannot become {out.per_token}", code="engine.shape", field=matrix.name
        )


def _shape(tensor: Tensor, wanted: str) -> FormatError:
    return FormatError(
        f"tensor {tensor.name} is not {wanted}: its extents are {list(tensor.dims)}", code="engine.shape",
        field=tensor.name,
    )  # fmt: skip


def _row(tensor: Tensor) -> tuple[int, int]:
    """Type and bytes of a row."""
    kind = tensor.ggml_type
    if kind is None:
        raise FormatError(f"tensor {tensor.name} has no type", code="engine.shape", field=tensor.name)
    shape, dtype = array_layout(kind, tensor.dims)
    return kind, shape[-1] * dtype.itemsize


def _contiguous(tensor: Tensor, size: int) -> npt.NDArray[Any]:
    plain = np.asarray(tensor)
    if not plain.flags.c_contiguous or plain.nbytes != size:
        raise FormatError(f"tensor {tensor.name} does not lie in one piece", code="engine.shape", field=tensor.name)
    return plain
