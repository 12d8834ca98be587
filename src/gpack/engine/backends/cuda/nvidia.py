"""NVIDIA's driver behind the seam: memory, copies through pinned pages, and kernels that it translates from PTX.

Only the chosen device is touched: its primary context is taken, and given back at the end. Needs `cuda-bindings`
and the driver; no compiler and no toolkit.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import DigestError, UnsupportedError, UsageError, install
from .driver import Counters

OLDEST_DRIVER = 12000  # CUDA 12.0, as the driver counts
OLDEST_DEVICE = (7, 5)
RING_BYTES = 64 << 20  # of pinned memory, in two halves
_SMALL = 1 << 16  # bytes that the driver copies aside by itself
_C_TYPES: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}


@dataclass(frozen=True)
class Found:
    """A device of this machine.

    Attributes:
        capability: Its architecture: (9, 0) is sm_90.
    """

    number: int
    name: str
    capability: tuple[int, int]
    total_bytes: int


def _api() -> Any:
    """The driver's interface, initialised.

    Raises:
        UnsupportedError: `cuda.extra`: a package is missing; `cuda.driver`: there is no driver, it is too old, or it
            finds no device.
    """
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise UnsupportedError(
            "devices of NVIDIA's need the package cuda-bindings", code="cuda.extra", hint=install("cuda")
        ) from error
    try:
        status = api.cuInit(0)[0]
    except Exception as error:  # its loader's own kinds of errors, by version
        raise UnsupportedError(
            "there is no driver of NVIDIA's on this machine", code="cuda.driver", hint="--device cpu"
        ) from error
    if int(status) != 0:
        raise UnsupportedError(
            f"the driver of NVIDIA's does not start: {_told(api, status)}",
            code="cuda.driver",
            hint="nvidia-smi says more",
        )
    version = int(_done(api, api.cuDriverGetVersion(), "asking for the driver's version"))
    if version < OLDEST_DRIVER:
        raise UnsupportedError(
            f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}; 12.0 or newer is needed",
            code="cuda.driver",
            hint="a newer driver, or --device cpu",
        )
    return api


def _told(api: Any, status: Any) -> str:
    name = api.cuGetErrorName(status)[1]
    return name.decode() if isinstance(name, bytes) else str(status)


def _done(api: Any, result: tuple[Any, ...], what: str) -> Any:
    """What a call gives.

    Raises:
        MemoryError: The device has no more.
        UnsupportedError: `cuda.copy`: anything else that the driver reports.
    """
    status, *values = result
    if int(status) == int(api.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
        raise MemoryError(what)
    if int(status) != 0:
        raise UnsupportedError(
            f"{what} failed: {_told(api, status)}", code="cuda.copy", hint="the device cannot go on; start anew"
        )
    return values[0] if len(values) == 1 else tuple(values)


def devices() -> list[Found]:
    """All devices, by their numbers.

    Raises:
        UnsupportedError: `cuda.extra`, `cuda.driver`.
    """
    api = _api()
    found = []
    for number in range(int(_done(api, api.cuDeviceGetCount(), "counting devices"))):
        device = _done(api, api.cuDeviceGet(number), "looking for a device")
        name = _done(api, api.cuDeviceGetName(128, device), "asking for a device's name")
        kinds = api.CUdevice_attribute
        parts = (kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        major, minor = (int(_done(api, api.cuDeviceGetAttribute(part, device), "asking a device")) for part in parts)
        total = int(_done(api, api.cuDeviceTotalMem(device), "asking a device for its memory"))
        found.append(Found(number, name.split(b"\0")[0].decode(), (major, minor), total))
    return found


class Nvidia:
    """A device. Calls may come from any thread, one at a time.

    Attributes:
        found: What it is.
    """

    def __init__(self, number: int) -> None:
        """Takes a device.

        Raises:
            UnsupportedError: As `devices`; `cuda.device`: the device is too old.
            UsageError: `cuda.device`: there is no such device.
        """
        known = devices()
        if number >= len(known):
            there = ", ".join(f"cuda:{each.number} ({each.name})" for each in known) or "there are none"
            raise UsageError(f"there is no device cuda:{number}", code="cuda.device", field="device", hint=there)
        self.found = known[number]
        if self.found.capability < OLDEST_DEVICE:
            raise UnsupportedError(
                f"{self.found.name} is of architecture sm_{self.found.capability[0]}{self.found.capability[1]};"
                f" sm_{OLDEST_DEVICE[0]}{OLDEST_DEVICE[1]} or newer is needed",
                code="cuda.device",
                hint="--device cpu",
            )
        self.counters = Counters()
        self._api = _api()
        self._device = self._call("cuDeviceGet", number)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._thread = -1
        self._enter()
        self._stream = self._call("cuStreamCreate", 1)  # not ordered by others' work
        self._ring: tuple[int, list[Any]] | None = None
        self._kernels: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        self._modules: list[Any] = []
        self._manifest = json.loads(_ptx_file("manifest.json"))["kernels"]
        self._closed = False

    def _call(self, name: str, *args: Any) -> Any:
        return _done(self._api, getattr(self._api, name)(*args), name)

    def _enter(self) -> None:
        """The context is that of the thread that calls."""
        if self._thread != threading.get_ident():
            self._call("cuCtxSetCurrent", self._context)
            self._thread = threading.get_ident()

    # ------------------------------------------------------------ memory

    def free_bytes(self) -> int:
        """Device memory that is free."""
        self._enter()
        return int(self._call("cuMemGetInfo")[0])

    def allocate(self, nbytes: int) -> int:
        """The address of new memory.

        Raises:
            MemoryError: The device has no more.
        """
        self._enter()
        made = int(self._call("cuMemAlloc", max(nbytes, 1)))
        self.counters.allocations += 1
        return made

    def free(self, address: int) -> None:
        """Gives memory back."""
        self._enter()
        self._call("cuMemFree", address)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Copies on the device."""
        self._enter()
        self._call("cuMemcpyDtoDAsync", target, source, nbytes, self._stream)

    def upload(self, address: int, source: npt.NDArray[Any]) -> None:
        """One copy where the pages can be registered; else in parts through pinned memory."""
        self._enter()
        octets = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        host, size = int(octets.ctypes.data), len(octets)
        if size <= _SMALL:
            self._copy_in(address, host, size)
            if size:
                self._call("cuStreamSynchronize", self._stream)
        elif self._register(host, size):
            try:
                self._copy_in(address, host, size)
                self._call("cuStreamSynchronize", self._stream)
            finally:
                self._call("cuMemHostUnregister", host)
        else:
            self._through_ring(address, host, size)

    def _copy_in(self, address: int, host: int, size: int) -> None:
        self._call("cuMemcpyHtoDAsync", address, host, size, self._stream)
        self.counters.copies += 1
        self.counters.copied_bytes += size

    def _register(self, host: int, size: int) -> bool:
        """Whether the pages of memory, perhaps a mapped file's, can be read by the device as they are."""
        read_only = 8
        status = self._api.cuMemHostRegister(host, size, read_only)[0]
        return int(status) == 0

    def _through_ring(self, address: int, host: int, size: int) -> None:
        if self._ring is None:
            self._ring = (
                int(self._call("cuMemHostAlloc", RING_BYTES, 0)),
                [self._call("cuEventCreate", 2) for _ in "ab"],
            )
        ring, events = self._ring
        half = RING_BYTES // 2
        for number, first in enumerate(range(0, size, half)):
            count, side = min(half, size - first), number % 2
            if number >= 2:
                self._call("cuEventSynchronize", events[side])
            ctypes.memmove(ring + side * half, host + first, count)
            self._copy_in(address + first, ring + side * half, count)
            self._call("cuEventRecord", events[side], self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def download(self, address: int, target: npt.NDArray[Any]) -> None:
        """Copies to a contiguous array, once all kernels have ended."""
        self._enter()
        if target.nbytes:
            self._call("cuMemcpyDtoHAsync", int(target.ctypes.data), address, target.nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    # ------------------------------------------------------------ kernels

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, args: Sequence[float]) -> None:
        """Runs a kernel; pointers among its arguments are addresses."""
        self._enter()
        function, kinds = self._kernel(kernel)
        given = (tuple(float(a) if k is ctypes.c_float else int(a) for a, k in zip(args, kinds, strict=True)), kinds)
        self._call("cuLaunchKernel", function, *grid, 1, threads, 1, 1, 0, self._stream, given, 0)
        self.counters.launches += 1

    def _kernel(self, name: str) -> tuple[Any, tuple[Any, ...]]:
        if name not in self._kernels:
            known = self._manifest.get(name)
            if known is None:
                raise UnsupportedError(f"there is no kernel {name}", code="cuda.kernel", field=name)
            ptx = _ptx_file(f"{name}.ptx")
            if hashlib.sha256(ptx).hexdigest() != known["sha256"]:
                raise DigestError(f"{name}.ptx is not what the package was built with", code="cuda.kernel", field=name)
            module = self._call("cuModuleLoadData", ptx + b"\0")
            self._modules.append(module)
            function = self._call("cuModuleGetFunction", module, name.encode())
            words = known["signature"].split()
            kinds = tuple(ctypes.c_void_p if word.endswith("*") else _C_TYPES[word] for word in words)
            self._kernels[name] = function, kinds
        return self._kernels[name]

    def close(self) -> None:
        """Gives the device back; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._kernels.clear()
        # With the context all memory goes; the primary context of others stays.
        self._thread = -1
        self._enter()
        for module in self._modules:
            self._call("cuModuleUnload", module)
        if self._ring is not None:
            self._call("cuMemFreeHost", self._ring[0])
        self._call("cuStreamDestroy", self._stream)
        self._call("cuDevicePrimaryCtxRelease", self._device)


def _ptx_file(name: str) -> bytes:
    return files(__package__).joinpath("ptx", name).read_bytes()
