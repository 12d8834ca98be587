"""From logits to the next token: penalties, filters, temperature, a draw; and log-probabilities.

The order is that of llama.cpp's default chain: repetition penalties, top-k, top-p, min-p, temperature, draw. Each
filter looks at the softmax of what the one before it kept. Temperature 0 takes the largest logit after the penalties;
of equal logits the token with the smaller id goes first, everywhere. Nothing sorts a whole vocabulary unless top-p
alone looks at a very flat distribution.

A draw depends on the seed and on the token's position alone: the same seed and the same logits give the same tokens,
however many of them were computed in one step. Source of the generator, SplitMix64: Steele, Lea and Flood, Fast
Splittable Pseudorandom Number Generators (2014).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, UsageError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float32).max)
_LANES = 256  # rows of the vocabulary as a matrix: its column maxima bound the k-th largest from below
_STEP, _BITS = 0x9E3779B97F4A7C15, (1 << 64) - 1
_WHOLE = ("top_k", "repeat_window", "seed")
_NUCLEUS = 256  # tokens that a nucleus is first looked for among


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. The defaults are llama.cpp's.

    Attributes:
        temperature: Divides the logits; 0: always the largest (greedy), whatever the filters.
        top_k: Keep so many of the largest; 0: all.
        top_p: Keep the fewest that reach this probability together; 1: all.
        min_p: Keep those with this share of the largest probability; 0: all.
        repeat_penalty: Divides positive logits of repeated tokens, multiplies negative ones; 1: none.
        repeat_window: So many of the last tokens, of the prompt too, count as repeated; 0: none, -1: all.
        presence_penalty: Subtracted from the logits of repeated tokens.
        frequency_penalty: Subtracted once for each time that the token stands in the window.
        seed: Of the draws; None: another one each time.

    Raises:
        UsageError: `engine.sampling`, with the field: a value that makes no sense.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kinds = (int, np.integer) if name in _WHOLE else (int, float, np.integer, np.floating)
            if not isinstance(value, kinds) and not (name == "seed" and value is None):
                raise UsageError(f"{name} is {value!r}, which is of another type", code="engine.sampling", field=name)
        _check("temperature", self.temperature, self.temperature >= 0, "0 or more")
        _check("top_k", self.top_k, self.top_k >= 0, "0 or more")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        _check("repeat_penalty", self.repeat_penalty, self.repeat_penalty > 0, "above 0")
        _check("repeat_window", self.repeat_window, self.repeat_window >= -1, "-1 or more")
        _check("presence_penalty", self.presence_penalty, True, "a number")
        _check("frequency_penalty", self.frequency_penalty, True, "a number")
        _check("seed", self.seed or 0, 0 <= (self.seed or 0) < 1 << 64, "from 0 to 2^64 - 1")

    @property
    def penalises(self) -> bool:
        """Whether repeated tokens are treated differently at all."""
        changed = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)
        return changed and self.repeat_window != 0


def _check(name: str, value: float, right: bool, wanted: str) -> None:
    try:
        right = right and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        right = False
    if not right:
        raise UsageError(f"{name} is {value}, not {wanted}", code="engine.sampling", field=name)


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities, as the model gives them: before penalties, filters and temperature.

    Attributes:
        token: The token that was chosen.
        logprob: Its own.
        top: The most probable tokens, best first: (id, logprob).
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Chooses the tokens of one text, one after the other.

    Attributes:
        sampling: How.
        seed: Of the draws; where none was given, the one that was made up.
    """

    def __init__(self, sampling: Sampling, history: Iterable[int] = ()) -> None:
        """Takes the tokens before the first one, which count as repeated."""
        self.sampling = sampling
        self.seed = sampling.seed
        if sampling.temperature > 0 and self.seed is None:
            import secrets

            self.seed = secrets.randbits(32)
        self._position = 0
        window = sampling.repeat_window if sampling.penalises else 0
        self._recent: deque[int] = deque(maxlen=None if window < 0 else window)
        self._counts: Counter[int] = Counter()
        for token in history:
            self.accept(token)

    def accept(self, token: int) -> None:
        """Takes note of a token of the text."""
        self._position += 1
        recent = self._recent
        if recent.maxlen == 0:
            return
        if len(recent) == recent.maxlen:
            self._counts[recent[0]] -= 1
            if not self._counts[recent[0]]:
                del self._counts[recent[0]]
        recent.append(token)
        self._counts[token] += 1

    def sample(self, logits: Floats, position: int | None = None) -> int:
        """The next token; the text knows of it only when it is accepted.

        Args:
            logits: float32 [n_vocab]; -inf for what must not be chosen.
            position: Of the token in the text; None: after all that were accepted.

        Raises:
            FormatError: `engine.nan`: NaN or +inf, or nothing but -inf.
        """
        check_logits(logits)
        scores = self._penalised(logits)
        if self.sampling.temperature == 0:
            return int(scores.argmax())
        with np.errstate(over="ignore"):
            ids = self._kept(scores)
            kept = scores if ids is None else scores[ids].astype(np.float64)
            # Too small a temperature for float32 takes the largest all the same.
            weights = _exp((kept - kept.max()) / kept.dtype.type(max(self.sampling.temperature, 1e-30)))
        place = _place(weights, draw(self.seed or 0, self._position if position is None else position), "right")
        return place if ids is None else int(ids[place])

    def _penalised(self, logits: Floats) -> Floats:
        known = [token for token in self._counts if 0 <= token < len(logits)]
        if not known:
            return logits
        how = self.sampling
        values = logits[known].astype(np.float64)
        values = np.where(values > 0, values / how.repeat_penalty, values * how.repeat_penalty)
        counts = np.array([self._counts[token] for token in known], np.float64)
        values -= counts * how.frequency_penalty + how.presence_penalty
        scores = logits.copy()
        scores[known] = np.where(np.isneginf(values), values, np.clip(values, -_LARGEST, _LARGEST))
        return scores

    def _kept(self, scores: Floats) -> Ids | None:
        """Ids that the filters leave; None for all."""
        how = self.sampling
        ids: Ids | None = None
        if 0 < how.top_k < len(scores):
            ids = largest(scores, how.top_k)
        if how.top_p < 1:
            ids = _nucleus(scores, how.top_p) if ids is None else ids[: _reaching(_weights(scores, ids), how.top_p)]
        if how.min_p > 0:
            least = float(scores.max()) + math.log(how.min_p)
            ids = np.flatnonzero(scores >= least) if ids is None else ids[scores[ids] >= least]
        return ids


