"""Plain text tables for people. They carry no colour and cut nothing off."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from gpack.errors import UsageError

_GAP = "  "


def printable(text: str) -> str:
    """The text with every character that is not printable as the escape that Python has for it.

    Names come from files that others made; raw control characters would command the terminal or break the table.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def render(rows: Iterable[Sequence[object]], headers: Sequence[str], align: str = "") -> str:
    """A table with a head, a rule of dashes and one line for each row.

    Args:
        rows: Cells, shown by `str`; None is an empty cell.
        headers: One heading for each column.
        align: One letter for each column, `l` or `r`. Left out, columns of numbers go to the right, others left.

    Returns:
        Lines joined by newlines, without one at the end and without trailing spaces.

    Raises:
        UsageError: `usage`: a row or `align` has another number of columns than `headers`, or another letter.
    """
    cells = [tuple(row) for row in rows]
    for index, row in enumerate(cells):
        if len(row) != len(headers):
            raise UsageError(f"row {index} has {len(row)} cells for {len(headers)} headings", code="usage")
    align = align or "".join(_natural_align(row[index] for row in cells) for index in range(len(headers)))
    if len(align) != len(headers) or not set(align) <= {"l", "r"}:
        raise UsageError(f"{align!r} is not one of 'l', 'r' for each of {len(headers)} columns", code="usage")
    texts = [[printable(heading) for heading in headers]]
    texts += [["" if cell is None else printable(str(cell)) for cell in row] for row in cells]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    texts.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(line, widths, align) for line in texts)


def _natural_align(column: Iterable[object]) -> str:
    present = [cell for cell in column if cell is not None]
    numbers = all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in present)
    return "r" if present and numbers else "l"


def _line(texts: Sequence[str], widths: Sequence[int], align: str) -> str:
    return _GAP.join(map(_pad, texts, widths, align)).rstrip()


def _pad(text: str, width: int, side: str) -> str:
    space = " " * (width - _width(text))
    return space + text if side == "r" else text + space


def _width(text: str) -> int:
    """Columns of a terminal that the text takes: wide East Asian characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(char_width(char) for char in text)


def char_width(char: str) -> int:
    """Columns of a terminal that a character takes."""
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"F", "W"} else 1


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
