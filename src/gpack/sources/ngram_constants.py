"""The constants of the n-gram hash of qwen4exp as its makers' code derives them, for models that do not bring them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # of SplitMix64
_LAYER_STEP = 10007
DEFAULT_SEED = 1234


def derive_multipliers(vocab_size: int, ngram_size: int, *, layer: int = 0, seed: int = DEFAULT_SEED) -> list[int]:
    """The multipliers that such a model is made with.

    Args:
        layer: Number of the layer among those with per-layer embeddings.
    """
    half = ((1 << 63) - 1) // vocab_size // 2
    starts = (seed + _LAYER_STEP * layer + _GAMMA * (place + 1) for place in range(ngram_size))
    return [2 * (_splitmix64(start) % half) + 1 for start in starts]


def derive_vocab_sizes(count: int, above: int) -> list[int]:
    """The first `count` primes that are greater than `above`: one range of rows for each head."""
    found: list[int] = []
    candidate = above
    while len(found) < count:
        candidate += 1
        if _is_prime(candidate):
            found.append(candidate)
    return found


def derive_offsets(sizes: Sequence[int]) -> list[int]:
    """First rows of the heads: one range after the other."""
    return [0, *accumulate(sizes[:-1])]


def _splitmix64(state: int) -> int:
    state = (state + _GAMMA) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return state ^ state >> 31


def _is_prime(number: int) -> bool:
    if number < 4 or number % 2 == 0:
        return number in (2, 3)
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True
