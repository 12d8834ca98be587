"""The precomputed arrays behind GBT1's chat template: built when a pack is written, compared when it is verified.

Each repeats what the arrays before it say, in the order that a tokeniser searches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..generated.constants import GbtFlags
from .gbt import byte_alphabet

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]

SPECIAL_TYPES = (2, 3, 4)  # unknown, control, user-defined
NO_KEY = 0xFFFF_FFFF_FFFF_FFFF


def merge_index(triples: Ids) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """`merge_keys` and `merge_ranks` of triples [n, 3]."""
    wide = triples.astype(np.int64) & 0xFFFFFFFF
    keys = (wide[:, 0].astype(np.uint64) << np.uint64(32)) | wide[:, 1].astype(np.uint64)
    ranks = np.argsort(keys, kind="stable")
    return keys[ranks], ranks.astype(np.uint32)


def token_order(blob: bytes | memoryview, offsets: Offsets) -> npt.NDArray[np.uint32]:
    """Ids by the tokens' bytes, equal ones by id."""
    data, ends = bytes(blob), offsets.tolist()
    tokens = [data[start:end] for start, end in pairwise(ends)]
    return np.array(sorted(range(len(tokens)), key=tokens.__getitem__), np.uint32)


def byte_tokens(blob: bytes | memoryview, offsets: Offsets) -> Ids:
    """The last token that is one character of the byte alphabet, for each byte; -1 where there is none."""
    found = np.full(256, -1, np.int32)
    spelled = {char.encode(): byte for byte, char in enumerate(byte_alphabet())}
    starts, lengths = offsets[:-1], np.diff(offsets)
    for token_id in np.flatnonzero((lengths == 1) | (lengths == 2)):
        start = int(starts[token_id])
        byte = spelled.get(bytes(blob[start : start + int(lengths[token_id])]))
        if byte is not None:
            found[byte] = token_id
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
        arrays["byte_tokens"] = byte_tokens(blob, offsets)
        flags |= GbtFlags.BYTE_TOKENS
    return flags, arrays
