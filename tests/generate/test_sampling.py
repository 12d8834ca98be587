"""Sampling against values worked out by hand, and against a slow sampler that is written from the definitions."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gpack.errors import FormatError, UsageError
from gpack.generate import sampling
from gpack.generate.sampling import GREEDY, Sampler, Sampling, draw, largest, logprobs

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# Token 3 is the most probable, then 0, 4, 1, 2.
PROBABILITIES = [0.25, 0.0625, 0.0625, 0.5, 0.125]
DRAWS = 1500


def logits_of(probabilities: list[float]) -> Any:
    return np.log(np.array(probabilities)).astype(np.float32)


def drawn(how: Sampling, logits: Any, count: int = DRAWS) -> Counter[int]:
    sampler = Sampler(how)
    return Counter(sampler.sample(logits, position) for position in range(count))


def close(counts: Counter[int], expected: dict[int, float]) -> bool:
    """The same tokens, each as often as its probability says, within four standard deviations."""
    total = sum(counts.values())
    return set(counts) == set(expected) and all(
        abs(counts[token] - total * p) <= 4 * math.sqrt(total * p * (1 - p)) for token, p in expected.items()
    )


CASES: dict[str, tuple[dict[str, Any], dict[int, float]]] = {
    "nothing": ({}, {0: 0.25, 1: 0.0625, 2: 0.0625, 3: 0.5, 4: 0.125}),
    "top-k": ({"top_k": 2}, {3: 2 / 3, 0: 1 / 3}),
    "top-k 1": ({"top_k": 1}, {3: 1.0}),
    "top-k of equals": ({"top_k": 4}, {3: 8 / 15, 0: 4 / 15, 4: 2 / 15, 1: 1 / 15}),
    "top-k of all": ({"top_k": 99}, {0: 0.25, 1: 0.0625, 2: 0.0625, 3: 0.5, 4: 0.125}),
    "top-p": ({"top_p": 0.7}, {3: 2 / 3, 0: 1 / 3}),
    "top-p that one reaches": ({"top_p": 0.4}, {3: 1.0}),
    "top-p, one more": ({"top_p": 0.76}, {3: 4 / 7, 0: 2 / 7, 4: 1 / 7}),
    "min-p": ({"min_p": 0.2}, {3: 4 / 7, 0: 2 / 7, 4: 1 / 7}),
    "min-p 1": ({"min_p": 1.0}, {3: 1.0}),
    "temperature": ({"temperature": 0.5}, {3: 16 / 21.5, 0: 4 / 21.5, 4: 1 / 21.5, 1: 0.25 / 21.5, 2: 0.25 / 21.5}),
    # Of the softmax of the three that top-k leaves, two reach 0.857; of all five it would be three.
    "top-p after top-k": ({"top_k": 3, "top_p": 0.85}, {3: 2 / 3, 0: 1 / 3}),
    "min-p after top-k": ({"top_k": 4, "min_p": 0.3}, {3: 2 / 3, 0: 1 / 3}),
    # Had temperature come first, the distribution would be nearly flat, and 0.7 would take four tokens.
    "temperature comes last": ({"temperature": 100.0, "top_p": 0.7}, {3: 0.5017, 0: 0.4983}),
    "hardly warm": ({"temperature": 1e-9}, {3: 1.0}),
    "hardly warm, chosen from few": ({"temperature": 1e-40, "top_k": 3}, {3: 1.0}),
    "hot": ({"temperature": 1e9}, dict.fromkeys(range(5), 0.2)),
}


@pytest.mark.parametrize("case", CASES)
def test_distributions(case: str) -> None:
    options, expected = CASES[case]
    assert sum(expected.values()) == pytest.approx(1)
    assert close(drawn(Sampling(**(OFF | options), seed=7), logits_of(PROBABILITIES)), expected)


def slow(sampling: Sampling, logits: Any, draw: float) -> set[int]:
    """What a draw may give, by the definitions, in double precision; two where rounding decides."""
    values = [float(value) for value in logits]
    ids = sorted(range(len(values)), key=lambda i: (-values[i], i))
    top_k = sampling.top_k if sampling.top_k < len(values) else 0
    ids = ids[: top_k or None]
    weights = [math.exp(values[i] - values[ids[0]]) for i in ids]
    sums = np.cumsum(weights)
    count = bisect.bisect_left(sums, sampling.top_p * sums[-1]) + 1
    ids = [i for i in ids[:count] if values[i] >= values[ids[0]] + math.log(sampling.min_p or 1e-300)]
    if not top_k and not (sampling.top_p < 1 and count <= 256):  # the draw's order is that of the ids
        ids.sort()
        if sampling.top_p < 1 and not sampling.min_p:
            least = min(values[i] for i in ids)
            ids = [i for i in ids if values[i] > least] + [i for i in ids if values[i] == least]
    top = max(values)
    sums = np.cumsum([math.exp((values[i] - top) / sampling.temperature) for i in ids])
    near = (draw - 1e-6, draw, draw + 1e-6)
    return {ids[min(bisect.bisect_right(sums, point * sums[-1]), len(ids) - 1)] for point in near}


@pytest.mark.parametrize("size", [1, 5, 300, 20_000])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 0, "top_p": 0.9, "min_p": 0.0},
        {"top_k": 0, "top_p": 0.3, "min_p": 0.0},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.02},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 2000, "top_p": 0.99, "min_p": 0.0, "temperature": 1.7},
    ],
)
def test_the_same_as_a_slow_sampler(size: int, options: dict[str, Any]) -> None:
    random = np.random.default_rng(size)
    sampling = Sampling(seed=11, **options)
    sampler = Sampler(sampling)
    for turn in range(4):
        logits = (random.normal(size=size) * (1 + 3 * turn)).astype(np.float32)
        if turn % 2 == 0:
            logits = np.round(logits)  # many are equal
        assert sampler.sample(logits, turn) in slow(sampling, logits, draw(11, turn))


def test_greedy_takes_the_largest_and_of_equals_the_first() -> None:
    assert Sampler(GREEDY).sample(logits_of(PROBABILITIES)) == 3
    assert Sampler(GREEDY).sample(np.array([1, 5, 5, 5, 0], np.float32)) == 1
    # Filters change nothing: the largest passes all of them.
    assert Sampler(Sampling(temperature=0, top_k=1, top_p=0.01, min_p=1)).sample(logits_of(PROBABILITIES)) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 200, 1000])
@pytest.mark.parametrize("levels", [1, 2, 50, 10**6])
def test_largest_with_ties(count: int, levels: int) -> None:
    values = np.random.default_rng(count).integers(0, levels, 60_000 if count < 200 else 1000).astype(np.float32)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert largest(values, count).tolist() == expected


# ---------------------------------------------------------------- penalties


def test_penalties_by_hand() -> None:
    """Window [7, 7, 1]: 7 twice, 1 once."""
    logits = np.array([0, 2, 0, 0, 0, 0, 0, 3], np.float32)
    # 3 / 1.5 = 2 for token 7, 2 / 1.5 = 1.33 for token 1: token 7 stays ahead; with 2.0 less for being there and 0.5
    # for each time, it is 2 - 0.2 - 1 = 0.8 against 1.33 - 0.2 - 0.5 = 0.63.
    how: dict[str, Any] = {"temperature": 0.0, "repeat_penalty": 1.5, "presence_penalty": 0.2, "frequency_penalty": 0.5}
    assert Sampler(Sampling(**how), [7, 7, 1])._penalised(logits).tolist() == pytest.approx(
        [0, 2 / 1.5 - 0.7, 0, 0, 0, 0, 0, 0.8]
    )
    # Twice the frequency: 2 - 0.2 - 2 < 0 < 1.33 - 0.2 - 1.
    assert Sampler(Sampling(**(how | {"frequency_penalty": 1.0})), [7, 7, 1]).sample(logits) == 1
    # Negative logits move away from 0 too.
    assert Sampler(Sampling(temperature=0, repeat_penalty=2), [1])._penalised(
        np.array([-1, -2], np.float32)
    ).tolist() == [-1, -4]
    assert logits[7] == 3  # the caller's logits are not touched


def test_the_window_slides() -> None:
    logits = np.array([1.0, 1.1, 0.9], np.float32)
    sampler = Sampler(Sampling(temperature=0, repeat_penalty=2, repeat_window=2), [1, 1, 1])
    assert sampler.sample(logits) == 0  # 1.1 / 2 = 0.55
    sampler.accept(0)  # window [1, 0]: 0.5, 0.55, 0.9
    assert sampler.sample(logits) == 2
    sampler.accept(2)  # window [0, 2]
    assert sampler.sample(logits) == 1


@pytest.mark.parametrize(("window", "expected"), [(0, 1), (2, 1), (3, 0), (-1, 0)])
def test_how_far_back_the_window_reaches(window: int, expected: int) -> None:
    logits = np.array([1.0, 1.1, 0.3], np.float32)
    sampler = Sampler(Sampling(temperature=0, repeat_penalty=2, repeat_window=window), [1, 2, 2])
    assert sampler.sample(logits) == expected


def test_penalties_count_for_draws_too() -> None:
    logits = logits_of([0.5, 0.5])
    counts: Counter[int] = Counter()
    sampler = Sampler(Sampling(**OFF, presence_penalty=math.log(3), seed=1), [0])
    counts.update(sampler.sample(logits, position) for position in range(DRAWS))
    assert close(counts, {0: 0.25, 1: 0.75})


def test_penalties_at_the_edge_of_float32() -> None:
    logits = np.array([3e38, -3e38, -np.inf, 1], np.float32)
    sampler = Sampler(Sampling(temperature=1, repeat_penalty=0.5, presence_penalty=-1, seed=1), [0, 1, 2])
    assert sampler.sample(logits) == 0
    sampler = Sampler(Sampling(temperature=1, repeat_penalty=1e30, seed=1), [0, 1, 2, 500])
    assert sampler.sample(logits) in (0, 3)


# ---------------------------------------------------------------- seeds


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    samplers = (Sampler(Sampling(seed=5)), Sampler(Sampling(seed=5)))
    runs = [[sampler.sample(logits, position) for position in range(50)] for sampler in samplers]
    assert runs[0] == runs[1]
    other = Sampler(Sampling(seed=6))
    assert [other.sample(logits, position) for position in range(50)] != runs[0]


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    there, back = Sampler(Sampling(seed=5)), Sampler(Sampling(seed=5))
    forward = [there.sample(logits, position) for position in range(20)]
    assert [back.sample(logits, position) for position in reversed(range(20))] == forward[::-1]
    # A text's own position is the number of its tokens, those of the prompt among them.
    own = Sampler(Sampling(seed=5), [1, 2, 3])
    assert own.sample(logits) == own.sample(logits) == forward[3]
    own.accept(forward[3])
    assert own.sample(logits) == forward[4]


def test_draws_are_those_of_split_mix() -> None:
    # What the generator gives from the seed 1234567, as published with it in many languages.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    step = 0x9E3779B97F4A7C15
    assert [sampling._mixed(1234567 + step * count) for count in range(1, 5)] == published
    numbers = [draw(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(4000)]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    counts, _ = np.histogram(numbers, 16, (0, 1))
    assert np.abs(counts - len(numbers) / 16).max() < 4 * math.sqrt(len(numbers) / 16)


def test_a_seed_that_was_made_up_can_be_used_again() -> None:
    logits = np.zeros(10_000, np.float32)
    first = Sampler(Sampling())
    assert first.seed is not None
    again = Sampler(Sampling(seed=first.seed))
    positions = range(20)
    assert [first.sample(logits, at) for at in positions] == [again.sample(logits, at) for at in positions]
    assert Sampler(GREEDY).seed is None


# ---------------------------------------------------------------- logprobs


def test_logprobs_are_those_of_the_model() -> None:
    told = logprobs(logits_of(PROBABILITIES) + np.float32(40), 4, 3)
    assert told.token == 4
    assert told.logprob == pytest.approx(math.log(0.125), abs=1e-5)
    assert [token for token, _ in told.top] == [3, 0, 4]
    assert [value for _, value in told.top] == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.125)], abs=1e-5)
    assert logprobs(logits_of(PROBABILITIES), 0, 0).top == ()
    assert len(logprobs(logits_of(PROBABILITIES), 0, 99).top) == 5


def test_logprobs_of_a_large_vocabulary() -> None:
    logits = np.zeros(250_000, np.float32)
    assert logprobs(logits, 3, 2).logprob == pytest.approx(-math.log(250_000), abs=1e-6)
    assert [token for token, _ in logprobs(logits, 3, 2).top] == [0, 1]


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "token 2 is NaN"), (np.inf, "token 2 is infinite"), (-np.inf, "all of them are -inf")]
)
def test_logits_that_give_no_probabilities(value: float, said: str) -> None:
    logits = np.full(4, -np.inf, np.float32) if value == -np.inf else np.zeros(4, np.float32)
    logits[2] = value
    for act in (Sampler(GREEDY).sample, Sampler(Sampling()).sample, lambda given: logprobs(given, 0, 1)):
        with pytest.raises(FormatError, match=said) as caught:
            act(logits)
        assert caught.value.code == "engine.nan"


@pytest.mark.parametrize("options", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0}, {**OFF, "temperature": 0.01}])
def test_logits_of_any_size(options: dict[str, Any]) -> None:
    logits = np.array([-3e38, 3e38, -np.inf, 2.9e38, 0], np.float32)
    assert set(drawn(Sampling(**options, seed=1), logits, 50)) == {1}


@pytest.mark.parametrize("options", [OFF, {}, {**OFF, "top_k": 3}, {**OFF, "top_p": 0.999}])
def test_what_is_minus_infinity_is_never_chosen(options: dict[str, Any]) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[10, 999]] = 0
    assert close(drawn(Sampling(**options, seed=3), logits, 1000), {10: 0.5, 999: 0.5})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repeat_penalty", 0),
        ("repeat_penalty", math.inf),
        ("repeat_window", -2),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("seed", -1),
        ("seed", 1 << 64),
    ],
)
def test_options_that_make_no_sense(name: str, value: float) -> None:
    with pytest.raises(UsageError) as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]  # wrong on purpose
    assert (caught.value.code, caught.value.field) == ("engine.sampling", name)
