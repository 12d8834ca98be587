"""What a graph computes with: values that have no memory yet, parts of them, and a router's choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import InternalError
from ..backends.cpu.buffers import Activations

Vector = npt.NDArray[np.float32]


class Value:
    """Rows of float32 that an operation makes.

    Attributes:
        width: Elements of a row.
        per_token: Rows of a token.
    """

    def __init__(self, width: int, per_token: int = 1) -> None:
        self.width, self.per_token = width, per_token
        self.buffer: Activations | None = None
        self.last_use = -1
        self.fixed = False  # its buffer is never given to another value

    def memory(self) -> Activations:
        """Its buffer, while the steps are made."""
        if self.buffer is None:
            raise InternalError("a value is used that was never made, or was overwritten", code="internal")
        return self.buffer


@dataclass(frozen=True)
class Part:
    """Some columns of a value.

    Attributes:
        first: The first of them.
    """

    value: Value
    first: int
    width: int

    def place(self) -> tuple[int, int]:
        """Address, and bytes from row to row."""
        buffer = self.value.memory()
        return buffer.address + 4 * self.first, 4 * buffer.width


@dataclass(frozen=True)
class Routing:
    """The experts that a router chose.

    Attributes:
        chosen: int32 [max_batch, K].
        weights: float32 [max_batch, K].
    """

    chosen: npt.NDArray[np.int32]
    weights: Vector
