"""The seam between the backend and a device: memory, copies and launches. The simulator and NVIDIA's driver are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

ALIGNMENT = 256  # bytes, of all memory


@dataclass
class Counters:
    """What was asked of a device so far.

    Attributes:
        allocations: Pieces of device memory.
        copies: Transfers from the host to the device.
        copied_bytes: Bytes of these.
        launches: Kernels.
    """

    allocations: int = 0
    copies: int = 0
    copied_bytes: int = 0
    launches: int = 0


class Driver(Protocol):
    """A device. Calls follow one another: what a call reads, earlier ones have written.

    Attributes:
        counters: What was asked of it.
    """

    counters: Counters

    def free_bytes(self) -> int:
        """Device memory that is free."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, with anything in it.

        Raises:
            MemoryError: The device has no more.
        """

    def free(self, address: int) -> None:
        """Gives memory back."""

    def upload(self, address: int, source: npt.NDArray[Any]) -> None:
        """Copies a contiguous array to the device; it may be changed when the call returns."""

    def download(self, address: int, target: npt.NDArray[Any]) -> None:
        """Copies to a contiguous array, once all kernels have ended."""

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copies on the device."""

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, args: Sequence[float]) -> None:
        """Runs a kernel; pointers among its arguments are addresses.

        Raises:
            UnsupportedError: `cuda.kernel`: there is no such kernel.
        """

    def close(self) -> None:
        """Gives everything back; a second call does nothing."""
