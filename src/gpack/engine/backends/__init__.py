"""Where models compute: each backend lowers graphs to programs of its own."""

from __future__ import annotations

from typing import Literal

from ...errors import UsageError
from .base import Backend

Compute = Literal["int8", "f32"]
COMPUTE: tuple[Compute, ...] = ("int8", "f32")
DEVICES = ("cpu", "cuda", "cuda:N", "reference")


def check_compute(compute: str) -> None:
    """Refuses what is no way to compute.

    Raises:
        UsageError: It is none.
    """
    if compute not in COMPUTE:
        raise UsageError(f"compute is {compute!r}", code="usage", field="compute", hint=" or ".join(COMPUTE))


def make_backend(device: str, *, threads: int | None, compute: Compute, batch: int, cpu: str | None) -> Backend:
    """A backend of a device; each is imported when it is asked for.

    Raises:
        UsageError: There is no such device, or an option makes no sense to it.
    """
    if device == "cpu":
        from .cpu.backend import CpuBackend

        return CpuBackend(threads=threads, compute=compute, batch=batch, cpu=cpu)
    if device == "reference":
        from .reference import ReferenceBackend

        return ReferenceBackend(compute=compute, batch=batch)
    if device.partition(":")[0] == "cuda":
        from .cuda import devices
        from .cuda.backend import CudaBackend

        return CudaBackend(devices.open_driver(devices.number_of(device)), compute=compute, batch=batch)
    raise UsageError(f"there is no device {device!r}", code="usage", field="device", hint=", ".join(DEVICES))


def engine_key(
    device: str, *, threads: int | None, compute: Compute, cpu: str | None, batch: int
) -> tuple[str, str, int, str, int]:
    """What two engines of one model have in common that are one and the same: defaults are filled in.

    Raises:
        UsageError: As `make_backend`.
    """
    if device != "cpu":
        return device, "", 0, compute, batch
    from .cpu.backend import count_threads
    from .cpu.variants import choose

    return device, choose(cpu).name, count_threads(threads), compute, batch
