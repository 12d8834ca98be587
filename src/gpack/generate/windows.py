"""The logits after each token of a text: one step for each, or one for some where they were drafted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .drafting import AutoLength, Drafter, DraftStats, FixedLength


class Decoder(Protocol):
    """What is needed of a session: tokens in, logits of the last one out, and a cache that can be cut."""

    n_vocab: int
    n_ctx: int

    @property
    def position(self) -> int:
        """Tokens in the cache."""

    def decode(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Appends tokens to the cache; float32 [n_vocab]."""

    def propose(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after each of some tokens, float32 [len(ids), n_vocab], none of which is in the cache yet."""

    def accept(self, count: int) -> None:
        """The first so many of them are from now on."""

    def rewind(self, position: int) -> int:
        """Forgets the tokens from this position on, or from an earlier one that can be reached, which is returned."""

    @property
    def is_trimmable(self) -> bool:
        """Whether `rewind` always reaches the position that it is asked for."""

    @property
    def kind(self) -> object:
        """The kind of `checkpoint`s that it can resume."""

    @property
    def state_budget(self) -> int:
        """Most bytes of the states of all texts."""

    def relieve(self, forget: Callable[[], bool]) -> None:
        """`forget` is called where memory ends."""

    def checkpoint(self) -> Any:
        """The cache as it is now, to `resume`."""

    def reachable(self, position: int) -> int:
        """What `rewind` would return."""

    def resume(self, checkpoint: Any, position: int) -> None:
        """Makes the cache the first tokens of a checkpoint."""

    def close(self) -> None:
        """Frees the cache."""


class Cache(Protocol):
    """What windows need of a text's cache, which knows its tokens."""

    session: Decoder

    def decode(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """As `Decoder.decode`."""

    def accept(self, ids: Sequence[int]) -> None:
        """These tokens, the first that were proposed, are in the cache from now on."""


class Windows:
    """Goes through a text token by token; of tokens that were drafted the rows are there already.

    The cache holds what it would hold without drafts whenever `end` was called.
    """

    def __init__(
        self, cache: Cache, prompt: Sequence[int], drafter: Drafter | None, length: FixedLength | AutoLength
    ) -> None:
        """Begins after a prompt."""
        self._cache, self._drafter, self._length = cache, drafter, length
        self._text = list(prompt)
        self._drafts: list[int] = []
        self._rows: npt.NDArray[np.float32] | None = None  # after the token before the drafts, and after each of them
        self._used = 0  # drafts that were accepted so far
        self._seconds = 0.0
        self.stats = DraftStats(None if drafter is None else drafter.name)

    def after(self, token: int, most: int) -> npt.NDArray[np.float32]:
        """The logits after one more token, of which the text goes on with at most `most` more."""
        rows = self._rows
        if rows is not None and self._used < len(self._drafts) and self._drafts[self._used] == token:
            self._used += 1
            self._text.append(token)
            row: npt.NDArray[np.float32] = rows[self._used]
            return row
        self.end(refused=rows is not None and self._used < len(self._drafts))
        self._text.append(token)
        return self._step(token, most)

    def _step(self, token: int, most: int) -> npt.NDArray[np.float32]:
        started = time.perf_counter()
        session, drafts = self._cache.session, list[int]()
        room = min(most - 1, session.n_ctx - session.position - 1)
        if self._drafter is not None and room > 0 and (count := self._length.choose(room)):
            drafts = self._drafter.draft(self._text, count)
        self.stats.off = self._length.off
        if not drafts:
            logits = self._cache.decode([token])
            self._length.note(0, 0, time.perf_counter() - started, refused=False)
            return logits
        rows = session.propose([token, *drafts])
        self._rows, self._drafts, self._used = rows, drafts, 0
        self._seconds = time.perf_counter() - started
        first: npt.NDArray[np.float32] = rows[0]
        return first

    def end(self, *, refused: bool = False) -> None:
        """Brings the cache to the text; `refused`: the text went on in another way than the draft."""
        if self._rows is None:
            return
        started, self._rows = time.perf_counter(), None
        self._cache.accept(self._text[len(self._text) - self._used - 1 :])
        seconds = self._seconds + time.perf_counter() - started
        self.stats.note(self._used, refused=refused)
        self._length.note(len(self._drafts), self._used, seconds, refused=refused)
