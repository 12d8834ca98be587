"""Tables as they appear, letter for letter."""

from __future__ import annotations

import pytest

from gpack.errors import UsageError
from gpack.terminal.table import printable, render


def test_numbers_go_to_the_right() -> None:
    text = render([("HeadBlob", 7, "98.4 MiB"), ("PleBlob", 12345, "1 B")], ["section", "items", "size"], "lrr")
    assert text.split("\n") == [
        "section   items      size",
        "--------  -----  --------",
        "HeadBlob      7  98.4 MiB",
        "PleBlob   12345       1 B",
    ]


def test_alignment_follows_the_cells() -> None:
    assert render([("a", 1, None), ("bb", 22, 0.5), ("", None, True)], ["x", "n", "mixed"]).split("\n") == [
        "x    n  mixed",
        "--  --  -----",
        "a    1",
        "bb  22  0.5",
        "        True",
    ]


def test_no_rows_leave_the_head() -> None:
    assert render([], ["name", "size"]) == "name  size\n----  ----"


def test_nothing_is_cut() -> None:
    name = "blk.0." + "x" * 500
    assert name in render([(name,)], ["tensor"])


def test_wide_and_combining_characters_keep_the_columns() -> None:
    assert render([("模型", 1), ("e\u0301", 2), ("abcd", 3)], ["name", "n"]).split("\n")[2:] == [
        "模型  1",
        "e\u0301     2",
        "abcd  3",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blk.0.attn_q.weight", "blk.0.attn_q.weight"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\t", "two\\nlines\\t"),
        ("\u202egnp", "\\u202egnp"),
        ("\udcff", "\\udcff"),
        ("模型 é", "模型 é"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert render([(text,)], ["h"]).split("\n")[2:] == [expected]


@pytest.mark.parametrize(
    ("rows", "align"), [([("a",)], ""), ([("a", "b", "c")], ""), ([("a", "b")], "l"), ([("a", "b")], "lc")]
)
def test_a_wrong_number_of_columns_is_refused(rows: list[tuple[str, ...]], align: str) -> None:
    with pytest.raises(UsageError) as caught:
        render(rows, ["x", "y"], align)
    assert caught.value.code == "usage"
