"""States of texts that are kept, so that a prompt that begins like one of them is not read again.

A state holds memory that it may share with texts and with other states; all of them together take at most a budget.
Where the memory of the engine ends, the states that were not used for the longest time go first.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any, Protocol


class Kept(Protocol):
    """The state of a text: `engine.state.sequence.Checkpoint` is one."""

    @property
    def tokens(self) -> array[int]:
        """What it is the state after."""

    @property
    def position(self) -> int:
        """How many tokens there are."""

    @property
    def kind(self) -> object:
        """Which texts can go on from it: those of the same kind."""

    def can_reach(self, position: int) -> bool:
        """Whether a text can go on from its first tokens alone."""

    def parts(self) -> dict[int, int]:
        """Bytes of its pieces of memory, by what names them: pieces that states share count once."""


class PrefixStore:
    """States by their tokens. Its methods may be called from any thread.

    Attributes:
        budget: Most bytes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._kept: dict[bytes, Kept] = {}  # the one that was used last comes last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        with self._lock:
            return self._size()

    def keep(self, state: Kept) -> bool:
        """Keeps a state, and forgets others where the budget demands it; False where it alone is too large."""
        if not state.position or sum(state.parts().values()) > self.budget:
            return False
        key = _key(state)
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = state
            while self._size() > self.budget:
                del self._kept[next(iter(self._kept))]
            return True

    def find(self, tokens: Sequence[int], kind: object) -> tuple[Kept, int] | None:
        """The state from which most of the first tokens of a text need not be computed, and how many; or None.

        Args:
            tokens: What the text is to begin with.
            kind: Of the text.
        """
        wanted = array("i", tokens)
        with self._lock:
            best: tuple[int, bytes] | None = None
            for key, state in self._kept.items():
                if state.kind is kind and (reached := _reached(state, wanted)) and (best is None or reached >= best[0]):
                    best = reached, key
            if best is None:
                return None
            found = self._kept[best[1]] = self._kept.pop(best[1])
            return found, best[0]

    def states(self) -> list[Kept]:
        """All of them, the one that was used last at the end."""
        with self._lock:
            return list(self._kept.values())

    def forget(self) -> bool:
        """Forgets the state that was not used for the longest time; False where there is none."""
        with self._lock:
            if not self._kept:
                return False
            del self._kept[next(iter(self._kept))]
            return True

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._kept.clear()

    def _size(self) -> int:
        parts: dict[int, int] = {}
        for state in self._kept.values():
            parts |= state.parts()
        return sum(parts.values())


def common(one: Any, other: Any) -> int:
    """How many elements two arrays, or two lists, both begin with."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low + 1 < high:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


def _reached(state: Kept, wanted: array[int]) -> int:
    shared = common(state.tokens, wanted)
    return shared if shared == state.position or state.can_reach(shared) else 0


def _key(state: Kept) -> bytes:
    return id(state.kind).to_bytes(8, "little") + state.tokens.tobytes()
