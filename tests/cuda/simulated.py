"""A backend whose device the simulator plays; tests that use it are skipped where numba-cuda is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpack.engine.backends.cuda.backend import CudaBackend
from gpack.engine.backends.cuda.simulator import Simulator

MEMORY = 1 << 26

needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed: python -m pip install 'guild-gpack[cuda-build]'",
)


@contextmanager
def simulated(*, compute: Any = "int8", batch: int = 16, memory: int = MEMORY) -> Iterator[CudaBackend]:
    """A backend on a new device."""
    backend = CudaBackend(Simulator(memory), compute=compute, batch=batch)
    try:
        yield backend
    finally:
        backend.close()
