"""Guesses of the next tokens, which the model then computes in one step: those it would have chosen itself are kept.

A draft never changes a text: it is accepted where it is the token that is chosen at its position anyway. It only
changes how many steps the text takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..errors import UsageError

Draft = int | Literal["auto", "off"]
MOST_DRAFTS = 31  # of a step

_MOST_AUTO = 15
_MATCH = 3  # tokens that must stand earlier in the text for the n-gram drafter
# How much the newest of some times counts, where it is longer or shorter: nothing makes a step shorter than it is.
_UP, _DOWN = 0.1, 0.4
_FORGETS = 0.95  # how much older windows count against the newest one
_FIRST, _FIRST_WEIGHT, _WEIGHT = 0.5, 1.5, 2.0  # what is believed of acceptance before there is any
_ROW, _LEAST_ROW = 0.2, 0.03  # steps that a further row takes, before that was measured, and at least
_FIRST_TIMES = 3  # that count as they are
_FIRST_STEPS = 2  # without drafts, whose time is measured
_LEAST_GAIN = 1.03
_PAUSE, _LONGEST_PAUSE = 32, 512  # steps without drafts before the next try
_MEASURED_EACH = 64  # windows between two steps of one row


def draft_option(value: Any) -> Draft:
    """How many tokens to draft.

    Raises:
        UsageError: It is neither `auto` nor `off` nor a whole number from 0 to 31.
    """
    if value in ("auto", "off"):
        chosen: Draft = value
        return chosen
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_DRAFTS:
        return value or "off"
    raise UsageError(f"draft is {value!r}, not auto, off, or a number up to {MOST_DRAFTS}", code="usage", field="draft")


@dataclass
class DraftStats:
    """What became of drafts.

    Attributes:
        by: What drafts: `ngram` or `mtp`; None: nothing does.
        windows: Steps that had drafts.
        tried: By place in the draft, from the first: how often all before it were accepted, so that it was looked at.
        accepted: How often it was accepted.
        off: Why nothing is drafted now; None where something is.
        left_out: Why the model's draft layer is not used, where it has one.
    """

    by: str | None = None
    windows: int = 0
    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    off: str | None = None
    left_out: str | None = None

    def note(self, accepted: int, *, refused: bool) -> None:
        """Counts a window of which so many drafts were accepted; `refused`: one more was looked at."""
        self.windows += 1
        looked = accepted + refused
        self.tried += [0] * (looked - len(self.tried))
        self.accepted += [0] * (looked - len(self.accepted))
        for place in range(looked):
            self.tried[place] += 1
            self.accepted[place] += place < accepted

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**vars(self)}


class Drafter(Protocol):
    """Guesses how a text goes on.

    Attributes:
        name: For statistics.
    """

    name: str

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many tokens that may follow a text, none where there is no idea.

        Args:
            tokens: The whole text, the last token among it that is not computed yet.
            most: 1 or more.
        """


class NgramDrafter:
    """What followed when the last tokens stood in the text before: for answers that quote, list or repeat."""

    name = "ngram"

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}  # of some tokens, where the text went on after them
        self._known = 0  # tokens whose places are noted

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """As `Drafter`, of a text that only grows; one that repeats itself is drafted beyond its end."""
        at = None
        for end in range(max(self._known + 1, _MATCH), len(tokens) + 1):
            key = tuple(tokens[end - _MATCH : end])
            at = self._places.get(key)
            self._places[key] = end
        self._known = len(tokens)
        if at is None:
            return []
        made = list(tokens[at : at + most])
        period = len(tokens) - at
        while len(made) < most:
            made.append(made[len(made) - period])
        return made


class DraftingSession(Protocol):
    """A session of a model with a draft layer."""

    def draft(self, token: int, most: int) -> list[int]:
        """As `Session.draft`."""


class MtpDrafter:
    """The model's own draft layer."""

    name = "mtp"

    def __init__(self, session: DraftingSession) -> None:
        self._session = session

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """As `Drafter`; the session holds all tokens but the last."""
        return self._session.draft(tokens[-1], most)


