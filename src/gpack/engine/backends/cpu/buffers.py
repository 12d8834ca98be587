"""Memory that programs compute in: rows of float32, and the 8-bit form that products with quantised weights read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import UsageError
from .layout import Q8_BYTES, Q8_VALUES

_LINE = 64  # bytes of a cache line, and of the widest vector
_MOST = 1 << 60  # bytes; numpy refuses larger shapes with an error of its own


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A zeroed array that begins at a cache line.

    Raises:
        MemoryError: There is not enough memory, or there could not be.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size > _MOST:
        raise MemoryError(f"{size} bytes")
    raw = np.zeros(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size].view(kind).reshape(shape)


class Buffer:
    """float32 rows, `per_token` of them for each token of a batch.

    Attributes:
        array: float32 [max_batch * per_token, width]; row t * per_token + j is the j-th of token t.
        address: Of the first row; rows follow each other at once.
    """

    def __init__(self, max_batch: int, width: int, *, per_token: int = 1) -> None:
        if min(max_batch, width, per_token) < 1:
            raise UsageError(f"no buffer of {max_batch} x {per_token} rows of {width}", code="usage")
        self.max_batch, self.width, self.per_token = max_batch, width, per_token
        self.array: npt.NDArray[np.float32] = aligned((max_batch * per_token, width), np.float32)
        self.address = int(self.array.ctypes.data)


class Activations(Buffer):
    """A buffer that products read. Whoever adds a step that writes to it calls `changed`.

    Its 8-bit form is made by a step that `matmul` adds when it is first needed after a change: once for all products
    that read the same values.
    """

    def __init__(self, max_batch: int, width: int, *, per_token: int = 1) -> None:
        super().__init__(max_batch, width, per_token=per_token)
        self.is_quantized = False
        self._rounded: npt.NDArray[np.uint8] | None = None

    @property
    def rounded_step(self) -> int:
        """Bytes of a row in its 8-bit form (see layout.py)."""
        return self.width // Q8_VALUES * Q8_BYTES

    @property
    def rounded_address(self) -> int:
        """Of the 8-bit form; its memory is taken when this is first asked for."""
        if self._rounded is None:
            self._rounded = aligned((self.max_batch * self.per_token, self.rounded_step), np.uint8)
        return int(self._rounded.ctypes.data)

    def changed(self) -> None:
        """The steps added from now on see other values than those before."""
        self.is_quantized = False
