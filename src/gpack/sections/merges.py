"""BPE merges, from strings ("left right") to triples of token ids, for a whole vocabulary at once.

A quarter of a million merges resolve in about 0.1 s: strings are taken as words of eight bytes and looked up by a
64-bit hash; every hit is then compared word by word, so a collision can only cost a merge its triple, never give it
a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from .lanes import Blob, Lane, batches
from .strings import StringTable

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_SPACE = 0x20
_WORD = 8  # bytes
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)  # the low bytes of a word
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses nothing
_FOLD = np.uint64(32)
_LONG = 512  # bytes; longer strings are few, and taken one by one
_ROWS = 1 << 16  # tokens or merges at a time
_HASHES = 1 << 20
UNRESOLVED = -1


def resolve_merges(tokens: StringTable, merges: StringTable) -> tuple[Ids, bool]:
    """Token ids of each merge.

    A merge is split at its first space that is not its first byte, as llama.cpp does. Where the vocabulary has a
    string twice, the last id counts, as in llama.cpp.

    Returns:
        int32 [n_merges, 3]: left, right and merged id, all -1 where one of them is not in the vocabulary; and
        whether every merge was resolved, so that the triples rebuild every string.
    """
    triples = np.full((len(merges), 3), UNRESOLVED, np.int32)
    if not len(tokens) or not len(merges):
        return triples, not len(merges)
    data = np.frombuffer(merges.data, np.uint8)
    split, valid = _first_spaces(data, merges)
    vocabulary = _Vocabulary(Runs(np.frombuffer(tokens.data, np.uint8), tokens.starts, tokens.lengths))
    left_lengths, right_lengths = split - merges.starts, merges.starts + merges.lengths - split - 1
    whole = Runs(data, merges.starts, left_lengths)
    left = vocabulary.find(whole)
    right = vocabulary.find(Runs(whole.data, split + 1, right_lengths))
    # The merged token is the merge without its space.
    gone: Positions = np.cumsum(valid) - valid
    joined = Runs(np.delete(data, split[valid]), merges.starts - gone, left_lengths + right_lengths)
    found = np.stack([left, right, vocabulary.find(joined)], axis=1)
    resolved = valid & (found >= 0).all(axis=1)
    triples[resolved] = found[resolved]
    return triples, bool(resolved.all())


def spell_themselves(
    offsets: npt.NDArray[np.uint32], blob: Blob, triples: Ids | Lane, doubled: bool | None = None
) -> bool:
    """Whether the texts of these merges surely resolve to the same triples: much faster than to resolve them.

    That is so where no token is there twice, and no left token has a space after its first byte, where a text would be
    split. `False` says nothing.

    Args:
        triples: int32 [n_merges, 3]; the merged tokens are known to be their parts joined.
        doubled: Whether a token is there twice; None where that must be found.
    """
    if not len(triples) or doubled:
        return False
    for first in range(0, len(triples), _ROWS):
        batch = triples[first : first + _ROWS]
        if batch.min() < 0 or batch.max() >= len(offsets) - 1:
            return False
        left = np.unique(batch[:, 0]).astype(np.int64)
        starts = offsets[left].astype(np.int64)
        lengths = offsets[left + 1] - starts
        if lengths.min() < 1:
            return False
        if _any_space(blob, starts + 1, lengths - 1):
            return False
    return doubled is False or not _has_doubles(offsets, blob)


def _any_space(blob: Blob, starts: Positions, lengths: Positions) -> bool:
    """Whether a space lies in one of these runs."""
    short, long = np.flatnonzero(lengths <= _LONG), np.flatnonzero(lengths > _LONG)
    for part in batches(lengths[short]):
        if (blob.gather(starts[short[part]], lengths[short[part]]) == _SPACE).any():
            return True
    runs = zip(starts[long].tolist(), lengths[long].tolist(), strict=True)
    return any(_SPACE in chunk for start, length in runs for chunk in blob.chunks(start, length))


def _has_doubles(offsets: npt.NDArray[np.uint32], blob: Blob) -> bool:
    """Whether two tokens have the same hash; so many hashes are kept at a time as memory should hold."""
    count = len(offsets) - 1
    passes = -(-count // _HASHES)
    for number in range(passes):
        kept: list[Words] = []
        for first in range(0, count, _ROWS):
            starts = offsets[first : first + _ROWS + 1].astype(np.int64)
            found = _hashes_of(blob, starts[:-1], np.diff(starts))
            kept.extend(hashes[hashes % np.uint64(passes) == number] for hashes in found)
        hashes = np.sort(np.concatenate(kept)) if kept else np.empty(0, np.uint64)
        if (hashes[1:] == hashes[:-1]).any():
            return True
    return False


def _hashes_of(blob: Blob, starts: Positions, lengths: Positions) -> Iterator[Words]:
    """Hashes of these runs, in any order: equal ones have equal hashes."""
    short, long = np.flatnonzero(lengths <= _LONG), np.flatnonzero(lengths > _LONG)
    for part in batches(lengths[short]):
        sizes = lengths[short[part]]
        yield _hashes(Runs(blob.gather(starts[short[part]], sizes), np.cumsum(sizes) - sizes, sizes))
    for start, length in zip(starts[long].tolist(), lengths[long].tolist(), strict=True):
        digest = blake2b(digest_size=_WORD)
        for chunk in blob.chunks(start, length):
            digest.update(chunk)
        yield np.frombuffer(digest.digest(), np.uint64)


def _first_spaces(data: Octets, merges: StringTable) -> tuple[Positions, Flags]:
    """Where each merge is split, and whether it has a space there; others count as split at their start."""
    spaces = np.append(np.flatnonzero(data == _SPACE), len(data))
    split = spaces[np.searchsorted(spaces, np.minimum(merges.starts + 1, len(data)))]
    valid = split < merges.starts + merges.lengths
    return np.where(valid, split, merges.starts), valid


class Runs:
    """Strings as runs of bytes, fetched in words.

    Attributes:
        data: The bytes that they lie in.
        starts, lengths: int64, one for each run; no run is shorter than 0.
    """

    def __init__(self, data: Octets, starts: Positions, lengths: Positions) -> None:
        self.data = data
        self.starts, self.lengths = starts, np.maximum(lengths, 0)
        padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
        self._words: Words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))

    def words(self, rows: Positions, at: int) -> Words:
        """The word of each of these runs that begins `at` bytes after its start, zero bytes after its end."""
        words: Words = self._words[self.starts[rows] + at]
        words &= _MASKS[np.minimum(self.lengths[rows] - at, _WORD)]
        return words

    def text(self, row: int) -> bytes:
        """One run's bytes."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])].tobytes()


