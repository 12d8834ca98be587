"""`/v1/responses`: OpenAI's newer shape, whole and streamed, with a bounded memory of earlier ones."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..generate.request import EOS, STOP, Generation
from ..generate.sampling import Logprobs
from .answer import Answer, Whole
from .asking import Ask, arguments_of, prepare, sampling_of, variables_of, within
from .failures import Failure, bad
from .fields import only
from .logprobs import told_logprobs
from .markup import Part, ToolCall
from .messages_in import choice_of, strict_of, text_of, tools_of
from .served import Served
from .sse import ALIVE, event

_LOGPROBS = "message.output_text.logprobs"  # of `include`; what else it asks for does not exist here
_MOST_KEPT = 256  # responses that can be gone on from


class Memory:
    """Conversations by the id of the response that ended them; the oldest go first."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._most = most

    def keep(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """Keeps the messages of a conversation."""
        self._kept[name] = list(messages)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def messages(self, name: str) -> list[dict[str, Any]]:
        """The messages.

        Raises:
            Failure: They are not known, or no longer.
        """
        found = self._kept.get(name)
        if found is None:
            raise bad(
                f"the response {name!r} is not known here, or no longer: send the whole conversation as input",
                "previous_response_id",
                "previous_response_not_found",
            )
        return list(found)


def responses_ask(asked: Any, memory: Memory) -> Ask:
    """What a request asks of the model.

    Raises:
        Failure: A field makes no sense.
    """
    if asked.background:
        raise bad("responses are not made in the background here", "background")
    if asked.truncation not in (None, "disabled"):
        raise bad("prompts are never cut: only 'disabled' is offered", "truncation")
    before = memory.messages(asked.previous_response_id) if asked.previous_response_id else []
    # The instructions of an earlier response are not carried over.
    messages = [message for message in before if message["role"] != "system" or not message.get("instructions")]
    given = [{"role": "user", "content": asked.input}] if isinstance(asked.input, str) else _items(asked.input)
    messages += given
    if asked.instructions:
        messages = [{"role": "system", "content": asked.instructions, "instructions": True}, *messages]
    if not messages:
        raise bad("the input is empty", "input")
    text, reasoning = asked.text or {}, asked.reasoning or {}
    only(text, ("format", "verbosity"), "text")
    if text.get("verbosity") not in (None, "medium"):
        raise bad("the model's answers are as long as they are: only 'medium' is offered", "text.verbosity")
    only(reasoning, ("effort", "summary", "generate_summary"), "reasoning")
    form = text.get("format")
    if form is not None and not isinstance(form, dict):
        raise bad("text.format is no object", "text.format", "invalid_type")
    count = within(asked.top_logprobs, 0, 20, "top_logprobs")
    tools = tools_of(asked.tools)
    return Ask(
        messages=messages,
        sampling=sampling_of(asked),
        max_tokens=within(asked.max_output_tokens, 1, 1 << 31, "max_output_tokens"),
        logprobs=count or (0 if _LOGPROBS in (asked.include or ()) else None),
        tools=tools,
        strict=strict_of(asked.tools),
        effort=reasoning.get("effort"),
        effort_field="reasoning.effort",
        choice=choice_of(asked.tool_choice),
        form=form,
        form_field="text.format",
        variables=variables_of(asked.chat_template_kwargs),
        one_call=asked.parallel_tool_calls is False,
    )


# Fields of items. Clients send back what they got; an item's id, status and phase say nothing to the model.
_ITEM: dict[str, tuple[str, ...]] = {
    "message": ("type", "role", "content", "id", "status", "phase"),
    "function_call": ("type", "call_id", "name", "arguments", "id", "status"),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
    "reasoning": ("type", "id", "status", "summary", "content", "encrypted_content"),
}


def _items(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place, kind = f"input.{number}", item.get("type", "message")
        only(item, _ITEM.get(kind, item), place)
        if kind == "message":
            role = item.get("role")
            if role not in ("system", "developer", "user", "assistant"):
                raise bad(f"there is no role {role!r}", f"{place}.role")
            content = text_of(item.get("content"), f"{place}.content")
            messages.append({"role": "system" if role == "developer" else role, "content": content})
        elif kind == "function_call":
            function = {"name": str(item.get("name")), "arguments": arguments_of(item.get("arguments", "{}"))}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant" and messages[-1].get("tool_calls"):
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            output = text_of(item.get("output"), f"{place}.output")
            messages.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
        elif kind != "reasoning":  # what was thought before is left out, as templates do
            raise bad(f"there are no items of type {kind!r}", f"{place}.type")
    return messages


def without_marks(ask: Ask) -> Ask:
    """The same with messages as chat templates take them."""
    return replace(ask, messages=[{k: v for k, v in item.items() if k != "instructions"} for item in ask.messages])


class Shape:
    """The objects of one response."""

    def __init__(self, served: Served, asked: Any, ask: Ask, memory: Memory) -> None:
        self.served, self.asked, self.ask, self.memory = served, asked, ask, memory
        self.id = "resp_" + secrets.token_hex(12)
        self.created = int(time.time())

    def response(
        self, status: str, output: Sequence[Mapping[str, Any]], done: Generation | None, reasoning: int = 0
    ) -> dict[str, Any]:
        """The response as it is now."""
        asked = self.asked
        cut = None if done is None or status != "incomplete" else {"reason": "max_output_tokens"}
        sampling = self.ask.sampling
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if done is not None else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "model": self.served.name,
            "output": list(output),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": (asked.reasoning or {}).get("effort"), "summary": None},
            "service_tier": "default",
            "store": asked.store is not False,
            "temperature": sampling.temperature,
            "text": {"format": self.ask.form or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [{"type": "function", "strict": None, **tool["function"]} for tool in self.ask.tools],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "truncation": "disabled",
            "usage": None if done is None else _usage(done, reasoning),
            "user": None,
            "metadata": asked.metadata or {},
            "prompt_cache_key": None,
            "safety_identifier": None,
        }

    def end(self, whole: Whole, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The response when it is done; it can be gone on from, unless it was not to be kept."""
        done = whole.generation
        if self.asked.store is not False:
            said: dict[str, Any] = {"role": "assistant", "content": whole.text}
            if whole.calls:
                said["tool_calls"] = [
                    {
                        "id": c.id,
                        "type": "function",
                        "function": {"name": c.name, "arguments": arguments_of(c.arguments)},
                    }
                    for c in whole.calls
                ]
            self.memory.keep(self.id, [*self.ask.messages, said])
        status = "completed" if done.finish_reason in (EOS, STOP) else "incomplete"
        return self.response(status, output, done, whole.reasoning_tokens)


def _usage(done: Generation, reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": done.prompt_tokens,
        "input_tokens_details": {"cached_tokens": done.timings.cached_tokens},
        "output_tokens": len(done.ids),
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": done.prompt_tokens + len(done.ids),
    }


def _item(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"id": "rs_" + secrets.token_hex(12), "type": "reasoning", "summary": [], "content": []}
    name = "msg_" + secrets.token_hex(12)
    return {"id": name, "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def _call_item(call: ToolCall, status: str, arguments: str) -> dict[str, Any]:
    return {
        "id": "fc_" + call.id.removeprefix("call_"),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    }


def _text(text: str, found: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(found)}


async def responses(served: Served, asked: Any, memory: Memory, timeout: float) -> tuple[Shape, Answer]:
    """The answer, submitted.

    Raises:
        Failure: The request makes no sense, or there is no room for it.
    """
    ask = responses_ask(asked, memory)
    answers = await asyncio.to_thread(prepare, served, without_marks(ask), timeout)
    return Shape(served, asked, ask, memory), answers[0]


def whole_response(shape: Shape, whole: Whole) -> dict[str, Any]:
    """The response in one."""
    output: list[dict[str, Any]] = []
    found = told_logprobs(shape.served, whole.generation.logprobs or ())
    if whole.reasoning:
        item = _item("reasoning")
        output.append({**item, "content": [{"type": "reasoning_text", "text": whole.reasoning}]})
    if whole.text or not whole.calls:
        output.append({**_item("text"), "status": "completed", "content": [_text(whole.text, found)]})
    output += [_call_item(call, "completed", call.arguments) for call in whole.calls]
    return shape.end(whole, output)


class _Stream:
    """Events, numbered, and the items that they build."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.logprobs: list[dict[str, Any]] = []
        self.number = 0
        self.output: list[dict[str, Any]] = []
        self.kind: str | None = None
        self.texts: dict[str, str] = {"text": "", "reasoning": ""}
        self.calls: list[ToolCall] = []
        self._here = ""

    def event(self, name: str, /, **fields: Any) -> bytes:
        made = event(name, {"type": name, "sequence_number": self.number, **fields})
        self.number += 1
        return made

    def parts(self, parts: Sequence[Part], logprobs: Sequence[Logprobs] = ()) -> list[bytes]:
        made: list[bytes] = []
        found = told_logprobs(self.served, logprobs)
        self.logprobs += found
        for part in parts:
            if part.call is not None:
                made += [*self.end_item(), *self._call(part.call)]
                continue
            if part.kind != self.kind:
                made += [*self.end_item(), *self._begin(part.kind)]
            self._here += part.text
            self.texts[part.kind] += part.text
            name = "response.output_text.delta" if part.kind == "text" else "response.reasoning_text.delta"
            more: dict[str, Any] = {"logprobs": found} if part.kind == "text" else {}
            found = [] if part.kind == "text" else found
            made.append(self.event(name, **self._where(), content_index=0, delta=part.text, **more))
        return made

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _begin(self, kind: str) -> list[bytes]:
        self.kind, self._here = kind, ""
        self.output.append(_item(kind))
        part = _text("") if kind == "text" else {"type": "reasoning_text", "text": ""}
        index = len(self.output) - 1
        return [
            self.event("response.output_item.added", output_index=index, item=dict(self.output[-1])),
            self.event("response.content_part.added", **self._where(), content_index=0, part=part),
        ]

    def end_item(self) -> list[bytes]:
        if self.kind is None:
            return []
        is_text, text = self.kind == "text", self._here
        self.kind = None
        part = _text(text, self.logprobs) if is_text else {"type": "reasoning_text", "text": text}
        self.output[-1]["content"] = [part]
        if is_text:
            self.output[-1]["status"] = "completed"
        name = "response.output_text.done" if is_text else "response.reasoning_text.done"
        more: dict[str, Any] = {"logprobs": self.logprobs} if is_text else {}
        self.logprobs = [] if is_text else self.logprobs
        index = len(self.output) - 1
        return [
            self.event(name, **self._where(), content_index=0, text=text, **more),
            self.event("response.content_part.done", **self._where(), content_index=0, part=part),
            self.event("response.output_item.done", output_index=index, item=self.output[-1]),
        ]

    def _call(self, call: ToolCall) -> list[bytes]:
        self.calls.append(call)
        self.output.append(_call_item(call, "in_progress", ""))
        index, where = len(self.output) - 1, self._where()
        added = self.event("response.output_item.added", output_index=index, item=dict(self.output[-1]))
        self.output[-1] = _call_item(call, "completed", call.arguments)
        return [
            added,
            self.event("response.function_call_arguments.delta", **where, delta=call.arguments),
            self.event("response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments),
            self.event("response.output_item.done", output_index=index, item=self.output[-1]),
        ]


async def stream_response(shape: Shape, answer: Answer) -> AsyncGenerator[bytes]:
    """The events of a stream."""
    stream = _Stream(shape.served)
    try:
        for name in ("response.created", "response.in_progress"):
            yield stream.event(name, response=shape.response("in_progress", [], None))
        async with contextlib.aclosing(answer.news()) as news:
            async for item in news:
                if item.is_alive:
                    yield ALIVE
                    continue
                for made in stream.parts(item.parts, item.logprobs):
                    yield made
                if item.done is None:
                    continue
                if not stream.output:
                    for made in stream.parts([Part("text", "")]):
                        yield made
                for made in stream.end_item():
                    yield made
                texts = stream.texts
                whole = Whole(texts["text"], texts["reasoning"], stream.calls, item.done, answer.reasoning_tokens)
                response = shape.end(whole, stream.output)
                yield stream.event(f"response.{response['status']}", response=response)
    except Failure as error:
        failed = {
            **shape.response("failed", stream.output, None),
            "error": {"code": "server_error", "message": error.message},
        }
        yield stream.event("response.failed", response=failed)
    finally:
        answer.cancel()
