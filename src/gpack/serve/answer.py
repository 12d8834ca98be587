"""One answer of a model on its way to a client: pieces from the scheduler's thread become parts in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..generate.request import EOS, STOP, Generation, Request
from ..generate.sampling import Logprobs
from ..generate.writing import Rules
from .failures import Failure
from .job import Event, Job
from .markup import Part, Reader, ToolCall
from .served import Served

_ALIVE_SECONDS = 15.0  # of silence, after which a stream says that it is still there


@dataclass(frozen=True)
class News:
    """What is new of an answer.

    Attributes:
        parts: Of its text; none where a character or a mark is not whole yet.
        logprobs: Of the tokens that came.
        done: All of it, in the last one.
        is_alive: Nothing is new, but the line is to be kept open.
    """

    parts: Sequence[Part] = ()
    logprobs: Sequence[Logprobs] = ()
    done: Generation | None = None
    is_alive: bool = False


@dataclass
class Whole:
    """An answer that is complete.

    Attributes:
        text, reasoning: Their texts.
        calls: Of tools.
        generation: How it came about.
        reasoning_tokens: So many of its tokens were reasoning, its marks included.
    """

    text: str
    reasoning: str
    calls: list[ToolCall]
    generation: Generation
    reasoning_tokens: int = 0

    @property
    def finish_reason(self) -> str:
        """As OpenAI's clients know it."""
        if self.generation.finish_reason not in (EOS, STOP):
            return "length"
        return "tool_calls" if self.calls else "stop"


class Answer:
    """An answer: iterate over what is new of it, or wait for the whole."""

    def __init__(self, served: Served, request: Request, *, reader: Reader | None, timeout: float) -> None:
        """Takes a request for a model; `submit` hands it over.

        Args:
            reader: Reads the marks of its text; None: all is text.
            timeout: Seconds that it may take.
        """
        self._served, self._reader, self._timeout = served, reader, timeout
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self.request = request
        self.reasoning_tokens = 0
        self.job: Job | None = None

    def prepare(self, rules: Rules | None = None, after: Answer | None = None) -> Job:
        """The job, to be submitted.

        Raises:
            GpackError: The request makes no sense.
        """
        follows = None if after is None else after.job
        self.job = self._served.job(self.request, self._tell, rules, follows)
        return self.job

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if self.job is not None and not self.job.is_done:
            self._served.scheduler.cancel(self.job)

    async def news(self) -> AsyncGenerator[News]:
        """What is new, until it is done; whoever leaves early frees all that it takes.

        Raises:
            Failure: It failed, or took too long.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        self._ring(loop, end)
        try:
            while True:
                if not self._events:
                    self._waiter = loop.create_future()
                    await self._waiter
                events, self._events = self._events, []
                news = self._news_of(events) if events else News(is_alive=True)
                if news.done is None and loop.time() >= end:
                    what = f"the answer was not done after {self._timeout:g} seconds"
                    raise Failure.of(UsageError(what, code="serve.timeout"))
                yield news
                if news.done is not None:
                    return
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            self.cancel()

    def _news_of(self, events: list[Event]) -> News:
        parts: list[Part] = []
        logprobs: list[Logprobs] = []
        done: Generation | None = None
        for event in events:
            if event.error is not None:
                raise Failure.of(event.error)
            piece = event.piece
            if piece is None:
                continue
            if self._reader is not None and piece.token is not None:
                self.reasoning_tokens += self._reader.is_reasoning
            parts += self._read(piece.text)
            if piece.logprobs is not None:
                logprobs.append(piece.logprobs)
            if piece.generation is not None:
                done = piece.generation
                parts += [] if self._reader is None else self._reader.flush()
        return News(parts, logprobs, done)

    async def whole(self) -> Whole:
        """All of it.

        Raises:
            Failure: As `news`.
        """
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        async with contextlib.aclosing(self.news()) as news:
            async for item in news:
                for part in item.parts:
                    if part.call is not None:
                        calls.append(part.call)
                    else:
                        (reasoning if part.kind == "reasoning" else texts).append(part.text)
                if item.done is not None:
                    return Whole("".join(texts), "".join(reasoning), calls, item.done, self.reasoning_tokens)
        raise Failure(500, "the answer did not end", "internal_error")

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def _ring(self, loop: asyncio.AbstractEventLoop, end: float) -> None:
        """Wakes whoever waits from time to time, and at the end, whether or not there is anything new."""
        self._wake()
        self._alarm = loop.call_later(min(max(end - loop.time(), 0.1), _ALIVE_SECONDS), self._ring, loop, end)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Part("text", text)] if self._reader is None else self._reader.push(text)
