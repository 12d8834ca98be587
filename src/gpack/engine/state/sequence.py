"""A text in the engine: its tokens, and the state after them."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Self

from ...errors import UsageError
from .states import Layouts, TextState


@dataclass(frozen=True)
class Checkpoint:
    """The state of a text at a position; it holds memory as long as it is referred to.

    `Sequence.restore` returns to it, also after the text was truncated or rewound.
    """

    state: TextState
    tokens: array[int]

    @property
    def position(self) -> int:
        """How many tokens the text had."""
        return self.state.position


class Sequence:
    """One text. An engine makes it and carries it on; use it as a context manager, or call `close`.

    Sequences may be made, forked and closed from any thread; a text that is in a step stays as it was until the step
    ends.

    Attributes:
        n_ctx: Most tokens of the text.
        cache_type: How its keys and values are kept.
        owner: The engine.
    """

    def __init__(self, owner: object, layouts: Layouts, *, n_ctx: int, cache_type: str) -> None:
        """`Engine.sequence` is the way to make one."""
        self.owner, self.n_ctx, self.cache_type = owner, n_ctx, cache_type
        self._tokens = array("i")
        self._state = TextState.empty(layouts)
        self._closed = False
        self.writer = object()  # by which blocks know the text that may write to them
        self._lock = threading.Lock()  # between marking blocks as shared and cutting the text

    @property
    def position(self) -> int:
        """Tokens that are committed; the next one's position."""
        return self._state.position

    @property
    def tokens(self) -> list[int]:
        """The committed tokens."""
        return self._tokens[: self._state.position].tolist()

    @property
    def state(self) -> TextState:
        """The committed state."""
        return self._state

    @property
    def nbytes(self) -> int:
        """Bytes of state that the text refers to; what it shares with other texts counts for each of them."""
        return self._state.nbytes

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def note(self, tokens: Tokens[int]) -> None:
        """Keeps tokens that a step is about to append; they count when `commit` does."""
        self._tokens[self._state.position :] = array("i", tokens)

    def commit(self, state: TextState) -> None:
        """Makes a later state the one that counts: one assignment. A text that was closed meanwhile stays closed."""
        with self._lock:
            if not self._closed:
                self._state = state

    def can_truncate(self, position: int) -> bool:
        """Whether `truncate` can reach a position.

        Recurrent layers and windows have forgotten what is needed for some.
        """
        return 0 <= position <= self.position and self._state.can_truncate(position)

    def truncate(self, position: int) -> None:
        """Forgets all tokens from a position on.

        Raises:
            UsageError: `engine.position`: the text is not that long, or its state does not allow it; see `rewind`.
        """
        self._check(position)
        with self._lock:
            if not self._state.can_truncate(position):
                raise UsageError(
                    f"a text of {self.position} tokens cannot be truncated to {position}: its layers have forgotten"
                    " what came before",
                    code="engine.position",
                    field="position",
                    hint="restore a checkpoint, or rewind and compute the rest again",
                )
            self._state = self._state.truncated(position)

    def rewind(self, position: int, *checkpoints: Checkpoint) -> int:
        """Returns to a position, or to the nearest one before it that can be reached: the rest is to be computed again.

        Args:
            position: At most that of the text.
            checkpoints: Of this text, which may be nearer than its beginning.

        Returns:
            The position that was reached.

        Raises:
            UsageError: `engine.position`: the text is not that long.
        """
        self._check(position)
        if self.can_truncate(position):
            self.truncate(position)
            return position
        usable = [known for known in checkpoints if known.position <= position and self._continues(known)]
        if usable:
            self.restore(max(usable, key=lambda known: known.position))
        else:
            self.truncate(0)
        return self.position

    def fork(self) -> Self:
        """Another text that begins like this one; memory is shared until one of them writes."""
        self._check(0)
        with self._lock:
            state = self._state.shared()
            made = type(self)(self.owner, state.layouts, n_ctx=self.n_ctx, cache_type=self.cache_type)
            made._tokens = self._tokens[: state.position]
            made._state = state
        return made

    def checkpoint(self) -> Checkpoint:
        """The text as it is now, to return to."""
        self._check(0)
        with self._lock:
            state = self._state.shared()
            return Checkpoint(state, self._tokens[: state.position])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Returns to a checkpoint of this text, or of one that it is a fork of.

        Raises:
            UsageError: `engine.position`: it belongs to a text of another engine or another type of cache.
        """
        self._check(0)
        if checkpoint.state.layouts is not self._state.layouts:
            raise UsageError(
                "the checkpoint belongs to a text of another engine or type of cache", code="engine.position"
            )
        with self._lock:
            self._tokens = checkpoint.tokens[:]
            self._state = checkpoint.state.shared()

    def close(self) -> None:
        """Gives back the text's memory; a second call does nothing."""
        self._closed = True
        with self._lock:
            self._state = TextState.empty(self._state.layouts)
            del self._tokens[:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continues(self, checkpoint: Checkpoint) -> bool:
        return (
            checkpoint.state.layouts is self._state.layouts and self._tokens[: checkpoint.position] == checkpoint.tokens
        )

    def _check(self, position: int) -> None:
        """Refuses a closed text, and positions that it does not have."""
        if self._closed:
            raise UsageError("the text is closed", code="engine.sequence", field="sequence")
        if not 0 <= position <= self.position:
            raise UsageError(
                f"there is no position {position} in a text of {self.position} tokens",
                code="engine.position",
                field="position",
            )
