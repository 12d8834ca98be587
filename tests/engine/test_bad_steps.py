"""Steps that make no sense: typed errors before anything is computed, and every text is as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import text, tiny

from gpack.engine.engine import Chunk, Engine
from gpack.engine.state.sequence import Sequence as Text
from gpack.errors import GpackError, UsageError

BATCH, N_CTX = 16, 70


@dataclass
class Place:
    """An engine with two texts, one of which is a fork of the other, and what may not be used in it."""

    engine: Engine
    texts: list[Text]
    foreign: Text
    closed: Text
    runs: int = 0


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    with (
        tiny("qwen3").open(tmp_path_factory.mktemp("bad") / "m.gguf") as model,
        model.engine(batch=BATCH, threads=2) as one,
        model.engine(batch=BATCH, threads=1) as other,
    ):
        yield [one, other]


@pytest.fixture
def place(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    engine, other = engines
    with ExitStack() as stack:
        first = stack.enter_context(engine.sequence(n_ctx=N_CTX))
        engine.step([Chunk(first, text(9))])
        second = stack.enter_context(first.fork())
        engine.step([Chunk(second, [3])])
        closed = engine.sequence()
        closed.close()
        made = Place(engine, [first, second], stack.enter_context(other.sequence()), closed)
        run = engine.backend.run

        def counted(*arguments: Any) -> Any:
            made.runs += 1
            return run(*arguments)

        monkeypatch.setattr(engine.backend, "run", counted)
        yield made


BAD: dict[str, tuple[Callable[[Place], list[Chunk]], str, str | None]] = {
    "no chunks": (lambda _: [], "engine.batch", "chunks"),
    "a closed text": (lambda p: [Chunk(p.closed, [1])], "engine.sequence", "sequence"),
    "a text of another engine": (lambda p: [Chunk(p.foreign, [1])], "engine.sequence", "sequence"),
    "a text twice": (lambda p: [Chunk(p.texts[0], [1]), Chunk(p.texts[0], [2])], "engine.sequence", "sequence"),
    "a hole": (lambda p: [Chunk(p.texts[0], [1], position=10)], "engine.position", "position"),
    "a position that is taken": (lambda p: [Chunk(p.texts[0], [1], position=8)], "engine.position", "position"),
    "a negative position": (lambda p: [Chunk(p.texts[0], [1], position=-1)], "engine.position", "position"),
    "rows beyond the batch": (lambda p: [Chunk(p.texts[0], [1] * (BATCH + 1))], "engine.batch", "chunks"),
    "rows of two beyond it": (lambda p: [Chunk(each, [1] * 9) for each in p.texts], "engine.batch", "chunks"),
    "beyond the context": (lambda p: [Chunk(p.texts[0], [1] * (N_CTX - 8))], "engine.context", "n_ctx"),
    "no tokens": (lambda p: [Chunk(p.texts[0], [])], "usage", "ids"),
    "no such token": (lambda p: [Chunk(p.texts[0], [1, 40])], "engine.token", "ids"),
    "a negative token": (lambda p: [Chunk(p.texts[0], [-1])], "engine.token", "ids"),
    "an enormous token": (lambda p: [Chunk(p.texts[0], [1 << 40])], "engine.token", "ids"),
    "not a token": (lambda p: [Chunk(p.texts[0], ["a"])], "usage", "ids"),  # type: ignore[list-item]
    "no chunk": (lambda p: [p.texts[0]], "usage", "chunks"),  # type: ignore[list-item]
    "no text": (lambda _: [Chunk("text", [1])], "usage", "sequence"),  # type: ignore[arg-type]
    "no such logits": (lambda p: [Chunk(p.texts[0], [1], "some")], "usage", "logits"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_refused_before_anything_is_computed(place: Place, name: str, is_alone: bool) -> None:
    make, code, field = BAD[name]
    chunks = make(place)
    if not is_alone:
        if not chunks:
            pytest.skip("there is no chunk that others could stand beside")
        chunks.insert(0, Chunk(place.texts[1], [5])) if all(
            getattr(c, "sequence", None) is not place.texts[1] for c in chunks
        ) else None
    before = [each.tokens for each in place.texts]
    used = place.engine.pool.used
    with pytest.raises(UsageError) as caught:
        place.engine.step(chunks)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert place.runs == 0
    del caught
    gc.collect()
    assert place.engine.pool.used == used
    assert [each.tokens for each in place.texts] == before


def test_texts_go_on_as_if_nothing_had_been_asked(place: Place, engines: list[Engine]) -> None:
    for make, _, _ in BAD.values():
        with pytest.raises(UsageError):
            place.engine.step(make(place))
    result = place.engine.step([Chunk(each, [7, 8], "all") for each in place.texts])
    for outcome, ids in zip(result, (text(9), [*text(9), 3]), strict=True):
        with engines[1].sequence(n_ctx=N_CTX) as alone:
            wanted = engines[1].step([Chunk(alone, [*ids, 7, 8], "all")]).logits[-2:]
        assert np.array_equal(outcome.logits, wanted)


def test_a_budget_too_small_for_a_step(place: Place) -> None:
    """The texts would need further blocks; nothing is computed, and with more budget they go on."""
    engine = place.engine
    for each in place.texts:
        while each.position < 60:
            engine.step([Chunk(each, text(min(BATCH, 60 - each.position)))])
    runs, before = place.runs, engine.pool.budget
    tokens = [each.tokens for each in place.texts]
    engine.pool.budget = engine.pool.used
    try:
        with pytest.raises(UsageError) as caught:
            engine.step([Chunk(each, [1] * 6) for each in place.texts])
        assert (caught.value.code, caught.value.field) == ("engine.budget", "state_bytes")
        assert place.runs == runs
        assert [each.tokens for each in place.texts] == tokens
        # What has room is computed, what has none fails alone.
        result = engine.step([Chunk(place.texts[0], [1] * 6), Chunk(place.texts[1], [1])])
        assert isinstance(result[0].error, GpackError)
        assert result[0].error.code == "engine.budget"
        assert result[1].error is None
        assert [each.position for each in place.texts] == [60, 61]
    finally:
        engine.pool.budget = before
    engine.step([Chunk(each, [1] * 6) for each in place.texts])
    assert [each.position for each in place.texts] == [66, 67]


def test_a_device_without_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = place.engine

    def refuse(_layout: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(engine.pool, "budget", engine.pool.used + (1 << 30))
    monkeypatch.setattr(engine.backend, "allocate", refuse)
    with ExitStack() as stack:

        def use_up() -> None:
            """What other tests gave back is used up first."""
            while True:
                made = stack.enter_context(engine.sequence(n_ctx=N_CTX))
                engine.step([Chunk(made, [1])])

        with pytest.raises(UsageError) as caught:
            use_up()
    assert caught.value.code == "engine.budget"
    assert isinstance(caught.value.__cause__, MemoryError)
    assert engine.step([Chunk(place.texts[1], [1])])[0].error is None


@pytest.mark.parametrize("position", [-1, 10, 1 << 70])
def test_positions_that_a_text_does_not_have(place: Place, position: int) -> None:
    first = place.texts[0]
    assert not first.can_truncate(position)
    for change in (first.truncate, first.rewind):
        with pytest.raises(UsageError) as caught:
            change(position)
        assert caught.value.code == "engine.position"
    assert first.tokens == text(9)


def test_checkpoints_of_others(place: Place) -> None:
    first, second = place.texts
    with pytest.raises(UsageError) as caught:
        first.restore(place.foreign.checkpoint())
    assert caught.value.code == "engine.position"
    with place.engine.sequence(n_ctx=N_CTX, cache_type="F32") as other, pytest.raises(UsageError):
        first.restore(other.checkpoint())
    with place.engine.sequence(n_ctx=5) as short, pytest.raises(UsageError) as caught:
        short.restore(first.checkpoint())
    assert caught.value.code == "engine.context"
    assert (first.tokens, second.tokens) == (text(9), [*text(9), 3])


def test_a_closed_text(place: Place) -> None:
    for use in (
        place.closed.fork,
        place.closed.checkpoint,
        lambda: place.closed.truncate(0),
        lambda: place.closed.rewind(0),
        lambda: place.closed.restore(place.texts[0].checkpoint()),
    ):
        with pytest.raises(UsageError) as caught:
            use()
        assert caught.value.code == "engine.sequence"
    assert place.closed.tokens == []


def test_a_closed_engine(tmp_path: Path) -> None:
    with tiny().open(tmp_path / "m.gguf") as model:
        engine = model.engine(threads=1)
        made = engine.sequence()
        engine.step([Chunk(made, [1])])
        engine.close()
        engine.close()
        for use in (engine.sequence, lambda: engine.step([Chunk(made, [1])])):
            with pytest.raises(UsageError, match="closed"):
                use()
        assert made.tokens == [1]
        made.close()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_ctx": 1.5}, "n_ctx"),
        ({"n_ctx": 1 << 70}, "n_ctx"),
        ({"cache_type": "Q4_0"}, "cache_type"),
        ({"cache_type": None}, "cache_type"),
    ],
)
def test_texts_that_make_no_sense(engines: list[Engine], options: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        engines[0].sequence(**options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": "8"}, "batch"),
        ({"state_bytes": 0}, "state_bytes"),
        ({"device": "abacus"}, "device"),
        ({"device": "reference", "compute": "int4"}, "compute"),
    ],
)
def test_engines_that_make_no_sense(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    with tiny().open(tmp_path / "m.gguf") as model, pytest.raises(UsageError) as caught:
        model.engine(**options)
    assert caught.value.field == field


def test_a_text_beyond_the_budget_is_refused_at_once(tmp_path: Path) -> None:
    with tiny().open(tmp_path / "m.gguf") as model, model.engine(threads=1, state_bytes=1000) as engine:
        with pytest.raises(UsageError) as caught:
            engine.sequence()
        assert caught.value.code == "io.memory"
        assert caught.value.field == "n_ctx"
