"""Merging by score in functions that numba compiles: `spm_compiled` holds the tables that they work on.

The vocabulary becomes a table of pairs: which two symbols together are which token. A symbol is a token, or a character
that is no token but is part of one; those have ids from the vocabulary's size on. Any other character is -1. A token's
rank is the place of its score, the highest first; equal scores are one rank, whose places merge from left to right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jitting import inline, keep, pop, push
from .switching import fingerprint

_SHORT = 32  # symbols up to which looking at all pairs beats bookkeeping
_MULTIPLIER = 0x9E3779B97F4A7C15
_BASE = 0x100000001B3
_SPACE = 0x2581
_SOURCES = fingerprint("spm_kernels", "jitting")


def _compile(function: Any) -> Any:
    return keep(function, _SOURCES)


@_compile
def _point(data: Any, i: Any) -> Any:
    """The code point whose valid UTF-8 begins at a place, and the place after it."""
    byte = np.int32(data[i])
    if byte < 0x80:
        return byte, i + 1
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | (np.int32(data[i + 1]) & 0x3F), i + 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | (np.int32(data[i + 1]) & 0x3F) << 6 | (np.int32(data[i + 2]) & 0x3F), i + 3
    high = (byte & 0x07) << 18 | (np.int32(data[i + 1]) & 0x3F) << 12
    return high | (np.int32(data[i + 2]) & 0x3F) << 6 | (np.int32(data[i + 3]) & 0x3F), i + 4


# ---------------------------------------------------------------- tables


@_compile
def build_symbols(blob: Any, offsets: Any, tokens: Any, characters: Any, kept: Any, size: Any) -> Any:
    """Ids of single characters, and those that stand before a space in some token; returns the number of symbols.

    Args:
        tokens: Ids of the tokens that merging may give, valid UTF-8, no two of the same text.
        characters: For each code point its symbol, -1 at first.
        kept: For each code point, whether it stands before a space.
    """
    for token in tokens:
        start, end = np.int64(offsets[token]), np.int64(offsets[token + 1])
        point, after = _point(blob, start)
        if after == end:
            characters[point] = token
    count = size
    for token in tokens:
        at, end = np.int64(offsets[token]), np.int64(offsets[token + 1])
        last = np.int32(-1)
        while at < end:
            point, at = _point(blob, at)
            if characters[point] < 0:
                characters[point] = count
                count += 1
            if point == _SPACE and last >= 0:
                kept[last] = 1
            last = point
    return count


@_compile
def _lookup(blob: Any, offsets: Any, slots: Any, codes: Any, code: Any, start: Any, end: Any) -> Any:
    """The token of a text within the blob, -1 where there is none."""
    mask = np.uint64(len(slots) - 1)
    slot = (code * np.uint64(_MULTIPLIER)) >> np.uint64(32) & mask
    while slots[slot] >= 0:
        if codes[slot] == code:
            token = slots[slot]
            at = np.int64(offsets[token])
            same = np.int64(offsets[token + 1]) - at == end - start
            k = 0
            while same and k < end - start:
                same = blob[at + k] == blob[start + k]
                k += 1
            if same:
                return token
        slot = (slot + np.uint64(1)) & mask
    return np.int32(-1)


@_compile
def find_pairs(
    blob: Any, offsets: Any, tokens: Any, characters: Any, slots: Any, codes: Any, keys: Any, results: Any
) -> Any:
    """All pairs of symbols that are a token; returns their number.

    Texts are hashed as polynomials, so that of any part is known from those of the prefixes; what is found is compared.

    Args:
        slots, codes: An open-addressing table to fill with the tokens; its length is a power of two, slots are -1.
        keys, results: Left and right symbol in one number, and the token; as long as the blob.
    """
    longest = np.int64(0)
    mask = np.uint64(len(slots) - 1)
    for token in tokens:
        start, end = np.int64(offsets[token]), np.int64(offsets[token + 1])
        longest = max(longest, end - start)
        code = np.uint64(0)
        for i in range(start, end):
            code = code * np.uint64(_BASE) + np.uint64(blob[i]) + np.uint64(1)
        slot = (code * np.uint64(_MULTIPLIER)) >> np.uint64(32) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot], codes[slot] = token, code
    powers, prefixes = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    powers[0], prefixes[0] = 1, 0
    for i in range(longest):
        powers[i + 1] = powers[i] * np.uint64(_BASE)
    count = 0
    for token in tokens:
        start, end = np.int64(offsets[token]), np.int64(offsets[token + 1])
        length = end - start
        for i in range(length):
            prefixes[i + 1] = prefixes[i] * np.uint64(_BASE) + np.uint64(blob[start + i]) + np.uint64(1)
        point, after = _point(blob, start)
        left = characters[point]
        first, cut = True, after
        while cut < end:
            if not first:
                left = _lookup(blob, offsets, slots, codes, prefixes[cut - start], start, cut)
            first = False
            point, after = _point(blob, cut)
            if left >= 0:
                if after == end:
                    right = characters[point]
                else:
                    code = prefixes[length] - prefixes[cut - start] * powers[end - cut]
                    right = _lookup(blob, offsets, slots, codes, code, cut, end)
                if right >= 0:
                    keys[count] = np.uint64(left) << np.uint64(32) | np.uint64(right)
                    results[count] = token
                    count += 1
            cut = after
    return count


@_compile
def build_pairs(
    keys: Any, results: Any, ranks: Any, slot_keys: Any, slot_results: Any, first_use: Any, early: Any
) -> None:
    """Fills an open-addressing table, its length a power of two, and tells which ranks are early (`_merge_long`).

    Args:
        first_use: For each symbol, a number above all ranks.
        early: For each rank 0.
    """
    mask = np.uint64(len(slot_keys) - 1)
    for k in range(len(keys)):
        slot = ((keys[k] * np.uint64(_MULTIPLIER)) >> np.uint64(32)) & mask
        while slot_results[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slot_keys[slot], slot_results[slot] = keys[k], results[k]
        rank = ranks[results[k]]
        left, right = np.int64(keys[k] >> np.uint64(32)), np.int64(keys[k] & np.uint64(0xFFFFFFFF))
        first_use[left] = min(first_use[left], rank)
        first_use[right] = min(first_use[right], rank)
    for token in results:
        if first_use[token] <= ranks[token]:
            early[ranks[token]] = 1


# ---------------------------------------------------------------- merging


@inline
def _join(keys: Any, results: Any, left: Any, right: Any) -> Any:
    """The token that two symbols make, -1 where they make none."""
    if left < 0 or right < 0:
        return np.int32(-1)
    mask = np.uint64(len(keys) - 1)
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    slot = ((key * np.uint64(_MULTIPLIER)) >> np.uint64(32)) & mask
    while results[slot] >= 0:
        if keys[slot] == key:
            return results[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int32(-1)


@_compile
def _merge_short(ids: Any, starts: Any, joins: Any, count: Any, keys: Any, results: Any, ranks: Any) -> Any:
    """Merges in place by looking at all pairs each time; returns the new number."""
    for k in range(count - 1):
        joins[k] = _join(keys, results, ids[k], ids[k + 1])
    while True:
        best, at = np.int32(0x7FFFFFFF), -1
        for k in range(count - 1):
            if joins[k] >= 0 and ranks[joins[k]] < best:
                best, at = ranks[joins[k]], k
        if at < 0:
            return count
        ids[at] = joins[at]
        count -= 1
        for k in range(at + 1, count):
            ids[k], starts[k], joins[k - 1] = ids[k + 1], starts[k + 1], joins[k]
        if at > 0:
            joins[at - 1] = _join(keys, results, ids[at - 1], ids[at])
        if at < count - 1:
            joins[at] = _join(keys, results, ids[at], ids[at + 1])


@_compile
def _merge_long(ids: Any, starts: Any, keys: Any, results: Any, ranks: Any, heads: Any, tails: Any, early: Any) -> Any:
    """Merges a long part in place, rank by rank as `kernels` does for byte pairs; returns the new number.

    Args:
        heads, tails: For each rank the first and last entry of its chain of places; heads are -1.
        early: For each rank, whether one of its tokens is part of a token of this rank or a lower one.
    """
    count = len(ids)
    following, before, joins = np.empty(count, np.int32), np.empty(count, np.int32), np.full(count, -1, np.int32)
    places, nexts, entries = np.empty(3 * count, np.int32), np.empty(3 * count, np.int32), 0
    waiting, size = np.empty(3 * count, np.int64), 0
    fresh, fresh_count = np.empty(2 * count, np.int32), count
    merged = np.empty(count, np.int32)
    for at in range(count):
        following[at] = at + 1 if at + 1 < count else -1
        before[at] = at - 1
        fresh[at] = at
        if at + 1 == count:
            break
        if at > 1 and ids[at] == ids[at - 2] and ids[at + 1] == ids[at - 1]:  # in runs of one or two characters
            joins[at] = joins[at - 2]
        else:
            joins[at] = _join(keys, results, ids[at], ids[at + 1])
    while True:
        for k in range(fresh_count):
            at = fresh[k]
            if joins[at] < 0:
                continue
            rank = ranks[joins[at]]
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
        found, rising = 0, True
        if early[rank]:
            merged[0], found = first & 0xFFFFFFFF, 1
        else:
            entry = heads[rank]
            heads[rank] = -1
            while entry >= 0:
                at = places[entry]
                if joins[at] >= 0 and ranks[joins[at]] == rank:
                    rising = rising and (found == 0 or merged[found - 1] < at)
                    merged[found] = at
                    found += 1
                entry = nexts[entry]
            if not rising:
                merged[:found].sort()
        done = 0
        for k in range(found):
            at = merged[k]
            if joins[at] < 0 or ranks[joins[at]] != rank:
                continue
            gone = following[at]
            after = following[gone]
            ids[at], following[at], following[gone] = joins[at], after, -2
            if after >= 0:
                before[after] = at
            joins[gone] = -1
            joins[at] = -1
            merged[done] = at
            done += 1
        fresh_count = 0
        last_left, last_right, last_join = np.int32(-1), np.int32(-1), np.int32(-1)
        for k in range(done):
            at = merged[k]
            after, left = following[at], before[at]
            if left >= 0 and (k == 0 or left != merged[k - 1]):
                joins[left] = _join(keys, results, ids[left], ids[at])
                fresh[fresh_count] = left
                fresh_count += 1
            if after >= 0:
                if ids[at] != last_left or ids[after] != last_right:
                    last_left, last_right = ids[at], ids[after]
                    last_join = _join(keys, results, last_left, last_right)
                joins[at] = last_join
                fresh[fresh_count] = at
                fresh_count += 1
    number = 0
    for at in range(count):
        if following[at] != -2:
            ids[number], starts[number] = ids[at], starts[at]
            number += 1
    return number


@_compile
def encode(data: Any, characters: Any, kept: Any, byte_ids: Any, vocabulary: Any, out: Any) -> Any:
    """Ids of valid UTF-8 whose spaces are U+2581; returns their number, or -1 where a byte has no token."""
    keys, results, ranks, heads, tails, early = vocabulary
    size = len(data)
    ids, starts, cuts = np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size + 1, np.int64)
    count, parts, at, last = 0, 0, 0, np.int32(-1)
    while at < size:
        starts[count] = at
        point, at = _point(data, at)
        ids[count] = characters[point]
        if point == _SPACE and last >= 0 and not kept[last]:
            cuts[parts] = count
            parts += 1
        last = point
        count += 1
    cuts[parts] = count
    joins = np.empty(_SHORT, np.int32)
    made, start = 0, 0
    for part in range(parts + 1):
        end = cuts[part]
        number = end - start
        if number > _SHORT:
            number = _merge_long(ids[start:end], starts[start:end], keys, results, ranks, heads, tails, early)
        elif number > 1:
            number = _merge_short(ids[start:end], starts[start:end], joins, number, keys, results, ranks)
        for k in range(start, start + number):
            token = ids[k]
            if 0 <= token < len(ranks):
                out[made] = token
                made += 1
                continue
            _, after = _point(data, starts[k])  # a character that is no token
            for i in range(starts[k], after):
                token = byte_ids[data[i]]
                if token < 0:
                    return -1
                out[made] = token
                made += 1
        start = end
    return made
