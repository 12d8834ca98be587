"""`/v1/messages`: Anthropic's shape, whole and streamed."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from ..generate.request import EOS, STOP, Generation
from .answer import Answer, Whole
from .asking import Ask, arguments_of, prepare, sampling_of, stops_of, within
from .failures import Failure, bad
from .markup import Part
from .messages_in import text_of, tools_of
from .served import Served
from .sse import event

_BLOCK_FIELDS = {"type", "text", "cache_control", "citations", "thinking", "signature", "data"}


def messages_ask(asked: Any) -> Ask:
    """What a request asks of the model.

    Raises:
        Failure: A field makes no sense.
    """
    messages: list[dict[str, Any]] = []
    if asked.system:
        messages.append({"role": "system", "content": _text(asked.system, "system")})
    if not asked.messages:
        raise bad("there are no messages", "messages")
    for number, message in enumerate(asked.messages):
        messages += _message(message, f"messages.{number}")
    choice = asked.tool_choice or {"type": "auto"}
    kinds = {"auto": "auto", "any": "required", "none": "none", "tool": choice.get("name")}
    if not isinstance(kinds.get(choice.get("type", "")), str):
        raise bad(f"there is no tool_choice {choice.get('type')!r}", "tool_choice")
    tools = [
        {**{k: v for k, v in tool.items() if k != "input_schema"}, "parameters": tool.get("input_schema")}
        if isinstance(tool, dict)
        else tool
        for tool in asked.tools or ()
    ]
    for number, tool in enumerate(tools):
        if tool.get("type") in (None, "custom"):
            tool["type"] = "function"
        elif tool.get("type") != "function":
            raise bad(f"there are no tools of type {tool['type']!r}", f"tools.{number}.type")
    variables: dict[str, Any] = {}
    if asked.thinking is not None:
        kind = asked.thinking.get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise bad(f"there is no thinking of type {kind!r}", "thinking.type")
        variables["enable_thinking"] = kind != "disabled"
    return Ask(
        messages=messages,
        sampling=sampling_of(asked),
        max_tokens=within(asked.max_tokens, 1, 1 << 31, "max_tokens"),
        stop=stops_of(asked.stop_sequences, "stop_sequences"),
        tools=tools_of(tools),
        choice=str(kinds[choice["type"]]),
        variables=variables,
        one_call=bool(choice.get("disable_parallel_tool_use")),
    )


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    for number, block in enumerate(content if isinstance(content, list) else ()):
        for key in block if isinstance(block, dict) else ():
            if key not in _BLOCK_FIELDS:
                raise bad(f"there is no field {key!r} in a block", f"{place}.{number}.{key}", "unknown_parameter")
    return text_of(content, place)


def _message(message: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """One message of theirs: what a tool gave becomes a message of its own, before what a user says."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise bad(f"there is no role {role!r}", f"{place}.role")
    if unknown := set(message) - {"role", "content"}:
        raise bad("there is no such field in a message", f"{place}.{min(unknown)}", "unknown_parameter")
    if not isinstance(content, list):
        return [{"role": role, "content": _text(content, f"{place}.content")}]
    found = _Content()
    for number, block in enumerate(content):
        found.take(block, f"{place}.content.{number}")
    made: dict[str, Any] = {"role": role, "content": _text(found.texts, f"{place}.content") if found.texts else ""}
    if found.calls:
        made["tool_calls"] = found.calls
    if found.thinking:
        made["reasoning_content"] = found.thinking
    is_empty = not (found.texts or found.calls or found.thinking)
    return found.results if is_empty and found.results else [*found.results, made]


