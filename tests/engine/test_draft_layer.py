"""The model's own draft layer: its logits are those of llama.cpp, and what it keeps follows its text everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import ORACLE, TinyModel, text

from gpack.convert.gguf import convert_gguf
from gpack.engine.backends.base import Step
from gpack.engine.draft_layer import _Rows
from gpack.engine.engine import Chunk, Engine
from gpack.engine.state.sequence import Sequence as Text
from gpack.errors import UsageError
from gpack.model import GuildModel, ModelPaths

from . import toy_qwen4exp, toy_recurrent
from .float64_qwen4exp import Qwen4Exp

NAMES = ("qwen35_mtp", "qwen35moe_mtp")
N = 40


def with_draft_layer(seed: int = 9) -> TinyModel:
    """The tiny qwen35moe, and a layer that drafts."""
    model, rng, name = toy_recurrent.qwen35moe(), np.random.default_rng(seed), "qwen35moe"
    for tensor in [name for name in model.tensors if name.startswith("blk.1.")]:
        values = model.tensors[tensor]
        new = rng.permutation(values.reshape(-1)).reshape(values.shape)
        model.tensors[tensor.replace("blk.1.", "blk.3.")] = new
    for part in ("enorm", "hnorm", "shared_head_norm"):
        model.tensors[f"blk.3.nextn.{part}.weight"] = (1 + 0.2 * rng.standard_normal(32)).astype(np.float32)
    model.tensors["blk.3.nextn.eh_proj.weight"] = (rng.standard_normal((32, 64)) / 8).astype(np.float32)
    model.metadata |= {f"{name}.block_count": 4, f"{name}.nextn_predict_layers": 1}
    return model


@contextmanager
def engines(model: TinyModel, folder: Path, **options: Any) -> Iterator[Engine]:
    with model.open(folder / "m.gguf") as loaded, loaded.engine(**options) as engine:
        yield engine


def rows_of_layer(engine: Engine, text: Text) -> Any:
    """The logits of all rows that the tokens of a text have, as the layer computes them anew from the text alone."""
    tokens = text.tokens
    with (
        engine.sequence(cache_type=text.cache_type, drafts=True) as again,
        engine.sequence(cache_type=text.cache_type, drafts=True) as other,
    ):
        engine.step([Chunk(again, tokens, "none")]).raise_error()
        assert again.state.draft is not None
        seeds = np.concatenate(again.state.draft.waiting)
        layer = engine._drafts
        assert other.state.draft is not None
        keys, _ = other.state.draft.keys.with_room(engine.pool, len(tokens), other.writer)
        seen: list[Any] = []
        run = engine.backend.run

        def watched(program: Any, step: Step) -> Any:
            wanted = np.arange(len(step.tokens), dtype=np.int32)
            out = run(program, Step(step.tokens, step.segments, wanted, step.given))
            seen.append(out.logits.copy())
            return out

        engine.backend.run = watched  # type: ignore[method-assign]
        try:
            layer._run([_Rows(other, keys, tokens[1:], seeds[:-1])], wants=False)
        finally:
            del engine.backend.run
    return seen[0]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("stored", ["gguf", "pack"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_draft_layer_are_those_of_llama_cpp(
    tmp_path: Path, name: str, stored: str, device: str, record_property: Any
) -> None:
    path = ORACLE / "models" / f"{name}.gguf"
    if not path.exists():
        pytest.skip("the oracle's models are not here")
    paths = ModelPaths(primary_model_path=path)
    if stored == "pack":
        convert_gguf(path, tmp_path / "m.gpack")
        paths = ModelPaths(gpack_path=tmp_path / "m.gpack")
    known = np.load(path.with_suffix(".npz"))
    with GuildModel.load(paths) as model, model.engine(device=device, compute="f32") as engine:
        assert engine.drafts_off is None
        with engine.sequence(cache_type="F32", drafts=True) as sequence:
            engine.step([Chunk(sequence, known["prompt"].tolist(), "none")]).raise_error()
            made = rows_of_layer(engine, sequence)
            difference = float(np.abs(made - known["mtp_logits"]).max())
            record_property(f"{name}, {stored}, {device}", f"draft layer's logits differ by {difference:.1e} at most")
            assert difference < 5e-4
            # The first guess after each prefix is the most probable token of that row.
            for end in (2, 7, len(made)):
                with engine.sequence(cache_type="F32", drafts=True) as part:
                    engine.step([Chunk(part, known["prompt"][:end].tolist(), "none")]).raise_error()
                    (guess,) = engine.draft([(part, int(known["prompt"][end]), 1)])
                    assert guess == [int(known["mtp_logits"][end - 1].argmax())]


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_logits_of_qwen4exp_are_those_of_its_equations_and_of_llama_cpp(tmp_path: Path, device: str) -> None:
    """llama.cpp 86a2835 attends to all positions where the layer has an indexer: the same up to its budget."""
    made = toy_qwen4exp.with_draft_layer()
    with np.load(Path(__file__).parent / "data" / "qwen4exp_draft.npz") as stored:
        prompt, theirs = stored["prompt"].tolist(), stored["logits"]
    assert len(prompt) > toy_qwen4exp.BUDGET + 2 * toy_qwen4exp.BLOCK  # blocks are left out
    wanted = Qwen4Exp(made.metadata, made.tensors).drafted(prompt)
    with (
        engines(made, tmp_path, device=device, compute="f32") as engine,
        engine.sequence(cache_type="F32", drafts=True) as sequence,
    ):
        engine.step([Chunk(sequence, prompt, "none")]).raise_error()
        found = rows_of_layer(engine, sequence)
        np.testing.assert_allclose(found, wanted, atol=1e-6 if device == "reference" else 1e-5, rtol=0)
        np.testing.assert_allclose(found[: len(theirs)], theirs, atol=1e-5, rtol=0)


def guesses_anew(engine: Engine, tokens: list[int], token: int, count: int) -> list[int]:
    """What a new text of the same tokens is drafted to go on with."""
    with engine.sequence(drafts=True) as sequence:
        for first in range(0, len(tokens), engine.batch):
            engine.step([Chunk(sequence, tokens[first : first + engine.batch], "none")]).raise_error()
        return engine.draft([(sequence, token, count)])[0]


WITH_LAYER = {"qwen35moe": with_draft_layer, "qwen4exp": toy_qwen4exp.with_draft_layer}


@pytest.mark.parametrize("name", WITH_LAYER)
def test_a_guess_is_made_from_the_one_before(tmp_path: Path, name: str) -> None:
    with engines(WITH_LAYER[name](), tmp_path, device="reference") as engine, engine.sequence(drafts=True) as sequence:
        tokens = text(12)
        engine.step([Chunk(sequence, tokens, "none")]).raise_error()
        (guesses,) = engine.draft([(sequence, 5, 4)])
        assert len(guesses) == 4
        # By hand: rows one after the other, the layer's own seed given to the next.
        draft = sequence.state.draft
        assert draft is not None
        keys, _ = draft.keys.with_room(engine.pool, 8, sequence.writer)
        seeds, token, found = draft.waiting[0][-1:], 5, []
        for _ in range(4):
            row = _Rows(sequence, keys, [token], seeds)
            engine._drafts._run([row])
            assert row.after is not None
            assert not np.allclose(row.after, seeds)
            seeds, token, keys = row.after, row.guess, keys.advanced(1, None)
            found.append(token)
        assert guesses == found


@pytest.mark.parametrize("name", WITH_LAYER)
def test_what_the_layer_keeps_follows_its_text(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(3)
    with engines(WITH_LAYER[name](), tmp_path, batch=64) as engine, engine.sequence(drafts=True) as sequence:
        tokens: list[int] = []
        kept = [(sequence.checkpoint(), tokens)]
        for turn in range(60):
            action = int(rng.integers(7))
            new = rng.integers(0, N, int(rng.choice([1, 2, 5, 40]))).tolist()
            if len(tokens) > 350 or action == 0:
                checkpoint, tokens = kept[int(rng.integers(len(kept)))]
                sequence.restore(checkpoint)
                tokens = [*tokens]
            elif action == 1:
                kept.append((sequence.checkpoint(), [*tokens]))
            elif action == 2:
                with sequence.fork() as fork:  # which goes another way
                    engine.step([Chunk(fork, new)]).raise_error()
                    assert engine.draft([(fork, 7, 3)]) == [guesses_anew(engine, [*tokens, *new], 7, 3)], turn
            elif action == 3:
                found = engine.step([Chunk(sequence, new[:5], "all", open=True)])[0].opened
                count = int(rng.integers(len(new[:5]) + 1))
                assert found is not None
                engine.accept([(found, count)])
                tokens += new[:count]
            else:
                engine.step([Chunk(sequence, new)]).raise_error()
                tokens += new
            if tokens and turn % 2:
                token = int(rng.integers(N))
                before = sequence.state.recurrent
                assert engine.draft([(sequence, token, 3)]) == [guesses_anew(engine, tokens, token, 3)], turn
                assert sequence.tokens == tokens
                assert sequence.state.recurrent is before


def test_texts_are_drafted_together(tmp_path: Path) -> None:
    with engines(with_draft_layer(), tmp_path, batch=64) as engine:
        texts = [engine.sequence(drafts=True, cache_type=kind) for kind in ("F16", "Q8_0", "F32", "F16", "F16")]
        for number, each in enumerate(texts[:-1]):
            engine.step([Chunk(each, text(20 + 9 * number, seed=number))]).raise_error()
        plain = engine.sequence()
        engine.step([Chunk(plain, [1, 2])]).raise_error()
        wanted = [(each, 3 + number, (3, 1, 0, 5, 2)[number]) for number, each in enumerate(texts)]
        alone = [engine.draft([one])[0] for one in wanted]
        assert engine.draft([*wanted, (plain, 1, 3)]) == [*alone, []]
        assert [len(found) for found in alone] == [3, 1, 0, 5, 0]  # the last text has no token yet


def test_what_is_refused_and_what_is_left_out(tmp_path: Path) -> None:
    with engines(with_draft_layer(), tmp_path) as engine, engine.sequence(drafts=True) as sequence:
        engine.step([Chunk(sequence, [1, 2])]).raise_error()
        with pytest.raises(UsageError) as caught:
            engine.draft([(sequence, N, 1)])
        assert caught.value.code == "engine.token"
        before, engine.pool.budget = engine.pool.budget, 0
        assert engine.draft([(sequence, 1, 100)]) in ([[]], engine.draft([(sequence, 1, 100)]))
        engine.pool.budget = before
        sequence.close()
        with pytest.raises(UsageError) as caught:
            engine.draft([(sequence, 1, 1)])
        assert caught.value.code == "engine.sequence"


def broken(change: str) -> TinyModel:
    model = with_draft_layer()
    if change == "of another width":
        model.tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((32, 48), np.float32)
    elif change == "without its product":
        del model.tensors["blk.3.nextn.eh_proj.weight"]
    elif change == "with another tensor":
        model.tensors["blk.3.nextn.more.weight"] = np.zeros(32, np.float32)
    elif change == "not finite":
        model.tensors["blk.3.nextn.enorm.weight"][3] = np.nan
    elif change == "counted and not there":
        for name in [name for name in model.tensors if name.startswith("blk.3.")]:
            del model.tensors[name]
    return model


@pytest.mark.parametrize(
    "change", ["of another width", "without its product", "with another tensor", "not finite", "counted and not there"]
)
def test_a_layer_that_cannot_be_used_is_left_out_with_its_reason(tmp_path: Path, change: str) -> None:
    with engines(broken(change), tmp_path) as engine, engine.sequence(drafts=True) as sequence:
        assert engine.drafts_off is not None
        assert "nextn" in engine.drafts_off, engine.drafts_off
        engine.step([Chunk(sequence, [1, 2, 3])]).raise_error()
        assert engine.draft([(sequence, 1, 3)]) == [[]]


def test_models_without_a_layer(tmp_path: Path) -> None:
    with engines(toy_recurrent.qwen35moe(), tmp_path) as engine:
        assert engine.drafts_off == "the model has no draft layer"


def test_matrices_that_are_not_finite_give_no_guess(tmp_path: Path) -> None:
    model = with_draft_layer()
    model.tensors["blk.3.nextn.eh_proj.weight"][:] = np.nan
    with engines(model, tmp_path, check_weights=False) as engine, engine.sequence(drafts=True) as sequence:
        result = engine.step([Chunk(sequence, [1, 2, 3])])
        result.raise_error()
        assert engine.draft([(sequence, 1, 3)]) == [[]]
        assert np.isfinite(result.logits).all()
