"""What the products of a model share: the state of a batch, memory of the threads, and how they compute."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .. import Compute
from .buffers import aligned
from .layout import STEP_ROWS, TILE_ROWS
from .store import Kernels
from .team import Words

T = TypeVar("T")


class Workspace:
    """What the products of a model share.

    Attributes:
        state: int64 [16]; word 0 is the number of tokens of the batch.
        compute: `int8`: activations are rounded to 8 bits, 32 to a scale, where the weights are quantised. `f32`:
            never.
        lanes: Rows of a tile.
    """

    def __init__(
        self, kernels: Kernels, state: Words, *, max_batch: int, threads: int, compute: Compute = "int8"
    ) -> None:
        self.kernels, self.state = kernels, state
        self.max_batch, self.threads, self.compute = max_batch, threads, compute
        self.lanes = TILE_ROWS[kernels.variant.name]
        self._memory: dict[int, Any] = {}
        self._shared: dict[Hashable, Any] = {}

    @property
    def n_tokens(self) -> int:
        """Of the batch that runs now."""
        return int(self.state[STEP_ROWS])

    def memory(self, size: int) -> tuple[int, int]:
        """Memory for each thread that steps may use while they run: address, and bytes of each thread."""
        each = 1 << max(14, (size - 1).bit_length())  # few sizes, so that steps share
        if each not in self._memory:
            self._memory[each] = aligned((self.threads, each), "u1")
        return int(self._memory[each].ctypes.data), each

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """What steps share that do not run at the same time: made when it is first asked for."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found
