"""Whether GBT1's precomputed arrays say what the arrays that they repeat say.

An array that is right is found to be right in batches, in little memory. One that is not is built anew, to tell each
place that differs; of more entries than `_TOLD` the array alone is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..container.pieces import Pieces, part_of
from ..generated.constants import GbtFlags
from ..generated.dtypes import GBT_V1_PARTS
from ..generated.structs import gbt_v1_layout
from .context import Context
from .gbt_index import SPECIAL_TYPES, WORD, byte_tokens, merge_index, merge_keys, special_tokens, token_order, word_of
from .lanes import Blob, Lane, batches
from .tokenizer import SECTION, TokenizerTable

_BATCH = 1 << 16  # entries at a time
_TOLD = 1 << 20
Words = npt.NDArray[np.uint64]


class IndexChecker:
    """Checks the arrays of one section.

    Attributes:
        doubled: Whether a token is there twice; None where no order of the tokens tells.
    """

    def __init__(
        self, context: Context, table: TokenizerTable, data: memoryview | Pieces, base: int, blob: Blob
    ) -> None:
        """Checks nothing yet.

        Args:
            table: A table whose offsets are sound.
            data: The section.
            base: Where it begins in the file.
            blob: The tokens' bytes.
        """
        self._context, self._table, self._base, self._blob = context, table, base, blob
        self._places = gbt_v1_layout(table.header)
        self._lanes = {
            name: Lane(part_of(data, *place), GBT_V1_PARTS[name].base if name != "triples" else GBT_V1_PARTS[name])
            for name, place in self._places.items()
        }
        self.doubled: bool | None = None

    def check(self) -> None:
        """Every announced array."""
        flags, table = self._table.header.flags, self._table
        offsets, triples = table.offsets, self._lanes["triples"]

        def whole_blob() -> memoryview:
            return table.vocab_blob[:]

        if flags & GbtFlags.MERGE_INDEX:
            found = self._is_merge_index()
            self._judge("tokenizer.merge_index", "merge_keys", lambda: found, lambda: merge_index(triples[:])[0])
            self._judge("tokenizer.merge_index", "merge_ranks", lambda: found, lambda: merge_index(triples[:])[1])
        if flags & GbtFlags.TOKEN_ORDER:
            self._judge(
                "tokenizer.token_order",
                "token_order",
                self._is_order,
                lambda: token_order(whole_blob(), offsets.astype(np.int64)),
            )
        if flags & GbtFlags.BYTE_TOKENS:
            expected = byte_tokens(self._blob, offsets)
            self._judge("tokenizer.byte_tokens", "byte_tokens", None, lambda: expected)
        if flags & GbtFlags.SPECIAL_TOKENS:
            self._judge(
                "tokenizer.special_tokens",
                "special_tokens",
                self._is_special,
                lambda: special_tokens(table.token_types, offsets.astype(np.int64)),
            )

    def _judge(
        self, rule: str, name: str, right: Callable[[], bool] | None, build: Callable[[], npt.NDArray[np.generic]]
    ) -> None:
        """Checks one array.

        Args:
            right: Whether it is right, found in little memory; None where building it takes as little.
        """
        report, lane = self._context.report, self._lanes[name]
        report.check(rule)
        if right is not None and right():
            return
        start = self._base + self._places[name][0]
        if right is not None and max(len(lane), len(self._table), len(self._lanes["triples"])) > _TOLD:
            report.add(rule, SECTION, name, start, "It is not what the arrays before it lead to.")
            return
        expected, stored = build(), lane[:]
        if len(stored) != len(expected):
            report.add(rule, SECTION, name, start, f"Found {len(stored)} entries, not {len(expected)}.")
            return
        for index in np.flatnonzero(stored != expected):
            message = f"Found {stored[index]}, expected {expected[index]}."
            report.add(rule, SECTION, f"{name}[{index}]", start + int(index) * stored.itemsize, message)

    def _is_merge_index(self) -> bool:
        """The pairs of key and rank rise, and are those of the merges.

        Whether they are the same in another order is told by sums of hashes that nobody can know before.
        """
        keys, ranks, triples = (self._lanes[name] for name in ("merge_keys", "merge_ranks", "triples"))
        if not len(keys) == len(ranks) == len(triples):
            return False
        hashes, sums = [_PairHash(), _PairHash()], [0, 0]
        last: tuple[int, int] | None = None
        for first, key in keys.batches(_BATCH):
            rank = ranks[first : first + len(key)]
            rising = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & (rank[1:] > rank[:-1]))
            if not rising.all() or (last is not None and (int(key[0]), int(rank[0])) <= last):
                return False
            last = int(key[-1]), int(rank[-1])
            wanted = merge_keys(triples[first : first + len(key)])
            numbers = np.arange(first, first + len(key), dtype=np.uint64)
            for which, hashed in enumerate(hashes):
                sums[which] += hashed.sum(key, rank.astype(np.uint64)) - hashed.sum(wanted, numbers)
        return not any(total % (1 << 64) for total in sums)

    def _is_order(self) -> bool:
        """The tokens rise, equal ones by id: then every id is there once."""
        order, offsets = self._lanes["token_order"], self._table.offsets
        count, doubled = len(self._table), False
        if len(order) != count:
            return False
        for first in range(0, count - 1, _BATCH):
            ids = order[first : first + _BATCH + 1].astype(np.int64)
            if ids.max() >= count:
                return False
            starts = offsets[ids].astype(np.int64)
            lengths = offsets[ids + 1].astype(np.int64) - starts
            words = [_words(self._blob, starts, lengths, at) for at in (0, WORD)]
            (one, other), (two, next_two) = ((word[:-1], word[1:]) for word in words)
            falls = (other < one) | ((other == one) & (next_two < two))
            if falls.any():
                return False
            for row in np.flatnonzero((other == one) & (next_two == two)).tolist():
                left, right = ((int(starts[at]), int(starts[at] + lengths[at])) for at in (row, row + 1))
                ordered = self._blob.compare(left, right)
                if ordered > 0 or (not ordered and ids[row + 1] <= ids[row]):
                    return False
                doubled = doubled or not ordered
        if count == 1 and order[:][0] != 0:
            return False
        self.doubled = doubled
        return True

    def _is_special(self) -> bool:
        """The ids are those of special tokens, the longest first, then by id, and as many as there are."""
        listed, offsets, types = self._lanes["special_tokens"], self._table.offsets, self._table.token_types
        total, last = 0, (-1 << 40, -1)
        for first in range(0, len(types), _BATCH):
            part = slice(first, first + _BATCH)
            lengths = np.diff(offsets[first : first + _BATCH + 1].astype(np.int64))
            total += int((np.isin(types[part], SPECIAL_TYPES) & (lengths > 0)).sum())
        if total != len(listed):
            return False
        for _, ids in listed.batches(_BATCH):
            if ids.max() >= len(types) or not np.isin(types[ids], SPECIAL_TYPES).all():
                return False
            wide = ids.astype(np.int64)
            sizes = offsets[wide + 1].astype(np.int64) - offsets[wide]
            rising = (sizes[1:] < sizes[:-1]) | ((sizes[1:] == sizes[:-1]) & (wide[1:] > wide[:-1]))
            if not rising.all() or sizes.min() < 1 or (-int(sizes[0]), int(wide[0])) <= last:
                return False
            last = -int(sizes[-1]), int(wide[-1])
        return True


class _PairHash:
    """A hash of pairs of numbers, another one in each process."""

    def __init__(self) -> None:
        self._odd = np.frombuffer(os.urandom(32), np.uint64) | np.uint64(1)

    def sum(self, one: Words, other: Words) -> int:
        """The sum of the hashes."""
        mixed = one * self._odd[0] + other * self._odd[1]
        for shift, factor in ((32, 2), (29, 3), (31, 0)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * self._odd[factor]
        return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))


def _words(blob: Blob, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], at: int) -> Words:
    """Eight bytes of each token from byte `at` on, as a number that compares as they do; zeros after its end."""
    kept = np.clip(lengths - at, 0, WORD)
    found = np.empty(len(starts), np.uint64)
    for part in batches(kept):
        places = np.cumsum(kept[part]) - kept[part]
        gathered = np.concatenate([blob.gather(starts[part] + at, kept[part]), np.zeros(2 * WORD, np.uint8)])
        found[part] = word_of(gathered, places, kept[part], 0)
    return found
