"""Finds the strings of a GGUF string array, a quarter of a million of them in milliseconds.

Each string is a u64 length and that many bytes, so an array is a chain: where a string begins is known only
from all before it. Walking it in Python takes a microsecond a string. But almost every string is shorter than
256 bytes, and then the seven high bytes of its length are zero, which text hardly ever shows by chance: all
positions with that look are found by comparing whole blocks, and wherever each one's end is the next one's
beginning, the chain holds for thousands of strings at once. Where it does not (empty strings, zero bytes in a
text, long strings) the chain is walked one by one until it meets such a position again. The answer is that of
the walk in every case; only the time differs, and it is linear in the bytes whatever they hold.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpack.generated.gguf.structs import GgufStringLength

Bytes: TypeAlias = npt.NDArray[np.uint8]
Positions: TypeAlias = npt.NDArray[np.int64]
Window: TypeAlias = Callable[[int, int], Bytes]

LENGTH_SIZE = GgufStringLength.SIZE
_unpack_length = struct.Struct(GgufStringLength.FORMAT).unpack_from

_BLOCK_BYTES = 1 << 18  # bytes looked at in one go: its working arrays stay in the processor's cache
_BYTES_PER_STRING = 32  # guess for the first block, so that a short array does not pay for a large block
_FEW_STRINGS = 32  # up to here the walk is faster than numpy's fixed costs
_LONG_RUN = 64  # a run of this many strings pays for the searches that found it
_MIN_PATIENCE = 8  # strings to walk one by one before looking for a run again,
_MAX_PATIENCE = 1024  # doubled each time that there was none, up to this


@dataclass(frozen=True, slots=True)
class StringTable:
    """The strings of one array, not yet decoded: string `i` is `data[starts[i] : starts[i] + lengths[i]]`.

    Attributes:
        data: The array's payload, the lengths between the strings included.
        starts: int64 [count], the byte in `data` where each string's text begins (after its length).
        lengths: int64 [count], bytes of each string.
    """

    data: memoryview
    starts: Positions
    lengths: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.starts[index])
        return bytes(self.data[start : start + int(self.lengths[index])])

    def decode(self) -> list[str]:
        """All strings as text; bytes that are not UTF-8 become lone surrogates (`surrogateescape`)."""
        data = bytes(self.data)
        spans = zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True)
        return [data[start:end].decode("utf-8", "surrogateescape") for start, end in spans]


class StringOverrunError(Exception):
    """A string of the array reaches beyond the data.

    Attributes:
        index: Which string of the array.
        position: Byte where its length stands.
        length: Its length in bytes, or None where the data ends within the length itself.
    """

    def __init__(self, index: int, position: int, length: int | None) -> None:
        super().__init__(index, position, length)
        self.index = index
        self.position = position
        self.length = length


def table_from_bounds(data: memoryview, bounds: Positions) -> StringTable:
    """The table of an array's strings, from the bounds that `string_bounds` gives, counted within `data`."""
    starts = bounds[:-1] + LENGTH_SIZE
    return StringTable(data, starts, bounds[1:] - starts)


def scan_table(data: memoryview, count: int) -> StringTable:
    """The table of the `count` strings whose lengths and texts lie in `data`.

    Raises:
        StringOverrunError: If a string reaches beyond `data`.
    """
    octets = np.frombuffer(data, np.uint8)
    return table_from_bounds(
        data, string_bounds(lambda start, size: octets[start : start + size], 0, count, len(octets))
    )


def string_bounds(window: Window, start: int, count: int, end: int) -> Positions:
    """Where each of `count` strings begins, and where the last one ends.

    The caller has made sure that `count` lengths fit between `start` and `end`, which bounds the memory.

    Args:
        window: Gives the bytes at a position, as many as asked for; fewer only where the data ends.
        start: Position of the first string's length.
        count: Number of strings.
        end: Position where the data ends.

    Returns:
        int64 [count + 1]: the positions of the strings' lengths, then that of the byte after the last string.

    Raises:
        StringOverrunError: If a string reaches beyond `end`.
    """
    bounds = np.empty(count + 1, np.int64)
    bounds[0] = at = start
    done = 0
    while done < count:
        wanted = count - done
        block = window(at, min(_BLOCK_BYTES, wanted * _BYTES_PER_STRING))
        follow = _walk if wanted <= _FEW_STRINGS else _follow_runs
        ends = follow(block, wanted, end - at)
        if not len(ends):
            length = _unpack_length(block.data)[0] if len(block) >= LENGTH_SIZE else None
            raise StringOverrunError(done, at, length)
        bounds[done + 1 : done + 1 + len(ends)] = ends + at
        done += len(ends)
        at = int(bounds[done])
    return bounds


def _walk(block: Bytes, wanted: int, room: int, at: int = 0) -> Positions:
    """Where the strings from `at` on end: one after the other.

    Args:
        block: The bytes to look at; the first string's length is at `at`.
        wanted: Number of strings, at most.
        room: Bytes from the block's start to the end of the data.
        at: Position in the block.

    Returns:
        int64, at most `wanted`: the ends, as far as the lengths lie in the block and the strings in the data.
    """
    last_start = len(block) - LENGTH_SIZE
    data = block.data
    ends: list[int] = []
    while len(ends) < wanted and at <= last_start:
        at += LENGTH_SIZE + _unpack_length(data, at)[0]
        if at > room:
            break
        ends.append(at)
    return np.array(ends, np.int64)


def _follow_runs(block: Bytes, wanted: int, room: int) -> Positions:
    """As `_walk` from the block's start, but through runs of short strings in one step each."""
    starts = _short_strings(block)
    ends = starts + LENGTH_SIZE + block[starts]
    run_lasts = np.append(np.flatnonzero(ends[:-1] != starts[1:]), len(starts) - 1)
    pieces: list[Positions] = []
    at = found = 0
    patience = _MIN_PATIENCE
    while found < wanted and at <= len(block) - LENGTH_SIZE:
        first = int(np.searchsorted(starts, at))
        if first < len(starts) and starts[first] == at:
            stop = int(run_lasts[np.searchsorted(run_lasts, first)]) + 1
            piece = ends[first : min(stop, first + wanted - found)]
            # Only a run's last string can reach beyond the data: the others end where a next one begins.
            piece = piece[:-1] if piece[-1] > room else piece
        else:
            piece = ends[:0]
        if len(piece) >= _LONG_RUN:
            patience = _MIN_PATIENCE
        else:
            # Where runs are short (a block full of zeros), searching for them costs more than it saves.
            piece = _walk(block, min(patience, wanted - found), room, at)
            patience = min(2 * patience, _MAX_PATIENCE)
        if not len(piece):
            break
        pieces.append(piece)
        found += len(piece)
        at = int(piece[-1])
    return np.concatenate(pieces) if pieces else ends[:0]


def _short_strings(block: Bytes) -> Positions:
    """Positions whose seven following bytes are zero: the lengths below 256, if they are lengths."""
    zero = block == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    return np.flatnonzero(seven[1:])
