"""Chunks that stay open: the first n tokens are accepted, and the text is what a step of these would have made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TinyModel, text, tiny

from gpack.engine.engine import Chunk, Engine
from gpack.engine.options import MOST_OPEN
from gpack.engine.state.sequence import OpenChunk
from gpack.engine.state.sequence import Sequence as Text
from gpack.errors import FormatError, UsageError

from . import toy_recurrent
from .alone import is_same

PROMPT, DRAFT, NEXT = text(70), text(5, seed=2), text(3, seed=3)
MODELS: dict[str, Callable[[], TinyModel]] = {
    "recurrent layers and windows": toy_recurrent.toy,
    "delta nets with experts": toy_recurrent.qwen35moe,
    "attention alone": tiny,
}


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with toy_recurrent.registered():
        yield


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_accepted_is_as_if_nothing_more_had_been_computed(tmp_path: Path, name: str, device: str) -> None:
    prompts = [PROMPT, []] if device == "cpu" else [PROMPT[:9], []]
    with MODELS[name]().open(tmp_path / "m.gguf") as model, model.engine(device=device) as engine:
        for prompt in prompts:
            for count in range(len(DRAFT) + 1):
                with engine.sequence() as drafted, engine.sequence() as plain, engine.sequence() as beside:
                    if prompt:
                        engine.step([Chunk(drafted, prompt), Chunk(plain, prompt)]).raise_error()
                    result = engine.step([Chunk(beside, PROMPT[:3]), Chunk(drafted, DRAFT, "all", open=True)])
                    assert drafted.tokens == prompt
                    opened = result[1].opened
                    assert result[0].opened is None
                    assert opened is not None
                    engine.step([Chunk(beside, PROMPT[:2])]).raise_error()  # of another text: the chunk stays open
                    engine.accept([(opened, count)])
                    assert drafted.tokens == prompt + DRAFT[:count]
                    if count:
                        rows = engine.step([Chunk(plain, DRAFT[:count], "all")]).logits
                        assert all(is_same(a, b) for a, b in zip(result[1].logits, rows, strict=False))
                    both = engine.step([Chunk(drafted, NEXT, "all"), Chunk(plain, NEXT, "all")])
                    assert is_same(both[0].logits, both[1].logits), (len(prompt), count)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with toy_recurrent.toy().open(tmp_path / "m.gguf") as model, model.engine(batch=256) as made:
        yield made


def opened_of(engine: Engine, sequence: Text) -> OpenChunk:
    found = engine.step([Chunk(sequence, DRAFT, "none", open=True)])[0].opened
    assert isinstance(found, OpenChunk)
    return found


def test_a_chunk_is_accepted_once_and_only_as_long_as_its_text_stays_as_it_is(engine: Engine) -> None:
    with engine.sequence() as sequence:
        engine.step([Chunk(sequence, PROMPT)]).raise_error()
        kept = sequence.checkpoint()
        changes: list[Callable[[OpenChunk], object]] = [
            lambda opened: engine.accept([(opened, 2)]),
            lambda _: engine.step([Chunk(sequence, [1])]),
            lambda _: opened_of(engine, sequence),
            lambda _: sequence.restore(kept),
            lambda _: sequence.truncate(0),
            lambda _: sequence.close(),
        ]
        for change in changes:
            opened = opened_of(engine, sequence)
            change(opened)
            before = sequence.tokens
            with pytest.raises(UsageError) as caught:
                engine.accept([(opened, 1)])
            assert caught.value.code == "engine.open"
            assert sequence.tokens == before


def test_a_fork_and_a_checkpoint_leave_a_chunk_open(engine: Engine) -> None:
    with engine.sequence() as sequence, engine.sequence() as plain:
        engine.step([Chunk(sequence, PROMPT), Chunk(plain, PROMPT + DRAFT[:2])]).raise_error()
        opened = opened_of(engine, sequence)
        with sequence.fork() as fork:
            kept = sequence.checkpoint()
            engine.step([Chunk(fork, [3, 4, 5])]).raise_error()
            engine.accept([(opened, 2)])
            made = engine.step([Chunk(sequence, NEXT, "all"), Chunk(plain, NEXT, "all")])
            assert is_same(made[0].logits, made[1].logits)
            assert fork.tokens == [*PROMPT, 3, 4, 5]
        sequence.restore(kept)
        assert sequence.tokens == PROMPT


@pytest.mark.parametrize("count", [-1, 6, 1.5, None])
def test_counts_that_make_no_sense(engine: Engine, count: Any) -> None:
    with engine.sequence() as sequence, engine.sequence() as other:
        opened, fine = opened_of(engine, sequence), opened_of(engine, other)
        with pytest.raises(UsageError, match="a chunk of 5 tokens"):
            engine.accept([(fine, 1), (opened, count)])
        assert sequence.tokens == other.tokens == []
        with pytest.raises(UsageError) as caught:
            engine.accept([(fine, 1), (fine, 1)])
        assert caught.value.code == "engine.open"
        engine.accept([(fine, 1), (opened, 5)])
        assert (sequence.tokens, other.tokens) == (DRAFT, DRAFT[:1])


def test_a_chunk_that_is_too_long_to_stay_open(engine: Engine) -> None:
    with engine.sequence() as sequence, pytest.raises(UsageError, match="at most 64 tokens, not 65") as caught:
        engine.step([Chunk(sequence, [1] * (MOST_OPEN + 1), open=True)])
    assert caught.value.code == "engine.batch"


def test_a_chunk_as_long_as_can_be(engine: Engine) -> None:
    tokens = text(MOST_OPEN)
    with engine.sequence() as a, engine.sequence() as b, engine.sequence() as plain:
        found = engine.step([Chunk(a, tokens, "none", open=True), Chunk(b, tokens, "none", open=True)])
        engine.accept([(found[0].opened, 63), (found[1].opened, 62)])
        engine.step([Chunk(plain, tokens[:63])]).raise_error()
        engine.step([Chunk(b, tokens[62:63])]).raise_error()
        made = engine.step([Chunk(each, [7]) for each in (a, b, plain)])
        assert is_same(made.logits[0], made.logits[2])
        assert is_same(made.logits[1], made.logits[2])


def test_an_open_chunk_that_is_not_finite_fails_its_text_alone(tmp_path: Path) -> None:
    model = toy_recurrent.toy()
    model.tensors["token_embd.weight"][39] = np.nan
    with model.open(tmp_path / "m.gguf") as loaded, loaded.engine(check_weights=False) as engine:
        ill, well = engine.sequence(), engine.sequence()
        found = engine.step([Chunk(ill, [1, 39, 2], open=True), Chunk(well, [1, 2, 3], open=True)])
        assert isinstance(found[0].error, FormatError)
        assert found[0].opened is None
        engine.accept([(found[1].opened, 1)])
        assert (ill.tokens, well.tokens) == ([], [1])
