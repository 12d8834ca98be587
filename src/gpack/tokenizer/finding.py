"""Which tokens of a set stand in a text: the longest first, then by id, each left to right, none upon another.

The time grows with the text and not with how many tokens begin at a place: of all that do, only the longest is looked
for, and a shorter one only where that one turned out to have no room. Each time that happens the room is less than half
of what it was, so a place is looked at a few times at most.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator, Sequence

    Match = tuple[tuple[int, int], int, int, int]

# Up to so many beginnings are searched for one by one, which is the fastest way; more by their first characters.
_FEW = 32


class TokenSet:
    """Tokens that can be found in texts.

    Args:
        tokens: Bytes and ids; those that are empty or no UTF-8 stand in no text. Of equal ones the lowest id counts.
    """

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        found: dict[str, tuple[int, int]] = {}
        for token, token_id in sorted(tokens, key=lambda item: item[1]):
            try:
                if token:
                    # llama.cpp compares lengths in bytes.
                    found.setdefault(token.decode(), (-len(token), token_id))
            except UnicodeDecodeError:
                continue
        self.texts = sorted(found)
        self.ranks = [found[text] for text in self.texts]
        # The longest other token that each one begins with, -1 where there is none, and a farther one: see `_ancestor`.
        self._parents, self._jumps = _chains(self.texts)
        self._longest = max(map(len, self.texts), default=0)
        self._beginnings = frozenset(text[:2] for text in self.texts)
        self._first: re.Pattern[str] | None = None
        if len(self._beginnings) > _FEW:
            import re  # the first word of a prompt does without

            characters = "".join(sorted({re.escape(text[0]) for text in self.texts}))
            self._first = re.compile(f"[{characters}]")

    def places(self, text: str) -> set[int]:
        """Where a token may begin; at all other places none does."""
        if self._first is None:
            return {at for beginning in self._beginnings for at in _occurrences(text, beginning)}
        known = self._beginnings
        starts = (match.start() for match in self._first.finditer(text))
        return {at for at in starts if text[at : at + 2] in known or text[at] in known}

    def longest(self, text: str, at: int, room: int) -> int:
        """Number of the longest token that begins at a place and has at most `room` characters; -1 where none does."""
        piece = text[at : at + min(room, self._longest)]
        # Every token that the piece begins with is the last one that is not greater than the piece, or one that this
        # one begins with.
        index = bisect_right(self.texts, piece) - 1
        if index < 0 or piece.startswith(self.texts[index]):
            return index
        return self._ancestor(index, _common(piece, self.texts[index]))

    def _ancestor(self, index: int, length: int) -> int:
        """The longest token of at most so many characters that a token begins with; -1 where there is none."""
        texts, parents, jumps = self.texts, self._parents, self._jumps
        while index >= 0 and len(texts[index]) > length:
            far = jumps[index]
            index = far if far >= 0 and len(texts[far]) > length else parents[index]
        return index


def find_tokens(text: str, sets: Sequence[tuple[TokenSet, bytes | None]]) -> list[tuple[int, int, int]]:
    """Start, end and id of the tokens in a text, by place.

    Args:
        sets: Tokens, and for those that count only where all their characters have a 1 in a mask, the mask.
    """

    def best(which: int, at: int, room: int) -> Match | None:
        tokens, mask = sets[which]
        if mask is not None:
            hidden = mask.find(0, at, at + room)
            room = room if hidden < 0 else hidden - at
        index = tokens.longest(text, at, room)
        return None if index < 0 else (tokens.ranks[index], at, which, at + len(tokens.texts[index]))

    heap: list[Match] = []
    for which, (tokens, _) in enumerate(sets):
        first = (best(which, at, len(text)) for at in tokens.places(text))
        heap += [match for match in first if match is not None]
    heapify(heap)
    taken = bytearray(len(text))
    chosen = []
    while heap:
        (_, token_id), at, which, end = heappop(heap)
        hit = taken.find(1, at, end)
        if hit < 0:
            taken[at:end] = b"\1" * (end - at)
            chosen.append((at, end, token_id))
        elif hit > at:
            shorter = best(which, at, hit - at)
            if shorter is not None:
                heappush(heap, shorter)
    chosen.sort()
    return chosen


def _occurrences(text: str, piece: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)


def _common(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _chains(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """For each of sorted texts the longest other one that it begins with, and one that is farther back.

    A jump leads as far as its parent's two jumps where these are equally long, else to the parent, so any place of a
    chain is reached in a number of steps that grows with the logarithm of its length (Myers, 1983).
    """
    parents: list[int] = []
    jumps: list[int] = []
    depths: list[int] = []
    open_texts: list[int] = []
    for index, text in enumerate(texts):
        while open_texts and not text.startswith(texts[open_texts[-1]]):
            open_texts.pop()
        parent = open_texts[-1] if open_texts else -1
        far = jumps[parent] if parent >= 0 else -1
        farther = jumps[far] if far >= 0 else -1
        if far >= 0 and farther >= 0 and depths[parent] - depths[far] == depths[far] - depths[farther]:
            jumps.append(farther)
        else:
            jumps.append(parent)
        parents.append(parent)
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        open_texts.append(index)
    return parents, jumps
