"""A text in the engine: its tokens, and the state after them."""

from __future__ import annotations

import operator
import threading
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Self

from ...errors import UsageError
from .pool import Block
from .states import Floats, Layouts, TextState
from .turns import Turns


@dataclass(frozen=True, eq=False)
class OpenChunk:
    """Tokens whose rows were computed and do not count yet: `Engine.accept` says how many of them do.

    It is void once its text changes in another way, or is in another step.

    Attributes:
        sequence: The text.
        tokens: All of them.
        before: The text's state, which counts as long as nothing was accepted.
        state: The same with room for the tokens.
        after, kept: Recurrent states after all tokens, and what these depend on of each; None where there are none.
        seeds: [tokens, width], where a draft layer goes on from them.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    before: TextState
    state: TextState
    after: Block | None
    kept: Block | None
    seeds: Floats | None = None

    @property
    def is_void(self) -> bool:
        """Whether it can no longer be accepted."""
        return self.sequence.opened is not self or self.sequence.state is not self.before


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

    @property
    def kind(self) -> object:
        """Texts of which kind can return to it: those of one engine with one type of cache."""
        return self.state.layouts

    def can_reach(self, position: int) -> bool:
        """Whether a text that returned to it can be truncated to a position."""
        return self.state.can_truncate(position)

    def parts(self) -> dict[int, int]:
        """Bytes of the pieces of memory that it holds, by their number; texts and checkpoints may share them."""
        return {id(block): block.memory.nbytes for block in self.state.blocks()}


class Sequence:
    """One text. An engine makes it and carries it on; use it as a context manager, or call `close`.

    Sequences may be made, forked and closed from any thread; a text that is in a step stays as it was until the step
    ends. Whatever shortens or replaces a text waits for that.

    Attributes:
        n_ctx: Most tokens of the text.
        cache_type: How its keys and values are kept.
        owner: The engine.
        opened: What the last step computed for the text and left open.
    """

    def __init__(
        self,
        owner: object,
        layouts: Layouts,
        *,
        n_ctx: int,
        cache_type: str,
        turns: Turns,
        draft: Layouts | None = None,
    ) -> None:
        """`Engine.sequence` is the way to make one; `turns` are those of its steps."""
        self.owner, self.n_ctx, self.cache_type = owner, n_ctx, cache_type
        self._turns = turns
        # The state and the tokens are replaced together: an interrupt finds the old ones or the new. Of the tokens only
        # those before the state's position count.
        self._content = TextState.empty(layouts, draft), array("i")
        self._closed = False
        self.opened: OpenChunk | None = None
        self.writer = object()  # by which blocks know the text that may write to them
        self._lock = threading.Lock()  # between marking blocks as shared and cutting the text

    @property
    def position(self) -> int:
        """Tokens that are committed; the next one's position."""
        return self.state.position

    @property
    def tokens(self) -> list[int]:
        """The committed tokens."""
        state, tokens = self._content
        return tokens[: state.position].tolist()

    def between(self, first: int, end: int) -> list[int]:
        """The committed tokens from one position to before another."""
        state, tokens = self._content
        return tokens[first : min(end, state.position)].tolist()

    def last(self, count: int) -> Tokens[int]:
        """The last committed tokens: so many, or all."""
        state, tokens = self._content
        return tokens[max(0, state.position - count) : state.position]

    @property
    def state(self) -> TextState:
        """The committed state."""
        return self._content[0]

    @property
    def nbytes(self) -> int:
        """Bytes of state that the text refers to; what it shares with other texts counts for each of them."""
        return self.state.nbytes

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def note(self, tokens: Tokens[int]) -> None:
        """Keeps tokens that a step is about to append; they count when `commit` does."""
        state, noted = self._content
        noted[state.position :] = array("i", tokens)

    def commit(self, state: TextState) -> None:
        """Makes a later state the one that counts: one assignment. A text that was closed meanwhile stays closed."""
        with self._lock:
            if not self._closed:
                self._content = state, self._content[1]

    def exchange(self, before: TextState, state: TextState) -> None:
        """Puts one state of the same tokens in the place of another, where that is still the text's."""
        with self._lock:
            if not self._closed and self.state is before:
                self._content = state, self._content[1]

    def can_truncate(self, position: int) -> bool:
        """Whether `truncate` can reach a position.

        Recurrent layers and windows have forgotten what is needed for some.
        """
        return 0 <= position <= self.position and self.state.can_truncate(position)

    def truncate(self, position: int) -> None:
        """Forgets all tokens from a position on.

        Raises:
            UsageError: `engine.position`: the text is not that long, or its state does not allow it; see `rewind`.
        """
        position = self._checked(position)
        with self._turns.take(), self._lock:
            if position > self.position or not self.state.can_truncate(position):
                raise UsageError(
                    f"a text of {self.position} tokens cannot be truncated to {position}: its layers have forgotten"
                    " what came before",
                    code="engine.position",
                    field="position",
                    hint="restore a checkpoint, or rewind and compute the rest again",
                )
            self._content = self.state.truncated(position), self._content[1]

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
        position = self._checked(position)
        if self.can_truncate(position):
            self.truncate(position)
            return position
        nearest = self._nearest(position, checkpoints)
        if nearest is None:
            self.truncate(0)
        else:
            self.restore(nearest)
        return self.position

    def reachable(self, position: int, *checkpoints: Checkpoint) -> int:
        """What `rewind` would return."""
        if self.can_truncate(position):
            return position
        nearest = self._nearest(position, checkpoints)
        return 0 if nearest is None else nearest.position

    def _nearest(self, position: int, checkpoints: Tokens[Checkpoint]) -> Checkpoint | None:
        usable = [known for known in checkpoints if known.position <= position and self._continues(known)]
        return max(usable, key=lambda known: known.position, default=None)

    def fork(self) -> Self:
        """Another text that begins like this one; memory is shared until one of them writes."""
        self._checked(0)
        with self._lock:
            state = self.state.shared()
            made = type(self)(
                self.owner, state.layouts, n_ctx=self.n_ctx, cache_type=self.cache_type, turns=self._turns
            )
            made._content = state, self._content[1][: state.position]
        return made

    def checkpoint(self) -> Checkpoint:
        """The text as it is now, to return to."""
        self._checked(0)
        with self._lock:
            state = self.state.shared()
            return Checkpoint(state, self._content[1][: state.position])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Returns to a checkpoint of this text, or of one that it is a fork of.

        Raises:
            UsageError: `engine.position`: it belongs to a text of another engine or another type of cache;
                `engine.context`: it is longer than this text may be.
        """
        self._checked(0)
        if not isinstance(checkpoint, Checkpoint):
            raise UsageError(f"{checkpoint!r} is no checkpoint", code="usage", field="checkpoint")
        if checkpoint.state.layouts is not self.state.layouts:
            raise UsageError(
                "the checkpoint belongs to a text of another engine or type of cache", code="engine.position"
            )
        if checkpoint.position > self.n_ctx:
            raise UsageError(
                f"the checkpoint has {checkpoint.position} tokens, the text has room for {self.n_ctx}",
                code="engine.context",
                field="n_ctx",
            )
        with self._turns.take(), self._lock:
            if not self._closed:
                self._content = checkpoint.state.shared(), checkpoint.tokens[:]

    def return_to(self, state: TextState) -> None:
        """Returns to a state that this text had, since when tokens were only added."""
        with self._lock:
            if not self._closed:
                self._content = state, self._content[1]

    def close(self) -> None:
        """Gives back the text's memory; a second call does nothing."""
        self._closed = True
        self.opened = None
        with self._lock:
            self._content = TextState.empty(self.state.layouts), array("i")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continues(self, checkpoint: Checkpoint) -> bool:
        state, tokens = self._content
        return checkpoint.state.layouts is state.layouts and tokens[: checkpoint.position] == checkpoint.tokens

    def _checked(self, position: int) -> int:
        """A position; refuses a closed text, and positions that it does not have."""
        if self._closed:
            raise UsageError("the text is closed", code="engine.sequence", field="sequence")
        try:
            position = operator.index(position)
        except TypeError as error:
            raise UsageError(f"{position!r} is not a position", code="usage", field="position") from error
        if not 0 <= position <= self.position:
            raise UsageError(
                f"there is no position {position} in a text of {self.position} tokens",
                code="engine.position",
                field="position",
            )
        return position
