"""What `make test` leaves to `make test-all`; this is the one place that reads `GPACK_EXHAUSTIVE`.

- `@exhaustive`: the test runs only where the variable is set.
- `@each_value`, `@each_pair`: of all combinations of its parameters so many run that each value, or each pair of
  values of two parameters, comes at least once; the others are exhaustive.
- `thinned`: likewise for the values of one parameter, every so many of which always runs.
- `@grows`: the test runs in both, and tries more where the variable is set; it asks `amount` how much.

`pytest -m exhaustive` runs what `make test` does not.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest

IS_EXHAUSTIVE = bool(os.environ.get("GPACK_EXHAUSTIVE"))
exhaustive = pytest.mark.exhaustive
each_value = pytest.mark.each_value
each_pair = pytest.mark.each_pair
F = TypeVar("F", bound=Callable[..., object])
_STRENGTH = {"each_value": 1, "each_pair": 2}


def grows(test: F) -> F:
    """Marks a test that tries more in an exhaustive run."""
    return exhaustive(test) if IS_EXHAUSTIVE else test


def amount(few: int, many: int) -> int:
    """How many examples, steps or files a test tries."""
    return many if IS_EXHAUSTIVE else few


def thinned(values: Iterable[Any], step: int) -> list[Any]:
    """Values for `parametrize`, of which the first of so many is always tried, the others are exhaustive."""
    return [
        value if number % step == 0 else pytest.param(value, marks=exhaustive) for number, value in enumerate(values)
    ]


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks combinations of parameters that need not run as exhaustive."""
    groups: dict[tuple[str, str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            for name, strength in _STRENGTH.items():
                if item.get_closest_marker(name):
                    groups[str(item.path), item.originalname, strength].append(item)
    for (_, _, strength), group in groups.items():
        # A value is the same object in all items; pytest's own indices of values are those of items.
        kept = covering(
            [tuple((name, id(value)) for name, value in item.callspec.params.items()) for item in group], strength
        )
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(exhaustive)


def covering(cases: Sequence[tuple[tuple[str, int], ...]], strength: int) -> set[int]:
    """Numbers of cases that hold all combinations of so many values which any case holds.

    The next is always one that adds most; of equals one whose values were taken least often, then the first.
    """
    offers = [set(combinations(case, min(strength, len(case)))) for case in cases]
    missing = set().union(*offers)
    uses: Counter[tuple[str, int]] = Counter()
    kept: set[int] = set()
    while missing:
        best = min(
            range(len(cases)),
            key=lambda number: (-len(offers[number] & missing), sum(uses[value] for value in cases[number])),
        )
        kept.add(best)
        missing -= offers[best]
        uses.update(cases[best])
    return kept
