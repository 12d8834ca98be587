"""Sessions: positions, contexts that are full, several at a time, memory, experts however they come."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TinyModel, text, tiny

from gpack.convert.gguf import convert_gguf
from gpack.engine.session import Session
from gpack.errors import ClosedError, UsageError
from gpack.model import GuildModel, ModelPaths


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GuildModel:
    return tiny("qwen3", n_layer=3).open(tmp_path_factory.mktemp("session") / "m.gguf")


def test_positions_and_rewinding(model: GuildModel) -> None:
    ids = text(80)
    with model.session(n_ctx=128, cache_type="F32", compute="f32") as session:
        assert (session.position, session.n_ctx, session.n_vocab, session.n_embd) == (0, 128, 40, 32)
        whole = session.decode(ids, all_logits=True)
        assert session.position == 80
        session.rewind(50)
        assert session.position == 50
        other = session.decode([7, 8, 9])
        session.rewind(50)
        assert np.array_equal(session.decode(ids[50:]), whole[-1])
        assert np.abs(other - whole[52]).max() > 0.01
        session.rewind(0)
        assert np.array_equal(session.decode(ids, all_logits=True), whole)
        for position in (-1, 81):
            with pytest.raises(UsageError, match="no position"):
                session.rewind(position)


def test_arrays_are_the_caller_s(model: GuildModel) -> None:
    with model.session() as session:
        first = session.decode([1, 2])
        kept = first.copy()
        first[:] = 0
        session.rewind(0)
        assert np.array_equal(session.decode([1, 2]), kept)


def test_a_full_context(model: GuildModel) -> None:
    with model.session(n_ctx=10) as session:
        session.decode(text(9))
        session.decode([1])
        with pytest.raises(UsageError) as caught:
            session.decode([1])
        assert (caught.value.code, caught.value.field) == ("engine.context", "n_ctx")
        assert "10 of the context's 10" in caught.value.message
        assert session.position == 10
        session.rewind(9)
        session.decode([1])


def test_a_prompt_longer_than_the_context(model: GuildModel) -> None:
    with model.session(n_ctx=10) as session:
        for all_logits in (False, True):
            with pytest.raises(UsageError) as caught:
                session.decode(text(11), all_logits=all_logits)
            assert caught.value.code == "engine.context"
        with pytest.raises(UsageError, match="11 more tokens"):
            session.hidden(text(11))
        assert session.position == 0


@pytest.mark.parametrize("ids", [[40], [-1], [3, 1 << 40]])
def test_tokens_that_do_not_exist(model: GuildModel, ids: list[int]) -> None:
    with model.session() as session, pytest.raises(UsageError) as caught:
        session.decode(ids)
    assert caught.value.code == "engine.token"


def test_no_tokens_and_no_numbers(model: GuildModel) -> None:
    with model.session() as session:
        with pytest.raises(UsageError, match="no tokens"):
            session.decode([])
        with pytest.raises(UsageError, match="no tokens"):
            model.logits([])
        with pytest.raises(UsageError):
            session.decode(["a"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n_ctx": "8"}, "n_ctx"),
        ({"n_ctx": 1 << 70}, "n_ctx"),
        ({"threads": 1.5}, "threads"),
        ({"threads": 1 << 70}, "threads"),
        ({"batch": 2.5}, "batch"),
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_ctx": -5}, "n_ctx"),
        ({"batch": 0}, "batch"),
        ({"threads": 0}, "threads"),
        ({"cache_type": "Q4_0"}, "cache_type"),
        ({"compute": "f16"}, "compute"),
        ({"cpu": "mmx"}, "cpu"),
    ],
)
def test_arguments_that_make_no_sense(model: GuildModel, options: dict[str, object], field: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        model.session(**options)
    assert caught.value.field == field


def test_a_closed_session(model: GuildModel) -> None:
    session = model.session()
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.decode([1])


def test_the_default_context(tmp_path: Path) -> None:
    for trained, wanted in ((600, 600), (100_000, 4096)):
        tiny_model = tiny()
        tiny_model.metadata["llama.context_length"] = trained
        with tiny_model.open(tmp_path / "m.gguf") as loaded, loaded.session(threads=1) as session:
            assert session.n_ctx == wanted


def test_a_context_beyond_what_the_model_was_trained_on(model: GuildModel, caplog: pytest.LogCaptureFixture) -> None:
    with model.session(n_ctx=700, threads=1) as session:
        assert "trained on 600" in caplog.text
        session.decode(text(650))


def test_an_interrupted_session_goes_on(tmp_path: Path) -> None:
    """Ctrl-C while a prompt is worked on: the text is what it was before."""
    with tiny("llama", n_layer=10, n_embd=256, n_ff=1024).open(tmp_path / "m.gguf") as model:
        ids = text(590)
        with model.session(threads=2, compute="f32", cache_type="F32") as session:
            wanted = session.decode(ids)
            session.rewind(0)
            session.decode(ids[:50])

            def stop(*_: object) -> None:
                raise KeyboardInterrupt

            before = signal.signal(signal.SIGALRM, stop)
            interrupted = 0
            try:
                for delay in (0.001, 0.003, 0.009):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        session.decode(ids[50:])
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    except KeyboardInterrupt:
                        interrupted += 1
                    assert session.position in (50, len(ids))  # all or nothing
                    session.rewind(50)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert np.array_equal(session.decode(ids[50:]), wanted)
    if not interrupted:
        pytest.skip("too fast to be interrupted")


def test_a_thread_more_than_the_system_allows(model: GuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = threading.active_count(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if threading.active_count() > before + 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UsageError) as caught:
        model.session(threads=4)
    assert caught.value.field == "threads"
    assert "no more than 2 threads of 4" in caught.value.message
    assert threading.active_count() == before


def test_a_closed_model_opens_no_session_and_open_ones_go_on(tmp_path: Path) -> None:
    loaded = tiny().open(tmp_path / "m.gguf")
    with loaded.session(threads=1) as session:
        wanted = session.decode([1, 2])
        loaded.close()
        session.rewind(0)
        assert np.array_equal(session.decode([1, 2]), wanted)
    with pytest.raises(ClosedError) as caught:
        loaded.logits([1])
    assert caught.value.code == "pack.closed"


@pytest.mark.parametrize("position", ["1", 1.5, None])
def test_no_position(model: GuildModel, position: Any) -> None:
    with model.session(threads=1) as session, pytest.raises(UsageError) as caught:
        session.rewind(position)
    assert caught.value.field == "position"


def test_tokens_that_are_no_sequence(model: GuildModel) -> None:
    nothing: Any = None
    with pytest.raises(UsageError) as caught:
        model.logits(nothing)
    assert caught.value.field == "ids"


def test_a_context_that_no_machine_has(model: GuildModel) -> None:
    with pytest.raises(UsageError) as caught:
        model.session(n_ctx=1 << 45)
    assert caught.value.code == "io.memory"


def test_sessions_share_weights_and_go_on_side_by_side(model: GuildModel) -> None:
    texts = [text(60, seed=seed) for seed in range(4)]
    wanted = [model.logits(ids, threads=1)[-1] for ids in texts]
    found: list[np.ndarray | None] = [None] * len(texts)

    def work(number: int) -> None:
        with model.session(threads=1) as session:
            for token in texts[number]:
                found[number] = session.decode([token])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made, expected in zip(found, wanted, strict=True):
        assert made is not None
        assert np.array_equal(made, expected)
    with model.session() as a, model.session() as b:
        a.decode(texts[0])
        b.decode(texts[1][:5])
        assert (a.position, b.position) == (60, 5)
        assert a._engine is b._engine


def test_results_do_not_depend_on_the_batch(model: GuildModel) -> None:
    ids = text(200)
    wanted = model.logits(ids, cache_type="F32", compute="f32")
    for batch in (1, 2, 16, 63, 1000):
        assert np.array_equal(model.logits(ids, cache_type="F32", compute="f32", batch=batch), wanted)


def test_the_cache_takes_no_memory_before_it_is_used(tmp_path: Path) -> None:
    """A context of a million tokens, of which ten are used."""
    path = tiny("llama", width=64, n_kv=4).write(tmp_path / "m.gguf")
    code = f"""
