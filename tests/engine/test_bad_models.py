"""Models that cannot be run: each is refused before any work, by an error that names the key or the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import TinyModel, text, tiny

from gpack.convert.gguf import convert_gguf
from gpack.engine import weights
from gpack.engine.backends.cpu.backend import CpuBackend
from gpack.errors import GpackError, UnsupportedError
from gpack.model import GuildModel, ModelPaths


def refused(model: TinyModel, path: Path, **options: Any) -> GpackError:
    """The error that opening a session ends with."""
    with model.open(path / "m.gguf") as loaded, pytest.raises(GpackError) as caught:
        loaded.session(threads=1, **options)
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "feed_forward_length",
    ],
)
def test_a_missing_key(key: str, tmp_path: Path) -> None:
    model = tiny()
    del model.metadata[f"llama.{key}"]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", f"llama.{key}")
    assert "lacks" in error.message


MOE: dict[str, Any] = {"n_expert": 4, "n_used": 2}
# architecture and options, key, value: what is wrong with it.
KEYS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("llama", {}, "block_count", 0),
    ("llama", {}, "block_count", 1 << 20),
    ("llama", {}, "block_count", "two"),
    ("llama", {}, "block_count", True),
    ("llama", {}, "context_length", 0),
    ("llama", {}, "embedding_length", 0),
    ("llama", {}, "attention.head_count", 0),
    ("llama", {}, "attention.head_count", 1.5),
    ("llama", {}, "attention.head_count_kv", 3),
    ("llama", {}, "attention.head_count_kv", 0),
    ("llama", {}, "attention.value_length", 4),
    ("llama", {}, "attention.layer_norm_rms_epsilon", 0.0),
    ("llama", {}, "attention.layer_norm_rms_epsilon", float("nan")),
    ("llama", {}, "attention.layer_norm_rms_epsilon", -1e-5),
    ("llama", {}, "rope.dimension_count", 6),
    ("llama", {}, "rope.dimension_count", 16),
    ("qwen3", {}, "rope.dimension_count", 5),
    ("llama", {}, "rope.freq_base", 0.0),
    ("llama", {}, "rope.freq_base", float("inf")),
    ("llama", {}, "rope.scaling.factor", 0.0),
    ("llama", MOE, "expert_used_count", 0),
    ("llama", MOE, "expert_used_count", 5),
    ("llama", MOE, "expert_count", 1 << 30),
    ("qwen3moe", MOE, "expert_count", 0),
    ("qwen3moe", MOE, "expert_used_count", 9),
    ("qwen3moe", MOE, "expert_feed_forward_length", 0),
    ("gemma3", {}, "attention.sliding_window", 1 << 31),
]


@pytest.mark.parametrize(("name", "options", "key", "value"), KEYS)
def test_a_key_out_of_range(name: str, options: dict[str, Any], key: str, value: Any, tmp_path: Path) -> None:
    model = tiny(name, **options)
    model.metadata[f"{name}.{key}"] = value
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", f"{name}.{key}")
    assert error.message


def test_no_architecture(tmp_path: Path) -> None:
    model = tiny()
    del model.metadata["general.architecture"]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", "general.architecture")


def test_values_for_each_layer(tmp_path: Path) -> None:
    model = tiny()
    model.metadata["llama.attention.head_count_kv"] = [2, 1]
    error = refused(model, tmp_path)
    assert isinstance(error, UnsupportedError)
    assert error.field == "llama.attention.head_count_kv"
    model.metadata["llama.attention.head_count_kv"] = [2, 2]
    with model.open(tmp_path / "m.gguf") as loaded:
        assert loaded.logits([1], threads=1).shape == (1, 40)


def test_a_pattern_of_too_few_layers(tmp_path: Path) -> None:
    model = tiny("gemma3", n_layer=3, attention__sliding_window=4, attention__sliding_window_pattern=[True, False])
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.key", "gemma3.attention.sliding_window_pattern")


def test_heads_that_are_not_the_hidden_state(tmp_path: Path) -> None:
    assert refused(tiny("qwen2", width=16), tmp_path).field == "qwen2.attention.head_count"


def test_an_unknown_architecture(tmp_path: Path) -> None:
    model = tiny("mamba9")
    error = refused(model, tmp_path)
    assert isinstance(error, UnsupportedError)
    assert error.code == "engine.architecture"
    assert "'mamba9'" in error.message
    assert "llama" in str(error.hint)
    assert "qwen3moe" in str(error.hint)


def test_unknown_scaling_of_positions(tmp_path: Path) -> None:
    error = refused(tiny(rope__scaling__type="longrope"), tmp_path)
    assert isinstance(error, UnsupportedError)
    assert error.field == "llama.rope.scaling.type"
    assert "longrope" in error.message


def dense(name: str) -> list[str]:
    return sorted(tiny(name, n_layer=1).tensors)


@pytest.mark.parametrize(
    ("name", "tensor"), [(name, tensor) for name in ("llama", "qwen3", "gemma3") for tensor in dense(name)]
)
def test_a_missing_tensor(name: str, tensor: str, tmp_path: Path) -> None:
    model = tiny(name, n_layer=1)
    del model.tensors[tensor]
    if tensor == "output.weight":  # the embeddings take its place
        with model.open(tmp_path / "m.gguf") as loaded:
            assert loaded.logits([1], threads=1).shape == (1, 40)
        return
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.tensor", tensor)
    assert tensor in error.message


@pytest.mark.parametrize("tensor", [name for name in dense("qwen3") if name != "token_embd.weight"])
def test_a_shape_that_contradicts_the_metadata(tensor: str, tmp_path: Path) -> None:
    model = tiny("qwen3", n_layer=1)
    values = model.tensors[tensor]
    model.tensors[tensor] = values[:-1]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.shape", tensor)
    wanted, found = list(reversed(values.shape)), list(reversed(values[:-1].shape))
    assert str(wanted) in error.message
    assert str(found) in error.message


def test_matrices_that_are_turned(tmp_path: Path) -> None:
    model = tiny(n_layer=1)
    model.tensors["blk.0.ffn_up.weight"] = model.tensors["blk.0.ffn_up.weight"].T.copy()
    assert refused(model, tmp_path).field == "blk.0.ffn_up.weight"


@pytest.mark.parametrize("tensor", ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
def test_experts_that_are_missing_or_too_few(tensor: str, tmp_path: Path) -> None:
    for change in (lambda values: None, lambda values: values[:-1], lambda values: values[..., :-1].copy()):
        model = tiny("qwen3moe", **MOE)
        name = f"blk.1.{tensor}.weight"
        changed = change(model.tensors[name])
        if changed is None:
            del model.tensors[name]
        else:
            model.tensors[name] = changed
        error = refused(model, tmp_path)
        assert error.code == ("engine.tensor" if changed is None else "engine.shape")
        assert error.field == name


def test_a_vocabulary_of_another_size(tmp_path: Path) -> None:
    model = tiny(n_vocab=40)
    model.metadata["tokenizer.ggml.model"] = "gpt2"
    model.metadata["tokenizer.ggml.tokens"] = [f"t{number}" for number in range(41)]
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.shape", "token_embd.weight")
    assert "41" in error.message


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", ["output_norm.weight", "blk.1.attn_norm.weight", "blk.0.attn_q.bias"])
def test_vectors_are_looked_through(tensor: str, value: float, tmp_path: Path) -> None:
    model = tiny("qwen2")
    model.tensors[tensor][3] = value
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.nan", tensor)
    assert "the first is element 3" in error.message


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("tensor", ["blk.1.ffn_up.weight", "blk.0.attn_k.weight", "token_embd.weight"])
def test_matrices_are_looked_through(tensor: str, value: float, tmp_path: Path) -> None:
    model = tiny()
    model.tensors[tensor][2, 5] = value
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.nan", tensor)
    assert "the first is row 2, element 5" in error.message


def test_weights_are_checked_once_for_all_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def suspects(_backend: Any, matrices: Any) -> list[Any]:
        seen.extend(matrix.name for matrix in matrices)
        return []

    monkeypatch.setattr(CpuBackend, "suspects", suspects)
    model = tiny("qwen3moe", **MOE)
    with model.open(tmp_path / "m.gguf") as loaded:
        for options in ({"check_weights": False}, {}, {"cpu": "portable"}, {"check_weights": True}):
            loaded.session(threads=1, **options).close()
    assert sorted(seen) == sorted(name for name, values in model.tensors.items() if values.ndim > 1)


@pytest.mark.parametrize("name", ["blk.1.ffn_up_exps.weight", "blk.0.attn_k.weight"])
def test_large_models_are_not_checked_unless_asked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logits tell."""
    monkeypatch.setattr(weights, "half_of_free_memory", lambda: 5000)
    monkeypatch.setattr(weights, "_FEW_EXPERTS", 5000)
    model = tiny("qwen3moe", **MOE)
    model.tensors[name][...] = np.nan
    assert refused(model, tmp_path, check_weights=True).field == name
    with model.open(tmp_path / "m.gguf") as loaded, loaded.session(threads=1) as session:
        with pytest.raises(GpackError) as caught:
            session.decode(text(9))
        assert (caught.value.code, caught.value.field) == ("engine.nan", name)


