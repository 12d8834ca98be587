"""Byte pair encoding on the mapped GBT1 arrays: nothing is built before the first word.

A text is split (`pretokenizers`), and the bytes of each piece are merged: of all neighbours that the vocabulary
merges, the pair with the lowest rank becomes one token, the leftmost of equal ones first, until none is left. Plain
Python finds a pair by binary search in the mapped keys. Compiled code takes over where numba is installed and it pays
(`switching`); both give the same ids.
"""

from __future__ import annotations

from itertools import pairwise

from ..errors import FormatError
from ..sections.gbt import byte_alphabet
from .pretokenizers import pieces
from .switching import BYTE_PAIRS, LONGEST, cost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sections.gbt import GbtView
    from .compiled import CompiledBpe

_FEW = 24  # symbols up to which looking at every pair beats a heap
_CACHED_PIECES = 1 << 16
_CACHED_LENGTH = 64  # characters
_CACHED_PAIRS = 1 << 18


class BpeEncoder:
    """Encodes text that holds no special tokens.

    Args:
        view: The vocabulary, with all its indexes.
        rules: The pre-tokeniser's.
        ignore_merges: A piece that is a token is that token, whatever the merges say.
    """

    def __init__(self, view: GbtView, rules: tuple[int, ...], *, ignore_merges: bool) -> None:
        self.view = view
        self.rules = rules
        self.ignore_merges = ignore_merges
        self._alphabet = byte_alphabet() if ignore_merges else []
        self._cache: dict[str, list[int]] = {}
        self._pairs: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._compiled: CompiledBpe | None = None
        self._damaged = False

    def encode(self, text: str, way: str = "auto") -> list[int] | None:
        """The ids of a text; lone surrogates stand for bytes that are not UTF-8 (`surrogateescape`).

        Args:
            way: `auto`, `plain` Python, or `compiled`, which gives None where there is no compiled code.
        """
        if way == "plain":
            return self.encode_plain(text)
        if way == "compiled":
            return self._encode_compiled(text)
        # Of long texts the length decides, before they are split.
        if BYTE_PAIRS.pays(len(text)):
            ids = self._try_compiled(text)
            if ids is not None:
                return ids
        found = pieces(text, self.rules)
        if not BYTE_PAIRS.loaded:
            price = cost(text, found)
            if price > len(text) and BYTE_PAIRS.pays(price):
                ids = self._try_compiled(text)
                if ids is not None:
                    return ids
            BYTE_PAIRS.spent += price
        return self._encode_pieces(found)

    def encode_plain(self, text: str) -> list[int]:
        """The same, in plain Python whatever the length."""
        return self._encode_pieces(pieces(text, self.rules))

    def _encode_pieces(self, found: list[str]) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for piece in found:
            known = cache.get(piece)
            if known is None:
                known = self._encode_piece(piece.encode("utf-8", "surrogateescape"))
                if len(piece) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHED_PIECES:
                        cache.clear()
                    cache[piece] = known
            ids += known
        return ids

    def forget(self) -> None:
        """Forgets all pieces and pairs that it remembers."""
        self._cache.clear()
        self._pairs.clear()
        if self._compiled is not None:
            self._compiled.forget()

    def _try_compiled(self, text: str) -> list[int] | None:
        """None also where the arrays are damaged: plain Python says so where a text meets the damage, not before."""
        if self._damaged:
            return None
        try:
            return self._encode_compiled(text)
        except FormatError:
            self._damaged = True
            return None

    def _encode_compiled(self, text: str) -> list[int] | None:
        """None where there is no compiled code, or the text has lone surrogates."""
        if self._compiled is None:
            if not BYTE_PAIRS.possible:
                return None
            try:
                from .compiled import CompiledBpe
            except ImportError:
                BYTE_PAIRS.possible = False
                return None
            self._compiled = CompiledBpe(self.view, self.rules, ignore_merges=self.ignore_merges)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        if len(data) >= LONGEST:
            return None
        encoded = self._compiled.encode(data)
        BYTE_PAIRS.loaded = True
        return encoded

    def _encode_piece(self, data: bytes) -> list[int]:
        if self.ignore_merges:
            alphabet = self._alphabet
            whole = self.view.find("".join([alphabet[byte] for byte in data]).encode())
            if whole >= 0:
                return [whole]
        table = self.view.byte_tokens
        ids = [table[byte] for byte in data]
        if len(ids) > 1:
            ids = self._merge_few(ids) if len(ids) <= _FEW else self._merge_many(ids)
        # A byte that is no token says nothing, as in llama.cpp; what is stored is checked when it is used.
        size = len(self.view)
        return (
            [self.view.checked(token_id) for token_id in ids if token_id >= 0]
            if max(ids) >= size or min(ids) < 0
            else ids
        )

    def _pair(self, left: int, right: int) -> tuple[int, int] | None:
        """Rank and result of a pair, remembered."""
        pairs = self._pairs
        key = (left, right)
        if key not in pairs:
            if len(pairs) >= _CACHED_PAIRS:
                pairs.clear()
            pairs[key] = self.view.merge(left, right)
        return pairs[key]

    def _merge_few(self, ids: list[int]) -> list[int]:
        """Merges by looking at all pairs each time."""
        pair = self._pair
        pairs = [pair(left, right) for left, right in pairwise(ids)]
        while True:
            best, at = None, 0
            for index, found in enumerate(pairs):
                if found is not None and (best is None or found[0] < best[0]):
                    best, at = found, index
            if best is None:
                return ids
            ids[at : at + 2] = [best[1]]
            del pairs[at]
            if at:
                pairs[at - 1] = pair(ids[at - 1], ids[at])
            if at < len(pairs):
                pairs[at] = pair(ids[at], ids[at + 1])

    def _merge_many(self, ids: list[int]) -> list[int]:
        """Merges with a heap of (rank, place); a pair that is out of date has another rank by now, or none."""
        from heapq import heapify, heappop, heappush

        pair, count = self._pair, len(ids)
        following, before = [*range(1, count), -1], list(range(-1, count - 1))
        pairs = [pair(left, right) for left, right in pairwise(ids)] + [None]
        heap = [found[0] << 32 | at for at, found in enumerate(pairs) if found is not None]
        heapify(heap)
        while heap:
            entry = heappop(heap)
            at, found = entry & 0xFFFFFFFF, pairs[entry & 0xFFFFFFFF]
            if found is None or found[0] != entry >> 32:
                continue
            gone = following[at]
            ids[at], pairs[gone] = found[1], None
            after = following[at] = following[gone]
            following[gone] = -2
            for left, right in ((before[at], at), (at, after)):
                if left < 0:
                    continue
                new = pairs[left] = pair(ids[left], ids[right]) if right >= 0 else None
                if new is not None:
                    heappush(heap, new[0] << 32 | left)
            if after >= 0:
                before[after] = at
        return [token_id for token_id, place in zip(ids, following, strict=True) if place != -2]
