"""Which weights are on the device, and where: each tensor once, many of them in one allocation."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import UsageError
from ...graph.weights import Experts, Matrix, PagedExperts, Vector
from .driver import ALIGNMENT, Driver

_Octets = npt.NDArray[np.uint8]


def _octets(array: Any) -> _Octets:
    return np.asarray(array).reshape(-1).view(np.uint8)


def _host(octets: _Octets) -> int:
    return int(octets.ctypes.data)


def allocate(driver: Driver, nbytes: int, what: str) -> int:
    """Device memory for what would not fit otherwise.

    Raises:
        UsageError: `cuda.memory`: there is not enough; needed and free bytes are told.
    """
    free = driver.free_bytes()
    try:
        if nbytes > free:
            raise MemoryError
        return driver.allocate(nbytes)
    except MemoryError as error:
        raise UsageError(
            f"{what} need {nbytes} bytes of device memory, of which {free} are free",
            code="cuda.memory",
            hint="another device, a smaller model, or --device cpu",
        ) from error


class Residency:
    """Weights by where they lie in the host's memory: what is part of a tensor that is there, is there too."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._allocated: list[int] = []
        self._begins: list[int] = []  # host addresses, sorted
        self._ranges: list[tuple[int, int, Any]] = []  # for each: bytes, device address, what keeps the host's memory
        self._apart: dict[str, int] = {}  # experts whose slices lie apart, by name

    def adopt(self, host: npt.NDArray[Any], device: int) -> None:
        """Memory of the host that was brought to the device already."""
        octets = _octets(host)
        at = bisect.bisect(self._begins, _host(octets))
        self._begins.insert(at, _host(octets))
        self._ranges.insert(at, (len(octets), device, host))

    def ensure(self, weights: Sequence[Matrix | Experts | Vector]) -> None:
        """Brings those to the device that are not there, in one allocation; all of them, or none.

        Raises:
            UsageError: `cuda.memory`: there is not enough device memory; needed and free bytes are told.
        """
        missing: dict[str, list[_Octets]] = {}
        for item in weights:
            pieces = list(_pieces(item))
            if item.name not in self._apart and item.name not in missing and self._find(pieces) is None:
                missing[item.name] = pieces
        if missing:
            self._bring(missing)

    def _bring(self, missing: dict[str, list[_Octets]]) -> None:
        places, end = {}, 0
        for name, pieces in missing.items():
            places[name] = end
            end += -(-sum(map(len, pieces)) // ALIGNMENT) * ALIGNMENT
        base = allocate(self._driver, end, "the model's weights")
        try:
            for name, pieces in missing.items():
                at = base + places[name]
                for piece in pieces:
                    self._driver.upload(at, piece)
                    at += len(piece)
        except BaseException:
            self._driver.free(base)
            raise
        self._allocated.append(base)
        for name, pieces in missing.items():
            if len(pieces) == 1:
                self.adopt(pieces[0], base + places[name])
            else:
                self._apart[name] = base + places[name]

    def address(self, item: Matrix | Experts | Vector) -> int:
        """Where a weight is on the device."""
        if item.name in self._apart:
            return self._apart[item.name]
        found = self._find(list(_pieces(item)))
        if found is None:
            raise KeyError(item.name)
        return found

    def close(self) -> None:
        """Frees everything."""
        for base in self._allocated:
            self._driver.free(base)
        self._allocated, self._begins, self._ranges, self._apart = [], [], [], {}

    def _find(self, pieces: list[_Octets]) -> int | None:
        if len(pieces) != 1:
            return None
        host, size = _host(pieces[0]), len(pieces[0])
        at = bisect.bisect(self._begins, host) - 1
        if at >= 0 and host + size <= self._begins[at] + self._ranges[at][0]:
            return self._ranges[at][1] + host - self._begins[at]
        return None


def _pieces(item: Matrix | Experts | Vector) -> Iterator[_Octets]:
    """The bytes of a weight: in one piece, or of stacks that lie apart a piece for each expert."""
    if isinstance(item, Vector):
        yield _octets(np.ascontiguousarray(item.values))
    elif isinstance(item, Matrix):
        yield _octets(item.tensor)
    elif isinstance(item.stored, PagedExperts):
        for number in range(item.n_expert):
            yield _octets(item.stored.source.get(item.stored.layer, number)[item.stored.part])
    elif item.stored.flags.c_contiguous:
        yield _octets(item.stored)
    else:
        for number in range(item.n_expert):
            yield _octets(np.ascontiguousarray(item.stored[number]))
