"""The cache of keys and values of a session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....errors import UsageError
from .buffers import aligned

LANES = 16  # positions of a key tile, as kernels/tiles.py has it
# Bytes of one number, and the multiple that heads are padded to; Q8_0 adds a 16-bit scale to each 32.
_BYTES = {"F32": 4.0, "F16": 2.0, "Q8_0": 1.0 + 2 / 32}
_PADDING = {"F32": 16, "F16": 16, "Q8_0": 32}
CACHE_TYPES = tuple(_BYTES)
_BLOCK = 64  # positions are whole blocks of attention


@dataclass(frozen=True)
class LayerCache:
    """Where the cache of one layer is.

    Attributes:
        keys, values: Addresses.
        head_bytes: Bytes of a key/value head, the same for both.
        padded: Numbers of a head, with its padding.
    """

    keys: int
    values: int
    head_bytes: int
    padded: int


class KeyValueCache:
    """Keys and values of every layer; the layouts are described in kernels/heads.py.

    Memory is zero pages until a position is written.
    """

    def __init__(self, kind: str, n_ctx: int) -> None:
        """A cache of a kind: F32, F16 or Q8_0.

        Raises:
            UsageError: There is no such kind.
        """
        if kind not in _BYTES:
            raise UsageError(
                f"there is no cache of type {kind!r}", code="usage", field="cache_type", hint=", ".join(CACHE_TYPES)
            )
        self.kind = kind
        self.n_ctx = n_ctx
        self._layers: dict[int, LayerCache] = {}
        self._arrays: list[npt.NDArray[np.uint8]] = []

    def layer(self, number: int, n_kv: int, width: int) -> LayerCache:
        """The cache of a layer with so many key/value heads of so many numbers; made when it is first asked for."""
        known = self._layers.get(number)
        if known is None:
            padded = -(-width // _PADDING[self.kind]) * _PADDING[self.kind]
            positions = -(-self.n_ctx // _BLOCK) * _BLOCK
            head_bytes = int(positions * padded * _BYTES[self.kind])
            keys, values = aligned((n_kv * head_bytes,), np.uint8), aligned((n_kv * head_bytes,), np.uint8)
            self._arrays += [keys, values]
            known = LayerCache(keys.ctypes.data, values.ctypes.data, head_bytes, padded)
            self._layers[number] = known
        return known

    @property
    def nbytes(self) -> int:
        """Bytes of address space, all of which are memory once the context is full."""
        return sum(array.nbytes for array in self._arrays)
