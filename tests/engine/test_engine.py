"""Engines: many texts in one step, forks, checkpoints, budgets, windows; what fails and what stays as it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import text, tiny

from gpack.engine.engine import Chunk, Engine
from gpack.errors import FormatError, UsageError
from gpack.model import GuildModel

DEVICES = ("cpu", "reference")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GuildModel:
    return tiny("qwen3", n_layer=3).open(tmp_path_factory.mktemp("engine") / "m.gguf")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> GuildModel:
    keys: dict[str, Any] = {"attention__sliding_window": 16}
    return tiny("gemma3", n_layer=7, **keys).open(tmp_path_factory.mktemp("engine") / "w.gguf")


@pytest.fixture(params=DEVICES)
def engine(model: GuildModel, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with model.engine(device=request.param, batch=96) as made:
        yield made


def alone(engine: Engine, ids: list[int]) -> Any:
    """The logits after each token of a text that nothing else runs beside."""
    with engine.sequence() as sequence:
        return np.concatenate([engine.step([Chunk(sequence, [token])]).logits for token in ids])


def test_texts_of_a_step_do_not_touch_each_other(engine: Engine) -> None:
    first, second, third = text(70), text(70, seed=2), text(70, seed=3)
    wanted = {id(ids): alone(engine, ids) for ids in (first, second, third)}
    a, b, c = (engine.sequence() for _ in range(3))
    engine.step([Chunk(a, first[:40]), Chunk(b, second[:3])])
    result = engine.step([Chunk(c, third[:30], "all"), Chunk(a, first[40:41]), Chunk(b, second[3:60], "none")])
    assert result.logits.shape == (31, 40)
    np.testing.assert_allclose(result[0].logits, wanted[id(third)][:30], atol=1e-4)
    np.testing.assert_allclose(result[1].logits[0], wanted[id(first)][40], atol=1e-4)
    assert result[2].logits.shape == (0, 40)
    result = engine.step([Chunk(b, second[60:]), Chunk(a, first[41:]), Chunk(c, third[30:])])
    for outcome, ids in zip(result, (second, first, third), strict=True):
        np.testing.assert_allclose(outcome.logits[-1], wanted[id(ids)][69], atol=1e-4)
    assert [s.position for s in (a, b, c)] == [70, 70, 70]
    assert b.tokens == second


def test_types_of_cache_in_one_step(engine: Engine) -> None:
    ids = text(30)
    exact = alone(engine, ids)
    sequences = [engine.sequence(cache_type=kind) for kind in ("Q8_0", "F32", "F16", "F32")]
    result = engine.step([Chunk(sequence, ids[:20]) for sequence in sequences])
    assert np.abs(result.logits - exact[19]).max() < 0.05
    result = engine.step([Chunk(sequence, ids[20:]) for sequence in sequences])
    assert np.array_equal(result.logits[1], result.logits[3])
    assert np.abs(result.logits - exact[29]).max() < 0.05


def test_forks_share_what_they_have_in_common(engine: Engine) -> None:
    prefix = text(130)
    parent = engine.sequence(n_ctx=256)
    for first in (0, 65):
        engine.step([Chunk(parent, prefix[first : first + 65])])
    block = parent.nbytes // 3  # 130 positions are three blocks of 64
    before = engine.pool.used
    forks = [parent.fork() for _ in range(20)]
    assert engine.pool.used == before == 3 * block
    assert all(fork.tokens == prefix for fork in forks)
    result = engine.step([Chunk(fork, [number]) for number, fork in enumerate(forks)])
    assert engine.pool.used == before + 20 * block
    engine.step([Chunk(parent, [39])])
    assert engine.pool.used == before + 20 * block  # the parent's last block is its own
    for number, logits in enumerate(result.logits):
        np.testing.assert_allclose(logits, alone(engine, [*prefix, number])[-1], atol=1e-4)
    for fork in forks:
        fork.close()
    assert engine.pool.used == before


def test_truncated_texts_leave_their_forks_alone(engine: Engine) -> None:
    ids = text(100)
    a = engine.sequence()
    engine.step([Chunk(a, ids[:90])])
    b = a.fork()
    a.truncate(70)
    engine.step([Chunk(a, [5] * 20)])
    result = engine.step([Chunk(b, ids[90:], "all"), Chunk(a, [7])])
    np.testing.assert_allclose(result[0].logits, alone(engine, ids)[90:], atol=1e-4)
    np.testing.assert_allclose(result[1].logits, alone(engine, [*ids[:70], *[5] * 20, 7])[-1:], atol=1e-4)


def test_checkpoints(engine: Engine) -> None:
    ids = text(90)
    sequence = engine.sequence()
    engine.step([Chunk(sequence, ids[:70])])
    kept = sequence.checkpoint()
    engine.step([Chunk(sequence, [1, 2, 3])])
    later = sequence.checkpoint()
    sequence.restore(kept)
    assert (sequence.position, sequence.tokens) == (70, ids[:70])
    result = engine.step([Chunk(sequence, ids[70:])])
    np.testing.assert_allclose(result.logits[0], alone(engine, ids)[-1], atol=1e-4)
    sequence.restore(later)
    result = engine.step([Chunk(sequence, [4])])
    np.testing.assert_allclose(result.logits[0], alone(engine, [*ids[:70], 1, 2, 3, 4])[-1], atol=1e-4)
    with engine.sequence(cache_type="F32") as other, pytest.raises(UsageError, match="another") as caught:
        other.restore(kept)
    assert caught.value.code == "engine.position"


def bad_steps(engine: Engine, other: Engine) -> list[tuple[str, list[Chunk]]]:
    ready, closed, foreign, short = engine.sequence(), engine.sequence(), other.sequence(), engine.sequence(n_ctx=4)
    engine.step([Chunk(ready, [1, 2])])
    closed.close()
    return [
        ("engine.sequence", [Chunk(ready, [1]), Chunk(closed, [1])]),
        ("engine.sequence", [Chunk(ready, [1]), Chunk(foreign, [1])]),
        ("engine.sequence", [Chunk(ready, [1]), Chunk(ready, [2])]),
        ("engine.position", [Chunk(ready, [1], position=3)]),
        ("engine.batch", [Chunk(ready, [1] * 97)]),
        ("engine.batch", []),
        ("engine.context", [Chunk(ready, [1]), Chunk(short, [1] * 5)]),
        ("engine.token", [Chunk(ready, [1]), Chunk(short, [40])]),
        ("usage", [Chunk(ready, [])]),
        ("usage", [Chunk(ready, [1], "some")]),  # type: ignore[arg-type]
    ]


def test_bad_steps_compute_nothing(engine: Engine, model: GuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with model.engine(device="reference") as other:
        steps = bad_steps(engine, other)
        ready = steps[0][1][0].sequence
        monkeypatch.setattr(engine.backend, "run", lambda *_: pytest.fail("it ran"))
        for code, chunks in steps:
            with pytest.raises(UsageError) as caught:
                engine.step(chunks)
            assert caught.value.code == code
            assert ready.tokens == [1, 2]


def test_a_budget_fails_the_text_that_needs_more(model: GuildModel) -> None:
    with model.engine(device="reference", batch=96) as measuring, measuring.sequence() as one:
        measuring.step([Chunk(one, [1])])
        block = one.nbytes
    with model.engine(device="reference", batch=96, state_bytes=2 * block) as engine:
        a, b = engine.sequence(n_ctx=128), engine.sequence(n_ctx=128)
        engine.step([Chunk(a, text(60)), Chunk(b, [1])])
        result = engine.step([Chunk(a, text(10)), Chunk(b, [2])])
        assert result[0].error is not None
        assert result[0].error.code == "engine.budget"
        assert (a.position, b.position, result[1].error) == (60, 2, None)
        with pytest.raises(UsageError) as caught:
            engine.step([Chunk(a, text(10))])
        assert caught.value.code == "engine.budget"
        b.close()
        engine.step([Chunk(a, text(10))])
        assert a.position == 70
        with pytest.raises(UsageError, match="not enough memory") as caught:
            engine.sequence(n_ctx=129)
        assert caught.value.code == "io.memory"


def test_values_that_are_not_finite_fail_their_text_alone(tmp_path: Path) -> None:
    made = tiny("qwen3", n_layer=2)
    made.tensors["token_embd.weight"] = made.tensors["token_embd.weight"].copy()
    made.tensors["token_embd.weight"][7] = 3e38
    with made.open(tmp_path / "m.gguf") as model, model.engine(batch=64) as engine:
        good, bad = engine.sequence(), engine.sequence()
        ids = text(9)
        engine.step([Chunk(good, ids[:4]), Chunk(bad, [1])])
        result = engine.step([Chunk(bad, [2, 7, 3], "none"), Chunk(good, ids[4:])])
        assert isinstance(result[0].error, FormatError)
        assert result[0].error.code == "engine.nan"
        assert (bad.position, good.position) == (1, 9)
        assert np.array_equal(result[1].logits[0], alone(engine, ids)[-1])
        again = engine.step([Chunk(bad, [2])])
        assert np.array_equal(again.logits[0], alone(engine, [1, 2])[-1])


@pytest.mark.parametrize("device", DEVICES)
def test_windows_take_their_windows(windowed: GuildModel, device: str) -> None:
    """Of seven layers one sees everything.

    With a window of 16 and steps of 32 the others keep 16 + 2 · 32 positions at most.
    """
    ids = text(590)
    with windowed.engine(device=device, batch=32) as engine:
        a = engine.sequence(n_ctx=1024)
        for first in range(0, 590, 32):
            result = engine.step([Chunk(a, ids[first : first + 32])])
        whole, layouts = a.nbytes, a.state.layouts
        by_window = dict(zip(layouts.windows, layouts.blocks, strict=True))
        assert set(by_window) == {0, 16}
        kept = whole - 10 * by_window[0].nbytes  # 590 positions are ten blocks
        assert kept <= 3 * by_window[16].nbytes
        np.testing.assert_allclose(result.logits[0], alone(engine, ids)[-1], atol=1e-3)
        assert a.can_truncate(580)
        assert not a.can_truncate(300)
        with pytest.raises(UsageError) as caught:
            a.truncate(300)
        assert caught.value.code == "engine.position"
        assert a.rewind(300) == 0
        assert engine.pool.used == 0


def test_rewinding_to_a_checkpoint(windowed: GuildModel) -> None:
    ids = text(400)
    with windowed.engine(device="reference", batch=64) as engine:
        a = engine.sequence()
        engine.step([Chunk(a, ids[:64])])
        kept = a.checkpoint()
        for first in range(64, 400, 64):
            engine.step([Chunk(a, ids[first : first + 64])])
        assert a.rewind(100, kept) == 64
        result = engine.step([Chunk(a, ids[64:100])])
        np.testing.assert_allclose(result.logits[0], alone(engine, ids[:100])[-1], atol=1e-6)


def test_an_interrupt_leaves_all_texts_as_they_were(model: GuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = text(60)
    with model.engine(batch=64) as engine:
        a, b = engine.sequence(), engine.sequence()
        engine.step([Chunk(a, ids[:30]), Chunk(b, ids[:5])])
        wanted = alone(engine, ids)
        original, count = engine.backend.run, 0

        def interrupted(*arguments: Any) -> Any:
            nonlocal count
            made = original(*arguments)
            count += 1
            if count == 1:
                raise KeyboardInterrupt
            return made

        monkeypatch.setattr(engine.backend, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step([Chunk(a, [9] * 20), Chunk(b, [9] * 20)])
        assert (a.tokens, b.tokens) == (ids[:30], ids[:5])
        result = engine.step([Chunk(a, ids[30:]), Chunk(b, ids[5:30])])
        assert np.array_equal(result.logits, wanted[[59, 29]])


def test_forking_while_steps_run(model: GuildModel) -> None:
    ids = text(120)
    with model.engine(batch=64, threads=2) as engine:
        wanted = alone(engine, ids)
        parent, stop, found = engine.sequence(), threading.Event(), []

        def fork() -> None:
            while not stop.is_set():
                found.append(parent.fork())

        other = threading.Thread(target=fork)
        other.start()
        for token in ids[:-1]:
            engine.step([Chunk(parent, [token])])
        stop.set()
        other.join()
        for child in found[:: max(1, len(found) // 50)]:
            at = child.position
            assert child.tokens == ids[:at]
            logits = engine.step([Chunk(child, ids[at : at + 1])]).logits
            assert np.array_equal(logits[0], wanted[at])


@pytest.mark.parametrize("action", ["truncate", "rewind", "restore"])
def test_what_shortens_a_text_waits_for_its_step(
    model: GuildModel, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    ids = text(40)
    with model.engine(batch=64) as engine:
        sequence = engine.sequence()
        engine.step([Chunk(sequence, ids[:20])])
        checkpoint = sequence.checkpoint()
        run, running = engine.backend.run, threading.Event()

        def slow(*given: Any) -> Any:
            running.set()
            other.join(0.2)  # time enough to change the text, were it not to wait
            return run(*given)

        def shorten() -> None:
            running.wait()
            getattr(sequence, action)(checkpoint if action == "restore" else 10)

        other = threading.Thread(target=shorten)
        other.start()
        monkeypatch.setattr(engine.backend, "run", slow)
        engine.step([Chunk(sequence, ids[20:30])])
        monkeypatch.undo()
        other.join()
        length = 20 if action == "restore" else 10
        assert (sequence.position, sequence.tokens) == (length, ids[:length])
        result = engine.step([Chunk(sequence, ids[length:])])
        assert np.array_equal(result.logits[0], alone(engine, ids)[-1])


def test_a_signal_within_a_step_cannot_shorten_texts(model: GuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would wait for itself."""
    with model.engine(batch=64) as engine, engine.sequence() as sequence, engine.sequence() as other:
        engine.step([Chunk(other, [1, 2, 3])])
        run, caught = engine.backend.run, []

        def interrupted(*given: Any) -> Any:
            for action in (lambda: other.truncate(1), lambda: engine.step([Chunk(other, [4])])):
                with pytest.raises(UsageError) as error:
                    action()
                caught.append(error.value.code)
            return run(*given)

        monkeypatch.setattr(engine.backend, "run", interrupted)
        engine.step([Chunk(sequence, [5])])
        monkeypatch.undo()
        assert caught == ["engine.sequence"] * 2
        other.truncate(1)
        assert (sequence.tokens, other.tokens) == ([5], [1])


