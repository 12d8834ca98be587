"""What is learnt of steps: what they take, and how often drafts of a text are right."""

from __future__ import annotations

MOST_DRAFTS = 15  # of a text in a step
_FIRST, _WEIGHT = 0.5, 2.0  # what is believed of a draft being right before anything is known, and how firmly
_FORGETS = 0.95  # how much older windows count against the newest one
_PAUSE, _LONGEST_PAUSE = 32, 512  # steps without drafts of a text before the next try
_ROW, _FIRM = 0.15, 8.0  # of the time of one row that a further row takes, before that was measured; how firmly
_STEP_SECONDS, _FIRST_ROWS = 0.1, 64  # that a step with rows of prompts may take; rows before that was measured
_MATTER = 16  # rows of prompts from which on a step says how long rows take
_KEEPS = 0.97  # how much older steps count
_WARM = 3  # steps whose time is not learnt: memory is touched for the first time


class Chances:
    """How often drafts of one text are right, by their place.

    Attributes:
        wait: Steps without drafts until the next try.
    """

    def __init__(self) -> None:
        self._tried = [0.0] * MOST_DRAFTS
        self._right = [0.0] * MOST_DRAFTS
        self._pause = _PAUSE
        self.wait = 0

    def cumulative(self) -> list[float]:
        """For each place the chance that it and all before it are right."""
        made, chance, before = [], 1.0, _FIRST
        for tried, right in zip(self._tried, self._right, strict=True):
            before = (right + before * _WEIGHT) / (tried + _WEIGHT)
            chance *= before
            made.append(chance)
        return made

    def note(self, right: int, *, refused: bool) -> None:
        """So many were right; `refused`: one more was looked at."""
        self._forget(_FORGETS)
        for place in range(right + refused):
            self._tried[place] += 1
            self._right[place] += place < right
        if right:
            self._pause = _PAUSE

    def rest(self) -> None:
        """Nothing is gained now: after a while what was learnt may be old."""
        self.wait, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._forget(0.5)

    def _forget(self, share: float) -> None:
        self._tried = [share * value for value in self._tried]
        self._right = [share * value for value in self._right]


class StepCost:
    """What steps take, as a line over their rows: `first` seconds, and `row` for each."""

    def __init__(self) -> None:
        self._steps = 0
        self._count = self._rows = self._squares = self._times = self._products = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough was measured to tell."""
        return self._count > 1

    def note(self, rows: int, seconds: float) -> None:
        """Learns from a step."""
        self._steps += 1
        if self._steps <= _WARM:
            return
        if self.is_known:
            seconds = min(seconds, 3 * self.seconds(rows))  # something else had the machine
        self._count = _KEEPS * self._count + 1
        self._rows = _KEEPS * self._rows + rows
        self._squares = _KEEPS * self._squares + rows * rows
        self._times = _KEEPS * self._times + seconds
        self._products = _KEEPS * self._products + rows * seconds

    def seconds(self, rows: float) -> float:
        """What a step of so many rows is expected to take."""
        mean_rows, mean = self._rows / self._count, self._times / self._count
        spread = self._squares - mean_rows * self._rows
        slope = self._products - mean_rows * self._times
        believed = _ROW * mean / (1 + _ROW * (mean_rows - 1))
        each = max(0.0, (slope + believed * _FIRM) / (spread + _FIRM))
        return max(mean + each * (rows - mean_rows), 0.1 * mean)


class Pace:
    """How many rows a step with prompts may have.

    Attributes:
        row: Seconds of a row; 0: not measured yet.
    """

    def __init__(self) -> None:
        self.row = 0.0

    @property
    def rows(self) -> int:
        """So many."""
        return int(_STEP_SECONDS / self.row) if self.row else _FIRST_ROWS

    def note(self, rows: int, read: int, seconds: float) -> None:
        """Learns from a step of so many rows, some of which were of prompts."""
        if read >= _MATTER:
            self.row = 0.7 * self.row + 0.3 * seconds / rows if self.row else seconds / rows
