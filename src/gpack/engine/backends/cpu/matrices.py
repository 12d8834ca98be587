"""Weights as the engine sees them: rows of blocks at an address, as they are stored."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import FormatError
from ....tensor import Tensor, array_layout
from .team import Words


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
            addresses,
            first.ggml_type,
            first.n_out,
            first.n_in,
            first.row_bytes,
            first.name,
            [item.keep for item in matrices],
        )


def stored_rows(address: int, matrix: Matrix | Experts, first: int, behind: int) -> npt.NDArray[np.uint8]:
    """Some rows as they are stored, uint8 [rows, row bytes]; nothing is copied."""
    size = (behind - first) * matrix.row_bytes
    memory = (ctypes.c_uint8 * size).from_address(address + first * matrix.row_bytes)
    rows: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)
    return rows.reshape(behind - first, matrix.row_bytes)


def _shape(tensor: Tensor, wanted: str) -> FormatError:
    return FormatError(
        f"tensor {tensor.name} is not {wanted}: its extents are {list(tensor.dims)}",
        code="engine.shape",
        field=tensor.name,
    )


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
