"""Words wrap at the edge: what a terminal shows, by a terminal of few lines of Python."""

from __future__ import annotations

import random
import re
import textwrap

import pytest

from gpack.terminal.table import char_width
from gpack.terminal.wrap import Wrapper


class Screen:
    """A terminal that knows line feeds, tabs, going left and deleting to the end of the line."""

    def __init__(self, width: int) -> None:
        self.width, self.lines, self.column = width, [""], 0

    def write(self, text: str) -> None:
        for left, erase, char in re.findall(r"\x1b\[(\d+)D|(\x1b\[K)|([^\x1b])", text):
            if left:
                self.column -= int(left)
                assert self.column >= 0, "to the left of the edge"
            elif erase:
                self.lines[-1] = self.lines[-1][: self.column]
            elif char == "\n":
                self.lines.append("")
                self.column = 0
            else:
                step = 8 - self.column % 8 if char == "\t" else char_width(char)
                self.lines[-1] += " " * step if char == "\t" else char
                self.column += step
                assert self.column < self.width, f"beyond the edge: {self.lines[-1]!r}"


def shown(text: str, width: int, seed: int | None = None) -> list[str]:
    """What stands on a terminal after the text came in pieces."""
    screen, wrapper, pieces = Screen(width), Wrapper(width), random.Random(seed)
    while text:
        count = 1 if seed is None else pieces.randint(1, 9)
        screen.write(wrapper.feed(text[:count]))
        text = text[count:]
    return screen.lines


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("width", [12, 20, 61])
def test_lines_are_those_of_textwrap(width: int, seed: int | None) -> None:
    words = random.Random(5)
    text = " ".join("".join(words.choices("abcdefg", k=words.randint(1, 9))) for _ in range(200))
    wanted = textwrap.wrap(text, width - 1)
    assert [line.rstrip() for line in shown(text, width, seed)] == wanted


def test_line_feeds_and_indented_lines_stay() -> None:
    text = "one\n\n    def f():\n\treturn 1\n"
    assert shown(text, 40) == ["one", "", "    def f():", "        return 1", ""]


def test_a_word_longer_than_a_line_is_cut() -> None:
    assert shown("ab abcdefghijklmnopq x", 11) == ["ab ", "abcdefghij", "klmnopq x"]


def test_wide_characters_break_anywhere_and_combining_ones_never() -> None:
    assert shown("日本語日本語日本語", 10) == ["日本語日", "本語日本", "語"]
    assert shown("ab e\u0301e\u0301e\u0301", 6) == ["ab ", "e\u0301e\u0301e\u0301"]


def test_nothing_waits_for_the_end_of_a_word() -> None:
    wrapper = Wrapper(80)
    assert [wrapper.feed(piece) for piece in ("Hel", "lo", " wor")] == ["Hel", "lo", " wor"]
