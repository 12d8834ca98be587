"""How combinations of parameters are chosen for a run that is not exhaustive."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from exhaustive import covering

CASES = [tuple(zip("abc", numbers, strict=True)) for numbers in product(range(3), range(7), range(2))]


def test_each_value_comes_once_where_that_suffices() -> None:
    kept = covering(CASES, 1)
    assert len(kept) == 7  # the longest parameter's
    assert {value for number in kept for value in CASES[number]} == {value for case in CASES for value in case}
    assert {dict(CASES[number])["a"] for number in kept} == {0, 1, 2}


def test_values_are_taken_by_turns() -> None:
    for name, counts in (("a", {2, 3}), ("c", {3, 4})):
        taken = [dict(CASES[number])[name] for number in covering(CASES, 1)]
        assert {taken.count(value) for value in taken} == counts


def test_each_pair_comes() -> None:
    kept = covering(CASES, 2)
    assert 21 <= len(kept) < 26  # 3 * 7 pairs at least, of 42 cases
    pairs = {pair for case in CASES for pair in combinations(case, 2)}
    assert {pair for number in kept for pair in combinations(CASES[number], 2)} == pairs


@pytest.mark.parametrize("strength", [1, 2])
def test_one_parameter_keeps_all_its_values(strength: int) -> None:
    assert covering([(("a", number),) for number in range(5)], strength) == set(range(5))


def test_a_case_that_was_asked_for_alone_stays() -> None:
    assert covering(CASES[17:18], 2) == {0}