import resource
from gpack.model import GuildModel, ModelPaths
with GuildModel.load(ModelPaths(primary_model_path={str(path)!r})) as model:
    model.session(threads=1).decode([1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session = model.session(n_ctx=1 << 20, threads=1, batch=64)
    session.decode([1] * 10)
    print(session.cache_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cache, grown = map(int, done.stdout.split())
    assert cache == 2 * 2 * 4 * 64 * 2 * (1 << 20)  # layers, keys and values, heads, width, F16
    assert grown < 64 << 10  # KiB


def test_a_session_that_nobody_closed_ends_its_threads(model: GuildModel) -> None:
    before = threading.active_count()
    session = model.session(threads=3)
    assert threading.active_count() == before + 3
    del session
    gc.collect()
    assert threading.active_count() == before


def test_a_program_ends_with_its_session_open(tmp_path: Path) -> None:
    """Python 3.13 waited for ever for threads that had ended with it."""
    path = tiny("llama").write(tmp_path / "m.gguf")
    code = f"""
import sys
from gpack.model import GuildModel, ModelPaths
session = GuildModel.load(ModelPaths(primary_model_path={str(path)!r})).session(threads=2)
session.decode([1])
session.itself = session  # nothing but Python's end takes it away
sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_warm_start_does_without_numba(tmp_path: Path) -> None:
    """Machine code is on disk once a session like it has run: then numba is not even imported."""
    path = tiny("llama").write(tmp_path / "m.gguf")
    code = f"""
import sys
from gpack.model import GuildModel, ModelPaths
with GuildModel.load(ModelPaths(primary_model_path={str(path)!r})) as model, model.session() as session:
    session.decode([1, 2, 3])
    session.decode([4])
    print("numba" in sys.modules, "gguf" in sys.modules)
"""
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert done[1] == "False False\n"


def moe() -> TinyModel:
    return tiny("qwen3moe", n_layer=3, n_expert=8, n_used=2, n_embd=64, n_ff=32)


def fused_moe() -> TinyModel:
    """The same with gates and ups in one tensor."""
    model = moe()
    for layer in range(3):
        parts = [model.tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight") for name in ("gate", "up")]
        model.tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    return model


@pytest.mark.parametrize("make", [moe, fused_moe])
def test_experts_however_they_come_give_the_same_bits(make: Callable[[], TinyModel], tmp_path: Path) -> None:
    path, ids = make().write(tmp_path / "m.gguf"), text(50)
    convert_gguf(path, tmp_path / "e.gpack")
    convert_gguf(path, tmp_path / "x.gpack", external_experts=True)
    gguf, embedded, external = (
        ModelPaths(primary_model_path=path),
        ModelPaths(gpack_path=tmp_path / "e.gpack"),
        ModelPaths(gpack_path=tmp_path / "x.gpack"),
    )
    with GuildModel.load(gguf) as model:
        assert not model.pages_experts
        wanted = model.logits(ids)
    for paths in (gguf, embedded, external):
        for io, budget in (("auto", None), ("mmap", None), ("read", None), ("auto", 0), ("direct", 100_000)):
            with GuildModel.load(paths, io=io, expert_budget_bytes=budget) as model:
                assert model.pages_experts == (io in ("read", "direct") or budget is not None)
                assert np.array_equal(model.logits(ids), wanted)
                with model.session() as session:
                    singly = np.array([session.decode([number]) for number in ids])
                np.testing.assert_allclose(singly, wanted, atol=2e-3)
                assert model.experts is not None
                if model.pages_experts:
                    assert model.experts.counts.misses > 0
                    assert model.experts.counts.read_bytes > 0
                else:
                    assert model.experts.counts.misses == 0


def test_only_chosen_experts_are_fetched(tmp_path: Path) -> None:
    path = moe().write(tmp_path / "m.gguf")
    with GuildModel.load(ModelPaths(primary_model_path=path), expert_budget_bytes=1 << 30) as model:
        assert model.experts is not None
        with model.session() as session:
            before = model.experts.counts.misses
            session.decode([5])
            # Two of eight in each of three layers, and none that is there already.
            assert model.experts.counts.misses - before <= 3 * 2
            assert model.experts.counts.misses <= 3 * 3


def test_pagers_of_sessions_do_not_mix(tmp_path: Path) -> None:
    path, ids = moe().write(tmp_path / "m.gguf"), text(40)
    with GuildModel.load(ModelPaths(primary_model_path=path), expert_budget_bytes=0) as model:
        wanted = model.logits(ids, threads=1)
        found: list[np.ndarray] = []

        def work() -> None:
            found.extend(model.logits(ids, threads=1) for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 15
        assert all(np.array_equal(made, wanted) for made in found)


def test_it_is_a_session(model: GuildModel) -> None:
    assert isinstance(model.session(threads=1), Session)
