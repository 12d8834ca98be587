"""What a template may spend: steps, characters, depth and time. Every loop, call and new string is charged here."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...errors import FormatError

_CLOCK_STEPS = 4096  # steps between looks at the clock


@dataclass(frozen=True)
class ChatLimits:
    """Limits of one rendering. Those on steps and characters grow with what is rendered.

    Attributes:
        steps: Nodes of the template evaluated in loops and calls, elements visited by filters; each character or
            element of the input adds `steps_per_input` to it.
        characters: Characters of all strings made, and elements of all lists, summed up; each character or element
            of the input adds `characters_per_input`.
        output: Characters of the result; the input's size is added to it.
        depth: Nested calls of macros and recursive loops, and nesting of values.
        seconds: Wall-clock time. The other limits end a template in bounded work; this one is for slow machines.
    """

    steps: int = 1_000_000
    steps_per_input: int = 20
    characters: int = 32_000_000
    characters_per_input: int = 64
    output: int = 4_000_000
    depth: int = 64
    seconds: float = 10.0


def limit(what: str, hint: str | None = None) -> FormatError:
    """The error of a limit."""
    return FormatError(what, code="chat.limit", section="chat template", hint=hint)


class Budget:
    """What is left of the limits in one rendering."""

    def __init__(self, limits: ChatLimits, input_size: int) -> None:
        self._limits = limits
        self._steps_limit = limits.steps + limits.steps_per_input * input_size
        self._steps = self._steps_limit
        self._characters_limit = limits.characters + limits.characters_per_input * input_size
        self._characters = self._characters_limit
        self._output_limit = limits.output + input_size
        self._output = self._output_limit
        self._depth = limits.depth
        self._look = max(self._steps - _CLOCK_STEPS, 0)
        self._deadline = time.monotonic() + limits.seconds
        self.max_depth = limits.depth

    def step(self, count: int = 1) -> None:
        """Charges work.

        Raises:
            FormatError: `chat.limit`.
        """
        self._steps -= count
        if self._steps < self._look:
            if self._steps < 0:
                raise limit(f"the template takes more than {self._steps_limit} steps")
            self._look = max(self._steps - _CLOCK_STEPS, 0)
            self._look_at_clock()

    def make(self, size: int) -> None:
        """Charges a string or list before it is made.

        Raises:
            FormatError: `chat.limit`.
        """
        self._characters -= size
        if self._characters < 0:
            raise limit(f"the template makes more than {self._characters_limit} characters of text")
        self._steps -= size >> 6
        if self._steps < self._look:
            self.step(0)

    def emit(self, size: int) -> None:
        """Charges output.

        Raises:
            FormatError: `chat.limit`.
        """
        self._output -= size
        if self._output < 0:
            raise limit(f"the template prints more than {self._output_limit} characters")

    def enter(self) -> None:
        """Goes one call deeper; `leave` comes back.

        Raises:
            FormatError: `chat.limit`.
        """
        self._depth -= 1
        if self._depth < 0:
            raise limit(f"the template's calls are nested more than {self._limits.depth} deep")

    def leave(self) -> None:
        """Ends a call."""
        self._depth += 1

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise limit(f"the template takes longer than {self._limits.seconds:g} seconds")