def draw(seed: int, position: int) -> float:
    """A number from 0 to below 1 for a position of a text: that of SplitMix64 from a seed of its own."""
    return (_mixed(_mixed(seed) + (position + 1) * _STEP) >> 11) * 2.0**-53


def _mixed(number: int) -> int:
    """64 bits of which each depends on all bits of a number."""
    number &= _BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _BITS
    return number ^ number >> 31


def check_logits(logits: Floats) -> None:
    """Refuses logits that give no probabilities.

    Raises:
        FormatError: `engine.nan`: NaN or +inf, or nothing but -inf.
    """
    if not len(logits):
        raise UsageError("there are no logits to choose from", code="usage")
    top = float(logits.max())
    if math.isfinite(top):
        return
    if math.isnan(top):
        what = f"that of token {int(np.isnan(logits).argmax())} is NaN"
    elif top > 0:
        what = f"that of token {int(logits.argmax())} is infinite"
    else:
        what = "all of them are -inf"
    raise FormatError(
        f"the model's logits give no probabilities: {what}",
        code="engine.nan",
        section="logits",
        hint="its weights may be damaged: `guild verify` checks them",
    )


def logprobs(logits: Floats, token: int, count: int) -> Logprobs:
    """The log-probability of a token and of the `count` most probable ones.

    Raises:
        FormatError: As `check_logits`.
    """
    check_logits(logits)
    top = float(logits.max())
    with np.errstate(over="ignore"):
        total = top + math.log(float(_exp(logits - np.float32(top)).sum(dtype=np.float64)))
    best = largest(logits, min(count, len(logits)))
    pairs = tuple((int(found), float(logits[found]) - total) for found in best)
    return Logprobs(token, float(logits[token]) - total, pairs)


