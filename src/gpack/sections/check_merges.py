"""Whether merged tokens are made of their parts, for hostile vocabularies too: bounded memory, little repeated work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .tokenizer import TokenizerTable

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LONG = 1 << 10  # bytes; longer tokens are compared one by one, each pair of places once
_BUDGET = 1 << 22  # bytes of short tokens that are compared at a time
_STEP = 1 << 20  # bytes of a long token that are compared at a time


class JoinedTokens:
    """The tokens of a vocabulary whose offsets are sound."""

    def __init__(self, table: TokenizerTable) -> None:
        self.offsets = table.offsets
        self.view = table.vocab_blob
        self.blob = np.frombuffer(table.vocab_blob, np.uint8)
        self._known: dict[tuple[int, int, int], bool] = {}

    def same(self, triples: Ids) -> Flags:
        """Whether the merged token of each triple [n, 3] is the left one followed by the right one."""
        left, right, merged = triples.T
        whole = self._lengths(merged)
        same: Flags = whole == self._lengths(left) + self._lengths(right)
        for row in np.flatnonzero(same & (whole > _LONG)):
            same[row] = self._same_long(*map(int, triples[row]))
        rows = np.flatnonzero(same & (whole <= _LONG))
        size = _BUDGET // _LONG
        for first in range(0, len(rows), size):
            chosen = rows[first : first + size]
            lefts, rights, wholes = triples[chosen].T
            middles = self._starts(wholes) + self._lengths(lefts)
            same[chosen] = self._equal(lefts, self._starts(wholes)) & self._equal(rights, middles)
        return same

    def _starts(self, ids: Ids) -> Ids:
        return self.offsets[ids].astype(np.int64)

    def _lengths(self, ids: Ids) -> Ids:
        return self.offsets[ids + 1].astype(np.int64) - self.offsets[ids]

    def _equal(self, ids: Ids, places: Ids) -> Flags:
        """Whether each token's bytes stand at that place of the blob too."""
        lengths = self._lengths(ids)
        owner = np.repeat(np.arange(len(ids)), lengths)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        differs = self.blob[self._starts(ids)[owner] + within] != self.blob[places[owner] + within]
        same = np.ones(len(ids), np.bool_)
        same[owner[differs]] = False
        return same

    def _same_long(self, left: int, right: int, merged: int) -> bool:
        start, (first, middle) = int(self.offsets[merged]), map(int, self.offsets[left : left + 2])
        return self._stands_at(left, start) and self._stands_at(right, start + middle - first)

    def _stands_at(self, token: int, place: int) -> bool:
        start, end = int(self.offsets[token]), int(self.offsets[token + 1])
        key = (start, end, place)
        if key not in self._known:
            shift = place - start
            self._known[key] = all(
                bytes(self.view[at : min(at + _STEP, end)])
                == bytes(self.view[at + shift : min(at + _STEP, end) + shift])
                for at in range(start, end, _STEP)
            )
        return self._known[key]