def test_what_is_no_position_and_no_checkpoint(engine: Engine) -> None:
    with engine.sequence() as sequence:
        engine.step([Chunk(sequence, [1, 2, 3])])
        for action in (sequence.truncate, sequence.rewind):
            for position in (2.0, "x", None, -1, 4):
                with pytest.raises(UsageError):
                    action(position)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            sequence.restore(None)  # type: ignore[arg-type]
        assert sequence.tokens == [1, 2, 3]
    kinds: tuple[Any, ...] = ([], "F17")
    for kind in kinds:
        with pytest.raises(UsageError):
            engine.sequence(cache_type=kind)


def test_an_open_chunk_belongs_to_its_engine(model: GuildModel) -> None:
    with model.engine(batch=8) as one, model.engine(batch=8) as other, one.sequence() as sequence:
        opened = one.step([Chunk(sequence, [1, 2], open=True)])[0].opened
        assert opened is not None
        with pytest.raises(UsageError) as caught:
            other.accept([(opened, 1)])
        assert caught.value.code == "engine.sequence"
        for wrong in ([(None, 1)], [(opened, True)], [(opened, 1.0)], [(opened, 3)]):
            with pytest.raises(UsageError):
                one.accept(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            one.step(None)  # type: ignore[arg-type]
        one.accept([(opened, 1)])
        assert sequence.tokens == [1]


def test_a_way_to_compute_that_is_not_there(model: GuildModel) -> None:
    with pytest.raises(UsageError):
        model.engine(compute="int4")


def test_sessions_of_a_model_share_an_engine(model: GuildModel) -> None:
    before = threading.active_count()
    with model.session(threads=2) as first, model.session(threads=2) as second, model.session(threads=2, n_ctx=64):
        assert threading.active_count() == before + 2
        with model.session(threads=3):
            assert threading.active_count() == before + 5
        assert threading.active_count() == before + 2
        assert np.array_equal(first.decode([1, 2]), second.decode([1, 2]))
    assert threading.active_count() == before


def test_a_closed_engine(model: GuildModel) -> None:
    with model.engine() as engine:
        sequence = engine.sequence()
    for use in (engine.sequence, lambda: engine.step([Chunk(sequence, [1])])):
        with pytest.raises(UsageError, match="closed"):
            use()
    sequence.close()
    with pytest.raises(UsageError) as caught:
        sequence.fork()
    assert caught.value.code == "engine.sequence"


def test_a_device_that_is_not_there(model: GuildModel) -> None:
    with pytest.raises(UsageError) as caught:
        model.engine(device="abacus")
    assert caught.value.field == "device"
    assert signal.getsignal(signal.SIGINT) is not None
