"""A model that lies in memory: what recipes and the writer's runner convert, with no source file in between."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..container.payload import Range
from ..convert.external import ExternalFiles
from ..convert.plan import Plan
from ..errors import UsageError
from ..generated.constants import GgmlType, MetadataType
from ..generated.gguf.structs import GgufArrayHeader, GgufStringLength
from ..sections.dense import DenseColumns
from ..sections.values import DTYPES, Value
from ..sources.files import SourceFile

# A metadata entry is (key, kind, value). Kinds are those of `KINDS`, and "[kind]" for arrays.
Entry = tuple[str, str, Any]
KINDS = {
    "u8": MetadataType.UINT8,
    "i8": MetadataType.INT8,
    "u16": MetadataType.UINT16,
    "i16": MetadataType.INT16,
    "u32": MetadataType.UINT32,
    "i32": MetadataType.INT32,
    "f32": MetadataType.FLOAT32,
    "bool": MetadataType.BOOL,
    "str": MetadataType.STRING,
    "u64": MetadataType.UINT64,
    "i64": MetadataType.INT64,
    "f64": MetadataType.FLOAT64,
}
GGUF_VERSION, GGUF_ALIGNMENT = 3, 32  # what a pack says of a source that was the usual GGUF


@dataclass(frozen=True)
class MemoryTensor:
    """A tensor of a model in memory.

    Attributes:
        dims: Extents, contiguous axis first.
        source: Its bytes.
        position: Its place among the model's tensors, from 0.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    source: Range
    position: int = 0

    @property
    def byte_size(self) -> int:
        """Bytes of its data."""
        return self.source.size


@dataclass
class MemoryModel:
    """A model for `convert.Plan` (a `ModelSource`).

    Attributes:
        entries: Metadata in its order.
        tensors: Tensors in their order.
        assets: Raw tokenizer files by name.
        extensions: What the manifest's `extensions` shall say.
        version, alignment: GGUF version and alignment of the source; 0 where it was none.
    """

    entries: Sequence[Entry]
    tensors: Sequence[MemoryTensor] = ()
    assets: Mapping[str, bytes] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)
    version: int = GGUF_VERSION
    alignment: int = GGUF_ALIGNMENT
    files: Sequence[SourceFile] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.metadata = {key: value_of(key, kind, value) for key, kind, value in self.entries}

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def range_of(self, tensor: Any) -> Range:
        """The tensor's bytes."""
        made: Range = tensor.source
        return made

    def describe_files(self) -> list[dict[str, Any]]:
        """No files."""
        return []

    def origin(self, tensor: Any) -> dict[str, Any]:
        """Nothing is known of where a tensor comes from."""
        return {"name": tensor.name}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to close."""


def value_of(key: str, kind: str, value: Any) -> Value:
    """A metadata value; text may be `bytes` where it is no UTF-8.

    Raises:
        UsageError: The kind is not known, or the value does not fit it.
    """
    try:
        if kind.startswith("["):
            inner = kind[1:-1]
            raw = b"".join(_element(inner, item) for item in value)
            return Value(key, MetadataType.ARRAY, _type(inner), len(value), raw)
        raw = _octets(value) if kind == "str" else _element(kind, value)
        return Value(key, _type(kind), _type(kind), 1, raw)
    except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise UsageError(f"{value!r} is no {kind} of metadata", code="usage", field=key) from error


def _type(kind: str) -> int:
    return MetadataType.ARRAY if kind.startswith("[") else KINDS[kind]


def _element(kind: str, value: Any) -> bytes:
    """An element of an array, in GGUF's encoding."""
    if kind.startswith("["):
        inner = kind[1:-1]
        head = GgufArrayHeader(element_type=_type(inner), count=len(value)).encode()
        return head + b"".join(_element(inner, item) for item in value)
    if kind == "str":
        octets = _octets(value)
        return struct.pack(GgufStringLength.FORMAT, len(octets)) + octets
    dtype = DTYPES[KINDS[kind]]
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ValueError("it is too large")
    return np.array(value, dtype).tobytes()


def _octets(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(memoryview(value))


def size_of(ggml_type: int, dims: Sequence[int]) -> int:
    """Bytes of a tensor of that type and shape."""
    elements = 1
    for extent in dims:
        elements *= extent
    return elements // GgmlType.BLOCK[ggml_type] * GgmlType.BYTES[ggml_type]


def write_model(
    model: MemoryModel,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    external: ExternalFiles | None = None,
    dense_columns: Mapping[str, DenseColumns] | None = None,
) -> None:
    """Writes the pack of a model with gpack's own writer; arguments and errors are those of `convert_model`."""
    Plan(model, name=name, external=external, dense_columns=dense_columns).builder.build(path)


def pack_of(model: MemoryModel, **options: Any) -> bytes:
    """The bytes that `write_model` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gpack"
        write_model(model, path, **options)
        return path.read_bytes()
