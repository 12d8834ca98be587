"""Writes a GGUF header, byte for byte as llama.cpp and gguf-py do: the mirror of `gguf_header`.

`parse(build(x)) == x`, and for files of those programs `build(parse(file))` is the file's own header.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from gpack.errors import FormatError, UnsupportedError
from gpack.generated.constants import MetadataType
from gpack.generated.gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC
from gpack.generated.gguf.structs import (
    GgufArrayHeader,
    GgufHeader,
    GgufStringLength,
    GgufTensorRank,
    GgufTensorTail,
    GgufValueType,
)
from gpack.generated.rules import align_up
from gpack.sources.gguf_header import ALIGNMENT_KEY, VERSIONS, is_alignment

TensorSpec: TypeAlias = tuple[str, int, Sequence[int], int]

_U64_SIZE = MetadataType.BYTES[MetadataType.UINT64]


class MetadataEntry(Protocol):
    """A metadata entry to write; `gguf.Value` is one, and its documentation says what `raw` holds."""

    @property
    def key(self) -> str:
        """The key."""

    @property
    def value_type(self) -> int:
        """GGUF's id of the type."""

    @property
    def element_type(self) -> int:
        """The id of an array's elements."""

    @property
    def count(self) -> int:
        """Number of an array's elements."""

    @property
    def raw(self) -> bytes | memoryview:
        """The value's bytes."""


def build_header(
    *, version: int, alignment: int, metadata: Iterable[MetadataEntry], tensors: Iterable[TensorSpec]
) -> tuple[bytes, list[int], int]:
    """The header of a GGUF file, and where its tensors' data belongs.

    Each tensor's data is followed by zeros up to the next multiple of the alignment, the last one's too.

    Args:
        version: GGUF version, 2 or 3; both have the same layout.
        alignment: Bytes; what the entry `general.alignment` says, and 32 where there is none.
        metadata: The entries, in order.
        tensors: Name, type id, dims (the contiguous one first) and bytes of each tensor, in order.

    Returns:
        The header's bytes, padded to the alignment; the byte in the file where each tensor's data begins; the
        file's size in bytes.

    Raises:
        FormatError: `gguf.alignment` if the alignment is impossible or not what the metadata says.
        UnsupportedError: `gguf.version` if the version is another.
    """
    entries, specs = list(metadata), list(tensors)
    _check_version(version)
    _check_alignment(alignment, entries)
    data_offsets, data_size = _lay_out([byte_size for *_, byte_size in specs], alignment)
    head = GgufHeader(magic=GGUF_MAGIC, version=version, tensor_count=len(specs), metadata_kv_count=len(entries))
    parts: list[bytes | memoryview] = [head.encode()]
    for entry in entries:
        parts += _entry(entry)
    for (name, ggml_type, dims, _), offset in zip(specs, data_offsets, strict=True):
        parts += _tensor(name, ggml_type, dims, offset)
    header = b"".join(parts)
    header = header.ljust(align_up(len(header), alignment), b"\0")
    return header, [len(header) + offset for offset in data_offsets], len(header) + data_size


def _check_version(version: int) -> None:
    if version not in VERSIONS:
        raise UnsupportedError(f"GGUF version {version} cannot be written", code="gguf.version")


def _check_alignment(alignment: int, entries: Sequence[MetadataEntry]) -> None:
    if not is_alignment(alignment):
        raise FormatError(f"the alignment is {alignment}, no power of two that makes sense", code="gguf.alignment")
    said = GGUF_DEFAULT_ALIGNMENT
    for entry in entries:
        if entry.key == ALIGNMENT_KEY:
            said = int.from_bytes(entry.raw, "little")
    if said != alignment:
        raise FormatError(
            f"the metadata says that the alignment is {said}, not {alignment}",
            code="gguf.alignment",
            section="metadata",
            field=ALIGNMENT_KEY,
        )


def _lay_out(byte_sizes: Iterable[int], alignment: int) -> tuple[list[int], int]:
    """Offset of each tensor in the data section, and the section's size."""
    offsets = []
    end = 0
    for byte_size in byte_sizes:
        offsets.append(end)
        end += align_up(byte_size, alignment)
    return offsets, end


def _string(octets: bytes | memoryview) -> list[bytes | memoryview]:
    return [GgufStringLength(length=len(octets)).encode(), octets]


def _entry(entry: MetadataEntry) -> list[bytes | memoryview]:
    head = [*_string(entry.key.encode("utf-8")), GgufValueType(value_type=entry.value_type).encode()]
    if entry.value_type == MetadataType.STRING:
        return [*head, *_string(entry.raw)]
    if entry.value_type == MetadataType.ARRAY:
        array = GgufArrayHeader(element_type=entry.element_type, count=entry.count)
        return [*head, array.encode(), entry.raw]
    return [*head, entry.raw]


def _tensor(name: str, ggml_type: int, dims: Sequence[int], offset: int) -> list[bytes | memoryview]:
    tail = GgufTensorTail(ggml_type=ggml_type, offset=offset)
    lengths = b"".join(dim.to_bytes(_U64_SIZE, "little") for dim in dims)
    return [*_string(name.encode("utf-8")), GgufTensorRank(n_dims=len(dims)).encode(), lengths, tail.encode()]
