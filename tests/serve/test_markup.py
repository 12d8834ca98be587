"""Reasoning and calls of tools in an answer, however it is cut into pieces."""

from __future__ import annotations

import json

import pytest

from gpack.serve.markup import Part, Reader, Style, calls_of, open_reasoning

MARKED, JSON, PLAIN = Style(True, "marked"), Style(False, "json"), Style(False, "none")


def read(text: str, style: Style, size: int, *, is_thinking: bool = False) -> list[tuple[str, str]]:
    """The parts of a text that comes in pieces of so many characters; neighbours of one kind in one."""
    reader = Reader(style, is_thinking=is_thinking, has_tools=True)
    parts: list[Part] = []
    for at in range(0, len(text), size):
        parts += reader.push(text[at : at + size])
    found: list[tuple[str, str]] = []
    for part in parts + reader.flush():
        text = part.text if part.call is None else f"{part.call.name}({part.call.arguments})"
        if found and found[-1][0] == part.kind != "call":
            found[-1] = part.kind, found[-1][1] + text
        else:
            found.append((part.kind, text))
    return found


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "<x>"]}}\n</tool_call>'
PARAMETERS = "<parameter=n>\n3\n</parameter>\n<parameter=s>\nx y\n</parameter>"
XML = f"<tool_call>\n<function=g>\n{PARAMETERS}\n</function>\n</tool_call>"
CALLED = [("text", "I ask.\n"), ("call", 'f({"a": [1, "<x>"]})'), ("call", 'g({"n": 3, "s": "x y"})')]
CASES = [
    ("just text with < and <think", MARKED, [("text", "just text with < and <think")]),
    ("<think>\nwhy\n</think>\n\nso", MARKED, [("reasoning", "why"), ("text", "so")]),
    (f"I ask.\n{CALL}\n{XML}\n", MARKED, CALLED),
    ("<tool_call>\nno call\n</tool_call> after", MARKED, [("text", "<tool_call>\nno call\n</tool_call> after")]),
    ('<tool_call>{"name": "f", "arguments": {}}', MARKED, [("call", "f({})")]),
    ('{"name": "h", "parameters": {"x": 1}}', JSON, [("call", 'h({"x": 1})')]),
    ("{not a call", JSON, [("text", "{not a call")]),
    (f"<think>a</think>{CALL}", PLAIN, [("text", f"<think>a</think>{CALL}")]),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "style", "expected"), CASES)
def test_parts(text: str, style: Style, expected: list[tuple[str, str]], size: int) -> None:
    assert read(text, style, size) == expected


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_prompt_may_end_within_reasoning(size: int) -> None:
    assert read("hm\n</think>\n\nyes", MARKED, size, is_thinking=True) == [("reasoning", "hm"), ("text", "yes")]
    assert read("cut off", MARKED, size, is_thinking=True) == [("reasoning", "cut off")]
    assert open_reasoning("<|im_start|>assistant\n<think>\n")
    assert not open_reasoning("<think>\n\n</think>\n\n")


def test_without_tools_calls_are_text() -> None:
    reader = Reader(MARKED, is_thinking=False, has_tools=False)
    assert "".join(part.text for part in reader.push(CALL) + reader.flush()) == CALL


@pytest.mark.parametrize(
    "text", ["", "[]x", "[1]", '{"name": 3}', '{"name": "f", "arguments": "no json"}', "[" * 100_000]
)
def test_what_is_no_call(text: str) -> None:
    assert calls_of(text) == []


def test_arguments_may_come_as_text() -> None:
    (call,) = calls_of('{"name": "f", "arguments": "{\\"a\\": 1}"}')
    assert json.loads(call.arguments) == {"a": 1}


def test_the_style_shows_in_the_template() -> None:
    assert Style.of(None) == PLAIN
    assert Style.of("{% if tools %}<tool_call>{% endif %}</think>") == MARKED
    assert Style.of('{{ tools }} {"name":, "parameters": }') == JSON
