"""Ctrl-C wherever Python looks for signals in the engine: texts are what they were, or what they were to become."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import text, tiny

from gpack.engine.backends.cpu.layout import STEP_PARTS
from gpack.engine.backends.cpu.rope_table import RopeTable
from gpack.engine.backends.cpu.shared import Shared
from gpack.engine.backends.cpu.step import LoweredSegment, StepBlock
from gpack.engine.engine import Chunk, Engine
from gpack.engine.graph import Vector
from gpack.engine.graph.rope import Rope
from gpack.engine.state.sequence import Sequence as Text
from gpack.generated.constants import GgmlType
from gpack.model import GuildModel

from . import toy_recurrent
from .interrupts import at_point

MOST_POINTS = 5000


@pytest.fixture(params=["llama", "gemma3", "toy"], scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuildModel]:
    window: dict[str, Any] = {"attention__sliding_window": 5, "attention__sliding_window_pattern": 2}
    made = {
        "llama": lambda: tiny(n_layer=1),
        "gemma3": lambda: tiny("gemma3", **window),
        "toy": lambda: toy_recurrent.toy(2),
    }[request.param]()
    with toy_recurrent.registered(), made.open(tmp_path_factory.mktemp("interrupts") / "m.gguf") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def engine(model: GuildModel) -> Iterator[Engine]:
    with model.engine(threads=2, batch=16) as engine:
        yield engine


def begun(engine: Engine, ids: list[int]) -> Text:
    """A text of some tokens."""
    made = engine.sequence(n_ctx=100)
    for first in range(0, len(ids), engine.batch):
        engine.step([Chunk(made, ids[first : first + engine.batch], "none")])
    return made


def after(engine: Engine, made: Text) -> bytes:
    """What a further token gives."""
    with made.fork() as other:
        result = engine.step([Chunk(other, [7])], hidden=True)
        assert result[0].hidden is not None
        return np.round(np.concatenate([result.logits[0], result[0].hidden[0]]).astype(np.float64), 6).tobytes()


def test_products_by_the_host_are_whole_after_an_interrupt(tmp_path: Path) -> None:
    """Matrices of a type without kernels; an interrupt in one step takes nothing away from the next."""
    tiny_model = tiny(n_layer=1)
    for name, values in tiny_model.tensors.items():
        if values.ndim > 1:
            tiny_model.types[name] = GgmlType.F64, values.astype("<f8").tobytes()
    with tiny_model.open(tmp_path / "m.gguf") as model, model.engine(threads=2, batch=16) as engine:
        made = begun(engine, text(5))
        wanted, was_interrupted, point = after(engine, made), True, 0
        while was_interrupted:
            with made.fork() as other:
                _, was_interrupted = at_point(point, partial(engine.step, [Chunk(other, [3])]))
            assert after(engine, made) == wanted, f"point {point}"
            point += 1
    assert 100 < point < MOST_POINTS


def test_a_step_counts_for_all_of_its_texts_or_for_none(engine: Engine) -> None:
    starts, added = [text(20), text(3, seed=2)], [[1, 2, 3], [4]]
    wanted = [
        [after(engine, begun(engine, ids)) for ids in (start, [*start, *more])]
        for start, more in zip(starts, added, strict=True)
    ]
    seen = set()
    for point in range(MOST_POINTS):
        texts = [begun(engine, ids) for ids in starts]
        chunks = [Chunk(*pair) for pair in zip(texts, added, strict=True)]
        result, was_interrupted = at_point(point, partial(engine.step, chunks))
        went_on = {made.position != len(start) for made, start in zip(texts, starts, strict=True)}
        assert len(went_on) == 1, f"point {point}"
        for made, start, more, both in zip(texts, starts, added, wanted, strict=True):
            assert made.tokens == ([*start, *more] if went_on == {True} else start)
            assert after(engine, made) == both[went_on == {True}], f"point {point}"
        seen |= went_on
        if not was_interrupted:
            assert result is not None
            break
    assert not was_interrupted
    assert point > 30
    assert seen == {False, True}


CHANGES: dict[str, Callable[[Text, Any], Any]] = {
    "fork": lambda made, _: made.fork(),
    "truncate": lambda made, _: made.truncate(made.position - 2 if made.can_truncate(made.position - 2) else 0),
    "checkpoint": lambda made, _: made.checkpoint(),
    "restore": lambda made, known: made.restore(known),
    "rewind": lambda made, known: made.rewind(23, known),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_text_is_what_it_was_or_what_it_was_to_become(engine: Engine, change: str) -> None:
    ids = text(24)

    def prepared() -> tuple[Text, Any]:
        """A text of 24 tokens, and a checkpoint of another text that it came from, of 20 of which 3 are others."""
        made = begun(engine, [*ids[:17], 1, 2, 3])
        known = made.checkpoint()
        made.rewind(0)
        made = begun(engine, ids)
        return made, known

    one, other = prepared(), prepared()
    CHANGES[change](*other)
    ends = {tuple(made.tokens): after(engine, made) for made in (one[0], other[0])}
    for point in range(MOST_POINTS):
        made, known = prepared()
        _, was_interrupted = at_point(point, partial(CHANGES[change], made, known))
        assert tuple(made.tokens) in ends, f"point {point}"
        assert len(made.tokens) == made.position, f"point {point}"
        assert after(engine, made) == ends[tuple(made.tokens)], f"point {point}"
        if not was_interrupted:
            break
    assert not was_interrupted
    assert tuple(made.tokens) == tuple(other[0].tokens)


def test_a_session_s_decode_is_all_or_nothing(model: GuildModel) -> None:
    ids = text(60)
    for part in (ids[20:23], ids[20:60]):
        with model.session(threads=2, batch=16, n_ctx=100) as session:
            session.decode(ids[:20])
            wanted = session.decode(part)
            for point in range(MOST_POINTS):
                reached = session.rewind(20)
                session.decode(ids[reached:20]) if reached < 20 else None
                made, was_interrupted = at_point(point, partial(session.decode, part))
                if not was_interrupted:
                    np.testing.assert_allclose(made, wanted, atol=1e-6)
                    break
                assert session.position == 20, f"point {point}"
            assert not was_interrupted


# ---------------------------------------------------------------- the CPU's memory


def rope_table() -> tuple[Callable[[], None], Callable[[], Any]]:
    """A table that grows, and its last row as a kernel finds it."""
    table = RopeTable(Rope(4, 10.0, interleaved=False))

    def last_row() -> list[float]:
        address = int(table.cell[0])
        return list((ctypes.c_float * 4).from_address(address + 299 * 16)) if address else []

    return lambda: table.reach(300), last_row


def parts() -> tuple[Callable[[], None], Callable[[], Any]]:
    """The memory for parts of attention: there is some."""
    step = StepBlock(8)
    step.need_parts(64)
    tables = np.zeros(8, np.int64)
    segments = [LoweredSegment(0, 2, 300, "F16", (int(tables.ctypes.data),))]
    return lambda: step.fill(segments), lambda: step.words[STEP_PARTS] != 0


def vectors() -> tuple[Callable[[], None], Callable[[], Any]]:
    """Vectors that programs share."""
    shared, given = Shared(), Vector("v", np.arange(1, 7, dtype=np.float32))

    def make() -> None:
        shared.vector(given)
        shared.taps(given, 2)

    return make, lambda: (shared.vector(given).tolist(), shared.taps(given, 2).tolist())


@pytest.mark.parametrize("build", [rope_table, parts, vectors])
def test_memory_of_the_cpu_is_whole(build: Callable[[], tuple[Callable[[], None], Callable[[], Any]]]) -> None:
    """Where its making was interrupted, it is made again."""
    make, read = build()
    make()
    wanted = read()
    assert wanted
    for point in range(MOST_POINTS):
        make, read = build()
        _, was_interrupted = at_point(point, make)
        make()
        assert read() == wanted, f"point {point}"
        if not was_interrupted:
            break
    assert not was_interrupted
    assert point > 1