@pytest.mark.parametrize("external", [False, True])
def test_experts_of_a_pack_are_looked_through(external: bool, tmp_path: Path) -> None:
    """They do not lie in one piece there."""
    model, name = tiny("qwen3moe", **MOE), "blk.1.ffn_down_exps.weight"
    model.tensors[name][2, 5, 7] = np.inf
    convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "m.gpack", external_experts=external)
    with GuildModel.load(tmp_path / "m.gpack") as loaded:
        with pytest.raises(GpackError) as caught:
            loaded.session(threads=1)
        assert (caught.value.code, caught.value.field) == ("engine.nan", name)
        assert "the first is expert 2, row 5, element 7" in caught.value.message


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "blk.0.attn_k.weight", "blk.1.ffn_gate_exps.weight"])
@pytest.mark.parametrize("cache_type", ["F32", "F16", "Q8_0"])
def test_logits_that_are_no_numbers_name_the_tensor(name: str, cache_type: str, tmp_path: Path) -> None:
    model = tiny("llama", **(MOE if "exps" in name else {}))
    if "exps" in name:
        del model.metadata["llama.expert_feed_forward_length"]
    model.tensors[name][...] = np.nan
    options = {"cache_type": cache_type, "threads": 2, "check_weights": False}
    with model.open(tmp_path / "m.gguf") as loaded, loaded.session(**options) as session:
        for ids in ([3], text(9)):
            with pytest.raises(GpackError) as caught:
                session.decode(ids)
            assert (caught.value.code, caught.value.field) == ("engine.nan", name)
            assert session.position == 0


