"""The n-gram row hash of qwen4exp: which rows of the table of per-layer embeddings a token touches.

For every position the last 2, 3, ... tokens are mixed with odd multipliers, and each head takes its row of a range of
its own: `row = mix mod vocab_size + offset`. Integers wrap at 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, UsageError
from ..sources.ngram_constants import DEFAULT_SEED, derive_multipliers, derive_offsets, derive_vocab_sizes

__all__ = ["DEFAULT_SEED", "NgramHash", "derive_multipliers", "derive_offsets", "derive_vocab_sizes", "ngram_rows"]

Tokens = Sequence[int] | npt.NDArray[np.integer[Any]]
_MASK = (1 << 64) - 1
_MAX_ROW = (1 << 63) - 1  # rows and token ids are int64


@dataclass(frozen=True)
class NgramHash:
    """The constants of a model's hash.

    Attributes:
        ngram_size: Tokens of the longest n-gram; there are n-grams of 2 to so many.
        heads_per_ngram: Rows to each length of n-gram.
        multipliers: One for each place, the newest token's first.
        head_offsets, head_vocab_sizes: First row and number of rows of each head.
        eos_token_id: Where it stands before a token, the context ends.
    """

    ngram_size: int
    heads_per_ngram: int
    multipliers: tuple[int, ...]
    head_offsets: tuple[int, ...]
    head_vocab_sizes: tuple[int, ...]
    eos_token_id: int

    def __post_init__(self) -> None:
        """Raises:
        FormatError: `ple.hash`: the constants do not fit each other.
        """
        heads = (self.ngram_size - 1) * self.heads_per_ngram
        lengths = (len(self.multipliers), len(self.head_offsets), len(self.head_vocab_sizes))
        if self.ngram_size < 2 or self.heads_per_ngram < 1 or lengths != (self.ngram_size, heads, heads):
            raise _fault(f"{self.ngram_size}-grams of {self.heads_per_ngram} heads have {lengths} constants")
        ends = (at + size for at, size in zip(self.head_offsets, self.head_vocab_sizes, strict=True))
        if (
            min(self.head_vocab_sizes) < 1
            or min(self.head_offsets) < 0
            or max(ends) > _MAX_ROW
            or not all(0 <= m <= _MASK for m in self.multipliers)
            or not -1 <= self.eos_token_id <= _MAX_ROW
        ):
            raise _fault("a constant is out of its range")

    @classmethod
    def from_metadata(cls, get: Callable[[str], Any], architecture: str = "qwen4exp") -> NgramHash:
        """The hash of a model, from its metadata.

        Args:
            get: Decoded metadata value of a key, or None.

        Raises:
            FormatError: `ple.hash`: a key is missing or no such number.
        """

        def number(key: str) -> int:
            value = get(f"{architecture}.{key}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise _fault(f"{architecture}.{key} is {value!r}, no integer")
            return value

        def numbers(key: str) -> tuple[int, ...]:
            value = get(f"{architecture}.{key}")
            if not isinstance(value, list) or not all(type(item) is int for item in value):
                raise _fault(f"{architecture}.{key} is no array of integers")
            return tuple(value)

        return cls(
            ngram_size=number("ple.ngram_size"),
            heads_per_ngram=number("ple.heads_per_ngram"),
            multipliers=numbers("ple.layer_multipliers"),
            head_offsets=numbers("ple.head_offsets"),
            head_vocab_sizes=numbers("ple.head_vocab_sizes"),
            eos_token_id=number("ple.eos_token_id"),
        )

    @property
    def n_rows(self) -> int:
        """Rows of each token."""
        return len(self.head_offsets)

    @property
    def row_count(self) -> int:
        """Rows that the table must have at least."""
        ends = (at + size for at, size in zip(self.head_offsets, self.head_vocab_sizes, strict=True))
        return max(ends)

    def rows(self, tokens: Tokens, previous: Tokens = ()) -> npt.NDArray[np.int64]:
        """int64 [tokens, heads]: the rows of each token.

        Args:
            tokens: Ids of consecutive tokens.
            previous: The tokens of the sequence before them; the last `ngram_size - 1` count. Empty at its start.
        """
        size, eos = self.ngram_size, self.eos_token_id
        history = _ids(previous)[-(size - 1) :]
        # Before the start of the sequence there is nothing, which counts as an end-of-sequence token.
        missing = np.full(size - 1 - len(history), eos, np.int64)
        line = np.concatenate([missing, history, _ids(tokens)])
        count = len(line) - (size - 1)
        factors = np.array(self.multipliers, np.uint64)
        mixed = line[size - 1 :].astype(np.uint64) * factors[0]
        cut = np.zeros(count, np.bool_)
        rows = []
        for back in range(1, size):
            older = line[size - 1 - back : len(line) - back]
            # Once the context is cut, all that is older is cut too.
            cut |= older == eos
            mixed = mixed ^ np.where(cut, np.int64(eos), older).astype(np.uint64) * factors[back]
            heads = slice((back - 1) * self.heads_per_ngram, back * self.heads_per_ngram)
            sizes = np.array(self.head_vocab_sizes[heads], np.uint64)
            first = np.array(self.head_offsets[heads], np.int64)
            rows.append((mixed[:, None] % sizes).astype(np.int64) + first)
        return np.concatenate(rows, axis=1)


def ngram_rows(
    tokens: Tokens,
    *,
    multipliers: Sequence[int],
    head_offsets: Sequence[int],
    head_vocab_sizes: Sequence[int],
    heads_per_ngram: int,
    eos_token_id: int,
    previous: Tokens = (),
) -> npt.NDArray[np.int64]:
    """int64 [tokens, heads]: the rows of each token; the arguments are those of `NgramHash`.

    Raises:
        FormatError: `ple.hash`: the constants do not fit each other or are out of their range.
    """
    made = NgramHash(
        ngram_size=len(multipliers),
        heads_per_ngram=heads_per_ngram,
        multipliers=tuple(multipliers),
        head_offsets=tuple(head_offsets),
        head_vocab_sizes=tuple(head_vocab_sizes),
        eos_token_id=eos_token_id,
    )
    return made.rows(tokens, previous)


def _ids(tokens: Tokens) -> npt.NDArray[np.int64]:
    try:
        made = np.asarray(tokens, np.int64)
    except OverflowError as error:
        raise UsageError(f"a token id is beyond 63 bits: {error}", code="usage", field="tokens") from error
    if made.ndim != 1 or (made.size and made.min() < 0):
        raise UsageError("token ids are one line of numbers from 0 on", code="usage", field="tokens")
    return made


def _fault(message: str) -> FormatError:
    return FormatError(message, code="ple.hash", section="metadata")
