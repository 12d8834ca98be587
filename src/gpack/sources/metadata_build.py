"""Metadata entries made from Python values, in GGUF's encoding: the inverse of `Value.python`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ..generated.constants import MetadataType
from ..generated.gguf.structs import GgufStringLength
from ..sections.values import DTYPES, Value


class MetadataBuilder(dict[str, Value]):
    """Entries in the order in which they are added; a later one of the same key takes the place of the earlier."""

    def scalar(self, key: str, value_type: int, value: float | bool) -> None:
        """Adds a number or a truth value of a type of MetadataType."""
        raw = np.array(value).astype(DTYPES[value_type]).tobytes()
        self[key] = Value(key, value_type, value_type, 1, raw)

    def u32(self, key: str, value: int) -> None:
        """Adds an unsigned 32-bit integer."""
        self.scalar(key, MetadataType.UINT32, value)

    def f32(self, key: str, value: float) -> None:
        """Adds a float32."""
        self.scalar(key, MetadataType.FLOAT32, value)

    def flag(self, key: str, value: bool) -> None:
        """Adds a truth value."""
        self.scalar(key, MetadataType.BOOL, value)

    def text(self, key: str, value: str) -> None:
        """Adds a string."""
        self[key] = Value(key, MetadataType.STRING, MetadataType.STRING, 1, value.encode("utf-8"))

    def numbers(self, key: str, element_type: int, values: Sequence[float | bool]) -> None:
        """Adds an array of numbers or truth values."""
        raw = np.array(values).astype(DTYPES[element_type]).tobytes()
        self[key] = Value(key, MetadataType.ARRAY, element_type, len(values), raw)

    def texts(self, key: str, values: Sequence[str]) -> None:
        """Adds an array of strings."""
        pack = struct.Struct(GgufStringLength.FORMAT).pack
        octets = [value.encode("utf-8") for value in values]
        raw = b"".join(part for item in octets for part in (pack(len(item)), item))
        self[key] = Value(key, MetadataType.ARRAY, MetadataType.STRING, len(values), raw)