@pytest.mark.parametrize("tensors", [("blk.0.ffn_down.weight", "blk.0.ffn_up.weight"), ("output.weight",)])
def test_values_that_overflow_are_told_apart(tensors: tuple[str, ...], tmp_path: Path) -> None:
    model = tiny(n_layer=1)
    for name in tensors:
        model.tensors[name] = np.copysign(np.float32(3e38), model.tensors[name])
    with model.open(tmp_path / "m.gguf") as loaded, loaded.session(threads=1) as session:
        with pytest.raises(GpackError) as caught:
            session.decode([1, 2, 3])
        assert caught.value.code == "engine.nan"
        assert "overflowed" in caught.value.message


def test_norms_of_16_bits_are_as_good_and_quantised_ones_are_none(tmp_path: Path) -> None:
    model = tiny(n_layer=1)
    norm = model.tensors["blk.0.attn_norm.weight"]
    norm[:] = norm.astype(np.float16)
    with model.open(tmp_path / "a.gguf") as loaded:
        wanted = loaded.logits(text(4), threads=1)
    model.types["blk.0.attn_norm.weight"] = (1, norm.astype("<f2").tobytes())
    with model.open(tmp_path / "b.gguf") as loaded:
        assert np.array_equal(loaded.logits(text(4), threads=1), wanted)
    model.types["blk.0.attn_norm.weight"] = (8, bytes(34))  # Q8_0
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.shape", "blk.0.attn_norm.weight")
    assert "Q8_0" in error.message


