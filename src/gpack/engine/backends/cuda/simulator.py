"""A device that numba-cuda's simulator plays: for tests, some ten thousand times slower than a real one.

`NUMBA_ENABLE_CUDASIM=1` must be in the environment before numba is first imported.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import UnsupportedError
from .driver import ALIGNMENT, Counters
from .kernels import MODULES

_ONE_AT_A_TIME = threading.Lock()  # the simulator knows one kernel


class Simulator:
    """Device memory is one array, in which addresses are places."""

    def __init__(self, memory: int = 1 << 30) -> None:
        """A device with so many bytes."""
        self.counters = Counters()
        self._memory = np.zeros(memory, np.uint8)
        self._taken: dict[int, int] = {}
        self._views: dict[tuple[int, str], Any] = {}
        self._kernels: dict[str, tuple[Any, tuple[str, ...]]] = {}

    def free_bytes(self) -> int:
        """Bytes that nobody has."""
        return len(self._memory) - sum(self._taken.values())

    def allocate(self, nbytes: int) -> int:
        """The first gap that is large enough."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        at = ALIGNMENT  # 0 is no address
        for begin, taken in sorted(self._taken.items()):
            if begin - at >= size:
                break
            at = begin + taken
        if at + size > len(self._memory):
            raise MemoryError(f"{nbytes} bytes of device memory, {self.free_bytes()} are free")
        self._taken[at] = size
        self._memory[at : at + size] = 0xFF  # NaN, where somebody reads what nobody wrote
        self.counters.allocations += 1
        return at

    def free(self, address: int) -> None:
        """Gives memory back."""
        del self._taken[address]

    def upload(self, address: int, source: npt.NDArray[Any]) -> None:
        """Copies bytes."""
        octets = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        self._memory[address : address + len(octets)] = octets
        self.counters.copies += 1
        self.counters.copied_bytes += len(octets)

    def download(self, address: int, target: npt.NDArray[Any]) -> None:
        """Copies bytes."""
        octets = target.reshape(-1).view(np.uint8)
        octets[:] = self._memory[address : address + len(octets)]

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copies bytes."""
        self._memory[target : target + nbytes] = self._memory[source : source + nbytes]

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, args: Sequence[float]) -> None:
        """All threads of a block at once, block after block."""
        function, words = self._kernel(kernel)
        given = [self._argument(word, value) for word, value in zip(words, args, strict=True)]
        with _ONE_AT_A_TIME, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is not finite is the engine's to find
            function[grid, threads](*given)
        self.counters.launches += 1

    def close(self) -> None:
        """Forgets all memory."""
        self._taken.clear()
        self._views.clear()

    def _kernel(self, name: str) -> tuple[Any, tuple[str, ...]]:
        if name not in self._kernels:
            from numba import cuda

            dialect = importlib.import_module(".kernels.dialect", __package__)
            for module in MODULES:
                importlib.import_module(f".kernels.{module}", __package__)
            if name not in dialect.KERNELS:
                raise UnsupportedError(f"there is no kernel {name}", code="cuda.kernel", field=name)
            kernel = dialect.KERNELS[name]
            self._kernels[name] = cuda.jit(kernel.function), tuple(kernel.signature.split())
        return self._kernels[name]

    def _argument(self, word: str, value: float) -> Any:
        if not word.endswith("*"):
            return np.float32(value) if word == "f32" else int(value)
        place = (int(value), word)
        if place not in self._views:
            from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

            dialect = importlib.import_module(".kernels.dialect", __package__)
            kind = np.dtype(dialect.NUMPY[word.rstrip("*")])
            end = (len(self._memory) - place[0]) // kind.itemsize * kind.itemsize
            self._views[place] = FakeCUDAArray(self._memory[place[0] : place[0] + end].view(kind))
        return self._views[place]
