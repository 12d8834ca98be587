"""Parts of an answer that the model marks in its text: reasoning, and calls of tools.

Which marks a model writes shows in its chat template. What is between them is never lost: what cannot be read as a call
is text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_THINK, _THINK_END = "<think>", "</think>"
_CALL, CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A call.

    Attributes:
        id: By which its result is named.
        name: Of the function.
        arguments: JSON, an object.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    """Something of an answer.

    Attributes:
        kind: `text`, `reasoning` or `call`.
        text: Of the first two.
        call: Of the last.
    """

    kind: Literal["text", "reasoning", "call"]
    text: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True)
class Style:
    """What a template says of its model's answers.

    Attributes:
        thinks: Reasoning stands between `<think>` and `</think>`.
        calls: How tools are called: between `<tool_call>` marks; as one JSON object; or not at all.
    """

    thinks: bool
    calls: Literal["marked", "json", "none"]

    @classmethod
    def of(cls, template: str | None) -> Style:
        """Of a chat template's source."""
        source = template or ""
        takes_tools = re.search(r"\btools\b", source) is not None
        calls: Literal["marked", "json", "none"] = "none"
        if takes_tools:
            calls = (
                "marked"
                if _CALL in source
                else "json"
                if '"parameters"' in source or "'parameters'" in source
                else "none"
            )
        return cls(_THINK_END in source, calls)