def test_a_type_that_has_no_values(tmp_path: Path) -> None:
    model = tiny(n_layer=1)
    c64 = 77  # of GgmlType, as GGUF files do not have it: refused when the file is opened, or later
    model.types["blk.0.ffn_up.weight"] = (c64, bytes(8 * 32 * 48))
    with pytest.raises(GpackError):
        model.open(tmp_path / "m.gguf").session()


@pytest.mark.parametrize("name", ["blk.2.attn_norm.weight", "blk.0.attn_q_norm.weight", "blk.1.ffn_up.scale"])
def test_what_layers_hold_beyond_the_architecture(name: str, tmp_path: Path) -> None:
    """Another layer than the metadata says, or a tensor that would be left out: the answers would be wrong."""
    model = tiny()
    model.tensors[name] = np.ones(8, np.float32)
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.tensor", name)


def test_draft_layers_are_not_run(tmp_path: Path) -> None:
    model = tiny()
    with model.open(tmp_path / "a.gguf") as loaded:
        wanted = loaded.logits(text(4), threads=1)
    model.metadata |= {"llama.block_count": 3, "llama.nextn_predict_layers": 1}
    model.tensors["blk.2.nextn.eh_proj.weight"] = np.ones((8, 8), np.float32)
    with model.open(tmp_path / "b.gguf") as loaded:
        assert np.array_equal(loaded.logits(text(4), threads=1), wanted)
    model.metadata["llama.nextn_predict_layers"] = 3
    assert refused(model, tmp_path).field == "llama.nextn_predict_layers"


@pytest.mark.parametrize("value", [0.0, 1e-120])
def test_frequencies_divided_by_nothing(value: float, tmp_path: Path) -> None:
    model = tiny()
    model.tensors["rope_freqs.weight"] = np.array([1, 1, value, 1], np.float32)
    error = refused(model, tmp_path)
    assert (error.code, error.field) == ("engine.nan", "rope_freqs.weight")


def test_a_pattern_of_texts(tmp_path: Path) -> None:
    model = tiny("gemma3", n_layer=2, attention__sliding_window=4, attention__sliding_window_pattern=["yes", "no"])
    assert refused(model, tmp_path).field == "gemma3.attention.sliding_window_pattern"


def test_experts_that_are_paged_are_looked_through_too(tmp_path: Path) -> None:
    model = tiny("qwen3moe", **MOE)
    name = "blk.1.ffn_up_exps.weight"
    model.tensors[name][2, 0, 0] = np.nan
    path = tmp_path / "m.gguf"
    model.open(path).close()
    with GuildModel.load(ModelPaths(None, path), expert_budget_bytes=0) as loaded, pytest.raises(GpackError) as caught:
        loaded.session(threads=1, check_weights=True)
    assert (caught.value.code, caught.value.field) == ("engine.nan", name)


def test_a_good_model_is_not_refused(tmp_path: Path) -> None:
    """The models above are refused for what was changed, not for what they are."""
    for model in (tiny(), tiny("qwen2"), tiny("qwen3"), tiny("qwen3moe", **MOE), tiny("gemma3", n_layer=3)):
        with model.open(tmp_path / "m.gguf") as loaded:
            assert isinstance(loaded, GuildModel)
            assert np.isfinite(loaded.logits(text(5), threads=1)).all()
            assert np.isfinite(loaded.logits(text(5), check_weights=True, threads=1)).all()
