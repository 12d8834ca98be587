"""Structs drawn byte by byte, sixteen to a row, as protocol specifications do."""

from __future__ import annotations

import re

from codegen.model import Field, Struct

ROW = 16
CELL = 6  # characters to a byte, the line at its left included
GUTTER = 6


def draw(item: Struct) -> str:
    """The diagram; every line ends without blanks."""
    owners = [f for f in item.fields for _ in range(f.type.size)]
    rows = [owners[start : start + ROW] for start in range(0, len(owners), ROW)]
    rulers = "".join(f"{index:^{CELL}}" for index in range(min(ROW, len(owners))))
    lines = [" " * GUTTER + " " + rulers]
    for index, row in enumerate(rows):
        above = rows[index - 1] if index else []
        lines.append(_border(above, row))
        lines += _row(item, index * ROW, row)
    lines.append(_border(rows[-1], []))
    return "\n".join(line.rstrip() for line in lines)


def _border(above: list[Field], below: list[Field]) -> str:
    """The line between two rows; a field that goes on below leaves it open."""
    line = " " * GUTTER
    count = max(len(above), len(below))
    for column in range(count + 1):
        sides = [_owner(row, column - step) for row in (above, below) for step in (1, 0)]
        upright = sides[0] is not sides[1] or sides[2] is not sides[3]
        left, right = sides[0] is not sides[2], sides[1] is not sides[3]
        line += "+" if upright and (left or right) else "-" if left or right else "|" if upright else " "
        if column < count:
            line += ("-" if right else " ") * (CELL - 1)
    return line


def _owner(row: list[Field], column: int) -> Field | None:
    return row[column] if 0 <= column < len(row) else None


def _row(item: Struct, start: int, row: list[Field]) -> list[str]:
    """A row of cells, as many lines high as its longest name needs."""
    cells: list[tuple[int, list[str]]] = []
    column = 0
    while column < len(row):
        f = row[column]
        width = row[column:].count(f)
        text = _wrapped(f, width * CELL - 1) if _label_row(f) == start // ROW else []
        cells.append((width * CELL - 1, text))
        column += width
    height = max(1, *(len(text) for _, text in cells))
    lines = []
    for index in range(height):
        shown = [text[index] if index < len(text) else "" for _, text in cells]
        line = "|".join(f"{text:^{width}}" for (width, _), text in zip(cells, shown, strict=True))
        number = f"{start:>{GUTTER - 2}}  " if index == 0 else " " * GUTTER
        lines.append(f"{number}|{line}|")
    return lines


def _label_row(f: Field) -> int:
    """The row that has most of the field, the first of those."""
    end = f.offset + f.type.size
    rows = range(f.offset // ROW, (end - 1) // ROW + 1)
    spans = {row: min(end, (row + 1) * ROW) - max(f.offset, row * ROW) for row in rows}
    return max(spans, key=lambda row: (spans[row], -row))


def _wrapped(f: Field, width: int) -> list[str]:
    """The field's name in lines that fit the cell, broken after underscores where that is possible."""
    name = f.name if f.type.count is None else f"{f.name}[{f.type.count}]"
    lines = [""]
    for word in re.findall(r"[^_]*_?", name):
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return [line[at : at + width] for line in lines for at in range(0, len(line), width)]
