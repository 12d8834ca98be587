"""`/v1/chat/completions` and `/v1/completions`: OpenAI's shapes, whole and streamed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from ..errors import GpackError
from ..generate.request import Generation
from ..generate.sampling import Logprobs
from .answer import Answer, News, Whole
from .asking import MOST_ANSWERS, Ask, context_failure, prepare, sampling_of, start, stops_of, variables_of, within
from .failures import Failure, bad
from .fields import texts
from .logprobs import piece_of, told_logprobs
from .markup import Part, ToolCall
from .messages_in import chat_messages, choice_of, strict_of, tools_of
from .served import Prompt, Served
from .sse import ALIVE, DONE, data, failed

_MOST_LOGPROBS = 20


def chat_ask(asked: Any) -> Ask:
    """What a chat asks of the model.

    Raises:
        Failure: A field makes no sense.
    """
    if asked.modalities not in (None, ["text"]):
        raise bad("the model writes text alone", "modalities")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise bad("top_logprobs needs logprobs", "top_logprobs")
    count = within(asked.top_logprobs, 0, _MOST_LOGPROBS, "top_logprobs") or 0
    if asked.verbosity not in (None, "medium"):
        raise bad("the model's answers are as long as they are: only 'medium' is offered", "verbosity")
    tools = tools_of(asked.tools)
    return Ask(
        messages=chat_messages(asked.messages),
        sampling=sampling_of(asked),
        max_tokens=within(
            asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens,
            0,
            1 << 31,
            "max_tokens",
        ),
        stop=stops_of(asked.stop),
        n=within(asked.n, 1, MOST_ANSWERS, "n") or 1,
        logprobs=count if asked.logprobs else None,
        tools=tools,
        strict=strict_of(asked.tools),
        effort=asked.reasoning_effort,
        choice=choice_of(asked.tool_choice),
        form=asked.response_format,
        bias=asked.logit_bias,
        variables=variables_of(asked.chat_template_kwargs),
        ignore_end=bool(asked.ignore_eos),
        one_call=asked.parallel_tool_calls is False,
    )


class ChatShape:
    """The objects of a chat: one for each request."""

    kind, prefix = "chat.completion", "chatcmpl-"

    def __init__(self, served: Served) -> None:
        self.served = served
        self.head = {
            "id": self.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }

    def whole(self, wholes: Sequence[Whole]) -> dict[str, Any]:
        """The answer in one."""
        choices = []
        for index, whole in enumerate(wholes):
            message: dict[str, Any] = {"role": "assistant", "content": whole.text or (None if whole.calls else "")}
            message |= {"refusal": None, "annotations": []}
            if whole.reasoning:
                message["reasoning_content"] = whole.reasoning
            if whole.calls:
                message["tool_calls"] = [call_object(call) for call in whole.calls]
            found = whole.generation.logprobs
            told = told_logprobs(self.served, found or ())
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": None if found is None else {"content": told, "refusal": None},
                    "finish_reason": whole.finish_reason,
                }
            )
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage_of(wholes)}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A piece of a stream."""
        return {**self.head, "object": f"{self.kind}.chunk", "choices": choices, **more}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """What a choice begins with."""
        return [self._choice(index, {"role": "assistant", "content": ""})]

    def parts(self, index: int, news: News, n_calls: int) -> list[dict[str, Any]]:
        """The choices of what is new."""
        told = told_logprobs(self.served, news.logprobs)
        found = {"content": told, "refusal": None} if told else None
        made = [self._choice(index, self._delta(part, n_calls)) for part in _joined(news.parts)]
        if found is not None:
            if not made:
                made.append(self._choice(index, {}))
            made[0]["logprobs"] = found
        return made

    def end(self, index: int, reason: str, generation: Generation) -> dict[str, Any]:
        """What a choice ends with."""
        return self._choice(index, {}, reason)

    @staticmethod
    def _choice(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}

    @staticmethod
    def _delta(part: Part, n_calls: int) -> dict[str, Any]:
        if part.call is not None:
            return {"tool_calls": [{"index": n_calls, **call_object(part.call)}]}
        return {"content" if part.kind == "text" else "reasoning_content": part.text}


