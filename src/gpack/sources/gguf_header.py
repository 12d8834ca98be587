"""Parses the header of one GGUF file: its metadata and the descriptions of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpack.errors import FormatError, UnsupportedError
from gpack.generated.constants import FOREIGN_TYPES, MAX_NUMBER, GgmlType, MetadataType
from gpack.generated.gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGUF_MAX_ALIGNMENT, GGUF_MAX_DIMS
from gpack.generated.gguf.structs import GgufArrayHeader, GgufHeader, GgufTensorRank, GgufTensorTail, GgufValueType
from gpack.generated.rules import align_up
from gpack.sections.strings import LENGTH_SIZE, Positions, table_from_bounds
from gpack.sections.values import Value
from gpack.sources.files import SourceFile
from gpack.sources.gguf_cursor import Cursor

ALIGNMENT_KEY = "general.alignment"
VERSIONS = (2, 3)
UNKNOWN_SIZE = -1  # byte size of a tensor whose type is not known

# The table's later ids are this project's own, for types that ggml lacks.
_GGUF_TYPES = frozenset(ggml_type for ggml_type in GgmlType.NAMES if ggml_type < FOREIGN_TYPES)
_MAX_NAME_BYTES = 65535  # the specification's limit for keys; out of leniency for tensors too (it says 64)
_MAX_ARRAY_DEPTH = 8
# Of metadata entries, of tensors, and of arrays in arrays. Each costs microseconds and an object, and a file
# with holes claims millions of them for nothing; models have thousands.
_MAX_ENTRIES = 1 << 18
_MAX_STRINGS = 1 << 21  # of one array; the largest vocabularies have a quarter of a million
_MAX_ELEMENTS = MAX_NUMBER  # ggml stops at 2^63, a pack earlier
_DIM_SIZE = MetadataType.BYTES[MetadataType.UINT64]
_SMALLEST_ENTRY = LENGTH_SIZE + 1 + GgufValueType.SIZE + 1  # a key of one byte, the type, a value of one byte
_SMALLEST_TENSOR = LENGTH_SIZE + 1 + GgufTensorRank.SIZE + GgufTensorTail.SIZE  # one byte, no dimensions


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as its file describes it.

    Attributes:
        name: Its name.
        ggml_type: The id of its type.
        dims: Elements along each dimension, the contiguous one first; 0 to 4 of them.
        offset: Bytes from the start of the data section.
        byte_size: Bytes of its data, or `UNKNOWN_SIZE`.
        info_offset: Byte in the file where this description begins.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    offset: int
    byte_size: int
    info_offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file.

    Attributes:
        version: GGUF version, 2 or 3.
        alignment: Bytes, a power of two, that the tensors' offsets are multiples of.
        data_offset: Byte where the data section begins: the header's end, aligned.
        metadata: The entries in the file's order.
        tensors: The tensors in the file's order.
    """

    version: int
    alignment: int
    data_offset: int
    metadata: dict[str, Value]
    tensors: tuple[RawTensor, ...]


def parse_header(file: SourceFile, *, allow_unknown_types: bool) -> Header:
    """Reads and checks the header of a GGUF file; where the tensors lie is not checked yet.

    Args:
        file: The file.
        allow_unknown_types: Give tensors of unknown types the size `UNKNOWN_SIZE` instead of refusing them.

    Raises:
        FormatError: If the header breaks a rule; codes `gguf.*`.
        UnsupportedError: If it is of another version or byte order, or has tensors of unknown types.
        PathError: If the file cannot be read.
    """
    cursor = Cursor(file)
    head = _read_head(cursor)
    metadata = _read_metadata(cursor, head.metadata_kv_count)
    alignment = _alignment(cursor, metadata)
    tensors = _read_tensors(cursor, head.tensor_count, allow_unknown_types=allow_unknown_types)
    data_offset = align_up(cursor.position, alignment)
    if not tensors:
        # Without data the file may end with the header, unaligned.
        data_offset = min(data_offset, file.size)
    return Header(head.version, alignment, data_offset, metadata, tensors)


def _read_head(cursor: Cursor) -> GgufHeader:
    """The fixed fields; magic and version are judged first, for other versions have other fields."""
    octets = cursor.buffer.span(0, min(cursor.file.size, GgufHeader.SIZE)).tobytes()
    head = GgufHeader.decode(octets.ljust(GgufHeader.SIZE, b"\0"))
    if head.magic != GGUF_MAGIC:
        raise cursor.error(
            FormatError,
            "gguf.magic",
            f"this is not a GGUF file: it begins with {octets[:4]!r}",
            hint="a failed download often leaves a web page or a Git LFS pointer in the file's place",
        )
    if head.version not in VERSIONS and not (head.version == 0 and len(octets) < GgufHeader.SIZE):
        raise _version_error(cursor, head.version)
    return cursor.struct(GgufHeader, "the header")


