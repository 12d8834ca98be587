"""Answers that go out as they come, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .answer import Answer
from .shelf import Shelf, Slot


class Held:
    """A model that a request uses, until the answer has gone out."""

    def __init__(self, slot: Slot) -> None:
        self._slot, self._streams = slot, False

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._streams:
            Shelf.release(self._slot)

    def stream(self, events: AsyncGenerator[bytes], answers: Sequence[Answer]) -> Response:
        """Events that go out one by one; the model is held until the last."""
        self._streams = True
        return _Stream(events, answers, self._slot)


class _Stream(StreamingResponse):
    """A stream of events. However it ends, and if it never begins, its answers end and its model is released."""

    def __init__(self, events: AsyncGenerator[bytes], answers: Sequence[Answer], slot: Slot) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events, self._answers, self._slot = events, answers, slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for answer in self._answers:
                answer.cancel()
            Shelf.release(self._slot)
            await self._events.aclose()


async def unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """Waits for an answer, or until its client has gone.

    Raises:
        ClientDisconnect: It has.
    """
    answer = asyncio.ensure_future(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