class TextShape(ChatShape):
    """The objects of a text that is continued."""

    kind, prefix = "text_completion", "cmpl-"

    def __init__(self, served: Served, echo: Sequence[str]) -> None:
        super().__init__(served)
        self.echo = echo

    def whole(self, wholes: Sequence[Whole]) -> dict[str, Any]:
        """The answer in one."""
        choices = []
        for index, whole in enumerate(wholes):
            found = whole.generation.logprobs
            choice = self._choice(index, {"content": self.echo[index] + whole.text}, whole.finish_reason)
            choice["logprobs"] = None if found is None else self._listed(found)
            choices.append(choice)
        usage = usage_of(wholes, prompts=True)
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """A piece of a stream."""
        return {**self.head, "object": self.kind, "choices": choices, **more}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """What a choice begins with."""
        return [self._choice(index, {"content": self.echo[index]})] if self.echo[index] else []

    def parts(self, index: int, news: News, n_calls: int) -> list[dict[str, Any]]:
        """The choices of what is new."""
        text = "".join(part.text for part in news.parts)
        if not text and not news.logprobs:
            return []
        choice = self._choice(index, {"content": text})
        choice["logprobs"] = self._listed(news.logprobs) if news.logprobs else None
        return [choice]

    @staticmethod
    def _choice(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": delta.get("content", ""), "logprobs": None, "finish_reason": reason}

    def _listed(self, found: Sequence[Logprobs]) -> dict[str, Any]:
        """As the elder interface has them."""
        text = [piece_of(self.served, item.token).decode("utf-8", "replace") for item in found]
        tops = [
            {
                piece_of(self.served, token).decode("utf-8", "replace"): value
                for token, value in item.top
                if math.isfinite(value)
            }
            for item in found
        ]
        offsets = [sum(map(len, text[:number])) for number in range(len(text))]
        return {
            "tokens": text,
            "token_logprobs": [item.logprob for item in found],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


async def chat(served: Served, asked: Any, timeout: float) -> tuple[ChatShape, list[Answer]]:
    """The answers to a chat, submitted; the prompt is made in another thread.

    Raises:
        Failure: The request makes no sense, or there is no room for it.
    """
    ask = chat_ask(asked)
    answers = await asyncio.to_thread(prepare, served, ask, timeout)
    return ChatShape(served), answers


async def completions(served: Served, asked: Any, timeout: float) -> tuple[ChatShape, list[Answer]]:
    """The continuations of texts, submitted.

    Raises:
        Failure: As `chat`.
    """
    if asked.suffix:
        raise bad("the model goes on with texts; it does not fill them in", "suffix")
    if asked.best_of not in (None, 1) and asked.best_of != asked.n:
        raise bad("best_of is not offered beyond n", "best_of")
    n = within(asked.n, 1, MOST_ANSWERS, "n") or 1
    prompts = await asyncio.to_thread(_prompts, served, asked.prompt)
    if len(prompts) * n > MOST_ANSWERS:
        raise bad(f"{len(prompts)} prompts and n = {n} are more than {MOST_ANSWERS} answers", "prompt")
    ask = Ask(
        messages=[],
        sampling=sampling_of(asked),
        max_tokens=16 if asked.max_tokens is None else within(asked.max_tokens, 0, 1 << 31, "max_tokens"),
        stop=stops_of(asked.stop),
        n=n,
        logprobs=within(asked.logprobs, 0, _MOST_LOGPROBS, "logprobs"),
        bias=asked.logit_bias,
        ignore_end=bool(asked.ignore_eos),
    )
    answers: list[Answer] = []
    echo: list[str] = []
    try:
        for ids in prompts:
            grammar = None
            if asked.grammar is not None:
                grammar = await asyncio.to_thread(served.grammars.lark, asked.grammar, field="grammar")
            answers += start(served, Prompt(ids), ask, grammar, timeout, is_text=True)
            echo += [served.model.tokenizer.decode(ids) if asked.echo else ""] * n
    except GpackError as error:
        for answer in answers:
            answer.cancel()
        raise context_failure(error, served) from error
    return TextShape(served, echo), answers


def _prompts(served: Served, given: Any) -> list[list[int]]:
    items = texts(given, "prompt")
    found = [served.model.tokenizer.encode(item) if isinstance(item, str) else item for item in items]
    if not all(found):
        raise bad("a prompt is empty: it has no tokens", "prompt")
    return found


async def whole_of(shape: ChatShape, answers: Sequence[Answer]) -> dict[str, Any]:
    """All answers in one object; what fails one of them frees the others.

    Raises:
        Failure: One failed.
    """
    try:
        return shape.whole(await asyncio.gather(*[answer.whole() for answer in answers]))
    finally:
        for answer in answers:
            answer.cancel()


async def stream_of(shape: ChatShape, answers: Sequence[Answer], *, usage: bool) -> AsyncGenerator[bytes]:
    """The events of a stream. An error that comes when it has begun is an event of its own."""
    done: list[Whole] = []
    try:
        for index in range(len(answers)):
            for choice in shape.begin(index):
                yield data(shape.chunk([choice]))
        n_calls = [0] * len(answers)
        async with contextlib.aclosing(merged([answer.news() for answer in answers])) as news:
            async for index, item in news:
                if item.is_alive:
                    yield ALIVE
                    continue
                for choice in shape.parts(index, item, n_calls[index]):
                    yield data(shape.chunk([choice]))
                n_calls[index] += sum(part.call is not None for part in item.parts)
                if item.done is not None:
                    whole = Whole("", "", [_NO_CALL] * n_calls[index], item.done, answers[index].reasoning_tokens)
                    done.append(whole)
                    yield data(shape.chunk([shape.end(index, whole.finish_reason, item.done)]))
        if usage:
            yield data(shape.chunk([], usage=usage_of(done, prompts=isinstance(shape, TextShape))))
        yield DONE
    except Failure as error:
        yield failed(error.openai())
    finally:
        for answer in answers:
            answer.cancel()


_NO_CALL = ToolCall("", "", "")


async def merged(streams: Sequence[AsyncGenerator[News]]) -> AsyncGenerator[tuple[int, News]]:
    """What is new of several answers, as it comes."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for news in only:
                yield 0, news
        return
    queue: asyncio.Queue[tuple[int, News | Exception | None]] = asyncio.Queue()

    async def follow(index: int, stream: AsyncIterator[News]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((index, item))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.create_task(follow(index, stream)) for index, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind in one."""
    made: list[Part] = []
    for part in parts:
        if made and part.call is None and made[-1].kind == part.kind:
            made[-1] = Part(part.kind, made[-1].text + part.text)
        else:
            made.append(part)
    return made


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's form."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_of(done: Sequence[Whole], *, prompts: bool = False) -> dict[str, Any]:
    """Tokens of prompt and answers; `prompts`: each answer has a prompt of its own."""
    read = [item.generation for item in (done if prompts else done[:1])]
    prompt = sum(item.prompt_tokens for item in read)
    made = sum(len(item.generation.ids) for item in done)
    cached = sum(item.timings.cached_tokens for item in read)
    reasoning = sum(item.reasoning_tokens for item in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