class _Content:
    """The blocks of a message, by what they are."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.texts: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.thinking = ""

    def take(self, block: Any, place: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            text = _text(block.get("content") or "", f"{place}.content")
            self.results.append({"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")})
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            function = {"name": block["name"], "arguments": block.get("input") or {}}
            self.calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            self.thinking += block["thinking"]
        elif kind != "redacted_thinking":  # which nobody but its maker can read
            self.texts.append(block)


async def messages(served: Served, asked: Any, timeout: float) -> Answer:
    """The answer, submitted.

    Raises:
        Failure: The request makes no sense, or there is no room for it.
    """
    return (await asyncio.to_thread(prepare, served, messages_ask(asked), timeout))[0]


def _head(served: Served) -> dict[str, Any]:
    return {"id": "msg_" + secrets.token_hex(12), "type": "message", "role": "assistant", "model": served.name}


def _end(generation: Generation, *, has_calls: bool) -> dict[str, Any]:
    if generation.finish_reason == STOP and not has_calls:
        return {"stop_reason": "stop_sequence", "stop_sequence": generation.ended_by}
    if generation.finish_reason in (EOS, STOP):
        return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}
    reason = "max_tokens" if generation.finish_reason == "length" else "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(generation: Generation) -> dict[str, int]:
    cached = generation.timings.cached_tokens
    return {
        "input_tokens": generation.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(generation.ids),
    }


def whole_message(served: Served, whole: Whole) -> dict[str, Any]:
    """The answer in one."""
    content: list[dict[str, Any]] = []
    if whole.reasoning:
        content.append({"type": "thinking", "thinking": whole.reasoning, "signature": ""})
    if whole.text or not whole.calls:
        content.append({"type": "text", "text": whole.text})
    for call in whole.calls:
        arguments = arguments_of(call.arguments)
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    end = _end(whole.generation, has_calls=bool(whole.calls))
    return {**_head(served), "content": content, **end, "usage": _usage(whole.generation)}


class _Blocks:
    """The blocks of a stream: one of each kind of part, begun and ended as parts come."""

    def __init__(self) -> None:
        self.index = -1
        self.kind: str | None = None
        self.has_calls = False

    def events(self, parts: Sequence[Part]) -> list[bytes]:
        made: list[bytes] = []
        for part in parts:
            if part.kind != self.kind or part.call is not None:
                made += self.end()
                made.append(self._begin(part))
            made.append(self._delta(part))
        return made

    def end(self) -> list[bytes]:
        if self.kind is None:
            return []
        self.kind = None
        return [event("content_block_stop", {"type": "content_block_stop", "index": self.index})]

    def _begin(self, part: Part) -> bytes:
        self.index, self.kind = self.index + 1, part.kind
        block: dict[str, Any] = {"type": "text", "text": ""}
        if part.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif part.call is not None:
            self.has_calls = True
            block = {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": {}}
        return event(
            "content_block_start", {"type": "content_block_start", "index": self.index, "content_block": block}
        )

    def _delta(self, part: Part) -> bytes:
        if part.call is not None:
            delta = {"type": "input_json_delta", "partial_json": part.call.arguments}
        elif part.kind == "reasoning":
            delta = {"type": "thinking_delta", "thinking": part.text}
        else:
            delta = {"type": "text_delta", "text": part.text}
        return event("content_block_delta", {"type": "content_block_delta", "index": self.index, "delta": delta})


async def stream_message(served: Served, answer: Answer) -> AsyncGenerator[bytes]:
    """The events of a stream."""
    try:
        usage = {"input_tokens": len(answer.request.ids), "output_tokens": 0}
        start = {**_head(served), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield event("message_start", {"type": "message_start", "message": start})
        yield event("ping", {"type": "ping"})
        blocks = _Blocks()
        async with contextlib.aclosing(answer.news()) as news:
            async for item in news:
                if item.is_alive:
                    yield event("ping", {"type": "ping"})
                    continue
                for made in blocks.events(item.parts):
                    yield made
                if item.done is not None:
                    if blocks.index < 0:
                        yield b"".join(blocks.events([Part("text", "")]))
                    for made in blocks.end():
                        yield made
                    delta = _end(item.done, has_calls=blocks.has_calls)
                    usage = _usage(item.done)
                    yield event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
                    yield event("message_stop", {"type": "message_stop"})
    except Failure as error:
        yield event("error", error.anthropic())
    finally:
        answer.cancel()