def _version_error(cursor: Cursor, version: int) -> Exception:
    if version and not version & 0xFFFF:
        return cursor.error(
            UnsupportedError,
            "gguf.big_endian",
            f"this is a big-endian GGUF file (its version reads as {version:#010x})",
            hint="convert it with gguf-py's gguf_convert_endian.py",
        )
    return cursor.error(
        UnsupportedError,
        "gguf.version",
        f"this is GGUF version {version}; versions 2 and 3 are supported",
        hint="llama.cpp's tools can rewrite an old file" if version == 1 else "a newer gpack may read it",
    )


def _check_count(cursor: Cursor, count: int, what: str, most: int = _MAX_ENTRIES) -> None:
    if count > most:
        raise cursor.error(UnsupportedError, "gguf.value", f"there are {count} {what}; at most {most} are supported")


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    cursor.claim(count * _SMALLEST_ENTRY, f"a count of {count} metadata entries")
    _check_count(cursor, count, "metadata entries")
    cursor.section = "metadata"
    spans: dict[str, _Span] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.name("a key", "gguf.key", _MAX_NAME_BYTES)
        if key in spans:
            raise cursor.error(FormatError, "gguf.key", f"the key {key!r} is doubled", offset=start)
        spans[key] = _read_value(cursor)
    cursor.field = None
    view = cursor.buffer.view()
    return {key: span.value(key, view) for key, span in spans.items()}


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a value lies. The buffer moves as it grows, so values are cut out of it when all are known."""

    value_type: int
    element_type: int
    count: int
    start: int
    end: int
    bounds: Positions | None = None

    def value(self, key: str, view: memoryview) -> Value:
        raw = view[self.start : self.end]
        table = None if self.bounds is None else table_from_bounds(raw, self.bounds - self.start)
        return Value(key, self.value_type, self.element_type, self.count, raw, table)


def _read_value(cursor: Cursor) -> _Span:
    type_offset = cursor.position
    value_type = cursor.struct(GgufValueType, "a value's type").value_type
    _check_value_type(cursor, value_type, type_offset)
    if value_type == MetadataType.ARRAY:
        array = cursor.struct(GgufArrayHeader, "an array's type and count")
        start = cursor.position
        bounds = _skip_elements(cursor, array.element_type, array.count, depth=1)
        return _Span(value_type, array.element_type, array.count, start, cursor.position, bounds)
    if value_type == MetadataType.STRING:
        length = cursor.string_length("a string")
        cursor.take(length, "a string")
        return _Span(value_type, value_type, 1, cursor.position - length, cursor.position)
    start = cursor.position
    _skip_elements(cursor, value_type, 1, depth=0)
    return _Span(value_type, value_type, 1, start, cursor.position)


def _check_value_type(cursor: Cursor, value_type: int, offset: int) -> None:
    if value_type not in MetadataType.NAMES:
        raise cursor.error(
            FormatError, "gguf.value_type", f"{value_type} is the id of no GGUF value type", offset=offset
        )


def _skip_elements(cursor: Cursor, element_type: int, count: int, depth: int) -> Positions | None:
    """Moves after the elements of an array and checks them; gives the bounds of strings."""
    _check_value_type(cursor, element_type, cursor.position - GgufArrayHeader.SIZE)
    if element_type == MetadataType.STRING:
        cursor.claim(count * LENGTH_SIZE, f"an array of {count} strings")
        _check_count(cursor, count, "strings in one array", _MAX_STRINGS)
        return cursor.strings(count)
    if element_type == MetadataType.ARRAY:
        _skip_arrays(cursor, count, depth + 1)
        return None
    name, size = MetadataType.NAMES[element_type], MetadataType.BYTES[element_type]
    start = cursor.position
    octets = cursor.take(count * size, f"an array of {count} {name}" if depth else f"a value of type {name}")
    if element_type == MetadataType.BOOL and count and octets.max() > 1:
        index = int(np.argmax(octets > 1))
        raise cursor.error(
            FormatError, "gguf.value", f"a bool is the byte {octets[index]}, not 0 or 1", offset=start + index
        )
    return None


def _skip_arrays(cursor: Cursor, count: int, depth: int) -> None:
    if depth > _MAX_ARRAY_DEPTH:
        raise cursor.error(FormatError, "gguf.nesting", f"arrays are nested more than {_MAX_ARRAY_DEPTH} deep")
    cursor.claim(count * GgufArrayHeader.SIZE, f"an array of {count} arrays")
    cursor.nested_arrays += count
    _check_count(cursor, cursor.nested_arrays, "arrays in arrays")
    for _ in range(count):
        inner = cursor.struct(GgufArrayHeader, "an array's type and count")
        _skip_elements(cursor, inner.element_type, inner.count, depth)


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    value = metadata.get(ALIGNMENT_KEY)
    if value is None:
        return GGUF_DEFAULT_ALIGNMENT
    cursor.field = ALIGNMENT_KEY
    if value.value_type != MetadataType.UINT32:
        type_name = MetadataType.NAMES[value.value_type]
        raise cursor.error(FormatError, "gguf.alignment", f"the alignment is of type {type_name}, not UINT32")
    alignment = int.from_bytes(value.raw, "little")
    if not is_alignment(alignment):
        raise cursor.error(
            FormatError,
            "gguf.alignment",
            f"the alignment is {alignment}; powers of two from 1 to {GGUF_MAX_ALIGNMENT} are allowed",
        )
    return alignment


def is_alignment(number: int) -> bool:
    """Whether the number is a power of two from 1 to `GGUF_MAX_ALIGNMENT`."""
    return 0 < number <= GGUF_MAX_ALIGNMENT and not number & (number - 1)


def _read_tensors(cursor: Cursor, count: int, *, allow_unknown_types: bool) -> tuple[RawTensor, ...]:
    cursor.section, cursor.field = "tensor info", None
    cursor.claim(count * _SMALLEST_TENSOR, f"a count of {count} tensors")
    _check_count(cursor, count, "tensors")
    tensors: dict[str, RawTensor] = {}
    for _ in range(count):
        tensor = _read_tensor(cursor, allow_unknown_types=allow_unknown_types)
        if tensor.name in tensors:
            raise cursor.error(
                FormatError,
                "gguf.tensor_name",
                f"the tensor name {tensor.name!r} is doubled",
                offset=tensor.info_offset,
            )
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _read_tensor(cursor: Cursor, *, allow_unknown_types: bool) -> RawTensor:
    start = cursor.position
    name = cursor.name("a tensor's name", "gguf.tensor_name", _MAX_NAME_BYTES)
    dims = _read_dims(cursor)
    type_offset = cursor.position
    tail = cursor.struct(GgufTensorTail, "a tensor's type and offset")
    if tail.ggml_type in _GGUF_TYPES:
        byte_size = _byte_size(cursor, tail.ggml_type, dims, start)
    elif allow_unknown_types:
        byte_size = UNKNOWN_SIZE
    else:
        raise cursor.error(
            UnsupportedError,
            "gguf.tensor_type",
            f"the tensor {name!r} is of type {tail.ggml_type}, which is unknown or was removed from ggml",
            offset=type_offset,
            hint="a newer gpack may know it",
        )
    return RawTensor(name, tail.ggml_type, dims, tail.offset, byte_size, start)


def _read_dims(cursor: Cursor) -> tuple[int, ...]:
    start = cursor.position
    n_dims = cursor.struct(GgufTensorRank, "a tensor's number of dimensions").n_dims
    if n_dims > GGUF_MAX_DIMS:
        raise cursor.error(
            FormatError,
            "gguf.tensor_dims",
            f"the tensor has {n_dims} dimensions; at most {GGUF_MAX_DIMS} are allowed",
            offset=start,
        )
    octets = cursor.take(n_dims * _DIM_SIZE, "a tensor's dimensions").tobytes()
    dims = tuple(int.from_bytes(octets[at : at + _DIM_SIZE], "little") for at in range(0, len(octets), _DIM_SIZE))
    # As ggml does, a dimension of zero hides no overflow of the others.
    if math.prod(max(dim, 1) for dim in dims) > _MAX_ELEMENTS:
        raise cursor.error(FormatError, "gguf.tensor_dims", f"the dimensions {list(dims)} overflow", offset=start)
    return dims


def _byte_size(cursor: Cursor, ggml_type: int, dims: tuple[int, ...], offset: int) -> int:
    block = GgmlType.BLOCK[ggml_type]
    ne0 = dims[0] if dims else 1
    if ne0 % block:
        type_name = GgmlType.NAMES[ggml_type]
        raise cursor.error(
            FormatError,
            "gguf.tensor_dims",
            f"its first dimension {ne0} is no multiple of {type_name}'s block of {block} elements",
            offset=offset,
        )
    return math.prod(dims) // block * GgmlType.BYTES[ggml_type]
