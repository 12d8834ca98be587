"""Reads the header of a safetensors file: a length, a JSON object, then the tensors' bytes without gaps.

What the header claims is checked against what the file has before anything is believed. Types that numpy lacks
are no obstacle: bytes stay bytes, with a number of `GgmlType`. The rules are those of the safetensors format's
own description; entries may stand in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

from ..container.foreign import foreign_bytes
from ..container.payload import Range
from ..container.place import Place
from ..container.strict_json import parse_object, shorten
from ..errors import BoundsError, FormatError, UnsupportedError
from ..generated.constants import FOREIGN_TYPES, MAX_RANK, GgmlType
from ..generated.safetensors.constants import SAFETENSORS_MAX_HEADER
from ..generated.safetensors.structs import SafetensorsHead
from .files import SourceFile

MAX_DEPTH = 8
MAX_NAME_BYTES = 65535
METADATA = "__metadata__"
NO_METADATA: Any = object()  # the header has no such entry; it may have one that is null

# The format's names of types are the schema's; ggml's blocks have none here.
_NUMBERS = {
    name: number for number, name in GgmlType.NAMES.items() if GgmlType.BLOCK[number] == 1 or number >= FOREIGN_TYPES
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file.

    Attributes:
        ggml_type: Number of its type.
        shape: Extents as the file has them: the contiguous axis last.
        begin: Byte in the file where its data begins.
        byte_size: Bytes of its data.
    """

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    file: SourceFile
    begin: int
    byte_size: int

    @property
    def data(self) -> Range:
        """Its bytes."""
        return Place(self.file.path, self.file.fileno(), self.begin, self.byte_size)


@dataclass(frozen=True, slots=True)
class StoredHeader:
    """The header of a safetensors file.

    Attributes:
        tensors: In the order of the header.
        metadata: What stands under `__metadata__`, whatever it is; `NO_METADATA` where there is no such entry.
    """

    tensors: list[StoredTensor]
    metadata: Any


def read_header(file: SourceFile) -> StoredHeader:
    """The header of an open file.

    Raises:
        FormatError: The file breaks a rule; codes `safetensors.*`, with file, tensor and values.
        UnsupportedError: `safetensors.dtype`: a type that the format at hand does not know.
        PathError: The file cannot be read.
    """
    head_size = SafetensorsHead.SIZE
    if file.size < head_size:
        raise BoundsError(
            f"the file has {file.size} bytes, the length of a header alone takes {head_size}",
            code="safetensors.header_length",
            path=file.path,
        )
    length = SafetensorsHead.decode(file.read_at(0, head_size)).header_length
    if length > file.size - head_size:
        if found := foreign_bytes(file.read_at(0, min(file.size, 512)), file.path.name):
            raise FormatError(found[0], code="safetensors.header_length", path=file.path, hint=found[1])
        raise BoundsError(
            f"the header shall have {length} bytes, but only {file.size - head_size} follow",
            code="safetensors.header_length",
            path=file.path,
            offset=0,
            hint="the file is no safetensors file, is damaged, or its download was cut off",
        )
    if length > SAFETENSORS_MAX_HEADER:
        raise BoundsError(
            f"the header shall have {length} bytes, the format allows {SAFETENSORS_MAX_HEADER}",
            code="safetensors.header_length",
            path=file.path,
            offset=0,
        )
    entries = _parse(file, file.read_at(head_size, length))
    metadata = entries.pop(METADATA, NO_METADATA)
    start = head_size + length
    tensors = [_tensor(file, name, entry, start) for name, entry in entries.items()]
    _check_places(file, tensors, start)
    return StoredHeader(tensors, metadata)


def header_size(file: SourceFile) -> int:
    """Bytes before the tensors of a file whose header was read before."""
    head = SafetensorsHead.decode(file.read_at(0, SafetensorsHead.SIZE))
    return SafetensorsHead.SIZE + head.header_length


def _parse(file: SourceFile, data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data, max_bytes=SAFETENSORS_MAX_HEADER, max_depth=MAX_DEPTH, plain=True, as_written=True)
    except ValueError as error:
        doubled = "stands twice" in str(error)
        raise FormatError(
            f"the header is no JSON object of its kind: {error}",
            code="safetensors.tensor_name" if doubled else "safetensors.json",
            path=file.path,
            section="header",
            offset=SafetensorsHead.SIZE,
        ) from error


