"""`--quantize`: a model source whose matrices become another type while they are written.

What is turned: matrices and stacks of experts of the text model, of F32, F16 or BF16, whose rows are whole blocks.
What stays: norms, biases, all vectors, the router and the other small tensors that llama.cpp keeps exact; towers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..container.payload import Computed, Range, read_part
from ..container.workers import Workers
from ..errors import FormatError, UnsupportedError
from ..generated.constants import GgmlType
from ..machine import usable_cores
from ..quants import dequantize
from ..quants.encode import encoder
from ..sections.dense import byte_count
from ..sections.values import Value
from ..sources.files import SourceFile
from ..sources.hf_metadata import FILE_TYPE, FILE_TYPES
from ..sources.hf_translate import F32_NAMES
from ..sources.metadata_build import MetadataBuilder
from ..sources.model import ModelSource, ModelTensor

Stored = NDArray[np.uint8]
Floats = NDArray[np.float32]
_NAMES = re.compile(r"(?:blk\.[0-9]+\..+|token_embd|output|per_layer_token_embd)\.weight")
_FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
# Kept exact by llama.cpp's quantiser too.
_EXACT = (*F32_NAMES, "_conv.conv.weight", "altup_router.weight", "per_layer_model_proj.weight")
_MOST_WORKERS = 16
_SAFE = 65000.0  # half precision ends a little above, and so do the scales of blocks at the earliest
_BATCH = 1 << 21  # bytes that are made at a time; as float32 they are up to eight times as many


@dataclass(frozen=True)
class TurnedTensor:
    """A tensor that is stored as another type.

    Attributes:
        ggml_type: Number of the type that it becomes.
        original: As the source has it.
    """

    ggml_type: int
    original: ModelTensor

    @property
    def name(self) -> str:
        """Its name."""
        return self.original.name

    @property
    def dims(self) -> tuple[int, ...]:
        """Extents, contiguous axis first."""
        return self.original.dims

    @property
    def byte_size(self) -> int:
        """Bytes of its data."""
        return byte_count(self.ggml_type, self.dims)

    @property
    def position(self) -> int:
        """Its place among the model's tensors."""
        return self.original.position


