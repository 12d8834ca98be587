"""Arrays into a pack: `save_file`, as safetensors has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .container.writer import BuildResult
from .convert.plan import Plan
from .errors import UnsupportedError, UsageError
from .generated.constants import GgmlType
from .sources.arrays import ArraySource, ArrayTensor
from .tensor import NUMPY_TYPES, Tensor

# Types that numpy lacks and a package such as ml_dtypes adds, by the names that they have there and in torch.
NAMED_TYPES = {
    "bfloat16": GgmlType.BF16,
    "float8_e4m3fn": GgmlType.F8_E4M3,
    "float8_e4m3fnuz": GgmlType.F8_E4M3FNUZ,
    "float8_e5m2": GgmlType.F8_E5M2,
    "float8_e5m2fnuz": GgmlType.F8_E5M2FNUZ,
    "float8_e8m0fnu": GgmlType.F8_E8M0,
}
_TYPES = {np.dtype(name): ggml_type for ggml_type, name in NUMPY_TYPES.items()}


def save_file(
    tensors: Mapping[str, npt.NDArray[Any]], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> BuildResult:
    """Writes arrays as a pack, whole or not at all; the same arrays give the same bytes.

    Args:
        tensors: By name. A `gpack.Tensor` keeps its type, blocks too; of other arrays it is that of the dtype, those of
            ml_dtypes included.
        path: An existing file is replaced.
        metadata: Texts by text; kept, and `safe_open(...).metadata()` gives them back. `general.architecture` and
            `general.name` become the pack's own.

    Raises:
        UsageError: A name or a value is no text, or an argument is no array.
        UnsupportedError: `convert.dtype`: an array has a type that packs lack.
        PathError: The file cannot be written; what was there before stays.
    """
    made = [_tensor(name, array, number) for number, (name, array) in enumerate(tensors.items())]
    return Plan(ArraySource(made, metadata)).builder.build(path)


def _tensor(name: str, array: npt.NDArray[Any], position: int) -> ArrayTensor:
    if not isinstance(name, str) or not isinstance(array, np.ndarray):
        raise UsageError(f"{name!r} is a {type(array).__name__}, not an array by a name", code="usage", field="tensors")
    if isinstance(array, Tensor) and array.ggml_type is not None and array.ggml_type not in NUMPY_TYPES:
        plain = np.ascontiguousarray(array.view(np.ndarray))
        block, size = GgmlType.BLOCK[array.ggml_type], GgmlType.BYTES[array.ggml_type]
        if plain.dtype != np.uint8 or not plain.ndim or plain.shape[-1] % size:
            raise UsageError("the array is not made of whole rows of blocks", code="quants.partial_row", field=name)
        dims = (plain.shape[-1] // size * block, *reversed(plain.shape[:-1]))
        return ArrayTensor(name, array.ggml_type, dims, position, plain.reshape(-1).data)
    plain = np.asarray(array).view(np.ndarray)
    known = NAMED_TYPES.get(plain.dtype.name)
    if known is None:
        plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
        known = _TYPES.get(plain.dtype)
    if known is None:
        raise UnsupportedError(f"a pack has no type {plain.dtype}", code="convert.dtype", field=name)
    data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
    return ArrayTensor(name, known, tuple(reversed(plain.shape)), position, data.data)


def rows_of(tensor: Tensor, first: Any) -> Any:
    """The rows that an index or a slice of the slowest axis names, of blocks; one row for an index."""
    if tensor.ndim < 2:
        return tensor
    if isinstance(first, slice):
        return tensor[first]
    index = range(len(tensor))[first]
    return tensor[index : index + 1]