def largest(values: Floats, count: int) -> Ids:
    """Ids of the largest values, largest first; of equal ones the smaller id first.

    Args:
        values: float32 [n], no NaN.
        count: How many, at most n.
    """
    if count == 0:
        return np.empty(0, np.int64)
    columns = len(values) // _LANES
    if 2 * count <= columns:
        # So many columns have a maximum that is no smaller: the count-th largest cannot be smaller either.
        tops = values[: columns * _LANES].reshape(_LANES, columns).max(0)
        bound = np.partition(tops, columns - count)[columns - count]
    else:
        bound = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= bound)
    if len(ids) > 2 * count:
        found = values[ids]
        least = np.partition(found, len(found) - count)[len(found) - count]
        above = ids[found > least]
        ids = np.concatenate((above, ids[found == least][: count - len(above)]))
    return ids[np.lexsort((ids, -values[ids]))][:count]


def _nucleus(scores: Floats, share: float) -> Ids:
    """Ids of the fewest tokens that have this share of the probability together, in any order."""
    top = scores.max()
    total = float(_exp(scores - top).sum(dtype=np.float64))
    ids = largest(scores, min(_NUCLEUS, len(scores)))
    weights = _weights(scores, ids)
    if len(ids) == len(scores) or float(weights.sum()) >= share * total:
        return ids[: _reaching(weights, share, total)]
    falling = np.sort(scores)[::-1]
    count = _place(_exp(falling - top), share, "left") + 1
    least = falling[count - 1]
    above = np.flatnonzero(scores > least)
    return np.concatenate((above, np.flatnonzero(scores == least)[: count - len(above)]))


def _weights(scores: Floats, ids: Ids) -> Weights:
    """Unnormalised probabilities of ids of which the first is the largest of all."""
    found = scores[ids].astype(np.float64)
    return _exp(found - found[0])


def _reaching(weights: Weights, share: float, total: float | None = None) -> int:
    """How many of the weights, in their order, are needed for a share of their total."""
    sums = np.cumsum(weights)
    wanted = share * (float(sums[-1]) if total is None else total)
    return min(int(np.searchsorted(sums, wanted, "left")) + 1, len(weights))


def _place(weights: Weights, share: float, side: Literal["left", "right"]) -> int:
    """Where the running sum of weights reaches ("left") or passes ("right") a share of the total.

    Never an index of weight 0 with "right". Sums of runs come first: a running sum over everything is slow.
    """
    size = math.isqrt(len(weights) - 1) + 1
    whole = len(weights) // size * size
    runs = weights[:whole].reshape(-1, size).sum(1, dtype=np.float64)
    if whole < len(weights):
        runs = np.append(runs, weights[whole:].sum(dtype=np.float64))
    sums = np.cumsum(runs)
    point = share * float(sums[-1])
    # Rounding may put the point beyond the very end: there the last one that has weight is meant.
    run = min(int(np.searchsorted(sums, point, side)), int(np.flatnonzero(runs)[-1]))
    inside = weights[run * size : (run + 1) * size]
    sums = np.cumsum(inside, dtype=np.float64) + (float(sums[run - 1]) if run else 0.0)
    return run * size + min(int(np.searchsorted(sums, point, side)), int(np.flatnonzero(inside)[-1]))


def _exp(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`np.exp` of values up to 0, -inf among them."""
    result: npt.NDArray[Any] = np.exp(values)
    return result
