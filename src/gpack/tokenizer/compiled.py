"""Byte pair encoding of long texts, compiled by numba: the same ids as plain Python's, linear in the text.

The tables are built once for a vocabulary, in milliseconds, from the mapped arrays.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..sections.gbt import SECTION, GbtView, byte_alphabet
from . import kernels
from .characters import table

Ids = npt.NDArray[np.int32]

_ENTRIES = 1 << 16  # pieces that are remembered
_SLOTS = 1 << 18
_POOL = 1 << 21  # bytes, and ids, of remembered pieces


class CompiledBpe:
    """The tables of a vocabulary for the compiled encoder.

    Raises:
        FormatError: The arrays contradict themselves: what compiled code reads is checked as a whole, before.
    """

    def __init__(self, view: GbtView, rules: tuple[int, ...], *, ignore_merges: bool) -> None:
        keys, ranks = np.frombuffer(view.merge_keys, np.uint64), np.frombuffer(view.merge_ranks, np.uint32)
        results = np.ascontiguousarray(np.frombuffer(view.triples, np.int32).reshape(-1, 3)[:, 2])
        byte_ids = np.frombuffer(view.byte_tokens, np.int32)
        offsets, order = np.frombuffer(view.offsets, np.uint32), np.frombuffer(view.token_order, np.uint32)
        blob = np.frombuffer(view.vocab_blob, np.uint8)
        _check(view, keys, ranks, results, byte_ids, offsets, order)
        slots = 1 << max(4, (2 * len(keys)).bit_length())
        pair_keys, pair_ranks = np.zeros(slots, np.uint64), np.full(slots, -1, np.int32)
        kernels.build_pairs(keys, ranks, pair_keys, pair_ranks)
        pairs = np.empty(1 << 16, np.int32)
        kernels.byte_pairs(byte_ids, pair_keys, pair_ranks, pairs)
        heads, tails = np.full(len(results), -1, np.int32), np.zeros(len(results), np.int32)
        self._vocabulary = (byte_ids, pairs, results, pair_keys, pair_ranks, heads, tails, _early(view))
        spelled, widths = np.zeros(512, np.uint8), np.zeros(256, np.uint8)
        for byte, character in enumerate(byte_alphabet()):
            encoded = character.encode()
            spelled[2 * byte : 2 * byte + len(encoded)] = list(encoded)
            widths[byte] = len(encoded)
        self._spelling = (spelled, widths, blob, offsets, order)
        self._memory = (
            np.zeros(_SLOTS, np.int32),
            np.zeros(_ENTRIES, np.uint64),
            np.zeros(_ENTRIES, np.int32),
            np.zeros(_ENTRIES, np.int32),
            np.zeros(_ENTRIES, np.int32),
            np.zeros(_ENTRIES, np.int32),
            np.zeros(_POOL, np.uint8),
            np.zeros(_POOL, np.int32),
        )
        self._counters = np.zeros(3, np.int64)
        classes = table()
        self._unicode = (np.frombuffer(classes.index, np.uint16), np.frombuffer(classes.blocks, np.uint8))
        self._rules = np.array(rules, np.int64)
        self._ignore_merges = ignore_merges
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Forgets the pieces that it remembers."""
        with self._lock:
            self._memory[0][:] = 0
            self._counters[:] = 0

    def encode(self, data: bytes) -> list[int]:
        """The ids of valid UTF-8."""
        if not data:
            return []
        out = np.empty(len(data), np.int32)
        with self._lock:
            count = kernels.encode(
                np.frombuffer(data, np.uint8),
                self._unicode,
                self._rules,
                self._vocabulary,
                self._spelling,
                self._memory,
                self._counters,
                self._ignore_merges,
                out,
            )
        ids: list[int] = out[:count].tolist()
        return ids


def _early(view: GbtView) -> npt.NDArray[np.uint8]:
    """For each rank, whether its result is part of a merge of a lower rank, or of its own."""
    triples = np.frombuffer(view.triples, np.int32).reshape(-1, 3)
    every = np.arange(len(triples))
    first_use = np.full(len(view) + 1, len(triples), np.int64)
    for side in (0, 1):
        # Where an id stands twice the first counts, so they are written from the last to the first.
        ids = triples[::-1, side]
        inside = (ids >= 0) & (ids < len(view))
        uses = np.full(len(view) + 1, len(triples), np.int64)
        uses[ids[inside]] = every[::-1][inside]
        first_use = np.minimum(first_use, uses)
    merged = np.where((triples[:, 2] >= 0) & (triples[:, 2] < len(view)), triples[:, 2], len(view))
    early: npt.NDArray[np.uint8] = (first_use[merged] <= every).astype(np.uint8)
    return early


def _check(
    view: GbtView,
    keys: npt.NDArray[np.uint64],
    ranks: npt.NDArray[np.uint32],
    results: Ids,
    byte_ids: Ids,
    offsets: npt.NDArray[np.uint32],
    order: npt.NDArray[np.uint32],
) -> None:
    size = len(view)
    used = ranks[keys != np.uint64(0xFFFFFFFFFFFFFFFF)]
    faults = (
        ("tokenizer.offsets", bool((offsets[1:] < offsets[:-1]).any())),
        ("tokenizer.merge_index", bool((ranks >= len(results)).any()) or len(ranks) >= 1 << 31),
        ("tokenizer.token_order", bool((order >= size).any())),
        ("tokenizer.byte_tokens", len(byte_ids) != 256 or bool(((byte_ids < -1) | (byte_ids >= size)).any())),
    )
    for code, broken in faults:
        if broken:
            raise FormatError("an entry points outside the vocabulary", code=code, section=SECTION)
    merged = results[used]
    if ((merged < 0) | (merged >= size)).any():
        raise FormatError("a merge's result is not in the vocabulary", code="tokenizer.triples", section=SECTION)
