"""The server's paths: what comes by HTTP, and what goes back."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import GpackError
from . import fields
from .answer import Answer
from .anthropic_api import messages, messages_ask, stream_message, whole_message
from .asking import template_variables
from .failures import Failure, bad
from .metrics import Metrics
from .openai_chat import chat, completions, stream_of, whole_of
from .openapi import document
from .responses_api import Memory, responses, stream_response, whole_response
from .served import Served, Settings
from .shelf import Shelf, Slot
from .sse import encode

LOG = logging.getLogger("gpack.serve")
# The page may ask this server alone, and nobody may show it inside of another.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_OPEN = ("/", "/health", "/openapi.json", "/favicon.ico")  # paths that need no key


@dataclass(frozen=True)
class Limits:
    """What a server takes.

    Attributes:
        body: Most bytes of a request.
        key: That clients must send; None: none.
        origins: Of pages that may ask; `*`: of all.
        idle: Seconds that a client may be silent within a request.
        finish: Seconds that answers may take to end when the server is to end.
        logs: Whether each request is logged, without its texts.
    """

    body: int = 16 << 20
    key: str | None = None
    origins: tuple[str, ...] = ()
    idle: float = 30.0
    finish: float = 20.0
    logs: bool = False


def build(slots: list[Slot], settings: Settings, limits: Limits, *, budget: int | None = None) -> Starlette:
    """The application.

    Args:
        slots: The models.
        settings: How they are served.
        limits: What the server takes.
        budget: Most bytes of the files of loaded models.
    """
    return _Server(slots, settings, limits, budget).app


class _Server:
    def __init__(self, slots: list[Slot], settings: Settings, limits: Limits, budget: int | None) -> None:
        self.shelf = Shelf(slots, settings, budget=budget)
        self.settings, self.limits = settings, limits
        self.memory = Memory()
        self.metrics = Metrics(self.shelf.loaded)
        self.is_ready = False
        self.failure: GpackError | None = None  # why the first model cannot be served
        self.failed: Callable[[], None] = lambda: None  # called then
        post = ["POST"]
        routes = [
            Route("/", self.page),
            Route("/health", self.health),
            Route("/metrics", self.tell_metrics),
            Route("/props", self.props),
            Route("/openapi.json", self.openapi),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self.chat, methods=post),
            Route("/v1/completions", self.completions, methods=post),
            Route("/v1/responses", self.responses, methods=post),
            Route("/v1/messages", self.messages, methods=post),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=post),
            Route("/v1/embeddings", self.embeddings, methods=post),
            Route("/tokenize", self.tokenize, methods=post),
            Route("/detokenize", self.detokenize, methods=post),
        ]
        handlers: Any = {Failure: _failed, GpackError: _ours, HTTPException: _http, Exception: _unforeseen}
        middleware = [Middleware(_Gate, server=self)]
        if limits.origins:
            cors = Middleware(
                CORSMiddleware, allow_origins=list(limits.origins), allow_methods=["*"], allow_headers=["*"]
            )
            middleware.insert(0, cors)
        self.app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=self._lifespan)
        self.app.state.server = self

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(self._load_first())
        try:
            yield
        finally:
            first.cancel()
            cut = await self.shelf.close(self.limits.finish)
            if cut:
                LOG.warning("%d answers were cut when the server ended", cut)

    async def _load_first(self) -> None:
        """The first model is loaded at once, the others when they are asked for."""
        try:
            Shelf.release(await self.shelf.get(self.shelf.names[0]))
        except Failure as error:
            self.failure = error.__cause__ if isinstance(error.__cause__, GpackError) else None
            self.failed()
        else:
            self.is_ready = True

    # ------------------------------------------------------------ answers

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        asked = fields.read(await self._body(request), fields.Chat)
        return await self._openai(request, asked, chat)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        asked = fields.read(await self._body(request), fields.Completions)
        return await self._openai(request, asked, completions)

    async def _openai(self, request: Request, asked: Any, make: Callable[..., Awaitable[Any]]) -> Response:
        slot, served = await self._served(asked.model)
        with _Held(slot) as held:
            options = asked.stream_options or {}
            fields.only(options, ("include_usage", "include_obfuscation"), "stream_options")
            shape, answers = await make(served, asked, self.settings.timeout)
            if not asked.stream:
                return _json(await _unless_gone(request, whole_of(shape, answers)))
            return held.stream(stream_of(shape, answers, usage=bool(options.get("include_usage"))), answers)

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        asked = fields.read(await self._body(request), fields.Responses)
        fields.only(asked.stream_options or {}, ("include_obfuscation",), "stream_options")
        slot, served = await self._served(asked.model)
        with _Held(slot) as held:
            shape, answer = await responses(served, asked, self.memory, self.settings.timeout)
            if asked.stream:
                return held.stream(stream_response(shape, answer), [answer])
            return _json(whole_response(shape, await _unless_gone(request, answer.whole())))

    async def messages(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        asked = fields.read(await self._body(request), fields.Messages)
        slot, served = await self._served(asked.model)
        with _Held(slot) as held:
            answer = await messages(served, asked, self.settings.timeout)
            if asked.stream:
                return held.stream(stream_message(served, answer), [answer])
            return _json(whole_message(served, await _unless_gone(request, answer.whole())))

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`."""
        asked = fields.read(await self._body(request), fields.Counted)
        slot, served = await self._served(asked.model)
        with _Held(slot):
            ask = messages_ask(fields.Messages(**msgspec.structs.asdict(asked), max_tokens=1))
            variables = template_variables(served, ask)
            prompt = await asyncio.to_thread(served.chat, ask.messages, ask.tools or None, variables)
            return _json({"input_tokens": len(prompt.ids)})

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        asked = fields.read(await self._body(request), fields.Embeddings)
        if asked.dimensions is not None:
            raise bad("the vectors have the model's width; they are not shortened", "dimensions")
        if asked.encoding_format not in (None, "float", "base64"):
            raise bad("there are float and base64", "encoding_format")
        slot, served = await self._served(asked.model)
        with _Held(slot):
            found, tokens = await asyncio.to_thread(_embed, served, asked.input)
        data = [
            {"object": "embedding", "index": number, "embedding": _vector(vector, asked.encoding_format)}
            for number, vector in enumerate(found)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "model": served.name, "data": data, "usage": usage})

    # ------------------------------------------------------------ tokens

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`."""
        asked = fields.read(await self._body(request), fields.Tokenize)
        slot, served = await self._served(asked.model)
        with _Held(slot):
            encode_ = served.model.tokenizer.encode
            ids = await asyncio.to_thread(
                encode_, asked.content, add_special=asked.add_special, parse_special=asked.parse_special
            )
            return _json({"tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`."""
        asked = fields.read(await self._body(request), fields.Detokenize)
        slot, served = await self._served(asked.model)
        with _Held(slot):
            return _json({"content": await asyncio.to_thread(served.model.tokenizer.decode, asked.tokens)})

    # ------------------------------------------------------------ what there is

    async def models(self, _request: Request) -> Response:
        """`GET /v1/models`."""
        return _json({"object": "list", "data": [self._model(name) for name in self.shelf.names]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        return _json(self._model(self.shelf.slot(request.path_params["name"]).name))

    def _model(self, name: str) -> dict[str, Any]:
        served = self.shelf.slot(name).served
        made: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "gpack"}
        if served is not None:
            made |= {"created": served.created, "context_length": served.n_ctx, **_description(served)}
        return made

    async def props(self, _request: Request) -> Response:
        """`GET /props`: what the page shows of the models."""
        return _json({"version": __version__, "models": [self._model(name) for name in self.shelf.names]})

    async def openapi(self, _request: Request) -> Response:
        """`GET /openapi.json`."""
        return _json(document())

    async def health(self, _request: Request) -> Response:
        """`GET /health`: loading, ready or draining."""
        state = "draining" if self.shelf.is_closing else "ready" if self.is_ready else "loading"
        return _json({"status": state}, 200 if state == "ready" else 503)

    async def tell_metrics(self, _request: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self, _request: Request) -> Response:
        """`GET /`: the page to chat."""
        path = resources.files("gpack.serve") / "page" / "index.html"
        if not path.is_file():
            return _json({"name": "gpack", "version": __version__, "models": self.shelf.names})
        return Response(path.read_bytes(), headers=_PAGE_HEADERS, media_type="text/html; charset=utf-8")

    # ------------------------------------------------------------ requests

    async def _served(self, name: str | None) -> tuple[Slot, Served]:
        slot = await self.shelf.get(name)
        assert slot.served is not None
        return slot, slot.served

    async def _body(self, request: Request) -> bytes:
        most, idle, body = self.limits.body, self.limits.idle, bytearray()
        parts, end = request.stream(), time.monotonic() + self.settings.timeout
        while True:
            try:
                async with asyncio.timeout(min(idle, end - time.monotonic())):
                    body += await anext(parts)
            except StopAsyncIteration:
                return bytes(body)
            except TimeoutError as error:
                raise Failure(408, "the body did not come in time", "request_timeout") from error
            if len(body) > most:
                raise Failure(413, f"a request has at most {most} bytes", "request_too_large")


class _Held:
    """A model that a request uses, until the answer has gone out."""

    def __init__(self, slot: Slot) -> None:
        self._slot, self._streams = slot, False

    def __enter__(self) -> _Held:
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
        try:
            await super().__call__(scope, receive, send)
        finally:
            for answer in self._answers:
                answer.cancel()
            Shelf.release(self._slot)
            await self._events.aclose()


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
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


def _embed(served: Served, given: Any) -> tuple[list[Any], int]:
    made, count = [], 0
    for item in fields.texts(given, "input"):
        ids = served.model.tokenizer.encode(item) if isinstance(item, str) else item
        if not ids:
            raise bad("an input is empty: it has no tokens", "input")
        count += len(ids)
        made.append(served.embed(ids))
    return made, count


def _vector(vector: Any, form: str | None) -> Any:
    if form == "base64":
        import base64

        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]


def _description(served: Served) -> dict[str, Any]:
    return {
        "architecture": served.model.metadata.get("general.architecture"),
        "file_bytes": served.nbytes,
        "weights": served.weights,
        "takes_tools": served.style.calls != "none",
        "thinks": served.style.thinks,
    }


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type="application/json")


async def _failed(request: Request, error: Failure) -> Response:
    body = error.anthropic() if request.url.path.startswith("/v1/messages") else error.openai()
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    if error.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is nobody's
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _json(body, error.status, headers)


async def _ours(request: Request, error: GpackError) -> Response:
    return await _failed(request, Failure.of(error))


async def _http(request: Request, error: HTTPException) -> Response:
    what = {404: "there is no such path", 405: "the path is there, but not for this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    text = what.get(error.status_code, str(error.detail))
    return await _failed(request, Failure(error.status_code, text, codes.get(error.status_code)))


async def _unforeseen(request: Request, error: Exception) -> Response:
    LOG.error("a request to %s failed", request.url.path, exc_info=error)
    return await _failed(request, Failure(500, "the server has a fault; its log says more", "internal_error"))


class _Gate:
    """Checks the key, counts requests and logs them; a client that has gone gets nothing."""

    def __init__(self, app: ASGIApp, server: _Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["path"]
        try:
            if path not in _OPEN and scope["method"] != "OPTIONS" and not self._has_key(scope):
                request = Request(scope, receive)
                failure = Failure(401, "the key is missing, or not the server's", "invalid_api_key")
                await (await _failed(request, failure))(scope, receive, noting)
            else:
                await self.app(scope, receive, noting)
        except ClientDisconnect:
            status = 499
        except Exception:
            status = 500  # the answer is made outside of this
            raise
        finally:
            known = path if any(route.path == path for route in self.server.app.routes) else "other"  # type: ignore[attr-defined]
            self.server.metrics.requests.labels(known, str(status)).inc()
            if self.server.limits.logs:
                seconds = round(time.perf_counter() - started, 4)
                LOG.info(json.dumps({"method": scope["method"], "path": path, "status": status, "seconds": seconds}))

    def _has_key(self, scope: Scope) -> bool:
        key = self.server.limits.key
        if key is None:
            return True
        headers = dict(scope["headers"])
        given = headers.get(b"x-api-key", b"")
        bearer = headers.get(b"authorization", b"")
        if bearer[:7].lower() == b"bearer ":
            given = bearer[7:]
        return hmac.compare_digest(given, key.encode())
