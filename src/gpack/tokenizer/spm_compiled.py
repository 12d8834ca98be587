"""SentencePiece-style encoding of long texts, compiled by numba: the same ids as plain Python's, linear in the text."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import spm_kernels

_POINTS = 0x110000


class CompiledSpm:
    """The tables of a vocabulary for the compiled encoder; they are built in some tens of milliseconds.

    Args:
        tokens: All tokens.
        found: Ids of those that merging may give: valid UTF-8, not empty, no two of the same text.
        scores: Of all tokens, none of them NaN.
        byte_ids: For each byte the token that stands for it, -1 where there is none.
    """

    def __init__(
        self, tokens: Sequence[bytes], found: Sequence[int], scores: Sequence[float], byte_ids: Sequence[int]
    ) -> None:
        size = len(tokens)
        blob = np.frombuffer(b"".join(tokens) or b"\0", np.uint8)
        offsets = np.zeros(size + 1, np.int64)
        np.cumsum(np.fromiter(map(len, tokens), np.int64, size), out=offsets[1:])
        ids = np.array(found, np.int32)
        self._characters = np.full(_POINTS, -1, np.int32)
        self._kept = np.zeros(_POINTS, np.uint8)
        symbols = spm_kernels.build_symbols(blob, offsets, ids, self._characters, self._kept, size)
        # Equal scores are one rank.
        levels, inverse = np.unique(-np.array(scores, np.float64), return_inverse=True)
        ranks = inverse.reshape(-1).astype(np.int32)
        slots = _slots(len(ids))
        keys, results = np.empty(len(blob), np.uint64), np.empty(len(blob), np.int32)
        count = spm_kernels.find_pairs(
            blob,
            offsets,
            ids,
            self._characters,
            np.full(slots, -1, np.int32),
            np.zeros(slots, np.uint64),
            keys,
            results,
        )
        slots = _slots(count)
        pair_keys, pair_results = np.zeros(slots, np.uint64), np.full(slots, -1, np.int32)
        early, first_use = np.zeros(len(levels), np.uint8), np.full(symbols, len(levels), np.int32)
        spm_kernels.build_pairs(keys[:count], results[:count], ranks, pair_keys, pair_results, first_use, early)
        heads, tails = np.full(len(levels), -1, np.int32), np.zeros(len(levels), np.int32)
        self._vocabulary = (pair_keys, pair_results, ranks, heads, tails, early)
        self._byte_ids = np.array(byte_ids, np.int32)
        self._lock = threading.Lock()  # the chains of places are shared

    def encode(self, data: bytes) -> list[int] | None:
        """The ids of valid UTF-8 whose spaces are U+2581; None where a byte has no token."""
        out: npt.NDArray[np.int32] = np.empty(len(data), np.int32)
        with self._lock:
            count = spm_kernels.encode(
                np.frombuffer(data, np.uint8), self._characters, self._kept, self._byte_ids, self._vocabulary, out
            )
        if count < 0:
            return None
        ids: list[int] = out[:count].tolist()
        return ids


def _slots(entries: int) -> int:
    """The length of an open-addressing table: at most half of it is used."""
    return 1 << max(4, (2 * entries).bit_length())
