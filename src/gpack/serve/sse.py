"""Server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()
ALIVE = b": keep-alive\n\n"  # a comment: clients read over it, and proxies see that the line is in use
DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """JSON."""
    return _ENCODER.encode(value)


def data(value: Any) -> bytes:
    """An event without a name."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + _ENCODER.encode(value) + b"\n\n"


def failed(value: Any) -> bytes:
    """That a stream which has begun has failed."""
    return data(value)