class FixedLength:
    """So many drafts, always."""

    off: str | None = None

    def __init__(self, length: int) -> None:
        self._length = length

    def choose(self, most: int) -> int:
        """How many to draft now, of at most so many."""
        return min(self._length, most)

    def note(self, drafts: int, accepted: int, seconds: float, *, refused: bool) -> None:
        """Nothing is learnt."""


class AutoLength:
    """The length that gives most tokens in a second, by what steps took and what was accepted.

    A step of n drafts is taken to cost that of none and n times a row; acceptance is learnt for each place of a draft.

    Attributes:
        off: Why nothing is drafted; None where something is.
    """

    def __init__(self, most: int) -> None:
        self.off: str | None = None
        self._most = most
        self._step = 0.0  # seconds of a step without drafts
        self._row = _ROW  # such steps that each draft adds
        self._singles = self._rows = 0  # times of these that were measured
        self._is_warm = False
        self._tried = [0.0] * most
        self._accepted = [0.0] * most
        self._wait, self._pause, self._windows = 0, _PAUSE, 0

    def choose(self, most: int) -> int:
        """How many to draft now, of at most so many."""
        if self._singles < _FIRST_STEPS:
            return 0
        if self._wait:
            self._wait -= 1
            if self._wait:
                return 0
            self._forget(0.5)  # what was learnt may be old
            self._row = (self._row + _ROW) / 2
        if self._windows >= _MEASURED_EACH:
            self._windows = 0
            return 0
        length, gain = self._best()
        if not length:
            self._rest(gain)
            return 0
        return min(length, most)

    def note(self, drafts: int, accepted: int, seconds: float, *, refused: bool) -> None:
        """Learns from a step of some drafts, of which so many were accepted; `refused`: one more was looked at."""
        if not drafts:
            self._singles += 1
            self._step = _nearer(self._step, seconds, self._singles, _DOWN)
            return
        self._windows += 1
        if self._is_warm and self._step:  # the first draft of a text may go through all of its prompt
            self._rows += 1
            row = max(_LEAST_ROW, (seconds / self._step - 1) / drafts)
            self._row = _nearer(self._row, row, self._rows, _UP)
        self._is_warm = True
        self._forget(_FORGETS)
        for place in range(accepted + refused):
            self._tried[place] += 1
            self._accepted[place] += place < accepted
        if accepted:
            self._pause, self.off = _PAUSE, None

    def _best(self) -> tuple[int, float]:
        """The best length, and how many times as fast as no drafts it is; 0 where none gains."""
        best, gain, least = 0, 0.0, _LEAST_GAIN
        tokens, chance, before, weight = 1.0, 1.0, _FIRST, _FIRST_WEIGHT
        for place in range(self._most):
            before = (self._accepted[place] + before * weight) / (self._tried[place] + weight)
            weight = _WEIGHT
            chance *= before
            tokens += chance
            found = tokens / (1 + (place + 1) * self._row)
            gain = max(gain, found)
            if found > least:
                best, least = place + 1, found
        return best, gain

    def _rest(self, gain: float) -> None:
        chance = (self._accepted[0] + _FIRST * _FIRST_WEIGHT) / (self._tried[0] + _FIRST_WEIGHT)
        self.off = f"{chance:.0%} of first drafts right, {self._row:.2f} steps for each draft: {gain:.2f} times as fast"
        self._wait, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)

    def _forget(self, share: float) -> None:
        self._tried = [share * value for value in self._tried]
        self._accepted = [share * value for value in self._accepted]


def length_of(draft: Draft) -> FixedLength | AutoLength:
    """How many tokens to draft from step to step."""
    return AutoLength(_MOST_AUTO) if draft == "auto" else FixedLength(0 if draft == "off" else draft)


def _nearer(before: float, now: float, count: int, down: float) -> float:
    """A running mean of times of which this is number `count`; what disturbs some of them hardly moves it.

    Args:
        down: How much a shorter time counts.
    """
    if count > _FIRST_TIMES:
        now = min(now, 2 * before)
    return before + max(1 / count, down if now < before else _UP) * (now - before)
