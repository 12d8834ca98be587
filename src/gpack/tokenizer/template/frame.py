"""Where a running template keeps its variables and its output."""

from __future__ import annotations

from collections.abc import Mapping

from .budget import Budget
from .values import Missing, Value


class Run:
    """One rendering.

    Attributes:
        budget: What it may spend.
        names: What every template knows: functions.
        printed: The strings of the result so far.
        out: Where strings are printed now: `printed`, or the list of a macro or a block that is kept.
    """

    __slots__ = ("budget", "names", "out", "printed")

    def __init__(self, budget: Budget, names: Mapping[str, Value]) -> None:
        self.budget = budget
        self.names = names
        self.printed: list[str] = []
        self.out = self.printed

    def emit(self, shown: str) -> None:
        """Prints a string; what a macro prints counts as output when it is printed in its turn.

        Raises:
            FormatError: `chat.limit`.
        """
        if self.out is self.printed:
            self.budget.emit(len(shown))
        else:
            self.budget.make(len(shown))
        self.out.append(shown)


class Frame:
    """Variables of a template, a loop's turn, a macro's call or a block; names not here are the parent's."""

    __slots__ = ("parent", "run", "variables")

    def __init__(self, run: Run, variables: dict[str, Value], parent: Frame | None = None) -> None:
        self.run = run
        self.variables = variables
        self.parent = parent

    def inner(self, variables: dict[str, Value] | None = None) -> Frame:
        """A frame within this one."""
        return Frame(self.run, {} if variables is None else variables, self)

    def find(self, name: str) -> Value:
        """A variable's value; missing where there is none."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            frame = frame.parent
        if name in self.run.names:
            return self.run.names[name]
        return Missing(f"{name!r} is undefined")