class Reader:
    """Reads an answer as it grows. What may be the beginning of a mark is held back until more text tells."""

    def __init__(self, style: Style, *, is_thinking: bool, has_tools: bool) -> None:
        """Begins.

        Args:
            is_thinking: The prompt ended within reasoning.
            has_tools: The request has tools; else calls are text.
        """
        self._style, self._calls = style, style.calls if has_tools else "none"
        self._state: Literal["text", "reasoning", "call", "json"] = "text"
        if style.thinks and is_thinking:
            self._state = "reasoning"
        self._held = ""
        self._is_blank = True  # nothing but white space came since the beginning, or the last mark
        self._has_marks = False

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state == "reasoning"

    def push(self, text: str) -> list[Part]:
        """Adds text; what is certain now."""
        self._held += text
        return list(self._parts(final=False))

    def flush(self) -> list[Part]:
        """What was held back: no more text comes."""
        return list(self._parts(final=True))

    def _parts(self, *, final: bool) -> Iterator[Part]:
        while self._held:
            before = self._state, len(self._held)
            if self._state == "text":
                yield from self._in_text(final=final)
            elif self._state == "reasoning":
                yield from self._in_reasoning(final=final)
            else:
                yield from self._in_call(final=final)
            if (self._state, len(self._held)) == before:
                return

    def _in_text(self, *, final: bool) -> Iterator[Part]:
        if self._is_blank:
            head = self._held.lstrip()
            if not head:
                if final:
                    text, self._held = self._held, ""
                    yield from [] if self._has_marks else [Part("text", text)]
                return
            if self._has_marks:
                self._held = head
            if self._calls == "json" and head.startswith(("{", "<|python_tag|>")):
                self._state, self._held = "json", head.removeprefix("<|python_tag|>")
                return
        marks = [mark for mark, wanted in ((_THINK, self._style.thinks), (_CALL, self._calls == "marked")) if wanted]
        places = [(self._held.find(mark), mark) for mark in marks if mark in self._held]
        if places:
            at, mark = min(places)
            text, self._held = self._held[:at], self._held[at + len(mark) :]
            self._state = "reasoning" if mark == _THINK else "call"
            if text.strip():
                yield Part("text", text)
            self._is_blank = self._has_marks = True
            return
        keep = 0 if final else max((_overlap(self._held, mark) for mark in marks), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if text:
            self._is_blank = self._is_blank and not text.strip()
            yield Part("text", text)

    def _in_reasoning(self, *, final: bool) -> Iterator[Part]:
        if self._is_blank:
            self._held = self._held.lstrip("\n")
            self._is_blank = not self._held
        at = self._held.find(_THINK_END)
        if at >= 0:
            text, self._held = self._held[:at].rstrip("\n"), self._held[at + len(_THINK_END) :]
            self._state, self._is_blank, self._has_marks = "text", True, True
        else:
            # Line feeds before the mark are the mark's.
            begun = _overlap(self._held, _THINK_END)
            whole = self._held[: len(self._held) - begun]
            keep = 0 if final else begun + len(whole) - len(whole.rstrip("\n"))
            text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if text:
            yield Part("reasoning", text)

    def _in_call(self, *, final: bool) -> Iterator[Part]:
        if self._state == "json":
            if final:
                calls, text = calls_of(self._held), self._held
                self._held, self._state = "", "text"
                yield from [Part("call", call=call) for call in calls] or [Part("text", text)]
            return
        at = self._held.find(CALL_END)
        if at < 0 and not final:
            return
        inner = self._held if at < 0 else self._held[:at]
        rest = "" if at < 0 else self._held[at + len(CALL_END) :]
        calls = calls_of(inner)
        self._state, self._held, self._is_blank = "text", rest, bool(calls)
        # What is no call is text, marks included: nothing is lost.
        yield from [Part("call", call=call) for call in calls] or [
            Part("text", _CALL + inner + (CALL_END if at >= 0 else ""))
        ]


def calls_of(text: str) -> list[ToolCall]:
    """The calls that a text is: JSON objects with a name, or functions with parameters; none where it is neither."""
    if functions := _FUNCTION.findall(text):
        return [
            _made(name, {key: _value(value) for key, value in _PARAMETER.findall(body)}) for name, body in functions
        ]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = []
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            return []
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return []
        if not isinstance(arguments, dict):
            return []
        calls.append(_made(item["name"], arguments))
    return calls


def _made(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(f"call_{secrets.token_hex(12)}", name, json.dumps(arguments, ensure_ascii=False))


def _value(text: str) -> Any:
    """What a parameter's text means: JSON where it is some other than a text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, str) else found


def _overlap(text: str, mark: str) -> int:
    most = min(len(text), len(mark) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(mark[:n])), 0)


def open_reasoning(prompt: str) -> bool:
    """Whether a prompt ends within reasoning."""
    return prompt.rfind(_THINK) > prompt.rfind(_THINK_END)


def call_grammar(style: Style, tools: Sequence[dict[str, Any]]) -> str:
    """A grammar in Lark's form for one call of one of these tools.

    Raises:
        ValueError: The style has none that is known.
    """
    return f"start: call\n{_call_rules(style, tools, None)}"


def either_grammar(style: Style, tools: Sequence[dict[str, Any]], strict: Collection[str], schema: Any) -> str:
    """A grammar for an answer that is text or calls.

    Args:
        strict: Names of tools whose arguments must be as their parameters say; those of others are any object.
        schema: JSON schema of an answer that is no call; None: it is any text.

    Raises:
        ValueError: As `call_grammar`.
    """
    rules = _call_rules(style, tools, strict)
    if schema is not None:
        calls = 'call ("\\n" call)*' if style.calls == "marked" else "call"
        return f"start: answer | {calls}\nanswer: %json {json.dumps(schema)}\n{rules}"
    if style.calls == "marked":
        # A text may not have the mark; one that comes to it, the shortest that does, leads to a call.
        return (
            f'start: (lead body "\\n{CALL_END}")* TEXT?\nlead[lazy]: /(?s:.*){_CALL}\\n/\n'
            f"TEXT: ANY & ~WITH\nANY: /(?s:.+)/\nWITH: /(?s:.*){_CALL}(?s:.*)/\n{rules}"
        )
    return f"start: TEXT? | call\nTEXT: /(?s:\\s*[^\\s{{].*)/\n{rules}"


def _call_rules(style: Style, tools: Sequence[dict[str, Any]], strict: Collection[str] | None) -> str:
    """The rule `call`: one call of one of these tools; with arguments of any form but for tools that are strict."""
    if style.calls == "none":
        raise ValueError("the model calls no tools")
    word = "arguments" if style.calls == "marked" else "parameters"
    schemas = []
    for tool in tools:
        name, parameters = tool["function"]["name"], tool["function"].get("parameters") or {"type": "object"}
        if strict is not None and name not in strict:
            parameters = {"type": "object"}
        schemas.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, word: parameters},
                "required": ["name", word],
                "additionalProperties": False,
            }
        )
    schema = json.dumps({"anyOf": schemas} if len(schemas) > 1 else schemas[0])
    if style.calls == "json":
        return f"call: %json {schema}"
    return f'call: "{_CALL}\\n" body "\\n{CALL_END}"\nbody: %json {schema}'
