"""Messages of OpenAI's chat as chat templates take them: texts and roles, nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .asking import arguments_of
from .failures import bad
from .fields import only

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_KNOWN = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning"}
_IGNORED = {"cache_control", "annotations", "audio", "function_call"}  # null or empty in what clients send back
_PART = {"type", "text", "refusal", "annotations", "logprobs", "cache_control", "citations", "prompt_cache_breakpoint"}
# A chat's tool wraps the function, a response's is one. What has no effect here: how the prompt is cached, and how
# the arguments are streamed.
_TOOL = {"type", "cache_control", "eager_input_streaming"}
_FUNCTION = {"name", "description", "parameters", "strict"}
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def chat_messages(given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, checked.

    Raises:
        Failure: One has no role that there is, no text, or a part that is no text.
    """
    if not given:
        raise bad("there are no messages", "messages")
    return [_message(message, f"messages.{number}") for number, message in enumerate(given)]


def _message(message: dict[str, Any], place: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in _ROLES:
        raise bad(f"there is no role {role!r}", f"{place}.role")
    for key, value in message.items():
        if key not in _KNOWN and not (key in _IGNORED and (not value or key == "cache_control")):
            raise bad(f"there is no field {key!r} in a message", f"{place}.{key}", "unknown_parameter")
    made: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None and not calls:
        content = message.get("refusal")
    if content is None and not calls and role != "assistant":
        raise bad("a message has no content", f"{place}.content")
    made["content"] = "" if content is None else text_of(content, f"{place}.content")
    if role == "tool" and message.get("tool_call_id") is not None:
        made["tool_call_id"] = str(message["tool_call_id"])
    if message.get("name") is not None:
        made["name"] = str(message["name"])
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = [
            _call(call, f"{place}.tool_calls.{number}") for number, call in enumerate(_list(calls, place))
        ]
    return made


def _list(calls: Any, place: str) -> list[Any]:
    if not isinstance(calls, list):
        raise bad("tool_calls is no list", f"{place}.tool_calls", "invalid_type")
    return calls


def _call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad("a call has no function with a name", place)
    only(call, ("id", "type", "function", "index"), place)
    only(function, ("name", "arguments"), f"{place}.function")
    arguments = arguments_of(function.get("arguments", "{}"))
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def text_of(content: Any, place: str) -> str:
    """The text of a content, which may come in parts.

    Raises:
        Failure: A part is no text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad("content is neither a text nor a list of parts", place, "invalid_type")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise bad(f"the model reads text; a part is {kind!r}", f"{place}.{number}.type", "unsupported_content")
        only(part, _PART, f"{place}.{number}")
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise bad("a part has no text", f"{place}.{number}.text", "invalid_type")
        texts.append(text)
    return "\n".join(texts) if len(texts) > 1 else "".join(texts)


def tools_of(given: Sequence[dict[str, Any]] | None, param: str = "tools") -> list[dict[str, Any]]:
    """Tools in OpenAI's form of chats, also from that of its responses.

    Raises:
        Failure: One is no function, or has no name.
    """
    made = []
    for number, tool in enumerate(given or ()):
        place = f"{param}.{number}"
        if tool.get("type", "function") != "function":
            raise bad(f"there are no tools of type {tool.get('type')!r}, only functions", f"{place}.type")
        function = tool.get("function", tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad("a tool has no name", f"{place}.function.name")
        if not _NAME.fullmatch(function["name"]):
            raise bad("a tool's name has other characters than letters, digits and _.:-", f"{place}.function.name")
        only(tool, _TOOL | ({"function"} if function is not tool else _FUNCTION), place)
        if function is not tool:
            only(function, _FUNCTION, f"{place}.function")
        for name, kind in (("description", str), ("strict", bool)):
            if not isinstance(function.get(name), kind | None):
                raise bad(f"{name} is of another type", f"{place}.function.{name}", "invalid_type")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise bad("parameters are no schema", f"{place}.function.parameters", "invalid_type")
        kept = {"name": function["name"], "description": function.get("description") or "", "parameters": parameters}
        made.append({"type": "function", "function": kept})
    return made


def strict_of(given: Sequence[dict[str, Any]] | None) -> frozenset[str]:
    """The names of tools, of those that `tools_of` takes, whose calls must be as their parameters say."""
    functions = [tool.get("function", tool) for tool in given or ()]
    return frozenset(function["name"] for function in functions if function.get("strict"))


def choice_of(given: str | dict[str, Any] | None) -> str:
    """`auto`, `none`, `required`, or the name of a tool.

    Raises:
        Failure: It is none of these.
    """
    if given is None:
        return "auto"
    if isinstance(given, str):
        if given in ("auto", "none", "required"):
            return given
        raise bad(f"there is no tool_choice {given!r}", "tool_choice")
    kind, function = given.get("type"), given.get("function", given)
    only(given, ("type", "function") if "function" in given else ("type", "name"), "tool_choice")
    if kind == "function" and isinstance(function, dict) and isinstance(function.get("name"), str):
        only(function, ("name",) if function is not given else ("type", "name"), "tool_choice.function")
        return str(function["name"])
    raise bad("tool_choice names no function", "tool_choice")
