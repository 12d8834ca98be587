"""qwen4exp against its makers' code and llama.cpp, its texts bit for bit, and files that are damaged."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_models import ORACLE, TinyModel, text

from gpack.engine.backends.cpu import ngrams
from gpack.engine.backends.cpu.variants import usable
from gpack.engine.engine import Chunk, Engine
from gpack.errors import GpackError, UnsupportedError
from gpack.generated.constants import GgmlType
from gpack.model import GuildModel, ModelPaths
from gpack.model.ple import PleIo, PleTable
from gpack.quants import dequantize
from gpack.quants.encode import encoder

from .float64_qwen4exp import Qwen4Exp
from .toy_qwen4exp import BLOCK, BUDGET, VOCAB, qwen4exp

VARIANTS = [variant.name for variant in usable()]
LIMIT = BUDGET + BLOCK - 1  # rows at positions below it see all positions
Numbers = npt.NDArray[Any]


def rows(engine: Engine, ids: Sequence[int], ends: Sequence[int], cache_type: str = "F32") -> Numbers:
    """Hidden states and logits of a text that comes in chunks with these ends."""
    made = []
    with engine.sequence(n_ctx=len(ids), cache_type=cache_type) as sequence:
        for first, end in pairwise((0, *ends)):
            result = engine.step([Chunk(sequence, ids[first:end], "all")], hidden=True)
            result.raise_error()
            made.append(np.concatenate([result[0].hidden, result.logits], axis=1))
    return np.concatenate(made)


# ---------------------------------------------------------------- what others compute


def oracle(name: str) -> tuple[Path, dict[str, Numbers]]:
    """A golden model, its prompt and its logits, and of which rows they are the block rule's."""
    folder = ORACLE / "hf" / "qwen4exp" if name == "transformers" else ORACLE / "models"
    path = folder / ("m.gguf" if name == "transformers" else f"{name}.gguf")
    if not path.exists():
        pytest.skip(f"no golden model {path}: set GPACK_ORACLE")
    with np.load(folder / "ref.npz" if name == "transformers" else path.with_suffix(".npz")) as stored:
        return path, {key: stored[key] for key in stored}


# float32 of their makers' is this far from float64: see the README beside them.
@pytest.mark.parametrize(("name", "bound"), [("qwen4exp", 5e-6), ("qwen4exp_sparse", 5e-6), ("transformers", 6e-5)])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_golden_logits_and_greedy_tokens(name: str, bound: float, device: str) -> None:
    path, stored = oracle(name)
    prompt, greedy = stored["prompt"].tolist(), stored["greedy"].tolist()
    wanted = stored["logits"] if "logits" in stored else stored["logits_prompt"]
    is_exact = stored.get("compare_mask", np.ones(len(prompt), np.bool_))
    atol = bound if device == "reference" else 3e-4
    with (
        GuildModel.load(ModelPaths(primary_model_path=path)) as model,
        model.engine(device=device, compute="f32") as engine,
        engine.sequence(cache_type="F32") as sequence,
    ):
        made = engine.step([Chunk(sequence, prompt, "all")]).logits
        np.testing.assert_allclose(made[is_exact], wanted[is_exact], atol=atol, rtol=0)
        is_exact = stored.get("compare_mask_greedy", np.ones(len(greedy), np.bool_))
        last, was_exact = made[-1], True
        for number, token in enumerate(greedy):
            if was_exact and number and is_exact[number - 1]:
                assert last.argmax() == token
            last = engine.step([Chunk(sequence, [token])]).logits[0]
            was_exact = bool(is_exact[number])
            if "logits_greedy" in stored and was_exact:
                np.testing.assert_allclose(last, stored["logits_greedy"][number], atol=atol, rtol=0)


