"""The row cache: what it finds, what gives way, and that it never mixes rows up."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpack.model.row_cache import RowCache

ROW = 8


def rows_of(ids: Any) -> Any:
    return np.array(ids, np.int64).view(np.uint8).reshape(-1, ROW)


def ask(cache: RowCache, ids: list[int]) -> list[int]:
    """Looks rows up, puts the missing ones in; returns those that were missing."""
    wanted = np.array(ids, np.int64)
    out = np.zeros((len(ids), ROW), np.uint8)
    missing = cache.look_up(wanted, out)
    out[missing] = rows_of(wanted[missing])
    cache.insert(wanted[missing], out[missing])
    assert np.array_equal(out, rows_of(ids))
    return [int(number) for number in wanted[missing]]


def test_what_was_put_in_is_found() -> None:
    cache = RowCache(ROW, 64 * 8 * ROW)
    assert (cache.sets, cache.ways) == (64, 8)
    assert ask(cache, [1, 2, 3]) == [1, 2, 3]
    assert ask(cache, [3, 4, 1]) == [4]
    assert (cache.hits, cache.misses) == (2, 4)


def test_the_row_that_was_not_used_for_longest_gives_way() -> None:
    cache = RowCache(ROW, 4 * ROW, ways=4)
    assert cache.sets == 1
    for number in (1, 2, 3, 4):
        ask(cache, [number])
    assert ask(cache, [1]) == []
    assert ask(cache, [5]) == [5]  # takes the place of 2
    assert ask(cache, [1, 3, 4, 5]) == []
    assert ask(cache, [2]) == [2]


def test_more_rows_at_once_than_a_set_holds() -> None:
    cache = RowCache(ROW, 4 * ROW, ways=4)
    assert ask(cache, list(range(10))) == list(range(10))
    held = [number for number in range(10) if not ask(cache, [number])]
    assert len(held) <= 4


def test_no_room_is_no_cache() -> None:
    cache = RowCache(ROW, 8 * ROW - 1)
    assert cache.sets == 0
    assert ask(cache, [1]) == ask(cache, [1]) == [1]


@given(st.lists(st.lists(st.integers(0, 60), unique=True, max_size=30), max_size=20), st.integers(0, 40))
def test_rows_are_never_mixed_up(batches: list[list[int]], room: int) -> None:
    cache = RowCache(ROW, room * ROW, ways=2)
    seen: set[int] = set()
    asked = 0
    for batch in batches:
        missing = ask(cache, batch)
        assert set(batch) - seen <= set(missing)
        seen |= set(batch)
        asked += len(batch)
    assert cache.hits + cache.misses == asked
