"""A set-associative cache of fixed-size rows: a row may lie in one of a few places, the oldest use makes room."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]
_EMPTY = -1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # neighbours go to sets far apart


class RowCache:
    """Rows by number.

    Attributes:
        sets, ways: A row belongs to one set, chosen by its number, and may lie in any of its ways.
        hits, misses: Rows that were found, and that were not.
    """

    def __init__(self, row_bytes: int, budget_bytes: int, *, ways: int = 8) -> None:
        """Takes at most `budget_bytes` for rows; less than a set of them is no cache."""
        self.ways = ways
        self.sets = budget_bytes // max(row_bytes * ways, 1)
        self.hits = self.misses = 0
        self._tags: Ids = np.full((self.sets, ways), _EMPTY, np.int64)
        self._used: Ids = np.zeros((self.sets, ways), np.int64)
        self._rows: Rows = np.empty((self.sets, ways, row_bytes), np.uint8)
        self._clock = 0

    def look_up(self, ids: Ids, out: Rows) -> Ids:
        """Copies the rows that are here.

        Args:
            ids: Numbers of rows, none twice.
            out: uint8 [rows, row bytes], to be filled.

        Returns:
            The places in `ids` of the rows that are not here.
        """
        if not self.sets:
            self.misses += len(ids)
            return np.arange(len(ids), dtype=np.int64)
        sets = self._sets_of(ids)
        found = self._tags[sets] == ids[:, None]
        here = np.flatnonzero(found.any(axis=1))
        ways = found[here].argmax(axis=1)
        out[here] = self._rows[sets[here], ways]
        self._clock += 1
        self._used[sets[here], ways] = self._clock
        self.hits += len(here)
        self.misses += len(ids) - len(here)
        missing: Ids = np.flatnonzero(~found.any(axis=1)).astype(np.int64)
        return missing

    def insert(self, ids: Ids, rows: Rows) -> None:
        """Takes rows in that are not here; those used longest ago give way."""
        if not self.sets:
            return
        sets = self._sets_of(ids)
        left = np.arange(len(ids))
        # Of several rows of one set the first goes in, the next one in the next round, as many as the set has ways.
        for _ in range(self.ways):
            if not len(left):
                return
            _, first = np.unique(sets[left], return_index=True)
            chosen = left[first]
            ways = self._used[sets[chosen]].argmin(axis=1)
            self._clock += 1
            # A tag stands only while its row does, wherever an interrupt ends this.
            self._tags[sets[chosen], ways] = _EMPTY
            self._rows[sets[chosen], ways] = rows[chosen]
            self._tags[sets[chosen], ways] = ids[chosen]
            self._used[sets[chosen], ways] = self._clock
            left = np.delete(left, first)

    def _sets_of(self, ids: Ids) -> Ids:
        mixed = (ids.astype(np.uint64) * _SPREAD) >> np.uint64(20)
        sets: Ids = (mixed % np.uint64(self.sets)).astype(np.int64)
        return sets
