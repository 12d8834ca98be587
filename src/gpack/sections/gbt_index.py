"""The precomputed arrays after GBT1's chat template: built when a pack is written, compared when it is verified.

Each repeats what the arrays before it say, in the order that a tokeniser searches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..generated.constants import GbtFlags
from .gbt import byte_alphabet
from .lanes import Blob

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]

SPECIAL_TYPES = (2, 3, 4)  # unknown, control, user-defined
WORD = 8  # bytes that are compared as one number
_BATCH = 1 << 16  # tokens at a time
NO_KEY = 0xFFFF_FFFF_FFFF_FFFF


def merge_index(triples: Ids) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """`merge_keys` and `merge_ranks` of triples [n, 3]."""
    keys = merge_keys(triples)
    ranks = np.argsort(keys, kind="stable")
    return keys[ranks], ranks.astype(np.uint32)


def merge_keys(triples: Ids) -> npt.NDArray[np.uint64]:
    """The key of each triple: its left and its right token."""
    wide = triples.astype(np.int64) & 0xFFFFFFFF
    return np.asarray((wide[:, 0].astype(np.uint64) << np.uint64(32)) | wide[:, 1].astype(np.uint64), np.uint64)


def token_order(blob: bytes | memoryview, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Ids by the tokens' bytes, equal ones by id.

    The first 16 bytes are compared as two numbers for all tokens at once; only those that agree in them are looked at
    one by one.
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    padded = np.concatenate([np.frombuffer(blob, np.uint8), np.zeros(2 * WORD, np.uint8)])
    first, second = (word_of(padded, starts, lengths, at) for at in (0, WORD))
    order = np.lexsort((second, first))
    same = (first[order[1:]] == first[order[:-1]]) & (second[order[1:]] == second[order[:-1]])
    # Runs of equal numbers begin where `same` begins and end where it ends.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    for start, end in edges.reshape(-1, 2).tolist():
        run = order[start : end + 1]
        if (lengths[run] != lengths[run[0]]).any() or lengths[run[0]] > 2 * WORD:
            run[:] = sorted(run.tolist(), key=lambda token: bytes(blob[offsets[token] : offsets[token + 1]]))
    return order.astype(np.uint32)


def word_of(padded: npt.NDArray[np.uint8], starts: Offsets, lengths: Offsets, at: int) -> npt.NDArray[np.uint64]:
    """Eight bytes of each token from byte `at` on, as a number that compares as they do; zeros after its end."""
    words = np.ndarray((len(padded) - WORD + 1,), ">u8", padded, strides=(1,))
    kept = np.clip(lengths - at, 0, WORD)
    masks = np.array([(1 << 64) - (1 << 8 * (WORD - count)) for count in range(WORD + 1)], np.uint64)
    return np.asarray(words[np.where(kept > 0, starts + at, 0)].astype(np.uint64) & masks[kept], np.uint64)


def byte_tokens(blob: Blob, offsets: npt.NDArray[Any]) -> Ids:
    """The last token that is one character of the byte alphabet, for each byte; -1 where there is none."""
    found = np.full(256, -1, np.int32)
    spelled = {char.encode(): byte for byte, char in enumerate(byte_alphabet())}
    # By the characters' bytes: one, or two as one number.
    single, double = np.full(1 << 8, -1, np.int32), np.full(1 << 16, -1, np.int32)
    for octets, byte in spelled.items():
        (single if len(octets) == 1 else double)[int.from_bytes(octets, "big")] = byte
    for first in range(0, len(offsets) - 1, _BATCH):
        starts = offsets[first : first + _BATCH + 1].astype(np.int64)
        lengths = np.diff(starts)
        bytes_of = np.full(len(lengths), -1, np.int32)
        for length, table in ((1, single), (2, double)):
            rows = np.flatnonzero(lengths == length)
            read = blob.gather(starts[rows], lengths[rows]).reshape(-1, length).astype(np.int64)
            bytes_of[rows] = table[read[:, 0] if length == 1 else read[:, 0] << 8 | read[:, 1]]
        ids = np.flatnonzero(bytes_of >= 0)
        np.maximum.at(found, bytes_of[ids], (ids + first).astype(np.int32))
    return found


def special_tokens(types: npt.NDArray[np.uint8], offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Ids of tokens of special types that are not empty, the longest first, then by id."""
    lengths = np.diff(offsets)
    ids = np.flatnonzero(np.isin(types, SPECIAL_TYPES) & (lengths > 0))
    return ids[np.argsort(-lengths[ids], kind="stable")].astype(np.uint32)


def build_index(
    blob: bytes | memoryview, offsets: Offsets, types: npt.NDArray[np.uint8], triples: Ids, *, byte_level: bool
) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Flags, and every array that they announce.

    Args:
        byte_level: The tokens are spelled in the byte alphabet.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "token_order": token_order(blob, offsets),
        "special_tokens": special_tokens(types, offsets),
    }
    flags = GbtFlags.TOKEN_ORDER | GbtFlags.SPECIAL_TOKENS
    if len(triples):
        arrays["merge_keys"], arrays["merge_ranks"] = merge_index(triples)
        flags |= GbtFlags.MERGE_INDEX
    if byte_level:
        arrays["byte_tokens"] = byte_tokens(Blob(memoryview(blob)), offsets)
        flags |= GbtFlags.BYTE_TOKENS
    return flags, arrays
