"""A model made of arrays in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..container.payload import Block, Range
from ..errors import UsageError
from ..sections.dense import byte_count
from ..sections.values import Value
from .files import SourceFile
from .hf_import import HEADER_METADATA
from .metadata_build import MetadataBuilder


@dataclass(frozen=True)
class ArrayTensor:
    """An array of the model.

    Attributes:
        data: Its bytes, contiguous, little-endian.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    position: int
    data: memoryview

    @property
    def byte_size(self) -> int:
        """Bytes of its data."""
        return byte_count(self.ggml_type, self.dims)


class ArraySource:
    """A model source (see `ModelSource`) of arrays.

    Attributes:
        metadata: `general.architecture` and `general.name`, where the metadata has them.
        assets: The metadata as safetensors' `__metadata__`, where there are any.
    """

    version = alignment = 0
    files: Sequence[SourceFile] = ()
    notes: Sequence[str] = ()
    extensions: Mapping[str, Any]

    def __init__(self, tensors: Sequence[ArrayTensor], metadata: Mapping[str, str] | None) -> None:
        """Checks the metadata.

        Raises:
            UsageError: A key or a value is no text.
        """
        said = dict(metadata or {})
        for key, value in said.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise UsageError(f"{key!r}: {value!r} is not text to text", code="usage", field="metadata")
        self.tensors = tensors
        self.extensions = {}
        self.assets = {HEADER_METADATA: json.dumps(said, ensure_ascii=False).encode()} if said else {}
        made = MetadataBuilder()
        for key in ("general.architecture", "general.name"):
            if key in said:
                made.text(key, said[key])
        self.metadata: dict[str, Value] = made

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def range_of(self, tensor: ArrayTensor) -> Range:
        """The tensor's bytes."""
        return Block(tensor.data)

    def describe_files(self) -> list[dict[str, Any]]:
        """None: nothing is read from files."""
        return []

    def origin(self, tensor: ArrayTensor) -> dict[str, Any]:
        """Nothing is known of where an array comes from."""
        return {}

    def __enter__(self) -> ArraySource:
        return self

    def __exit__(self, *_: object) -> None:
        pass
