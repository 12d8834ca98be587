"""Tensors of Hugging Face models: stacked, reordered, computed, kept where they cannot be what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import MOE, Maker, attention_layer, experts, f32, kept, llama_tensors, mlp, qwen3_folder, qwen3_tensors

import gpack
from gpack.convert.anything import convert
from gpack.convert.conversion import report

# --- tensors that are not what they should be ---


def test_a_model_that_is_not_whole(tmp_path: Path) -> None:
    whole = qwen3_tensors()
    layer = {name: tensor for name, tensor in whole.items() if ".layers.1." not in name}
    kept(qwen3_folder(tmp_path / "a", tensors=layer), "lacks the layers [1]")
    kept(qwen3_folder(tmp_path / "b", layers=1, tensors=whole), "has the layers [1]")
    bare = {name: tensor for name, tensor in whole.items() if "embed_tokens" not in name}
    kept(qwen3_folder(tmp_path / "c", tensors=bare), "embed_tokens.weight")
    untied = qwen3_folder(tmp_path / "d", tie_word_embeddings=False)
    kept(untied, "lm_head.weight")


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"]
    kept(qwen3_folder(tmp_path / "m", tensors=tensors), "become one", "output_norm.weight")


def test_an_unknown_tensor_is_packed_and_told(tmp_path: Path) -> None:
    tensors = qwen3_tensors() | {"model.layers.0.self_attn.odd.weight": f32(np.ones((3, 5), np.float32))}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = f32(np.ones(16))
    info = report(convert(qwen3_folder(tmp_path / "m", tensors=tensors), tmp_path / "m.gpack"))["import"]
    assert info["runnable"] is False
    assert "model.layers.0.self_attn.odd.weight" in info["reasons"][0]
    assert info["computed"] == ["model.layers.0.self_attn.rotary_emb.inv_freq"]
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["model.layers.0.self_attn.odd.weight"].dims == (5, 3)


def test_weights_of_eight_bits_are_packed_and_told(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = ("float8_e4m3fn", (128, 64), bytes(range(256)) * 32)
    info = report(convert(qwen3_folder(tmp_path / "m", tensors=tensors), tmp_path / "m.gpack"))["import"]
    assert "F8_E4M3" in info["reasons"][0]
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["blk.0.ffn_up.weight"].type_name == "F8_E4M3"
        assert bytes(pack["blk.0.ffn_up.weight"]) == bytes(range(256)) * 32


def test_experts_stack_by_number_over_shards(tmp_path: Path) -> None:
    tensors = experts(Maker(5), 12)
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, shards=3, **MOE)
    convert(folder, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        for role in ("gate", "up", "down"):
            stack = pack[f"blk.0.ffn_{role}_exps.weight"]
            for expert in range(12):
                data = tensors[f"model.layers.0.mlp.experts.{expert}.{role}_proj.weight"][2]
                assert stack[expert].tobytes() == data
    assert gpack.verify(tmp_path / "m.gpack").report.ok


def test_experts_that_are_missing_or_differ(tmp_path: Path) -> None:
    tensors = experts(Maker(5), 12)
    short = dict(tensors)
    del short["model.layers.0.mlp.experts.10.up_proj.weight"]
    kept(qwen3_folder(tmp_path / "a", tensors=short, **MOE), "up_proj", "the first is 10")
    tensors["model.layers.0.mlp.experts.3.up_proj.weight"] = f32(np.ones((32, 65)))
    kept(qwen3_folder(tmp_path / "b", tensors=tensors, **MOE), "expert 3", "[32, 65]")


def test_rows_that_do_not_fit_the_heads(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["model.layers.0.self_attn.q_proj.weight"] = f32(np.ones((130, 64)))
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, model_type="llama")
    kept(folder, "130 rows", "4 heads")


# --- Llama 3's frequencies, draft layers ---


def test_frequencies_of_llama_3(tmp_path: Path) -> None:
    tensors = llama_tensors()
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, model_type="llama", rope_parameters=rope)
    convert(folder, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        values = pack["rope_freqs.weight"].dequantize()
        assert "llama.rope.scaling.type" not in pack.metadata
    # Head of 32: wavelengths 2 pi 10000^(i/16) against 16 and 64. Between, by hand: i = 2 has 19.87, so that
    # smooth = (64 / 19.87 - 1) / 3 = 0.7403 and the divisor 1 / (0.2597 / 8 + 0.7403) = 1.2941.
    assert values[:2].tolist() == [1.0, 1.0]
    assert values[2] == pytest.approx(1.2941, abs=2e-4)
    assert values[5:].tolist() == [8.0] * 11


def linear_config(**others: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "layers": 2,
        "hidden": 64,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        **others,
    }


def linear_tensors(make: Maker) -> dict[str, Any]:
    tensors = {"model.embed_tokens.weight": f32(make(288, 64)), "model.norm.weight": f32(make(64))}
    layer = "model.layers.0"
    shapes = {
        "in_proj_qkv.weight": (112, 64),
        "in_proj_z.weight": (48, 64),
        "in_proj_a.weight": (6, 64),
        "in_proj_b.weight": (6, 64),
        "conv1d.weight": (112, 1, 4),
        "A_log": (6,),
        "dt_bias": (6,),
        "norm.weight": (8,),
        "out_proj.weight": (64, 48),
    }
    tensors |= {f"{layer}.linear_attn.{name}": f32(make(*shape)) for name, shape in shapes.items()}
    tensors |= {f"{layer}.{name}.weight": f32(make(64)) for name in ("input_layernorm", "post_attention_layernorm")}
    tensors |= attention_layer(make, "model.layers.1", 64, gated=True)
    for number in range(2):
        tensors |= mlp(make, f"model.layers.{number}.mlp", 64, 128)
    return tensors


def values_of(stored: Any) -> Any:
    return np.frombuffer(stored[2], "<f4").reshape(stored[1])


def test_a_draft_layer(tmp_path: Path) -> None:
    make = Maker(9)
    tensors = linear_tensors(make)
    tensors |= {
        name.replace("model.layers.7", "mtp.layers.0"): tensor
        for name, tensor in {
            **attention_layer(make, "model.layers.7", 64, gated=True),
            **mlp(make, "model.layers.7.mlp", 64, 128),
        }.items()
    }
    tensors |= {"mtp.fc.weight": f32(make(64, 128)), "mtp.norm.weight": f32(make(64))}
    tensors |= {f"mtp.pre_fc_norm_{name}.weight": f32(make(64)) for name in ("embedding", "hidden")}
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **linear_config(mtp_num_hidden_layers=1))
    assert "import" not in report(convert(folder, tmp_path / "m.gpack"))
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.metadata["qwen35.block_count"] == 3
        assert pack.metadata["qwen35.nextn_predict_layers"] == 1
        assert pack.metadata["qwen35.attention.recurrent_layers"] == [True, False, False]
        assert pack.manifest["mtp"]["tensor_count"] == 15
        assert pack.manifest["model"]["layer_count"] == 2
        for name, own in (("eh_proj", "fc"), ("shared_head_norm", "norm"), ("enorm", "pre_fc_norm_embedding")):
            added = 0 if own == "fc" else np.float32(1)
            np.testing.assert_array_equal(
                pack[f"blk.2.nextn.{name}.weight"], values_of(tensors[f"mtp.{own}.weight"]) + added
            )


@pytest.mark.parametrize(
    ("name", "shape"),
    [("in_proj_qkv.weight", (111, 64)), ("out_proj.weight", (64, 47)), ("conv1d.weight", (112, 4)), ("A_log", (5,))],
)
def test_value_heads_that_do_not_fit(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    tensors = linear_tensors(Maker(3))
    tensors[f"model.layers.0.linear_attn.{name}"] = f32(np.ones(shape))
    kept(qwen3_folder(tmp_path / "m", tensors=tensors, **linear_config()), name)
    odd = qwen3_folder(tmp_path / "n", tensors=tensors, **linear_config(linear_num_value_heads=5))
    kept(odd, "linear_num_value_heads")
