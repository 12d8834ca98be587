"""Log-probabilities of tokens as OpenAI's clients know them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..generate.sampling import Logprobs
from .served import Served


def told_logprobs(served: Served, found: Sequence[Logprobs]) -> list[dict[str, Any]]:
    """An object for each token."""
    return [
        {
            **_token(served, item.token, item.logprob),
            "top_logprobs": [_token(served, token, value) for token, value in item.top if math.isfinite(value)],
        }
        for item in found
    ]


def piece_of(served: Served, token: int) -> bytes:
    """The bytes of a token; none where the model has more rows than its vocabulary has tokens."""
    tokenizer = served.model.tokenizer
    return bytes(tokenizer.piece(token)) if token < len(tokenizer) else b""


def _token(served: Served, token: int, logprob: float) -> dict[str, Any]:
    raw = piece_of(served, token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