class QuantizedSource:
    """A model whose matrices become another type; everything else is the source's.

    Attributes:
        tensors: Those of the source, some of them turned.
        metadata: That of the source, with the new `general.file_type`.
    """

    def __init__(self, model: ModelSource, ggml_type: int) -> None:
        """Decides which tensors are turned.

        Raises:
            UnsupportedError: `quantize.type` where no tensor can be turned, `quantize.library` where the type needs
                a library that is not installed.
        """
        self._model, self._type = model, ggml_type
        self._encode = encoder(ggml_type)
        self._workers = Workers(min(usable_cores(), _MOST_WORKERS))
        self.tensors: Sequence[ModelTensor] = [
            TurnedTensor(ggml_type, tensor) if self._is_turned(tensor) else tensor for tensor in model.tensors
        ]
        fits = any(is_matrix(tensor) and tensor.ggml_type in (*_FLOATS, ggml_type) for tensor in model.tensors)
        if not fits or (ggml_type not in _FLOATS and not self.turned):
            raise UnsupportedError(
                f"the model has no tensor that could become {GgmlType.NAMES[ggml_type]}",
                code="quantize.type",
                path=model.files[0].path,
                hint="turned are F32, F16 and BF16 in models whose architecture is known; rows must be whole blocks",
            )
        changed = MetadataBuilder(model.metadata)
        if FILE_TYPE in changed:
            changed.u32(FILE_TYPE, FILE_TYPES[ggml_type])
        self.metadata: dict[str, Value] = dict(changed)

    @property
    def turned(self) -> list[str]:
        """Names of the tensors that are turned."""
        return [tensor.name for tensor in self.tensors if isinstance(tensor, TurnedTensor)]

    def _is_turned(self, tensor: ModelTensor) -> bool:
        whole_blocks = not tensor.dims or tensor.dims[0] % GgmlType.BLOCK[self._type] == 0
        return is_matrix(tensor) and tensor.ggml_type in _FLOATS and tensor.ggml_type != self._type and whole_blocks

    def range_of(self, tensor: Any) -> Range:
        """The tensor's bytes; those of a turned one are made when they are asked for."""
        if not isinstance(tensor, TurnedTensor):
            return self._model.range_of(tensor)
        inner = self._model.range_of(tensor.original)
        width = tensor.dims[0]
        row_bytes = byte_count(tensor.original.ggml_type, (width,))

        def encode(stored: Stored, first: int) -> bytes:
            values = dequantize(stored, tensor.original.ggml_type)
            made = self._encode(values)
            _check_values(values, made, self._type, self._model.files[0].path, tensor.name, first)
            return made.tobytes()

        def make(first: int, count: int) -> bytes:
            stored = np.frombuffer(read_part(inner, first * row_bytes, count * row_bytes), np.uint8)
            return self._by_shares(encode, stored.reshape(count, row_bytes), first)

        return Computed(prod(tensor.dims[1:]), byte_count(self._type, (width,)), make, batch_bytes=_BATCH)

    def _by_shares(self, encode: Callable[[Stored, int], bytes], stored: Stored, first: int) -> bytes:
        """Rows in another type; several threads, each with rows of its own, so that the result is always the same.

        Args:
            encode: Turns rows; it is given the number of the first.
            first: Number of the first row.
        """
        share = -(-len(stored) // self._workers.count)
        starts = range(0, len(stored), share)
        return b"".join(self._workers.run([partial(encode, stored[at : at + share], first + at) for at in starts]))

    def origin(self, tensor: Any) -> dict[str, Any]:
        """Where a tensor comes from, for a report."""
        if not isinstance(tensor, TurnedTensor):
            return self._model.origin(tensor)
        origin = self._model.origin(tensor.original)
        step = f"{GgmlType.NAMES[tensor.original.ggml_type]} to {GgmlType.NAMES[self._type]}"
        return {**origin, "steps": [*origin.get("steps", []), step]}

    # ------------------------------------------------------------ as the source has it

    @property
    def version(self) -> int:
        """GGUF version; 0 where the source is no GGUF."""
        return self._model.version

    @property
    def alignment(self) -> int:
        """Alignment of the GGUF; 0 where the source is no GGUF."""
        return self._model.alignment

    @property
    def files(self) -> Sequence[SourceFile]:
        """Every file that is read."""
        return self._model.files

    @property
    def assets(self) -> Mapping[str, bytes]:
        """Files that lie beside the weights, by name."""
        return self._model.assets

    @property
    def extensions(self) -> Mapping[str, Any]:
        """What the manifest's `extensions` shall say."""
        return self._model.extensions

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know."""
        return self._model.notes

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def describe_files(self) -> list[dict[str, Any]]:
        """The files, for a report."""
        return self._model.describe_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._model.__exit__(*exception)


def is_matrix(tensor: ModelTensor) -> bool:
    """Whether a tensor is a matrix or a stack of them whose exact values matter little."""
    if len(tensor.dims) not in (2, 3) or not prod(tensor.dims):
        return False
    return bool(_NAMES.fullmatch(tensor.name)) and not tensor.name.endswith(_EXACT)


def _check_values(values: Floats, made: Stored, ggml_type: int, path: Path, name: str, first: int) -> None:
    """Refuses values that the new type loses: NaN and infinities in blocks, and what becomes infinite.

    In a block one such value spoils its neighbours too; F32, F16 and BF16 keep them.

    Args:
        values, made: Rows, and what became of them.
        first: Number of the first row.

    Raises:
        FormatError: `quantize.value`, naming tensor and row.
    """
    # The largest magnitude of a row is NaN or infinite where any value is.
    largest = np.maximum(np.abs(values.max(axis=1)), np.abs(values.min(axis=1)))
    finite = np.isfinite(largest)
    kind = GgmlType.NAMES[ggml_type]
    if not finite.all() and GgmlType.BLOCK[ggml_type] > 1:
        row = int(np.flatnonzero(~finite)[0])
        column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
        raise _lost(
            f"row {first + row} holds {largest[row]} in column {column}, which no block of {kind} can", path, name
        )
    for large in np.flatnonzero(finite & (largest > _SAFE)):
        if not np.isfinite(dequantize(made[large], ggml_type)).all():
            column = int(np.abs(values[large]).argmax())
            value = f"{largest[large]:g} in column {column}"
            raise _lost(f"row {first + int(large)} holds {value}, which is beyond {kind}", path, name)


def _lost(message: str, path: Path, name: str) -> FormatError:
    return FormatError(
        message, code="quantize.value", path=path, field=name, hint="convert without --quantize, or to F32"
    )
