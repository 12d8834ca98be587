"""Whether merged tokens are made of their parts, for hostile vocabularies too: bounded memory, little repeated work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .lanes import Blob, batches

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LONG = 1 << 10  # bytes; longer tokens are compared one by one, each pair of places once


class JoinedTokens:
    """The tokens of a vocabulary whose offsets are sound."""

    def __init__(self, offsets: npt.NDArray[np.uint32], blob: Blob) -> None:
        self._offsets, self._blob = offsets, blob
        self._known: dict[tuple[int, int, int], bool] = {}

    def same(self, triples: Ids) -> Flags:
        """Whether the merged token of each triple [n, 3] is the left one followed by the right one."""
        lengths = self._offsets[triples + 1].astype(np.int64) - self._offsets[triples]
        whole = lengths[:, 2]
        same: Flags = whole == lengths[:, 0] + lengths[:, 1]
        for row in np.flatnonzero(same & (whole > _LONG)):
            same[row] = self._same_long(*map(int, triples[row]))
        rows = np.flatnonzero(same & (whole <= _LONG))
        starts = self._offsets[triples[rows]].astype(np.int64)
        for part in batches(whole[rows]):
            parts = self._blob.gather(starts[part, :2].reshape(-1), lengths[rows[part], :2].reshape(-1))
            merged = self._blob.gather(starts[part, 2], whole[rows[part]])
            differs = np.flatnonzero(parts != merged)
            owners = np.searchsorted(np.cumsum(whole[rows[part]]), differs, side="right")
            same[rows[part][owners]] = False
        return same

    def _same_long(self, left: int, right: int, merged: int) -> bool:
        start, (first, middle) = int(self._offsets[merged]), map(int, self._offsets[left : left + 2])
        return self._stands_at(left, start) and self._stands_at(right, start + middle - first)

    def _stands_at(self, token: int, place: int) -> bool:
        start, end = int(self._offsets[token]), int(self._offsets[token + 1])
        key = (start, end, place)
        if key not in self._known:
            self._known[key] = self._blob.same(start, place, end - start)
        return self._known[key]
