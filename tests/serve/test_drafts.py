"""Which texts of a step are drafted, and how far: by what steps take, and how often drafts are right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpack.serve.chances import Chances, StepCost
from gpack.serve.drafts import Drafts


def cost_of(first: float, row: float, most: int = 24) -> StepCost:
    made = StepCost()
    for turn in range(10):
        for rows in range(1, most + 1):
            made.note(rows, first + row * rows * (1 if turn else 30))  # the first steps are slow, and forgotten
    return made


def job(right: int, refused: int, repeats: int = 30) -> Any:
    """A text of which so many drafts were right before one was wrong, again and again."""
    chances = Chances()
    for _ in range(repeats):
        chances.note(right, refused=bool(refused))
    return SimpleNamespace(
        chances=chances,
        follows_layer=False,
        position=10,
        writing=SimpleNamespace(ids=[]),
        request=SimpleNamespace(max_tokens=None),
        drafts=[],
        tokens=list(range(11)),
        drafter=SimpleNamespace(draft=lambda tokens, most: [7] * most),
    )


class Text(SimpleNamespace):
    """A text that can be a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def lengths(cost: StepCost, *jobs: Any, batch: int = 512) -> list[int]:
    texts: Any = [Text(**vars(one)) for one in jobs]
    drafts = Drafts(SimpleNamespace(batch=batch), "auto", 4096)  # type: ignore[arg-type]
    drafts.cost = cost
    drafts.choose(texts)
    return [len(one.drafts) for one in texts]


@pytest.mark.parametrize(("first", "row"), [(1.0, 0.1), (0.02, 0.004), (5.0, 0.0)])
def test_what_steps_take_is_a_line(first: float, row: float) -> None:
    cost = cost_of(first, row)
    for rows in (1, 8, 24, 40):
        assert cost.seconds(rows) == pytest.approx(first + row * rows, rel=0.1)


def test_nothing_is_drafted_before_a_step_was_measured() -> None:
    assert lengths(StepCost(), job(9, 0)) == [0]


def test_rows_that_cost_little_are_given_to_drafts_that_are_right() -> None:
    cheap = cost_of(1.0, 0.04)
    assert lengths(cheap, job(15, 0)) == [15]
    assert lengths(cheap, job(0, 1)) == [0]
    assert lengths(cheap, job(15, 0), job(0, 1), job(3, 1)) == [15, 0, pytest.approx(3, abs=1)]


def test_rows_that_cost_as_much_as_steps_are_not_drafted() -> None:
    dear = cost_of(0.01, 1.0)
    assert lengths(dear, job(3, 1), job(3, 1)) == [0, 0]


def test_more_texts_are_drafted_less_where_rows_cost() -> None:
    """One text: 1 + 0.1 r seconds for r rows, drafts of which the next is right in 3 of 4 cases."""
    cost = cost_of(1.0, 0.1)
    alone = lengths(cost, job(3, 1))[0]
    together = lengths(cost, *[job(3, 1) for _ in range(12)])
    assert alone >= 3
    assert max(together) <= alone


def test_rows_are_left_for_prompts() -> None:
    assert sum(lengths(cost_of(1.0, 0.0), *[job(15, 0) for _ in range(8)], batch=64)) <= 64 - 8 - 16


def test_a_text_without_luck_is_tried_again_later() -> None:
    cost = cost_of(1.0, 0.1)
    one: Any = Text(**vars(job(0, 1)))
    drafts = Drafts(SimpleNamespace(batch=512), "auto", 4096)  # type: ignore[arg-type]
    drafts.cost = cost
    tried = []
    for step in range(400):
        drafts.choose([one])
        if one.drafts:
            tried.append(step)
            drafts.learn(one, 0)
    assert 1 <= len(tried) < 40
