"""The server's paths: what comes by HTTP, and what goes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import __version__
from ..errors import GpackError
from . import fields
from .anthropic_api import messages, messages_ask, stream_message, whole_message
from .asking import template_variables
from .failures import Failure, bad
from .gate import Gate, failed, json_answer, no_path, ours, unforeseen
from .metrics import Metrics
from .openai_chat import chat, completions, stream_of, whole_of
from .openapi import document
from .responses_api import Memory, responses, stream_response, whole_response
from .served import Served, Settings
from .shelf import Shelf, Slot
from .streams import Held, unless_gone

LOG = logging.getLogger("gpack.serve")
# The page may ask this server alone, and nobody may show it inside of another.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


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
        handlers: Any = {Failure: failed, GpackError: ours, HTTPException: no_path, Exception: unforeseen}
        middleware = [Middleware(Gate, server=self)]
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
        with Held(slot) as held:
            options = asked.stream_options or {}
            fields.only(options, ("include_usage", "include_obfuscation"), "stream_options")
            shape, answers = await make(served, asked, self.settings.timeout)
            if not asked.stream:
                return json_answer(await unless_gone(request, whole_of(shape, answers)))
            return held.stream(stream_of(shape, answers, usage=bool(options.get("include_usage"))), answers)

    async def responses(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        asked = fields.read(await self._body(request), fields.Responses)
        fields.only(asked.stream_options or {}, ("include_obfuscation",), "stream_options")
        slot, served = await self._served(asked.model)
        with Held(slot) as held:
            shape, answer = await responses(served, asked, self.memory, self.settings.timeout)
            if asked.stream:
                return held.stream(stream_response(shape, answer), [answer])
            return json_answer(whole_response(shape, await unless_gone(request, answer.whole())))

    async def messages(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        asked = fields.read(await self._body(request), fields.Messages)
        slot, served = await self._served(asked.model)
        with Held(slot) as held:
            answer = await messages(served, asked, self.settings.timeout)
            if asked.stream:
                return held.stream(stream_message(served, answer), [answer])
            return json_answer(whole_message(served, await unless_gone(request, answer.whole())))

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`."""
        asked = fields.read(await self._body(request), fields.Counted)
        slot, served = await self._served(asked.model)
        with Held(slot):
            ask = messages_ask(fields.Messages(**msgspec.structs.asdict(asked), max_tokens=1))
            variables = template_variables(served, ask)
            prompt = await asyncio.to_thread(served.chat, ask.messages, ask.tools or None, variables)
            return json_answer({"input_tokens": len(prompt.ids)})

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        asked = fields.read(await self._body(request), fields.Embeddings)
        if asked.dimensions is not None:
            raise bad("the vectors have the model's width; they are not shortened", "dimensions")
        if asked.encoding_format not in (None, "float", "base64"):
            raise bad("there are float and base64", "encoding_format")
        slot, served = await self._served(asked.model)
        with Held(slot):
            found, tokens = await asyncio.to_thread(_embed, served, asked.input)
        data = [
            {"object": "embedding", "index": number, "embedding": _vector(vector, asked.encoding_format)}
            for number, vector in enumerate(found)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_answer({"object": "list", "model": served.name, "data": data, "usage": usage})

    # ------------------------------------------------------------ tokens

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`."""
        asked = fields.read(await self._body(request), fields.Tokenize)
        slot, served = await self._served(asked.model)
        with Held(slot):
            encode_ = served.model.tokenizer.encode
            ids = await asyncio.to_thread(
                encode_, asked.content, add_special=asked.add_special, parse_special=asked.parse_special
            )
            return json_answer({"tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`."""
        asked = fields.read(await self._body(request), fields.Detokenize)
        slot, served = await self._served(asked.model)
        with Held(slot):
            return json_answer({"content": await asyncio.to_thread(served.model.tokenizer.decode, asked.tokens)})

    # ------------------------------------------------------------ what there is

    async def models(self, _request: Request) -> Response:
        """`GET /v1/models`."""
        return json_answer({"object": "list", "data": [self._model(name) for name in self.shelf.names]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        return json_answer(self._model(self.shelf.slot(request.path_params["name"]).name))

    def _model(self, name: str) -> dict[str, Any]:
        served = self.shelf.slot(name).served
        made: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "gpack"}
        if served is not None:
            made |= {"created": served.created, "context_length": served.n_ctx, **_description(served)}
        return made

    async def props(self, _request: Request) -> Response:
        """`GET /props`: what the page shows of the models."""
        return json_answer({"version": __version__, "models": [self._model(name) for name in self.shelf.names]})

    async def openapi(self, _request: Request) -> Response:
        """`GET /openapi.json`."""
        return json_answer(document())

    async def health(self, _request: Request) -> Response:
        """`GET /health`: loading, ready or draining."""
        state = "draining" if self.shelf.is_closing else "ready" if self.is_ready else "loading"
        return json_answer({"status": state}, 200 if state == "ready" else 503)

    async def tell_metrics(self, _request: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self, _request: Request) -> Response:
        """`GET /`: the page to chat."""
        path = resources.files("gpack.serve") / "page" / "index.html"
        if not path.is_file():
            return json_answer({"name": "gpack", "version": __version__, "models": self.shelf.names})
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
