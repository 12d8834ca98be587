"""Byte pair encoding in functions that numba compiles: `compiled` holds the tables that they work on.

The splitter is `split` itself, compiled. Pieces that were seen before are looked up; short pieces are merged by
looking at all pairs; long ones (a megabyte of one letter is one piece) rank by rank, each rank's places in order,
which takes linear time where a heap would take n log n. Arrays are handed over one by one and short helpers are
compiled into their callers: a call counts references to every array, which costs more than what the helpers do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from . import split
from .jitting import inline, keep, pop, push
from .switching import fingerprint

_SHORT = 48  # bytes of a piece up to which looking at all pairs beats bookkeeping
_CACHED_LENGTH = 128  # bytes of a piece that is remembered
_MULTIPLIER = 0x9E3779B97F4A7C15
_SOURCES = fingerprint("kernels", "jitting", "split")

for _function in (
    split.contraction,
    split.spaces,
    split.match_gpt2,
    split.match_words,
    split.cased_word,
    split.match_cased,
    split.match_deepseek3,
    split.belongs,
    split.match_run,
    split.match,
    split.apply,
):
    register_jitable(_function)


def _compile(function: Any) -> Any:
    """Compiles at the first call; machine code is kept on disk where the package's folder or the user's is writable."""
    return keep(function, _SOURCES)


@_compile
def build_pairs(merge_keys: Any, merge_ranks: Any, keys: Any, ranks: Any) -> None:
    """Fills an open-addressing table with the lowest rank of each pair; its length is a power of two."""
    mask = np.uint64(len(keys) - 1)
    for index in range(len(merge_keys)):
        key = merge_keys[index]
        if key == np.uint64(0xFFFFFFFFFFFFFFFF):
            continue
        slot = ((key * np.uint64(_MULTIPLIER)) >> np.uint64(32)) & mask
        while ranks[slot] >= 0 and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if ranks[slot] < 0:
            keys[slot] = key
            ranks[slot] = merge_ranks[index]


@inline
def _rank(keys: Any, ranks: Any, left: Any, right: Any) -> Any:
    """Rank of a pair, -1 where nothing merges it."""
    if left < 0 or right < 0:
        return np.int32(-1)
    mask = np.uint64(len(keys) - 1)
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    slot = ((key * np.uint64(_MULTIPLIER)) >> np.uint64(32)) & mask
    while ranks[slot] >= 0:
        if keys[slot] == key:
            return ranks[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int32(-1)


@_compile
def byte_pairs(byte_tokens: Any, keys: Any, ranks: Any, found: Any) -> None:
    """Ranks of all pairs of bytes."""
    for left in range(256):
        for right in range(256):
            found[left << 8 | right] = _rank(keys, ranks, byte_tokens[left], byte_tokens[right])


@_compile
def _decode(data: Any, index: Any, blocks: Any, points: Any, classes: Any, places: Any) -> Any:
    """Code points of valid UTF-8, their classes, and where each begins; returns their number."""
    i, count, size = 0, 0, len(data)
    while i < size:
        places[count] = i
        byte = np.int32(data[i])
        if byte < 0x80:
            point = byte
            i += 1
        elif byte < 0xE0:
            point = (byte & 0x1F) << 6 | (np.int32(data[i + 1]) & 0x3F)
            i += 2
        elif byte < 0xF0:
            point = (byte & 0x0F) << 12 | (np.int32(data[i + 1]) & 0x3F) << 6 | (np.int32(data[i + 2]) & 0x3F)
            i += 3
        else:
            point = (
                (byte & 0x07) << 18
                | (np.int32(data[i + 1]) & 0x3F) << 12
                | (np.int32(data[i + 2]) & 0x3F) << 6
                | (np.int32(data[i + 3]) & 0x3F)
            )
            i += 4
        points[count] = point
        classes[count] = blocks[np.int64(index[point >> 7]) << 7 | (point & 127)]
        count += 1
    places[count] = size
    return count


@_compile
def _merge_short(ids: Any, pair_ranks: Any, count: Any, results: Any, keys: Any, ranks: Any) -> Any:
    """Merges in place by looking at all pairs each time; returns the new number."""
    while True:
        best, at = np.int32(0x7FFFFFFF), -1
        for k in range(count - 1):
            rank = pair_ranks[k]
            if rank >= 0 and rank < best:
                best, at = rank, k
        if at < 0:
            return count
        ids[at] = results[best]
        for k in range(at + 1, count - 1):
            ids[k] = ids[k + 1]
            pair_ranks[k - 1 + 1] = pair_ranks[k + 1] if k + 1 < count - 1 else np.int32(-1)
        count -= 1
        if at > 0:
            pair_ranks[at - 1] = _rank(keys, ranks, ids[at - 1], ids[at])
        pair_ranks[at] = _rank(keys, ranks, ids[at], ids[at + 1]) if at < count - 1 else np.int32(-1)


@_compile
def _merge_long(
    ids: Any, pair_ranks: Any, results: Any, keys: Any, ranks: Any, heads: Any, tails: Any, early: Any, out: Any
) -> Any:
    """Merges a long piece rank by rank and writes its ids; returns their number.

    As a rule, a pair that a merge makes has a higher rank than that merge, for it was learnt later. Then all places
    of the lowest rank are done in one go, from left to right, and the pairs that arise are ranked after that, each
    once. Early ranks are those whose result is part of a merge of a lower rank: their places are done one by one.

    Args:
        heads, tails: For each rank the first and last entry of its chain of places; heads are -1.
        early: For each rank, whether it is early.
    """
    count = len(ids)
    following, before = np.empty(count, np.int32), np.empty(count, np.int32)
    places, nexts, entries = np.empty(3 * count, np.int32), np.empty(3 * count, np.int32), 0
    waiting, size = np.empty(3 * count, np.int64), 0
    # Places whose pair has a new rank, in order: at first all of them.
    fresh, fresh_count = np.empty(2 * count, np.int32), count
    merged = np.empty(count, np.int32)
    for at in range(count):
        following[at] = at + 1 if at + 1 < count else -1
        before[at] = at - 1
        fresh[at] = at
    while True:
        for k in range(fresh_count):
            at = fresh[k]
            rank = pair_ranks[at]
            if rank < 0:
                continue
            if early[rank]:
                size = push(waiting, size, np.int64(rank) << 32 | at)
                continue
            places[entries], nexts[entries] = at, -1
            if heads[rank] < 0:
                heads[rank] = entries
                size = push(waiting, size, np.int64(rank) << 32)
            else:
                nexts[tails[rank]] = entries
            tails[rank] = entries
            entries += 1
        if not size:
            break
        first = waiting[0]
        size = pop(waiting, size)
        rank = np.int32(first >> 32)
        token, found, rising = results[rank], 0, True
        if early[rank]:
            merged[0], found = first & 0xFFFFFFFF, 1
        else:
            entry = heads[rank]
            heads[rank] = -1
            while entry >= 0:
                at = places[entry]
                if pair_ranks[at] == rank:
                    rising = rising and (found == 0 or merged[found - 1] < at)
                    merged[found] = at
                    found += 1
                entry = nexts[entry]
            if not rising:
                merged[:found].sort()
        done = 0
        for k in range(found):
            at = merged[k]
            if pair_ranks[at] != rank:
                continue
            gone = following[at]
            after = following[gone]
            ids[at], following[at], following[gone] = token, after, -2
            if after >= 0:
                before[after] = at
            pair_ranks[gone] = -1
            pair_ranks[at] = -1
            merged[done] = at
            done += 1
        fresh_count = 0
        for k in range(done):
            at = merged[k]
            after, left = following[at], before[at]
            if left >= 0 and (k == 0 or left != merged[k - 1]):
                pair_ranks[left] = _rank(keys, ranks, ids[left], token)
                fresh[fresh_count] = left
                fresh_count += 1
            if after >= 0:
                pair_ranks[at] = _rank(keys, ranks, token, ids[after])
                fresh[fresh_count] = at
                fresh_count += 1
    return _gather(ids, following, out)


@_compile
def _gather(ids: Any, following: Any, out: Any) -> Any:
    """Writes the ids that are left; returns their number."""
    number = 0
    for at in range(len(ids)):
        if following[at] != -2 and ids[at] >= 0:
            out[number] = ids[at]
            number += 1
    return number


@_compile
def _find(data: Any, start: Any, end: Any, spelled: Any, widths: Any, blob: Any, offsets: Any, order: Any) -> Any:
    """The token that spells these bytes, by binary search; -1 where there is none. The last of equal ones."""
    text = np.empty(2 * (end - start), np.uint8)
    size = 0
    for i in range(start, end):
        byte = data[i]
        text[size] = spelled[2 * byte]
        if widths[byte] == 2:
            text[size + 1] = spelled[2 * byte + 1]
        size += widths[byte]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) >> 1
        token = order[middle]
        at, stop = np.int64(offsets[token]), np.int64(offsets[token + 1])
        k = 0
        while k < size and at + k < stop and blob[at + k] == text[k]:
            k += 1
        # The token is at most the text: it is a part of it, or smaller where they part.
        if at + k == stop or (k < size and blob[at + k] < text[k]):
            low = middle + 1
        else:
            high = middle
    if low:
        token = order[low - 1]
        at, stop = np.int64(offsets[token]), np.int64(offsets[token + 1])
        if stop - at == size:
            for k in range(size):
                if blob[at + k] != text[k]:
                    return -1
            return np.int64(token)
    return -1


@_compile
def encode(
    data: Any,
    unicode_tables: Any,
    rules: Any,
    vocabulary: Any,
    spelling: Any,
    memory: Any,
    counters: Any,
    ignore_merges: Any,
    out: Any,
) -> Any:
    """Ids of valid UTF-8; returns their number."""
    index, blocks = unicode_tables
    byte_tokens, byte_pairs, results, keys, ranks, heads, tails, early = vocabulary
    spelled, widths, blob, offsets, order = spelling
    slots, hashes, places_of, lengths_of, ids_of, numbers_of, byte_pool, id_pool = memory
    size = len(data)
    points, classes = np.empty(size, np.int32), np.empty(size, np.uint8)
    places, ends = np.empty(size + 1, np.int32), np.empty(size, np.int32)
    count = _decode(data, index, blocks, points, classes, places)
    ends[0] = count
    pieces = 1 if count else 0
    for k in range(len(rules)):
        found = np.empty(size, np.int32)
        pieces = split.apply(rules[k], points, classes, ends, pieces, found)
        ends = found
    ids, pair_ranks = np.empty(_SHORT + 1, np.int32), np.empty(_SHORT + 1, np.int32)
    mask = np.uint64(len(slots) - 1)
    made, start = 0, 0
    for piece in range(pieces):
        end = places[ends[piece]]
        length = end - start
        if length == 1:
            token = byte_tokens[data[start]]
            if token >= 0:
                out[made] = token
                made += 1
            start = end
            continue
        slot = np.uint64(0)
        code = np.uint64(0)
        if length <= _CACHED_LENGTH:
            code = np.uint64(0xCBF29CE484222325)
            for i in range(start, end):
                code = (code ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
            code ^= code >> np.uint64(29)
            slot = (code * np.uint64(_MULTIPLIER)) >> np.uint64(32) & mask
            hit = -1
            while slots[slot] > 0:
                entry = slots[slot] - 1
                if hashes[entry] == code and lengths_of[entry] == length:
                    at, same = places_of[entry], True
                    for i in range(length):
                        if byte_pool[at + i] != data[start + i]:
                            same = False
                            break
                    if same:
                        hit = entry
                        break
                slot = (slot + np.uint64(1)) & mask
            if hit >= 0:
                at = ids_of[hit]
                for i in range(numbers_of[hit]):
                    out[made + i] = id_pool[at + i]
                made += numbers_of[hit]
                start = end
                continue
        first = made
        whole = np.int64(-1)
        if ignore_merges:
            whole = _find(data, start, end, spelled, widths, blob, offsets, order)
        if whole >= 0:
            out[made] = whole
            made += 1
        elif length <= _SHORT:
            for i in range(length):
                ids[i] = byte_tokens[data[start + i]]
                if i + 1 < length:
                    pair_ranks[i] = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
            number = _merge_short(ids, pair_ranks, length, results, keys, ranks)
            for i in range(number):
                if ids[i] >= 0:
                    out[made] = ids[i]
                    made += 1
        else:
            long_ids, long_ranks = np.empty(length, np.int32), np.empty(length, np.int32)
            for i in range(length):
                long_ids[i] = byte_tokens[data[start + i]]
                long_ranks[i] = -1
                if i + 1 < length:
                    long_ranks[i] = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
            made += _merge_long(long_ids, long_ranks, results, keys, ranks, heads, tails, early, out[made:])
        if length <= _CACHED_LENGTH:
            number = made - first
            if (
                counters[0] == len(hashes)
                or counters[1] + length > len(byte_pool)
                or counters[2] + number > len(id_pool)
            ):
                slots[:] = 0
                counters[:] = 0
                slot = (code * np.uint64(_MULTIPLIER)) >> np.uint64(32) & mask
            entry = np.int32(counters[0])
            hashes[entry], lengths_of[entry], numbers_of[entry] = code, length, number
            places_of[entry], ids_of[entry] = counters[1], counters[2]
            for i in range(length):
                byte_pool[counters[1] + i] = data[start + i]
            for i in range(number):
                id_pool[counters[2] + i] = out[first + i]
            counters[0] += 1
            counters[1] += length
            counters[2] += number
            slots[slot] = entry + 1
        start = end
    return made