def _rows_by_word(lengths: Positions, rows: Positions) -> Iterator[tuple[int, Positions]]:
    """Byte offsets 0, 8, 16, ... and which of the rows are longer than that."""
    at = 0
    while len(rows := rows[lengths[rows] > at]):
        yield at, rows
        at += _WORD


def _hashes(runs: Runs) -> Words:
    """A 64-bit hash of each run."""
    hashes = runs.lengths.astype(np.uint64) * _FACTOR
    for at, rows in _rows_by_word(runs.lengths, np.flatnonzero(runs.lengths <= _LONG)):
        mixed = (hashes[rows] ^ runs.words(rows, at)) * _FACTOR
        hashes[rows] = mixed ^ (mixed >> _FOLD)
    for row in np.flatnonzero(runs.lengths > _LONG).tolist():
        hashes[row] = int.from_bytes(blake2b(runs.text(row), digest_size=_WORD).digest(), "little")
    return hashes


def _equal(a: Runs, a_rows: Positions, b: Runs, b_rows: Positions) -> Flags:
    """Whether runs of a and b, which have the same lengths pair by pair, have the same bytes too."""
    lengths = b.lengths[b_rows]
    same = np.ones(len(b_rows), np.bool_)
    for at, pairs in _rows_by_word(lengths, np.flatnonzero(lengths <= _LONG)):
        same[pairs] &= a.words(a_rows[pairs], at) == b.words(b_rows[pairs], at)
    for pair in np.flatnonzero(lengths > _LONG).tolist():
        same[pair] = a.text(int(a_rows[pair])) == b.text(int(b_rows[pair]))
    return same


class _Vocabulary:
    """The tokens, sorted by hash."""

    def __init__(self, tokens: Runs) -> None:
        self.tokens = tokens
        hashes = _hashes(tokens)
        self.order = np.argsort(hashes)
        self.sorted = hashes[self.order]
        if (self.sorted[1:] == self.sorted[:-1]).any():  # a token twice: its ids by rank, which a fast sort mixes up
            self.order = np.argsort(hashes, kind="stable")

    def find(self, runs: Runs) -> Positions:
        """Ids of the strings; -1 where the vocabulary has none."""
        hashes = _hashes(runs)
        # A search for sorted values goes through the vocabulary once, instead of all over it for each.
        asked = np.argsort(hashes)
        places = np.empty(len(hashes), np.int64)
        # The last of equal hashes is the highest id.
        places[asked] = np.searchsorted(self.sorted, hashes[asked], side="right") - 1
        ids = self.order[np.maximum(places, 0)]
        lengths = self.tokens.lengths[ids]
        hit = (places >= 0) & (self.sorted[np.maximum(places, 0)] == hashes) & (lengths == runs.lengths)
        rows = np.flatnonzero(hit)
        hit[rows] = _equal(self.tokens, ids[rows], runs, rows)
        return np.where(hit, ids, UNRESOLVED)
