"""Weights as the engine sees them: rows of blocks at an address, as they are stored."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import FormatError
from ....tensor import Tensor, array_layout
from ...graph import weights as graph
from .team import Words


@dataclass(frozen=True)
class MatrixView:
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
    def of(cls, tensor: Tensor) -> MatrixView:
        """The weights of a tensor with two axes; nothing is copied.

        Raises:
            FormatError: `engine.shape`: it has another number of axes.
        """
        if len(tensor.dims) != 2:
            raise _shape(tensor, "a matrix")
        n_in, n_out = tensor.dims
        return cls.hold(graph.Matrix(tensor.name, _type(tensor), n_out, n_in, tensor))

    @classmethod
    def hold(cls, matrix: graph.Matrix) -> MatrixView:
        """The weights of a graph's matrix; nothing is copied.

        Raises:
            FormatError: `engine.shape`: they do not lie in one piece.
        """
        row_bytes = row_bytes_of(matrix.ggml_type, matrix.n_in)
        plain = _contiguous(matrix.tensor, matrix.n_out * row_bytes)
        address = int(plain.ctypes.data)
        return cls(address, matrix.ggml_type, matrix.n_out, matrix.n_in, row_bytes, matrix.name, plain)


@dataclass(frozen=True)
class ExpertsView:
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

    def rows(self, first: int, count: int) -> ExpertsView:
        """The same rows of each expert's matrix."""
        if not first and count == self.n_out:
            return self
        return replace(self, n_out=count, addresses=self.addresses + first * self.row_bytes)

    @classmethod
    def of(cls, tensor: Tensor) -> ExpertsView:
        """The experts of a tensor [n_expert, n_out, n_in]; their slices may lie apart. Nothing is copied.

        Raises:
            FormatError: `engine.shape`: it has another number of axes.
        """
        if len(tensor.dims) != 3:
            raise _shape(tensor, "a stack of matrices")
        n_in, n_out, n_expert = tensor.dims
        kind = _type(tensor)
        row_bytes = row_bytes_of(kind, n_in)
        plain = np.asarray(tensor)
        first, stride = int(plain.ctypes.data), int(plain.strides[0])
        addresses = first + stride * np.arange(n_expert, dtype=np.int64)
        return cls(addresses, kind, n_out, n_in, row_bytes, tensor.name, plain)


def stored_rows(address: int, matrix: MatrixView | ExpertsView, first: int, stop: int) -> npt.NDArray[np.uint8]:
    """Some rows as they are stored, uint8 [rows, row bytes]; nothing is copied."""
    size = (stop - first) * matrix.row_bytes
    memory = (ctypes.c_uint8 * size).from_address(address + first * matrix.row_bytes)
    rows: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)
    return rows.reshape(stop - first, matrix.row_bytes)


def _shape(tensor: Tensor, wanted: str) -> FormatError:
    return FormatError(
        f"tensor {tensor.name} is not {wanted}: its extents are {list(tensor.dims)}",
        code="engine.shape",
        field=tensor.name,
    )


def _type(tensor: Tensor) -> int:
    if tensor.ggml_type is None:
        raise FormatError(f"tensor {tensor.name} has no type", code="engine.shape", field=tensor.name)
    return tensor.ggml_type


def row_bytes_of(ggml_type: int, n_in: int) -> int:
    """Bytes of a row of weights."""
    shape, dtype = array_layout(ggml_type, (n_in,))
    return shape[-1] * dtype.itemsize


def _contiguous(tensor: Tensor, size: int) -> npt.NDArray[Any]:
    plain = np.asarray(tensor)
    if not plain.flags.c_contiguous or plain.nbytes != size:
        raise FormatError(f"tensor {tensor.name} does not lie in one piece", code="engine.shape", field=tensor.name)
    return plain
