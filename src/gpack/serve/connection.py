"""Connections of HTTP, with limits: clients that send no end, or read nothing, hold nothing for long."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .failures import Failure
from .sse import encode

_MOST_HEADERS, _MOST_HEAD = 128, 1 << 16  # of a request; bytes of its address and headers


class Connection(HttpToolsProtocol):
    """One connection: uvicorn's, whose requests have heads of bounded size that come in bounded time.

    A client that leaves an answer unread is cut off. Bodies are the application's to bound.
    """

    def __init__(self, *, idle: float, **options: Any) -> None:
        """`idle`: seconds that a request's head may take, and an answer may be left unread."""
        super().__init__(**options)
        self._idle = idle
        self._size = 0
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._failure = Failure(400, "this is no request of HTTP", "invalid_request")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        _stop(self._head)
        _stop(self._unread)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._size = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Some of its address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        _stop(self._head)
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """What was written waits to be read."""
        super().pause_writing()
        _stop(self._unread)
        self._unread = self.loop.call_later(self._idle, self.transport.abort)

    def resume_writing(self) -> None:
        """It was read."""
        _stop(self._unread)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, or too large a one."""
        failure, body = self._failure, encode(self._failure.openai())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[failure.status] + head + body)
        self.transport.close()

    def _expect_head(self) -> None:
        _stop(self._head)
        self._head = self.loop.call_later(self._idle, self._late)

    def _late(self) -> None:
        self._failure = Failure(408, f"the request was not whole after {self._idle:g} seconds", "request_timeout")
        if not self.transport.is_closing():
            self.send_400_response("")

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > _MOST_HEAD or len(self.headers) >= _MOST_HEADERS:
            what = f"a request has at most {_MOST_HEADERS} headers, of {_MOST_HEAD} bytes together with its address"
            self._failure = Failure(431, what, "headers_too_large")
            raise ValueError(what)  # the parser ends, and `send_400_response` says why


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
