"""A tensor of a pack: a numpy array over the mapped bytes that knows its type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import FormatError, UnsupportedError, UsageError
from .generated.constants import GgmlType

# Types that numpy has; all others are bytes, a whole row of blocks in the last axis.
NUMPY_TYPES = {
    GgmlType.F32: "<f4",
    GgmlType.F16: "<f2",
    GgmlType.F64: "<f8",
    GgmlType.I8: "i1",
    GgmlType.I16: "<i2",
    GgmlType.I32: "<i4",
    GgmlType.I64: "<i8",
    GgmlType.U8: "u1",
    GgmlType.U16: "<u2",
    GgmlType.U32: "<u4",
    GgmlType.U64: "<u8",
    GgmlType.BOOL: "?",
    GgmlType.C64: "<c8",
}


class Tensor(np.ndarray[Any, Any]):
    """A read-only array over a pack's bytes; nothing is copied.

    The shape is numpy's: slowest axis first, the reverse of `dims`. Types that numpy lacks (quantised blocks, BF16, F8)
    are uint8 with the bytes of a row in the last axis.

    Attributes:
        name: The tensor's name.
        ggml_type: Number of its type.
        dims: Extents in ggml's order, contiguous axis first.
    """

    name: str
    ggml_type: int | None
    dims: tuple[int, ...]

    @classmethod
    def over(
        cls, buffer: memoryview, *, name: str, ggml_type: int, dims: tuple[int, ...], stride: int | None = None
    ) -> Tensor:
        """The tensor that begins with the buffer.

        Args:
            stride: Bytes between the entries of the slowest axis, where they do not follow each other at once.
        """
        shape, dtype = array_layout(ggml_type, dims)
        strides = [dtype.itemsize]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        strides = strides[len(strides) - len(shape) :] if shape else []
        if stride is not None:
            strides[0] = stride
        # numpy would keep the mapping's object alive but not hold its buffer, so that closing it unmaps the bytes under
        # the array. An array over the memoryview holds it.
        held = np.asarray(buffer)
        made = super().__new__(cls, shape, dtype, held, 0, tuple(strides))
        made.flags.writeable = False
        made.name, made.ggml_type, made.dims = name, ggml_type, dims
        return made

    @classmethod
    def bytes_of(cls, buffer: memoryview, *, name: str) -> Tensor:
        """Stored bytes that are of no type: one uint8 axis, which cannot be dequantised."""
        made = cls.over(buffer, name=name, ggml_type=GgmlType.U8, dims=(len(buffer),))
        made.ggml_type = None
        return made

    def __array_finalize__(self, source: Any) -> None:
        """Views keep name and type; `dims` are only those of the whole tensor."""
        self.name = getattr(source, "name", "")
        self.ggml_type = getattr(source, "ggml_type", None)
        self.dims = getattr(source, "dims", ())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What is computed from a tensor is an ordinary array: its bytes are no longer those of the type."""
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled, it is its bytes with its name and type; whoever unpickles it needs no pack."""
        return _restored, (np.asarray(self).view(np.ndarray), self.name, self.ggml_type, self.dims)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.copy()

    @property
    def type_name(self) -> str:
        """Name of the type, for instance Q4_K."""
        return GgmlType.NAMES.get(self.ggml_type or 0, "?")

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The values as a float32 array of their own, which outlives the pack.

        Works on whole rows: on the tensor and on slices of its leading axes.

        Raises:
            FormatError: A finite F64 lies beyond float32's range (`quantize.value`).
            UsageError: The last axis was cut, or the array was computed from others (`quants.partial_row`).
            UnsupportedError: The type has no dequantiser (`quants.no_codec`).
        """
        from .quants import dequantize
        from .quants.scalars import narrow_f64

        if self.ggml_type is None or self.dtype != array_layout(self.ggml_type, self.dims)[1]:
            raise UsageError("the array is not a part of a tensor", code="quants.partial_row", field=self.name)
        if self.dtype.kind == "c":
            raise UnsupportedError("complex numbers are no float32", code="quants.no_codec", field=self.name)
        if self.ggml_type == GgmlType.F64:
            try:
                return narrow_f64(self.view(np.ndarray))
            except FormatError as error:
                error.field = self.name
                raise
        if self.ggml_type in NUMPY_TYPES:
            return np.array(self, np.float32, subok=False)
        whole = array_layout(self.ggml_type, self.dims)[0]
        if self.ndim == 0 or self.shape[-1:] != whole[-1:] or self.strides[-1] != 1:
            raise UsageError("the rows are not whole", code="quants.partial_row", field=self.name)
        plain: npt.NDArray[np.uint8] = np.ascontiguousarray(self.view(np.ndarray))
        return np.array(dequantize(plain, self.ggml_type), np.float32)


def _restored(array: npt.NDArray[Any], name: str, ggml_type: int | None, dims: tuple[int, ...]) -> Tensor:
    made = array.view(Tensor)
    made.flags.writeable = False
    made.name, made.ggml_type, made.dims = name, ggml_type, dims
    return made


def array_layout(ggml_type: int, dims: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a tensor as a numpy array."""
    if ggml_type in NUMPY_TYPES:
        return tuple(reversed(dims)), np.dtype(NUMPY_TYPES[ggml_type])
    row = (dims[0] if dims else 1) // GgmlType.BLOCK[ggml_type] * GgmlType.BYTES[ggml_type]
    return (*reversed(dims[1:]), row), np.dtype(np.uint8)
