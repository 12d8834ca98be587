"""How well a model foretells a text: its perplexity, over windows as llama.cpp's `llama-perplexity` lays them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from .guild_model import GuildModel

_LOGIT_BYTES = 32 << 20  # of logits at a time


@dataclass(frozen=True)
class Perplexity:
    """What came of it so far.

    Attributes:
        value: exp of the mean of -ln p over the tokens that were judged.
        error: Its standard error; None for a single token.
        tokens: How many were judged.
        windows: How many windows were gone through.
    """

    value: float
    error: float | None
    tokens: int
    windows: int


@dataclass(frozen=True)
class Window:
    """Tokens that a model sees, from `start` on, of which those from `first` on are foretold by the ones before.

    Attributes:
        start, end: Of the text's tokens.
        first: The first one that counts.
    """

    start: int
    end: int
    first: int


def windows(count: int, n_ctx: int, stride: int = 0) -> list[Window]:
    """The windows of a text.

    Args:
        count: Tokens of the text.
        n_ctx: Tokens of a window, at least 4.
        stride: 0: windows stand side by side, and of each the second half counts. Else each begins `stride` tokens
            after the one before it and is half of that longer than `n_ctx`, and its last `stride` tokens count.

    Raises:
        UsageError: The text is shorter than a window, or a number makes no sense.
    """
    if n_ctx < 4 or not 0 <= stride < n_ctx:
        raise UsageError(f"windows of {n_ctx} tokens at a stride of {stride} make no sense", code="usage", field="ctx")
    size = n_ctx + stride // 2
    if count < size:
        raise UsageError(
            f"the text has {count} tokens, fewer than a window of {size}",
            code="engine.prompt",
            hint="a longer text, or a smaller --ctx",
        )
    if not stride:
        return [Window(at, at + size, at + size // 2 + 1) for at in range(0, count - size + 1, size)]
    starts = range(0, max(1, -(-(count - size) // stride)) * stride, stride)
    return [Window(at, at + size, at + size - stride) for at in starts]


def measure(
    model: GuildModel,
    ids: Sequence[int],
    *,
    n_ctx: int = 512,
    stride: int = 0,
    most: int | None = None,
    progress: Callable[[Perplexity], None] | None = None,
    **options: Any,
) -> Perplexity:
    """The perplexity of a text.

    The first token of each window is the one that begins texts, where the vocabulary wants one there.

    Args:
        ids: The text's tokens.
        n_ctx, stride: As `windows` has them.
        most: Of so many windows, the first ones; None: all.
        progress: Is told after each window.
        options: Those of `GuildModel.session`.

    Raises:
        UsageError: As `windows`, and `GuildModel.session`.
    """
    if most is not None and most < 1:
        raise UsageError(f"{most} windows make no sense", code="usage", field="most")
    parts = windows(len(ids), n_ctx, stride)[:most]
    settings = model.tokenizer.settings
    first = settings.bos_id if settings.add_bos else None
    total = squares = 0.0
    count = 0
    made = Perplexity(math.nan, None, 0, 0)
    with model.session(n_ctx=parts[0].end - parts[0].start, **options) as session:
        for number, part in enumerate(parts, start=1):
            session.rewind(0)
            for surprises in _surprises(session, list(ids[part.start : part.end]), part, first):
                total, squares = total + float(surprises.sum()), squares + float((surprises**2).sum())
                count += len(surprises)
            mean = total / count
            spread = squares / count - mean**2
            error = math.sqrt(max(spread, 0) / (count - 1)) * math.exp(mean) if count > 1 else None
            made = Perplexity(math.exp(mean), error, count, number)
            if progress is not None:
                progress(made)
    return made


def _surprises(session: Any, tokens: list[int], part: Window, begins: int | None) -> Iterator[Any]:
    """-ln p of the tokens that count, float64, some at a time."""
    seen = tokens.copy()
    if begins is not None:
        seen[0] = begins
    known = part.first - part.start - 1  # logits after these foretell nothing that counts
    if known:
        session.decode(seen[:known])
    rows = max(1, _LOGIT_BYTES // (4 * session.n_vocab))
    for at in range(known, len(tokens) - 1, rows):
        wanted = tokens[at + 1 : at + 1 + rows]
        logits = session.decode(seen[at : at + len(wanted)], all_logits=True).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        yield np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(wanted)), wanted]
