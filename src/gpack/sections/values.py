"""GGUF metadata values: the bytes as they are in the file, decoded when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from gpack.generated.constants import MetadataType
from gpack.generated.gguf.structs import GgufArrayHeader
from gpack.sections.strings import LENGTH_SIZE, StringTable, scan_table, string_bounds

Scalar: TypeAlias = int | float | bool | str
PythonValue: TypeAlias = "Scalar | list[PythonValue]"

INTEGERS = frozenset(value_type for value_type, name in MetadataType.NAMES.items() if "INT" in name)

# GGUF's names of the fixed-size types are numpy's in capitals.
DTYPES = {
    value_type: np.dtype(name.lower()).newbyteorder("<")
    for value_type, name in MetadataType.NAMES.items()
    if MetadataType.BYTES[value_type]
}


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata entry.

    Attributes:
        key: The key.
        value_type: GGUF's id of the type.
        element_type: The id of an array's elements; `value_type` itself for scalars and strings.
        count: Number of an array's elements; 1 for scalars and strings.
        raw: The bytes as in the file. A scalar's bytes; a string's bytes without the length; an array's
            elements without the array's own type and count: fixed-size ones packed, strings as
            (u64 length, bytes) each, arrays as (u32 type, u64 count, elements) each.
    """

    key: str
    value_type: int
    element_type: int
    count: int
    raw: bytes | memoryview
    _table: StringTable | None = field(default=None, repr=False, compare=False)

    def python(self) -> PythonValue:
        """The value as `int`, `float`, `bool`, `str`, or a list of them, nested as the arrays are.

        Bytes that are not UTF-8 become lone surrogates (`errors="surrogateescape"`); `encode` with the same
        gives them back.
        """
        if self.value_type == MetadataType.STRING:
            return bytes(self.raw).decode("utf-8", "surrogateescape")
        if self.value_type != MetadataType.ARRAY:
            scalar: Scalar = np.frombuffer(self.raw, DTYPES[self.value_type])[0].item()
            return scalar
        if self.element_type == MetadataType.STRING:
            return [*self.strings().decode()]
        return _decode_elements(memoryview(self.raw), 0, self.element_type, self.count)[0]

    def head(self, count: int) -> PythonValue:
        """The value as `python` gives it, but of an array only the first `count` elements."""
        if self.value_type != MetadataType.ARRAY or self.count <= count:
            return self.python()
        raw = memoryview(self.raw)
        if self.element_type == MetadataType.STRING:
            return [*scan_table(raw, count).decode()]
        return _decode_elements(raw, 0, self.element_type, count)[0]

    def strings(self) -> StringTable:
        """The strings of a string array, found but not decoded.

        Raises:
            TypeError: If the value is no array of strings.
        """
        if self.value_type != MetadataType.ARRAY or self.element_type != MetadataType.STRING:
            raise TypeError(f"{self.key} is no array of strings")
        return self._table if self._table is not None else scan_table(memoryview(self.raw), self.count)


def _decode_elements(raw: memoryview, at: int, element_type: int, count: int) -> tuple[list[PythonValue], int]:
    """The elements that begin at byte `at`, and the position after them."""
    if element_type == MetadataType.ARRAY:
        return _decode_arrays(raw, at, count)
    if element_type == MetadataType.STRING:
        octets = np.frombuffer(raw, np.uint8)
        bounds = string_bounds(lambda start, size: octets[start : start + size], at, count, len(raw)).tolist()
        texts: list[PythonValue] = [
            bytes(raw[start + LENGTH_SIZE : end]).decode("utf-8", "surrogateescape") for start, end in pairwise(bounds)
        ]
        return texts, bounds[-1]
    dtype = DTYPES[element_type]
    return np.frombuffer(raw, dtype, count, at).tolist(), at + count * dtype.itemsize


def _decode_arrays(raw: memoryview, at: int, count: int) -> tuple[list[PythonValue], int]:
    arrays: list[PythonValue] = []
    for _ in range(count):
        inner = GgufArrayHeader.decode(raw, at)
        elements, at = _decode_elements(raw, at + GgufArrayHeader.SIZE, inner.element_type, inner.count)
        arrays.append(elements)
    return arrays, at
