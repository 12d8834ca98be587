"""Bytes of two files compared a few at a time: how many differ, where the first does, how far values are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..container.place import Place
from ..container.structure import read_at
from ..generated.constants import GgmlType
from ..quants import dequantize

CHUNK = 4 << 20  # bytes of each file at a time; a multiple of every scalar type's size
FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.F64, GgmlType.F8_E4M3, GgmlType.F8_E5M2)
Bytes = npt.NDArray[np.uint8]


@dataclass
class Apart:
    """How two runs of bytes differ.

    Attributes:
        length: Bytes that were compared.
        count: How many differ.
        first: Offset of the first that does, from the start of the run; None where none does.
        farthest: Largest difference of two values, of floats; None where they were not compared, or none is a number.
        not_finite: Values of which one is not finite and the other is, or is another.
    """

    length: int = 0
    count: int = 0
    first: int | None = None
    farthest: float | None = None
    not_finite: int = 0

    def add(self, left: Bytes, right: Bytes, ggml_type: int | None) -> None:
        """Takes the next bytes of both."""
        unequal = left != right
        found = int(np.count_nonzero(unequal))
        if found:
            if self.first is None:
                self.first = self.length + int(unequal.argmax())
            self.count += found
            if ggml_type in FLOATS:
                self._add_values(left, right, ggml_type)
        self.length += len(left)

    def _add_values(self, left: Bytes, right: Bytes, ggml_type: int) -> None:
        one, other = _values(left, ggml_type), _values(right, ggml_type)
        both = np.isfinite(one) & np.isfinite(other)
        strange = ~both & (one != other) & ~(np.isnan(one) & np.isnan(other))
        self.not_finite += int(np.count_nonzero(strange))
        if both.any():
            apart = float(np.abs(one[both].astype(np.float64) - other[both]).max())
            self.farthest = max(self.farthest or 0.0, apart)

    def detail(self) -> dict[str, Any]:
        """The numbers, JSON-ready."""
        info: dict[str, Any] = {"bytes": self.length, "differing_bytes": self.count, "first_offset": self.first}
        if self.farthest is not None:
            info["max_abs_difference"] = self.farthest
        return info | ({"not_finite": self.not_finite} if self.not_finite else {})


def _values(data: Bytes, ggml_type: int) -> npt.NDArray[Any]:
    """The values as float32; F64, whose values may lie beyond it, as it is."""
    return data.view("<f8") if ggml_type == GgmlType.F64 else dequantize(data, ggml_type)


def compare_places(left: Place, right: Place, ggml_type: int | None = None) -> Apart:
    """Compares the bytes of two places, as far as both go; their runs may be cut in different ways.

    Args:
        ggml_type: Type of the values, where the bytes are those of tensors.

    Raises:
        PathError: A read failed.
    """
    apart = Apart()
    end, at = min(left.size, right.size), 0
    while at < end:
        one, other = next(left.part(at, end - at)), next(right.part(at, end - at))
        count = min(CHUNK, one.length, other.length)
        apart.add(_read(one, count), _read(other, count), ggml_type)
        at += count
    return apart


def _read(place: Place, count: int) -> Bytes:
    return np.frombuffer(read_at(place.descriptor, place.offset, count, place.path), np.uint8)
