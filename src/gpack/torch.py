"""Tensors of a pack in torch: `load_file` and `save_file`, as safetensors has them.

Nothing is copied where torch knows the type: a tensor is a private view of the file, whose pages become the process's
own where it writes to them. The file never changes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .arrays import NAMED_TYPES, rows_of
from .arrays import save_file as save_arrays
from .container.writer import BuildResult
from .errors import UnsupportedError, UsageError
from .generated.constants import GgmlType, TensorFlags
from .pack import Pack
from .pack import open as open_pack
from .tensor import NUMPY_TYPES, Tensor

try:
    import torch
except ImportError as error:
    raise UnsupportedError("gpack.torch needs torch", code="torch.library", hint="pip install torch") from error

_NAMES = {
    GgmlType.F32: "float32",
    GgmlType.F16: "float16",
    GgmlType.F64: "float64",
    GgmlType.I8: "int8",
    GgmlType.I16: "int16",
    GgmlType.I32: "int32",
    GgmlType.I64: "int64",
    GgmlType.U8: "uint8",
    GgmlType.U16: "uint16",
    GgmlType.U32: "uint32",
    GgmlType.U64: "uint64",
    GgmlType.BOOL: "bool",
    GgmlType.C64: "complex64",
    **{ggml_type: name for name, ggml_type in NAMED_TYPES.items()},
}
DTYPES = {ggml_type: getattr(torch, name) for ggml_type, name in _NAMES.items() if hasattr(torch, name)}
_TYPES = {dtype: ggml_type for ggml_type, dtype in DTYPES.items()}


class Tensors:
    """Tensors of an open pack.

    They stay valid when the pack is closed.
    """

    def __init__(self, pack: Pack, device: str | int = "cpu") -> None:
        self._pack, self._device = pack, device
        self._maps: dict[int, mmap.mmap] = {}

    def get(self, name: str) -> Any:
        """One tensor; blocks are dequantised to float32.

        Raises:
            GpackError: As `Pack[]`, and `Tensor.dequantize`.
        """
        row = self._pack.info(name)
        dtype = DTYPES.get(row.ggml_type)
        if dtype is None or row.flags & TensorFlags.CODE_PLANES:
            return self._placed(torch.from_numpy(self._pack[name].dequantize()))
        place = self._pack.place(name)
        shape = tuple(reversed(row.dims[: row.n_dims]))
        if place.runs > 1 or not place.size:  # experts that lie apart
            return self._placed(from_array(self._pack[name], dtype, shape))
        mapped = self._maps.get(place.descriptor)
        if mapped is None:
            # A file larger than the memory can be mapped: only pages that are written to take any.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            size = os.fstat(place.descriptor).st_size
            mapped = mmap.mmap(place.descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            self._maps[place.descriptor] = mapped
        count = place.size // dtype.itemsize
        return self._placed(torch.frombuffer(mapped, dtype=dtype, count=count, offset=place.offset).view(shape))

    def part(self, tensor: Tensor, first: Any, rest: tuple[Any, ...]) -> Any:
        """Rows of a tensor, and of these a part."""
        if tensor.ggml_type in DTYPES:
            return self.get(tensor.name)[(first, *rest)]
        rows = torch.from_numpy(rows_of(tensor, first).dequantize())
        return self._placed(rows[(slice(None), *rest)] if isinstance(first, slice) else rows[0][rest])

    def _placed(self, tensor: Any) -> Any:
        return tensor if self._device == "cpu" else tensor.to(self._device)


def from_array(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A torch tensor with a copy of an array's bytes."""
    data = bytearray(np.ascontiguousarray(array).tobytes())
    return torch.frombuffer(data, dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)


def load_file(filename: str | os.PathLike[str], device: str | int = "cpu") -> dict[str, Any]:
    """All tensors of a pack, by name.

    Raises:
        GpackError: As `gpack.open`, and `Tensor.dequantize`.
    """
    with open_pack(filename) as pack:
        tensors = Tensors(pack, device)
        return {name: tensors.get(name) for name in pack}


def save_file(
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> BuildResult:
    """Writes tensors as a pack, as `gpack.save_file` does arrays.

    Raises:
        UsageError: An argument is no dense tensor.
        UnsupportedError: `convert.dtype`: a pack has no such type.
        GpackError: As `gpack.save_file`.
    """
    return save_arrays({name: _array(name, tensor) for name, tensor in tensors.items()}, filename, metadata)


def _array(name: str, tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise UsageError(f"{name!r} is no dense tensor", code="usage", field="tensors")
    ggml_type = _TYPES.get(tensor.dtype)
    if ggml_type is None:
        raise UnsupportedError(f"a pack has no type {tensor.dtype}", code="convert.dtype", field=name)
    plain = tensor.detach().cpu().contiguous()
    if ggml_type in NUMPY_TYPES:
        return plain.numpy()
    data = plain.reshape(-1).view(torch.uint8).numpy().reshape(*plain.shape[:-1], -1)
    dims = tuple(reversed(plain.shape))
    made = data.view(Tensor)
    made.name, made.ggml_type, made.dims = name, ggml_type, dims
    return made
