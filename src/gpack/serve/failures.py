"""Errors as clients of each protocol know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import GpackError

# Codes of ours and the status and code that clients know them by; all other errors of a request are 400.
_STATUS = {
    "serve.busy": (429, "rate_limit_exceeded"),
    "serve.closing": (503, "server_shutting_down"),
    "serve.timeout": (504, "timeout"),
    "engine.context": (400, "context_length_exceeded"),
    "engine.budget": (503, "out_of_memory"),
    "engine.nan": (500, "model_error"),
    "internal": (500, "internal_error"),
    "io.read": (500, "model_error"),
    "io.short_read": (500, "model_error"),
}
_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_ANTHROPIC = {**_TYPES, 503: "overloaded_error", 504: "timeout_error"}


@dataclass(eq=False)  # not frozen: an exception gets its traceback
class Failure(Exception):
    """What a request failed with.

    Attributes:
        status: Of HTTP.
        message: What, and what to do.
        code: Stable.
        param: The field of the request that is at fault.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None

    @classmethod
    def of(cls, error: GpackError, param: str | None = None) -> Failure:
        """An error of ours."""
        status, code = _STATUS.get(error.code, (400, error.code))
        # Paths of the server are nobody's business but its operator's.
        message = error.message if not error.hint else f"{error.message} ({error.hint})"
        return cls(status, message, code, param or (error.field if status == 400 else None))

    def openai(self) -> dict[str, Any]:
        """The body for OpenAI's clients."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body for Anthropic's clients."""
        kind = _ANTHROPIC.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        where = f"{self.param}: " if self.param else ""
        return {"type": "error", "error": {"type": kind, "message": where + self.message}}


def bad(message: str, param: str | None = None, code: str | None = None) -> Failure:
    """A request that makes no sense."""
    return Failure(400, message, code or "invalid_value", param)
