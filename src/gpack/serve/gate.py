"""What every request goes through: its key, its count in the metrics, its line in the log; and errors as answers."""

from __future__ import annotations

import hmac
import json
import logging
import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import GpackError
from .failures import Failure
from .sse import encode

LOG = logging.getLogger("gpack.serve")
_OPEN = ("/", "/health", "/openapi.json", "/favicon.ico")  # paths that need no key


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON."""
    return Response(encode(value), status, headers, media_type="application/json")


async def failed(request: Request, error: Failure) -> Response:
    """A failure, as the clients of its path know it."""
    body = error.anthropic() if request.url.path.startswith("/v1/messages") else error.openai()
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    if error.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is nobody's
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_answer(body, error.status, headers)


async def ours(request: Request, error: GpackError) -> Response:
    """An error of this package."""
    return await failed(request, Failure.of(error))


async def no_path(request: Request, error: HTTPException) -> Response:
    """A path or a method that there is not."""
    what = {404: "there is no such path", 405: "the path is there, but not for this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    text = what.get(error.status_code, str(error.detail))
    return await failed(request, Failure(error.status_code, text, codes.get(error.status_code)))


async def unforeseen(request: Request, error: Exception) -> Response:
    """A fault of the server: the log says more than the client."""
    LOG.error("a request to %s failed", request.url.path, exc_info=error)
    return await failed(request, Failure(500, "the server has a fault; its log says more", "internal_error"))


class Gate:
    """Checks the key, counts requests and logs them; a client that has gone gets nothing."""

    def __init__(self, app: ASGIApp, server: Any) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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
                await (await failed(request, failure))(scope, receive, noting)
            else:
                await self.app(scope, receive, noting)
        except ClientDisconnect:
            status = 499
        except Exception:
            status = 500  # the answer is made outside of this
            raise
        finally:
            known = path if any(route.path == path for route in self.server.app.routes) else "other"
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
