"""Words that wrap at a terminal's edge, though they come piece by piece."""

from __future__ import annotations

from .table import char_width


class Wrapper:
    """Text on its way to a terminal.

    A word that turns out to be too long for its line is taken back and stands on the next one, so that nothing waits
    for the end of a word. Wide characters, which know no words, break anywhere.
    """

    def __init__(self, width: int) -> None:
        """Begins at the left edge.

        Args:
            width: Columns of the terminal. The last one stays free: terminals differ in what follows there.
        """
        self._limit = max(width - 1, 1)
        self._column = 0
        self._word = ""  # what stands of the current word, and its columns
        self._taken = 0

    def feed(self, text: str) -> str:
        """What to write for a piece of text."""
        return "".join(map(self._next, text))

    def _next(self, char: str) -> str:
        if char == "\n":
            self._column = 0
            return self._begin(char)
        columns = 8 - self._column % 8 if char == "\t" else char_width(char)
        if self._column + columns <= self._limit:
            self._column += columns
            return self._begin(char) if char in " \t" or columns > 1 else self._go_on(char, columns)
        if char in " \t":  # at the edge it is the line's end
            self._column = 0
            return self._begin("\n")
        if columns > 1 or not self._word or self._taken + columns > self._limit:
            self._column = columns
            self._begin("")
            return "\n" + (char if columns > 1 else self._go_on(char, columns))
        moved, taken = self._word, self._taken
        self._column = taken + columns
        return f"\x1b[{taken}D\x1b[K\n{moved}" + self._go_on(char, columns)

    def _begin(self, char: str) -> str:
        self._word, self._taken = "", 0
        return char

    def _go_on(self, char: str, columns: int) -> str:
        self._word += char
        self._taken += columns
        return char
