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
from .fields import only
from .markup import Part, ToolCall
from .messages_in import strict_of, text_of, tools_of
from .served import Served
from .sse import event


def messages_ask(asked: Any) -> Ask:
    """What a request asks of the model.

    Raises:
        Failure: A field makes no sense.
    """
    messages: list[dict[str, Any]] = []
    if asked.system:
        messages.append({"role": "system", "content": text_of(asked.system, "system")})
    if not asked.messages:
        raise bad("there are no messages", "messages")
    for number, message in enumerate(asked.messages):
        messages += _message(message, f"messages.{number}")
    choice = asked.tool_choice or {"type": "auto"}
    only(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
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
    output = asked.output_config or {}
    only(output, ("effort", "format"), "output_config")
    form = output.get("format")
    if form is not None:
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            raise bad("output_config.format is no JSON schema", "output_config.format")
        only(form, ("type", "schema"), "output_config.format")
    return Ask(
        messages=messages,
        sampling=sampling_of(asked),
        max_tokens=within(asked.max_tokens, 1, 1 << 31, "max_tokens"),
        stop=stops_of(asked.stop_sequences, "stop_sequences"),
        tools=tools_of(tools),
        choice=str(kinds[choice["type"]]),
        strict=strict_of(tools),
        form=form,
        form_field="output_config.format",
        effort=output.get("effort"),
        effort_field="thinking" if asked.thinking else "output_config.effort",
        thinks=_thinks(asked.thinking),
        one_call=bool(choice.get("disable_parallel_tool_use")),
    )


def _thinks(thinking: dict[str, Any] | None) -> bool | None:
    """Whether the model is to reason. How much (`budget_tokens`) has no effect."""
    if thinking is None:
        return None
    only(thinking, ("type", "budget_tokens", "display"), "thinking")
    if thinking.get("type") not in ("enabled", "disabled", "adaptive"):
        raise bad(f"there is no thinking of type {thinking.get('type')!r}", "thinking.type")
    if thinking.get("display") not in (None, "summarized"):
        raise bad("reasoning is always shown", "thinking.display")
    within(thinking.get("budget_tokens"), 0, 1 << 31, "thinking.budget_tokens")
    return {"enabled": True, "disabled": False}.get(thinking["type"])


def _message(message: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """One message of theirs: what a tool gave becomes a message of its own, before what a user says."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise bad(f"there is no role {role!r}", f"{place}.role")
    if unknown := set(message) - {"role", "content"}:
        raise bad("there is no such field in a message", f"{place}.{min(unknown)}", "unknown_parameter")
    if not isinstance(content, list):
        return [{"role": role, "content": text_of(content, f"{place}.content")}]
    found = _Content()
    for number, block in enumerate(content):
        found.take(block, f"{place}.content.{number}")
    made: dict[str, Any] = {"role": role, "content": text_of(found.texts, f"{place}.content") if found.texts else ""}
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
            only(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), place)
            text = text_of(block.get("content") or "", f"{place}.content")
            self.results.append({"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")})
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            only(block, ("type", "id", "name", "input", "cache_control", "caller"), place)
            function = {"name": block["name"], "arguments": block.get("input") or {}}
            self.calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            only(block, ("type", "thinking", "signature"), place)
            self.thinking += block["thinking"]
        elif kind == "redacted_thinking":  # which nobody but its maker can read
            only(block, ("type", "data"), place)
        else:
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
    return {**_reason(generation, has_calls=has_calls), "stop_details": None, "container": None}


def _reason(generation: Generation, *, has_calls: bool) -> dict[str, Any]:
    if generation.finish_reason == STOP and not has_calls:
        return {"stop_reason": "stop_sequence", "stop_sequence": generation.ended_by}
    if generation.finish_reason in (EOS, STOP):
        return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}
    reason = "max_tokens" if generation.finish_reason == "length" else "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(read: int, cached: int, made: int, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": read - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens": made,
        "output_tokens_details": {"thinking_tokens": reasoning},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _used(generation: Generation, reasoning: int) -> dict[str, Any]:
    return _usage(generation.prompt_tokens, generation.timings.cached_tokens, len(generation.ids), reasoning)


def _tool_use(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given, "caller": {"type": "direct"}}


def whole_message(served: Served, whole: Whole) -> dict[str, Any]:
    """The answer in one."""
    content: list[dict[str, Any]] = []
    if whole.reasoning:
        content.append({"type": "thinking", "thinking": whole.reasoning, "signature": ""})
    if whole.text or not whole.calls:
        content.append({"type": "text", "text": whole.text, "citations": None})
    content += [_tool_use(call, arguments_of(call.arguments)) for call in whole.calls]
    end = _end(whole.generation, has_calls=bool(whole.calls))
    return {**_head(served), "content": content, **end, "usage": _used(whole.generation, whole.reasoning_tokens)}


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
        block: dict[str, Any] = {"type": "text", "text": "", "citations": None}
        if part.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif part.call is not None:
            self.has_calls = True
            block = _tool_use(part.call, {})
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
        usage = _usage(len(answer.request.ids), 0, 0, 0)
        end: dict[str, Any] = dict.fromkeys(("stop_reason", "stop_sequence", "stop_details", "container"))
        start = {**_head(served), "content": [], **end, "usage": usage}
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
                    usage = _used(item.done, answer.reasoning_tokens)
                    yield event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
                    yield event("message_stop", {"type": "message_stop"})
    except Failure as error:
        yield event("error", error.anthropic())
    finally:
        answer.cancel()
