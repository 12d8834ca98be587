"""Values that are not finite: NaN and infinities, of which every answer would be full."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..generated.constants import GgmlType
from ..tensor import Tensor

_FIRST = 1 << 12  # bytes in which a matrix shows that it is not all zeros
_CHUNK = 1 << 22  # elements that are looked at one by one at a time


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Whether all values are finite; a sum shows it at once where none of them is huge."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def is_zero(tensor: Tensor) -> bool:
    """Whether all bytes of a tensor are zero; it is read only so far as they are."""
    if tensor.ndim == 0 or not tensor.size:
        return False
    if not tensor.flags.c_contiguous:
        return all(map(is_zero, tensor))
    octets = np.asarray(tensor).reshape(-1).view(np.uint8)
    step = _FIRST
    at = 0
    while at < len(octets):
        if octets[at : at + step].any():
            return False
        at, step = at + step, _CHUNK
    return True


def first_not_finite(tensor: Tensor) -> tuple[int, ...] | None:
    """The indices of a tensor's first value that is infinite or not a number; None where all are finite."""
    if tensor.ndim == 0 or not tensor.size:
        return None
    if not tensor.flags.c_contiguous:
        for number, part in enumerate(tensor):
            if (place := first_not_finite(part)) is not None:
                return number, *place
        return None
    rows: Any = tensor.reshape(-1, tensor.shape[-1])
    step = max(1, _CHUNK // tensor.dims[0])
    for first in range(0, len(rows), step):
        bad = ~np.isfinite(_narrowed(rows[first : first + step]))
        if bad.any():
            row, column = np.unravel_index(int(bad.argmax()), bad.shape)
            outer = np.unravel_index(first + int(row), tensor.shape[:-1]) if tensor.ndim > 1 else ()
            return (*(int(index) for index in outer), int(column))
    return None


def _narrowed(rows: Tensor) -> npt.NDArray[np.float32]:
    """The values as float32; what float32 cannot hold is infinite."""
    if rows.ggml_type != GgmlType.F64:
        return rows.dequantize()
    with np.errstate(over="ignore"):
        return np.asarray(rows).astype(np.float32)