def _tensor(file: SourceFile, name: str, entry: Any, start: int) -> StoredTensor:
    def fault(code: str, message: str) -> NoReturn:
        raise FormatError(message, code=code, path=file.path, section="header", field=shorten(name)[1:-1])

    check_name(name, file)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        fault("safetensors.json", "the entry is no object of dtype, shape and data_offsets")
    ggml_type = _type_number(entry["dtype"])
    if ggml_type is None:
        raise UnsupportedError(
            f"the tensor {name!r} has the unknown type {shorten(entry['dtype'])}",
            code="safetensors.dtype",
            path=file.path,
            section="header",
            field=name,
        )
    shape = entry["shape"]
    if not isinstance(shape, list):
        fault("safetensors.shape", f"the shape is {shorten(shape)}, no list of sizes")
    odd = next((axis for axis, extent in enumerate(shape) if not _is_size(extent)), None)
    if odd is not None:
        fault("safetensors.shape", f"axis {odd} of the shape is {shorten(shape[odd])}, no size")
    if len(shape) > MAX_RANK:
        fault("safetensors.shape", f"the tensor has {len(shape)} axes, and may have {MAX_RANK}")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        fault("safetensors.offsets", "data_offsets is no pair of offsets")
    begin, end = offsets
    if begin > end:
        fault("safetensors.offsets", f"the data begins at {begin}, after its end at {end}")
    if end > file.size - start:
        raise BoundsError(
            f"the data ends at {end}, but only {file.size - start} bytes follow the header",
            code="safetensors.bounds",
            path=file.path,
            section="header",
            field=name,
            hint="the file is damaged or its download was cut off",
        )
    size = _check_size(file, name, ggml_type, shape, end - begin)
    return StoredTensor(name, ggml_type, tuple(shape), file, start + begin, size)


def _check_size(file: SourceFile, name: str, ggml_type: int, shape: list[int], span: int) -> int:
    """Bytes of a tensor, which are those that its offsets span.

    Raises:
        FormatError: `safetensors.size`: they are not.
        UnsupportedError: `safetensors.dtype`: values of less than a byte whose rows do not end with a byte.
    """
    block, kind = GgmlType.BLOCK[ggml_type], GgmlType.NAMES[ggml_type]
    size, rest = divmod(prod(shape) * GgmlType.BYTES[ggml_type], block)
    if rest or size != span:
        took = f"{size} bytes and a part of one" if rest else f"{size} bytes"
        raise FormatError(
            f"{kind} {_shorten_shape(shape)} takes {took}, data_offsets span {span}",
            code="safetensors.size",
            path=file.path,
            section="header",
            field=name,
        )
    if size and shape and shape[-1] % block:
        raise UnsupportedError(
            f"a row of {shape[-1]} values of {kind} does not end with a byte, and a pack holds whole rows",
            code="safetensors.dtype",
            path=file.path,
            section="header",
            field=name,
        )
    return size


def _shorten_shape(shape: Sequence[int]) -> str:
    """A shape for a message: extents of a hostile file may have thousands of digits."""
    return f"[{', '.join(map(shorten, shape))}]"


def check_name(name: str, file: SourceFile) -> None:
    """Refuses a tensor name that a pack cannot hold.

    Raises:
        FormatError: `safetensors.tensor_name`.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_NAME_BYTES or "\0" in name:
        raise FormatError(
            f"the tensor name {shorten(name)} is empty, too long, or no text",
            code="safetensors.tensor_name",
            path=file.path,
            section="header",
        )


def _type_number(name: Any) -> int | None:
    return _NUMBERS.get(name) if isinstance(name, str) else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_places(file: SourceFile, tensors: Iterable[StoredTensor], start: int) -> None:
    """The tensors' bytes fill the rest of the file: none upon another, none between them, none after them."""
    placed = sorted(tensors, key=lambda tensor: (tensor.begin, tensor.byte_size))
    for before, after in pairwise(placed):
        end = before.begin + before.byte_size
        if after.begin < end:
            raise BoundsError(
                f"it begins at {after.begin - start}, inside {before.name!r}, which ends at {end - start}",
                code="safetensors.overlap",
                path=file.path,
                section="header",
                field=after.name,
                offset=after.begin,
            )
    end = start
    for tensor in placed:
        if tensor.begin > end:
            raise BoundsError(
                f"the {tensor.begin - end} bytes before it belong to no tensor",
                code="safetensors.hole",
                path=file.path,
                section="header",
                field=tensor.name,
                offset=end,
            )
        end = tensor.begin + tensor.byte_size
    if end != file.size:
        raise BoundsError(
            f"the last {file.size - end} bytes of the file belong to no tensor",
            code="safetensors.hole",
            path=file.path,
            section="header",
            offset=end,
        )
