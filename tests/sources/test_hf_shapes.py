"""A configuration that contradicts the tensors is an error; settings that no GGUF can say are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import MOE, ORACLE, Maker, Tensors, experts, f32, kept, llama_tensors, mlp, qwen3_folder, qwen3_tensors

from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.pack import open as open_pack
from gpack.sources.hf_architectures import ARCHITECTURES
from gpack.sources.hf_import import HfSource

needs_oracle = pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
LAYER = "model.layers.0"


def reasons(folder: Path, **config: Any) -> list[str]:
    """Why a model cannot be run; the pack, the report and the command line say the same."""
    output = folder.with_suffix(".gpack")
    info = report(convert(folder, output))
    found: dict[str, Any] = info.get("import", {})
    assert found.get("runnable", True) is not bool(found.get("reasons"))
    with open_pack(output) as pack:
        assert pack.manifest.get("extensions", {}).get("import", {}) == found
    return list(found.get("reasons", []))


# --- shapes ---


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        # tensors: hidden 64, 4 heads of 32 for 2 of keys, inner 128, 288 tokens
        ("hidden_size", 32, ("embed_tokens.weight", "hidden_size 32", "[288, 32]")),
        ("head_dim", 16, ("k_norm.weight", "head_dim 16")),
        ("num_attention_heads", 8, ("o_proj.weight", "num_attention_heads 8 x head_dim 32", "[64, 128]", "[64, 256]")),
        ("num_key_value_heads", 4, ("k_proj.weight", "num_key_value_heads 4 x head_dim 32", "[128, 64]")),
        ("intermediate_size", 100, ("mlp.down_proj.weight", "intermediate_size 100", "axis 1")),
        ("vocab_size", 300, ("embed_tokens.weight", "vocab_size 300", "axis 0")),
    ],
)
def test_a_size_that_the_tensors_have_not(tmp_path: Path, key: str, value: int, words: tuple[str, ...]) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=qwen3_tensors(), **{key: value})
    kept(folder, *words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_experts", 13, ("experts.0.down_proj.weight and 11 others", "num_experts 13", "[12, 64, 32]")),
        ("num_local_experts", 11, ("num_local_experts 11",)),
        ("moe_intermediate_size", 33, ("experts.0.down_proj.weight and 11 others", "moe_intermediate_size 33")),
    ],
)
def test_experts_that_are_others(tmp_path: Path, key: str, value: int, words: tuple[str, ...]) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=experts(Maker(5), 12), **{**MOE, key: value})
    kept(folder, *words)


def test_heads_of_a_size_that_nothing_says(tmp_path: Path) -> None:
    """hidden_size / num_attention_heads: 64 / 4 = 16, but the norms have 32."""
    folder = qwen3_folder(tmp_path / "m", tensors=qwen3_tensors(), head_dim=None)
    kept(folder, "k_norm.weight", "hidden_size / num_attention_heads = 16")
    tensors = {name: held for name, held in llama_tensors().items() if ".self_attn." not in name}
    made = Maker(3)
    for layer in range(2):
        shapes = {"q": (64, 64), "k": (64, 64), "v": (64, 64), "o": (64, 64)}
        tensors |= {f"model.layers.{layer}.self_attn.{k}_proj.weight": f32(made(*shape)) for k, shape in shapes.items()}
    whole = qwen3_folder(tmp_path / "n", tensors=tensors, model_type="llama", head_dim=None, num_key_value_heads=None)
    assert reasons(whole) == []


def test_a_tensor_of_another_rank(tmp_path: Path) -> None:
    tensors = qwen3_tensors() | {f"{LAYER}.input_layernorm.weight": f32(np.ones((64, 1), np.float32))}
    kept(qwen3_folder(tmp_path / "m", tensors=tensors), "input_layernorm", "has 2 axes")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", None),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 0),
        ("head_dim", 31),
        ("head_dim", 1 << 20),
        ("vocab_size", 0),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", 1 << 40),
        ("num_hidden_layers", 0),
        ("rms_norm_eps", None),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", 3),
        ("intermediate_size", None),
        ("rope_parameters", {"rope_theta": 0}),
        ("rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 2}),
    ],
)
def test_values_that_no_model_has(tmp_path: Path, key: str, value: Any) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=qwen3_tensors(), **{key: value})
    kept(folder, next(iter(value)) if isinstance(value, dict) and len(value) == 1 else "")


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 0), ("num_experts_per_tok", 0), ("num_experts_per_tok", 13), ("moe_intermediate_size", 0)],
)
def test_experts_that_no_model_has(tmp_path: Path, key: str, value: int) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=experts(Maker(5), 12), **{**MOE, key: value})
    kept(folder, key if key != "num_experts" else "num_local_experts")


@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.k_norm", "mlp.down_proj", "input_layernorm"])
def test_a_layer_that_lacks_a_tensor(tmp_path: Path, name: str) -> None:
    tensors = qwen3_tensors()
    del tensors[f"model.layers.1.{name}.weight"]
    kept(qwen3_folder(tmp_path / "m", tensors=tensors), "blk.1.", "are missing")


@needs_oracle
@pytest.mark.parametrize(
    "name",
    [
        *("llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen35moe-wrapped"),
        *("qwen4exp", "qwen4exp-wrapped"),
    ],
)
def test_whole_models_have_nothing_to_tell(name: str) -> None:
    with HfSource.open(ORACLE / "hf" / name, text_only=True) as source:
        assert source.reasons == []


def test_packed_weights_are_told_and_kept(tmp_path: Path) -> None:
    """As 4-bit quantisers leave them: another name, another shape, scales beside it."""
    tensors: Tensors = llama_tensors()
    del tensors[f"{LAYER}.self_attn.q_proj.weight"]
    tensors[f"{LAYER}.self_attn.q_proj.qweight"] = ("int32", (8, 128), bytes(4096))
    tensors[f"{LAYER}.self_attn.k_proj.weight"] = ("uint8", (2048, 1), bytes(range(256)) * 8)
    info = reasons(qwen3_folder(tmp_path / "m", tensors=tensors, model_type="llama"))
    assert any("q_proj.qweight" in reason for reason in info)
    assert any("1 tensors that llama needs are missing, the first is blk.0.attn_q.weight" in reason for reason in info)
    assert any("U8" in reason for reason in info)
    with open_pack(tmp_path / "m.gpack") as pack:
        assert bytes(pack["blk.0.attn_k.weight"]) == bytes(range(256)) * 8


# --- settings ---


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"hidden_act": ["silu"]}, "hidden_act is "),
        ({"use_sliding_window": True, "sliding_window": 128}, "window of 128 tokens"),
        ({"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]}, "window of 128 tokens"),
        ({"layer_types": ["full_attention", "odd_attention"]}, "'odd_attention'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_settings_without_a_translation(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    (info,) = reasons(qwen3_folder(tmp_path / "m", tensors=qwen3_tensors(), **config))
    assert words in info
    assert "qwen3" in info


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "silu"},
        {"use_sliding_window": False, "sliding_window": 128},
        {"use_sliding_window": True, "sliding_window": 512},
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["full_attention"] * 2},
        {"use_sliding_window": True, "sliding_window": None},
        {"attention_bias": False, "partial_rotary_factor": 1.0},
    ],
)
def test_settings_that_change_nothing(tmp_path: Path, config: dict[str, Any]) -> None:
    assert reasons(qwen3_folder(tmp_path / "m", tensors=qwen3_tensors(), **config)) == []


def test_a_window_of_mistral(tmp_path: Path) -> None:
    """Its files have no `use_sliding_window`: a window below the context counts."""
    config: dict[str, Any] = {"model_type": "mistral", "tensors": llama_tensors()}
    assert reasons(qwen3_folder(tmp_path / "a", **config, sliding_window=4096)) == []
    assert "window of 256" in reasons(qwen3_folder(tmp_path / "b", **config, sliding_window=256))[0]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob is false"),
        ({"norm_topk_prob": None}, "norm_topk_prob is not said"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers is a list of 1"),
    ],
)
def test_experts_without_a_translation(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    info = reasons(qwen3_folder(tmp_path / "m", tensors=experts(Maker(5), 12), **{**MOE, **config}))
    assert any(words in reason for reason in info)


def test_a_dense_layer_among_experts(tmp_path: Path) -> None:
    """What `mlp_only_layers` names has no experts, and lacks none."""
    dense = {name: held for name, held in qwen3_tensors().items() if ".layers.1." in name}
    tensors = experts(Maker(5), 12) | dense
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **{**MOE, "layers": 2, "mlp_only_layers": [1]})
    info = reasons(folder)
    assert any("mlp_only_layers is a list of 1" in reason for reason in info)
    assert any("3 tensors have no name in qwen3moe" in reason for reason in info)


def test_biases(tmp_path: Path) -> None:
    """llama has them where the configuration says so, and then all of them."""
    make = Maker(4)
    sizes = {"q": 128, "k": 64, "v": 64, "o": 64}
    biases = {
        f"model.layers.{layer}.self_attn.{name}_proj.bias": f32(make(size))
        for layer in range(2)
        for name, size in sizes.items()
    }
    whole = llama_tensors() | biases
    config: dict[str, Any] = {"model_type": "llama"}
    assert reasons(qwen3_folder(tmp_path / "a", tensors=whole, **config, attention_bias=True)) == []
    bare = qwen3_folder(tmp_path / "b", tensors=llama_tensors(), **config, attention_bias=True)
    kept(bare, "blk.0.attn_q.bias")
    unsaid = reasons(qwen3_folder(tmp_path / "c", tensors=whole, **config))
    assert unsaid == ["8 biases are none that llama has, the first is blk.0.attn_k.bias"]
    # A bias is permuted as its rows are, so 63 rows would be no heads.
    whole[f"{LAYER}.self_attn.k_proj.bias"] = f32(make(63))
    kept(qwen3_folder(tmp_path / "d", tensors=whole, **config, attention_bias=True), "63")


def test_no_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen3_folder(tmp_path / "m", tensors=qwen3_tensors())
    (folder / "tokenizer.json").unlink()
    assert reasons(folder) == ["there is no tokenizer.json"]
    assert main(["inspect", str(tmp_path / "m.gpack")]) == 0
    assert "there is no tokenizer.json" in capsys.readouterr().out


# What is computed from the configuration, or has no one name.
_COMPUTED = ("rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd", "ffn_gate_up_exps")


def test_every_architecture_has_a_shape_for_every_tensor(tmp_path: Path) -> None:
    """By the `gguf` package's own lists: what it may hold in a layer is checked here, but for computed tables."""
    from gguf import MODEL_ARCH, MODEL_TENSORS, TENSOR_NAMES

    from gpack.sources.hf_shapes import _SHAPES

    known = {name.removesuffix(".weight").removesuffix(".bias") for name in _SHAPES}
    for architecture in ARCHITECTURES:
        for tensor in MODEL_TENSORS[MODEL_ARCH[architecture.constant]]:
            name = TENSOR_NAMES[tensor].replace("blk.{bid}.", "")
            if name not in _COMPUTED:
                assert name in known, f"{architecture.name}: {name}"


def test_two_sizes_of_one_model(tmp_path: Path) -> None:
    """The first tensor that differs is told, with what was expected of it."""
    tensors = qwen3_tensors() | mlp(Maker(8), "model.layers.1.mlp", 64, 256)
    kept(qwen3_folder(tmp_path / "m", tensors=tensors), "layers.1.mlp", "[64, 256]", "128")