KINDS: dict[str, dict[str, Any]] = {
    "as it is": {"attention__indexer__top_k": 16},
    "small budget": {"attention__indexer__top_k": 4},
    "blocks of three": {"ratios": (0, 0, 3, 3), "attention__indexer__top_k": 12},
    "blocks of sixteen": {"ratios": (0, 0, 16, 0), "attention__indexer__top_k": 32},
    "n-grams at the first layer": {"ple__layers": [0], "ngram_layer": 0},
    "three streams": {"streams": 3, "hyper_connection__count": 3, "attention__indexer__top_k": 16},
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_are_those_of_the_equations(name: str, device: str, tmp_path: Path) -> None:
    model, ids = qwen4exp(**KINDS[name]), text(90, VOCAB)
    wanted = Qwen4Exp(model.metadata, model.tensors).logits(ids)
    with model.open(tmp_path / "m.gguf") as loaded, loaded.engine(device=device, compute="f32") as engine:
        made = rows(engine, ids, [41, 42, 90])[:, engine.n_embd :]
    assert wanted.std() > 0.3
    np.testing.assert_allclose(made, wanted, atol=1e-9 if device == "reference" else 1e-4, rtol=0)


# ---------------------------------------------------------------- a text's numbers are its own


@pytest.mark.parametrize("cache_type", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_cuts_and_any_threads_give_the_same_bits(variant: str, cache_type: str, tmp_path: Path) -> None:
    ids = text(260, VOCAB)
    with qwen4exp().open(tmp_path / "m.gguf") as model, model.engine(threads=1, cpu=variant) as engine:
        wanted = rows(engine, ids, [260], cache_type)
        assert np.isfinite(wanted).all()
        for ends in ([LIMIT - 1, LIMIT, LIMIT + 1, 260], [1, 7, 66, 70, 71, 131, 132, 260], range(1, 261)):
            assert rows(engine, ids, list(ends), cache_type).tobytes() == wanted.tobytes()
        with model.engine(threads=3, cpu=variant) as other:
            assert rows(other, ids, [5, 133, 260], cache_type).tobytes() == wanted.tobytes()


def test_two_thousand_tokens(tmp_path: Path) -> None:
    ids = text(2100, VOCAB)
    with qwen4exp(context_length=4096).open(tmp_path / "m.gguf") as model, model.engine(threads=2) as engine:
        wanted = rows(engine, ids, [512, 1024, 1536, 2048, 2100])
        assert rows(engine, ids, [3, 500, 777, 1288, 1300, 1801, 2100]).tobytes() == wanted.tobytes()


def test_below_its_budget_sparse_attention_is_dense(tmp_path: Path) -> None:
    """Of a model without an indexer the rows are the same bits, up to the first that does not see all blocks."""
    dense = qwen4exp(attention__compress_ratios=[0, 0, 0, 0])
    for name in [name for name in dense.tensors if ".indexer." in name]:
        del dense.tensors[name]
    ids = text(120, VOCAB)
    with (
        qwen4exp().open(tmp_path / "sparse.gguf") as sparse,
        dense.open(tmp_path / "dense.gguf") as other,
        sparse.engine(threads=2) as engine,
        other.engine(threads=2) as second,
    ):
        made, wanted = rows(engine, ids, [50, 120]), rows(second, ids, [50, 120])
    assert made[:LIMIT].tobytes() == wanted[:LIMIT].tobytes()
    assert (made[LIMIT] != wanted[LIMIT]).any()


def test_a_fork_in_the_middle_of_a_block(tmp_path: Path) -> None:
    """The key of a block that ends after the fork is that of each text's own tokens."""
    ids, others = text(150, VOCAB), text(60, VOCAB, seed=9)
    with qwen4exp().open(tmp_path / "m.gguf") as model, model.engine(threads=2) as engine:
        wanted = rows(engine, [*ids[:90], *others], [150])
        with engine.sequence(n_ctx=150, cache_type="F32") as first:
            engine.step([Chunk(first, ids[:90])])
            kept = first.checkpoint()
            engine.step([Chunk(first, ids[90:])])
            with first.fork() as second:
                second.restore(kept)
                made = engine.step([Chunk(second, others, "all")], hidden=True)
            first.restore(kept)
            again = engine.step([Chunk(first, others, "all")], hidden=True)
    for result in (made, again):
        got = np.concatenate([result[0].hidden, result.logits], axis=1)
        assert got.tobytes() == wanted[90:].tobytes()


# ---------------------------------------------------------------- the table of n-grams


@pytest.mark.parametrize("io", list(PleIo))
def test_rows_come_from_the_table_in_both_modes(io: PleIo, tmp_path: Path) -> None:
    ids = text(80, VOCAB)
    path = qwen4exp().write(tmp_path / "m.gguf")
    with GuildModel.load(ModelPaths(primary_model_path=path)) as model, model.engine(threads=1) as engine:
        wanted = rows(engine, ids, [80])
    with GuildModel.load(ModelPaths(primary_model_path=path), ple_io=io) as model, model.engine(threads=1) as engine:
        assert rows(engine, ids, [33, 80]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_a_table_of_less_precision(kind: str, tmp_path: Path) -> None:
    """The same numbers as of a table in F32 that holds what the other one says."""
    model, ids, ggml_type = qwen4exp(row=32), text(40, VOCAB), getattr(GgmlType, kind)
    values = model.tensors["per_layer_token_embd.weight"]
    stored = encoder(ggml_type)(values)
    model.types["per_layer_token_embd.weight"] = ggml_type, stored.tobytes()
    plain = qwen4exp(row=32)
    plain.tensors["per_layer_token_embd.weight"] = dequantize(stored, ggml_type).reshape(values.shape)
    with model.open(tmp_path / "m.gguf") as loaded, plain.open(tmp_path / "plain.gguf") as other:
        assert loaded.logits(ids, threads=1).tobytes() == other.logits(ids, threads=1).tobytes()


def test_the_table_stays_open_as_long_as_a_session(tmp_path: Path) -> None:
    model = qwen4exp().open(tmp_path / "m.gguf")
    with model.session(threads=1) as session:
        wanted = session.decode([1, 2, 3])
        model.close()
        session.rewind(0)
        assert np.array_equal(session.decode([1, 2, 3]), wanted)


def test_a_table_that_was_cut_fails_the_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = PleTable.values
    with qwen4exp().open(tmp_path / "m.gguf") as model, model.engine(threads=2) as engine:
        wanted = rows(engine, [1, 2, 3, 4], [4])
        with engine.sequence(n_ctx=8, cache_type="F32") as sequence:
            engine.step([Chunk(sequence, [1, 2])])

            def fail(*_: Any) -> Any:
                raise GpackError("the file was cut", code="io.short_read")

            monkeypatch.setattr(PleTable, "values", fail)
            with pytest.raises(GpackError, match="the file was cut"):
                engine.step([Chunk(sequence, [3])])
            assert sequence.tokens == [1, 2]
            monkeypatch.setattr(PleTable, "values", values)
            made = engine.step([Chunk(sequence, [3, 4], "all")], hidden=True)
    assert np.concatenate([made[0].hidden, made.logits], axis=1).tobytes() == wanted[2:].tobytes()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_row_that_is_not_finite_is_named(device: str, tmp_path: Path) -> None:
    model = qwen4exp()
    model.tensors["per_layer_token_embd.weight"][:, 3] = np.inf
    with model.open(tmp_path / "m.gguf") as loaded, pytest.raises(GpackError) as caught:
        loaded.logits([1, 2], device=device)
    assert caught.value.code == "engine.nan"
    assert caught.value.field == "per_layer_token_embd.weight"
    assert "row" in caught.value.message


def interrupted_at(number: int, call: Callable[[], Any]) -> bool:
    """Calls something; KeyboardInterrupt is raised at a point while rows are asked for or waited for, in any function.

    Python looks for signals where a function begins, and where one that is not Python's has returned.
    """
    count = -1

    def is_reading(frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename == ngrams.__file__:
                return True
            frame = frame.f_back
        return False

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_return") and is_reading(frame):
            count += 1
            if count == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_no_interrupt_leaves_the_reading_thread_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever one comes while rows are asked for and waited for: the next step has its rows."""
    values, ids = PleTable.values, text(6, VOCAB)

    def slow(table: PleTable, numbers: Any) -> Any:
        time.sleep(0.003)  # so that they are waited for
        return values(table, numbers)

    monkeypatch.setattr(PleTable, "values", slow)
    made: list[bytes] = []
    with qwen4exp().open(tmp_path / "m.gguf") as model, model.engine(threads=1) as engine:
        wanted, number = rows(engine, ids, [6]).tobytes(), 0
        with engine.sequence(n_ctx=6, cache_type="F32") as sequence:
            while interrupted_at(number, lambda: engine.step([Chunk(sequence, ids)])):
                number += 1
                other = threading.Thread(target=lambda: made.append(rows(engine, ids, [6]).tobytes()), daemon=True)
                other.start()
                other.join(60)
                assert len(made) == number, "the step waits for ever"
    assert number > 5
    assert set(made) == {wanted}


# ---------------------------------------------------------------- models that are refused


def refused(model: TinyModel, path: Path) -> GpackError:
    with model.open(path / "m.gguf") as loaded, pytest.raises(GpackError) as caught:
        loaded.session(threads=1)
    return caught.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hyper_connection.count", 1),
        ("hyper_connection.low_rank", 0),
        ("attention.compress_ratios", [0, 0, 4]),
        ("attention.compress_ratios", [4, 0, 4, 0]),
        ("attention.compress_ratios", 4),
        ("attention.indexer.top_k", 3),
        ("attention.indexer.top_k", 0),
        ("attention.indexer.head_count", 0),
        ("attention.indexer.key_length", 2),
        ("ple.layers", [4]),
        ("ple.layers", 1),
        ("ple.conv_kernel", 1),
        ("embedding_length_per_layer_input", 0),
        ("ple.layer_multipliers", [1 << 62, 3, 5]),
    ],
)
def test_a_key_out_of_range(key: str, value: Any, tmp_path: Path) -> None:
    error = refused(qwen4exp(**{key.replace(".", "__"): value}), tmp_path)
    assert (error.code, error.field) == ("engine.key", f"qwen4exp.{key}")


@pytest.mark.parametrize(
    "key", ["hyper_connection.count", "hyper_connection.low_rank", "attention.indexer.top_k", "ple.conv_kernel"]
)
def test_a_missing_key(key: str, tmp_path: Path) -> None:
    model = qwen4exp()
    del model.metadata[f"qwen4exp.{key}"]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", f"qwen4exp.{key}")


def test_n_grams_in_several_layers_are_named(tmp_path: Path) -> None:
    error = refused(qwen4exp(ple__layers=[0, 1]), tmp_path)
    assert isinstance(error, UnsupportedError)
    assert error.field == "qwen4exp.ple.layers"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ple.ngram_size", 4),
        ("ple.heads_per_ngram", 3),
        ("ple.layer_multipliers", [3, 5]),
        ("ple.head_vocab_sizes", [11, 13, 17, 0]),
        ("ple.head_offsets", [0, 11, 24, (1 << 63) - 5]),
    ],
)
def test_a_hash_whose_constants_do_not_fit(key: str, value: Any, tmp_path: Path) -> None:
    assert refused(qwen4exp(**{key.replace(".", "__"): value}), tmp_path).code == "ple.hash"


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        ("per_layer_token_embd.weight", (59, 8)),  # one row less than the hash has
        ("per_layer_token_embd.weight", (64, 7)),
        ("blk.1.ple_key.weight", (64, 31)),
        ("blk.1.ple_conv1d.weight", (64, 3)),
        ("blk.0.hc_attn_inject.weight", (3, 64)),
        ("blk.2.indexer.k_proj.weight", (13, 32)),
        ("output_hc_norm.weight", (32,)),
    ],
)
def test_a_tensor_of_another_shape(tensor: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = qwen4exp()
    assert model.tensors[tensor].shape != shape
    model.tensors[tensor] = np.zeros(shape, np.float32)
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.shape", tensor)


@pytest.mark.parametrize(
    "tensor",
    ["per_layer_token_embd.weight", "blk.1.ple_norm_conv.weight", "blk.2.indexer.q_norm.weight", "output_hc_up.weight"],
)
def test_a_missing_tensor(tensor: str, tmp_path: Path) -> None:
    model = qwen4exp()
    del model.tensors[tensor]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.tensor", tensor)


def test_what_no_key_speaks_of_is_not_left_out(tmp_path: Path) -> None:
    error = refused(qwen4exp(attention__compress_ratios=[0, 0, 0, 0]), tmp_path)
    assert error.code == "engine.tensor"
    assert ".indexer." in str(error.field)
    model = qwen4exp()
    del model.metadata["qwen4exp.ple.layers"]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", "qwen4exp.ple.layers")
