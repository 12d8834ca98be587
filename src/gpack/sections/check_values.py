"""Metadata values of hostile files: strings inside arrays, nested arrays and bools, in bounded time and memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..container.pieces import Pieces
from ..generated.constants import MAX_VALUE_DEPTH, MetadataType
from ..generated.gguf.structs import GgufArrayHeader
from .strings import LENGTH_SIZE, StringOverrunError, string_bounds

FIXED = {kind: size for kind, size in MetadataType.BYTES.items() if size}
_BATCH = 1 << 18  # strings, or bools


class ValueFaultError(ValueError):
    """A value that is not well formed; the message says why."""


def check_value(value_type: int, element_type: int, count: int, raw: memoryview | Pieces) -> None:
    """Checks the bytes of one metadata value.

    Raises:
        ValueFaultError: The elements do not end where the value does, or one of them is malformed.
    """
    if value_type == MetadataType.STRING:
        return
    end = _walk(raw, 0, element_type, count, 1)
    if end != len(raw):
        raise ValueFaultError(f"the elements end at byte {end} of {len(raw)}")


def _walk(raw: memoryview | Pieces, at: int, element_type: int, count: int, depth: int) -> int:
    """Position after `count` elements that begin at byte `at`."""
    if element_type == MetadataType.ARRAY:
        return _walk_arrays(raw, at, count, depth)
    if element_type == MetadataType.STRING:
        return _walk_strings(raw, at, count)
    size = FIXED.get(element_type)
    if size is None:
        raise ValueFaultError(f"element type {element_type} is not known")
    if count > (len(raw) - at) // size:
        raise ValueFaultError(f"{count} elements of {size} bytes leave the value")
    end = at + count * size
    if element_type == MetadataType.BOOL:
        for first in range(at, end, _BATCH):
            if (np.frombuffer(raw[first : min(first + _BATCH, end)], np.uint8) > 1).any():
                raise ValueFaultError("a bool is neither 0 nor 1")
    return end


def _walk_strings(raw: memoryview | Pieces, at: int, count: int) -> int:
    """Position after `count` strings; in batches, for the positions of a huge array take memory."""

    def window(start: int, size: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(raw[start : start + size], np.uint8)

    while count:
        batch = min(count, _BATCH)
        if batch > (len(raw) - at) // LENGTH_SIZE:
            raise ValueFaultError(f"{count} strings do not fit into {len(raw) - at} bytes")
        try:
            at = int(string_bounds(window, at, batch, len(raw))[-1])
        except StringOverrunError as error:
            raise ValueFaultError(f"the string at byte {error.position} leaves the value") from error
        count -= batch
    return at


def _walk_arrays(raw: memoryview | Pieces, at: int, count: int, depth: int) -> int:
    if depth > MAX_VALUE_DEPTH:
        raise ValueFaultError(f"arrays are nested more than {MAX_VALUE_DEPTH} deep")
    for _ in range(count):
        # Each array takes at least its header, so a huge count runs out of bytes, not of time.
        if len(raw) - at < GgufArrayHeader.SIZE:
            raise ValueFaultError("an array leaves the value")
        inner = GgufArrayHeader.decode(raw[at : at + GgufArrayHeader.SIZE])
        at = _walk(raw, at + GgufArrayHeader.SIZE, inner.element_type, inner.count, depth + 1)
    return at
