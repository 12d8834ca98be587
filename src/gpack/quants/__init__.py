"""ggml's block formats and the scalar types, as float32.

Block formats that the PyPI `gguf` package knows are decoded by its numpy reference; the others are in `blocks`.
Importing this package does not import `gguf`, which takes a tenth of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpack.errors import UnsupportedError, UsageError
from gpack.generated.constants import GgmlType
from gpack.quants import blocks, reference, scalars

__all__ = ["dequantize"]


def dequantize(data: NDArray[np.uint8] | bytes | bytearray | memoryview, ggml_type: int) -> NDArray[np.float32]:
    """The values of stored rows.

    For block formats the result has the bits that llama.cpp's C dequantiser gives. Integers and F64 are rounded
    to the nearest float32; all other scalar types are exact.

    Args:
        data: The stored bytes: uint8 [..., row bytes], or any contiguous buffer, which counts as one row.
        ggml_type: A number of `GgmlType`.

    Returns:
        float32 [..., ne0]. For F32 that is a view of `data` where its address allows it, else a new array.

    Raises:
        UnsupportedError: `quants.no_codec`: the type is unknown or has no values of float32 (C64).
        FormatError: `quantize.value`: a finite F64 lies beyond float32's range.
        UsageError: `quants.partial_row` where a row is not made of whole blocks, `usage` where `data` is no bytes.
    """
    number = int(ggml_type)
    name = GgmlType.NAMES.get(number)
    if name is None:
        raise UnsupportedError(f"tensor type {number} is not known", code="quants.no_codec")
    rows = _as_rows(data)
    block, size = GgmlType.BLOCK[number], GgmlType.BYTES[number]
    if rows.shape[-1] % size:
        raise UsageError(
            f"a row of {rows.shape[-1]} bytes is not made of whole {name} blocks of {size} bytes",
            code="quants.partial_row",
        )
    decode = scalars.DECODERS.get(number) or blocks.DECODERS.get(number) or reference.decoder(number)
    shape = (*rows.shape[:-1], rows.shape[-1] // size * block)
    if not rows.size:
        return np.empty(shape, np.float32)
    # Damaged blocks hold infinite and NaN scales; their products are what the C code gives, and no reason to warn.
    with np.errstate(all="ignore"):
        return decode(rows).reshape(shape)


def _as_rows(data: Any) -> NDArray[np.uint8]:
    """The bytes as uint8 [..., row bytes], contiguous along the row; copies only what is not."""
    if not isinstance(data, np.ndarray):
        try:
            return np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise UsageError(f"stored rows must be contiguous bytes: {error}", code="usage") from error
    if data.dtype != np.uint8 or not data.ndim:
        raise UsageError(
            f"stored rows must be uint8 [..., row bytes], not {data.dtype} {list(data.shape)}", code="usage"
        )
    return data if data.strides[-1] == 1 else np.ascontiguousarray(data)
