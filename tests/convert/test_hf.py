"""safetensors imported: equal to the pack of the converter's GGUF, and what else an import promises."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import (
    ORACLE,
    Maker,
    attention_layer,
    f32,
    mlp,
    qwen3_config,
    qwen3_folder,
    qwen3_tensors,
    write_by_hand,
    write_json,
    write_safetensors,
    write_sharded,
)

import gpack
from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.errors import FormatError, GpackError, PathError, UnsupportedError, UsageError
from gpack.sections.assets import AssetTable
from gpack.sources.gguf import GgufSource

needs_oracle = pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
# Folder, its GGUF, and the name that the converter made of the folder's.
MODELS = [
    ("llama", "llama", "Llama"),
    ("qwen2", "qwen2", "Qwen2"),
    ("qwen3", "qwen3", "Qwen3"),
    ("qwen3-bf16", "qwen3-bf16", "Qwen3 Bf16"),
    ("qwen3moe", "qwen3moe", "Qwen3Moe"),
    ("qwen35", "qwen35", "Qwen35"),
    ("qwen35moe", "qwen35moe", "Qwen35Moe"),
    ("qwen35moe-wrapped", "qwen35moe", "Qwen35Moe"),
]
# Values that are computed differ in the last bit by the library's exponential.
COMPUTED = ".ssm_a"


def refused(kind: type[GpackError], code: str, source: Path, *words: str, **options: Any) -> None:
    output = source.parent / "refused.gpack"
    with pytest.raises(GpackError) as caught:
        convert(source, output, **options)
    assert type(caught.value) is kind
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    assert not [entry for entry in output.parent.iterdir() if entry.name.startswith("refused")]


# --- equal to the converter's ---


@needs_oracle
@pytest.mark.parametrize(("folder", "gguf", "name"), MODELS)
def test_equal_to_the_pack_of_the_gguf(tmp_path: Path, folder: str, gguf: str, name: str) -> None:
    convert(ORACLE / "hf" / folder, tmp_path / "hf.gpack", name=name, text_only=True)
    convert(ORACLE / "hf" / gguf / "m.gguf", tmp_path / "gguf.gpack")
    assert gpack.verify(tmp_path / "hf.gpack").report.ok
    with gpack.open(tmp_path / "hf.gpack") as made, gpack.open(tmp_path / "gguf.gpack") as expected:
        # What GGUF has no keys for comes last.
        keys = [key for key in made.metadata if not key.startswith("tokenizer.gpack.")]
        assert keys == list(made.metadata)[: len(keys)] == list(expected.metadata)
        wanted = {**expected.metadata, **({"general.file_type": 32} if folder == "qwen3-bf16" else {})}
        assert {key: made.metadata[key] for key in keys} == wanted
        assert made.section("TokenizerBin") == expected.section("TokenizerBin")
        order = [sorted(pack.tensors, key=lambda row: row.position) for pack in (made, expected)]
        names = [
            [pack.tensors.text(row, "name") for row in rows] for pack, rows in zip((made, expected), order, strict=True)
        ]
        assert names[0] == names[1]
        for tensor in names[0]:
            mine, theirs = made[tensor], expected[tensor]
            assert mine.dims == theirs.dims
            if folder != "qwen3-bf16":
                assert mine.ggml_type == theirs.ggml_type
            if tensor.endswith(COMPUTED):
                np.testing.assert_allclose(mine.dequantize(), theirs.dequantize(), rtol=0, atol=1e-6)
            else:
                np.testing.assert_array_equal(mine.dequantize(), theirs.dequantize())


@needs_oracle
@pytest.mark.parametrize("folder", ["llama", "qwen2", "qwen3-bf16", "qwen3moe"])
def test_the_same_sections_byte_for_byte(tmp_path: Path, folder: str) -> None:
    """Where nothing is computed, all but the metadata's header is the same file."""
    told = {entry[0]: entry[2] for entry in MODELS}
    quantize = "F32" if folder == "qwen3-bf16" else None
    convert(ORACLE / "hf" / folder, tmp_path / "hf.gpack", name=told[folder], quantize=quantize)
    convert(ORACLE / "hf" / folder / "m.gguf", tmp_path / "gguf.gpack")
    with gpack.open(tmp_path / "hf.gpack") as made, gpack.open(tmp_path / "gguf.gpack") as expected:
        for section in expected.manifest["sections"]:
            if section["name"] != "MetadataKvBin":
                assert made.section(section["name"]) == expected.section(section["name"]), section["name"]


@needs_oracle
def test_any_shard_gives_the_same_pack(tmp_path: Path) -> None:
    folder = ORACLE / "hf" / "qwen3moe"
    found = set()
    for named in (folder, *sorted(folder.glob("*.safetensors")), folder / "model.safetensors.index.json"):
        convert(named, tmp_path / "m.gpack")
        found.add((tmp_path / "m.gpack").read_bytes())
    assert len(found) == 1


@needs_oracle
def test_towers_are_packed_or_left_out(tmp_path: Path) -> None:
    folder = ORACLE / "hf" / "qwen35moe-wrapped"
    parts = {"visual": {"tensors": 21, "bytes": 49536}, "mtp": {"tensors": 4, "bytes": 33536}}
    packed = convert(folder, tmp_path / "all.gpack")
    assert report(packed)["import"] == {"parts": parts}
    text = convert(folder, tmp_path / "text.gpack", text_only=True)
    assert report(text)["import"] == {"left_out": parts}
    with gpack.open(tmp_path / "all.gpack") as whole, gpack.open(tmp_path / "text.gpack") as small:
        assert whole.manifest["extensions"]["import"]["parts"] == parts
        others = {name for name in whole if name not in set(small)}
        assert len(others) == 25
        assert whole["model.visual.patch_embed.proj.weight"].shape == (16, 3, 2, 4, 4)
    assert gpack.verify(tmp_path / "all.gpack").report.ok


@needs_oracle
def test_raw_files_are_kept(tmp_path: Path) -> None:
    folder = ORACLE / "hf" / "qwen35"
    convert(folder, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assets = AssetTable(pack.section("TokenizerAssets"))
        names = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert list(assets.names()) == names
        for name in names:
            assert bytes(assets.read(name)) == (folder / name).read_bytes()


@needs_oracle
def test_export_gives_the_tensors(tmp_path: Path) -> None:
    convert(ORACLE / "hf" / "qwen35moe-wrapped", tmp_path / "m.gpack", text_only=True, name="Qwen35Moe")
    gpack.export_gguf(tmp_path / "m.gpack", tmp_path / "m.gguf")
    with GgufSource.open(tmp_path / "m.gguf") as made, GgufSource.open(ORACLE / "hf" / "qwen35moe" / "m.gguf") as known:
        assert [(t.name, t.ggml_type, t.dims) for t in made.tensors] == [
            (t.name, t.ggml_type, t.dims) for t in known.tensors
        ]
        assert list(made.metadata) == [*known.metadata, "tokenizer.gpack.normalizer"]
        equal = [made.read(a) == known.read(b) for a, b in zip(made.tensors, known.tensors, strict=True)]
        assert sum(not same for same in equal) <= 3  # ssm_a of three layers
    # The export converts to the same tensors again.
    convert(tmp_path / "m.gguf", tmp_path / "again.gpack")
    with gpack.open(tmp_path / "m.gpack") as first, gpack.open(tmp_path / "again.gpack") as second:
        assert first.section("ExpertBlobs") == second.section("ExpertBlobs")
        assert first.section("DensePackBlob") == second.section("DensePackBlob")


# --- spellings ---


def test_old_and_new_spellings_say_the_same(tmp_path: Path) -> None:
    new = qwen3_folder(tmp_path / "new", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                                          "original_max_position_embeddings": 256})  # fmt: skip
    old = qwen3_folder(tmp_path / "old")
    config = qwen3_config()
    del config["rope_parameters"]
    config |= {"rope_theta": 1e4, "torch_dtype": "float32",
               "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}  # fmt: skip
    write_json(old / "config.json", config)
    nested = qwen3_folder(tmp_path / "nested")
    write_json(
        nested / "config.json", {"model_type": "wrapper", "text_config": json.loads((new / "config.json").read_text())}
    )
    told = []
    for folder in (new, old, nested):
        convert(folder, tmp_path / "m.gpack")
        with gpack.open(tmp_path / "m.gpack") as pack:
            told.append(dict(pack.metadata))
    assert told[0] == told[1] == told[2]
    assert told[0]["qwen3.rope.scaling.type"] == "yarn"
    assert told[0]["qwen3.rope.scaling.original_context_length"] == 256
    assert (told[0]["general.sampling.top_k"], told[0]["general.sampling.temp"]) == (7, 0.5)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", ""])
def test_names_in_wrappers(tmp_path: Path, prefix: str) -> None:
    tensors = qwen3_tensors() | {"lm_head.weight": f32(np.ones((288, 64)))}
    convert(qwen3_folder(tmp_path / "plain", tensors=tensors), tmp_path / "plain.gpack")
    head = "language_model.lm_head.weight" if prefix.startswith("language_model") else "lm_head.weight"
    wrapped = {
        head if name == "lm_head.weight" else prefix + name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
    }
    convert(qwen3_folder(tmp_path / "wrapped", tensors=wrapped), tmp_path / "wrapped.gpack")
    with gpack.open(tmp_path / "plain.gpack") as plain, gpack.open(tmp_path / "wrapped.gpack") as other:
        assert set(plain) == set(other)
        for section in ("EmbedBlob", "HeadBlob", "DensePackBlob"):
            assert plain.section(section) == other.section(section)


def test_the_class_tells_where_no_type_does(tmp_path: Path) -> None:
    convert(qwen3_folder(tmp_path / "m", model_type=None), tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.metadata["general.architecture"] == "qwen3"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ({"rope_parameters": 7}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor"),
        ({"rope_parameters": {"mrope_section": [1, 2, 3, 4, 5]}}, "mrope_section"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
    ],
)
def test_impossible_values(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    refused(FormatError, "hf.config", qwen3_folder(tmp_path / "m", **change), field)


def test_a_scaling_that_has_no_translation_cannot_be_run(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4})
    told = report(convert(folder, tmp_path / "m.gpack"))["import"]
    assert told["runnable"] is False
    assert "longrope" in told["reasons"][0]


# --- tensors that are not what they should be ---


def test_a_model_that_is_not_whole(tmp_path: Path) -> None:
    whole = qwen3_tensors()
    layer = {name: tensor for name, tensor in whole.items() if ".layers.1." not in name}
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "a", tensors=layer), "lacks the layers [1]")
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "b", layers=1, tensors=whole), "has the layers [1]")
    bare = {name: tensor for name, tensor in whole.items() if "embed_tokens" not in name}
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "c", tensors=bare), "embed_tokens.weight")
    untied = qwen3_folder(tmp_path / "d", tie_word_embeddings=False)
    refused(FormatError, "hf.tensor", untied, "lm_head.weight")


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"]
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "m", tensors=tensors), "become one", "output_norm.weight")


def test_an_unknown_tensor_is_packed_and_told(tmp_path: Path) -> None:
    tensors = qwen3_tensors() | {"model.layers.0.self_attn.odd.weight": f32(np.ones((3, 5), np.float32))}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = f32(np.ones(16))
    told = report(convert(qwen3_folder(tmp_path / "m", tensors=tensors), tmp_path / "m.gpack"))["import"]
    assert told["runnable"] is False
    assert "model.layers.0.self_attn.odd.weight" in told["reasons"][0]
    assert told["computed"] == ["model.layers.0.self_attn.rotary_emb.inv_freq"]
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["model.layers.0.self_attn.odd.weight"].dims == (5, 3)


def test_weights_of_eight_bits_are_packed_and_told(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = ("float8_e4m3fn", (128, 64), bytes(range(256)) * 32)
    told = report(convert(qwen3_folder(tmp_path / "m", tensors=tensors), tmp_path / "m.gpack"))["import"]
    assert "F8_E4M3" in told["reasons"][0]
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["blk.0.ffn_up.weight"].type_name == "F8_E4M3"
        assert bytes(pack["blk.0.ffn_up.weight"]) == bytes(range(256)) * 32


def experts(make: Maker, count: int) -> dict[str, Any]:
    tensors = qwen3_tensors(layers=1)
    for name in [name for name in tensors if ".mlp." in name]:
        del tensors[name]
    tensors["model.layers.0.mlp.gate.weight"] = f32(make(count, 64))
    for expert in range(count):
        tensors |= mlp(make, f"model.layers.0.mlp.experts.{expert}", 64, 32)
    return tensors


MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "layers": 1,
    "num_experts": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


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
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "a", tensors=short, **MOE), "up_proj", "the first is 10")
    tensors["model.layers.0.mlp.experts.3.up_proj.weight"] = f32(np.ones((32, 65)))
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "b", tensors=tensors, **MOE), "expert 3", "[32, 65]")


def test_rows_that_do_not_fit_the_heads(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in qwen3_tensors().items() if "_norm." not in name}
    tensors["model.layers.0.self_attn.q_proj.weight"] = f32(np.ones((130, 64)))
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, model_type="llama")
    refused(FormatError, "hf.tensor", folder, "130 rows", "4 heads")


# --- Llama 3's frequencies, draft layers ---


def test_frequencies_of_llama_3(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in qwen3_tensors().items() if "_norm." not in name}
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
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
        "model_type": "qwen3_5_text", "layers": 2, "hidden": 64, "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, **others,
    }  # fmt: skip


def linear_tensors(make: Maker) -> dict[str, Any]:
    tensors = {"model.embed_tokens.weight": f32(make(288, 64)), "model.norm.weight": f32(make(64))}
    layer = "model.layers.0"
    shapes = {
        "in_proj_qkv.weight": (112, 64), "in_proj_z.weight": (48, 64), "in_proj_a.weight": (6, 64),
        "in_proj_b.weight": (6, 64), "conv1d.weight": (112, 1, 4), "A_log": (6,), "dt_bias": (6,),
        "norm.weight": (8,), "out_proj.weight": (64, 48),
    }  # fmt: skip
    tensors |= {f"{layer}.linear_attn.{name}": f32(make(*shape)) for name, shape in shapes.items()}
    tensors |= {f"{layer}.{name}.weight": f32(make(64)) for name in ("input_layernorm", "post_attention_layernorm")}
    tensors |= attention_layer(make, "model.layers.1", 64)
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
            **attention_layer(make, "model.layers.7", 64),
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
    refused(FormatError, "hf.tensor", qwen3_folder(tmp_path / "m", tensors=tensors, **linear_config()), name)
    odd = qwen3_folder(tmp_path / "n", tensors=tensors, **linear_config(linear_num_value_heads=5))
    refused(FormatError, "hf.config", odd, "linear_num_value_heads")


# --- an architecture that is not known ---


def test_an_unknown_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {
        "encoder.w": f32(np.ones((4, 6), np.float32)),
        "vision_tower.x": f32(np.ones(3)),
        "scalar": f32(np.array(2.0)),
    }
    folder = tmp_path / "m"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "modeling_odd.py").write_text("raise SystemExit('this was run')")
    config = {"model_type": "odd-net", "auto_map": {"AutoModel": "modeling_odd.Odd"}, "weird": float("inf")}
    write_json(folder / "config.json", config | {"architectures": ["OddModel"], "num_hidden_layers": 3})
    assert main(["convert", str(folder), "-o", str(tmp_path / "m.gpack")]) == 0
    assert "cannot be run: the architecture 'odd-net'" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "m.gpack")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "m.gpack")]) == 0
    told = capsys.readouterr().out
    assert "cannot be run: the architecture 'odd-net'" in told
    assert "vision_tower (1 tensors" in told
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert set(pack) == set(tensors)
        assert pack.metadata["general.architecture"] == "odd-net"
        assert pack.manifest["model"]["layer_count"] == 3
        assert pack["scalar"].shape == ()
    convert(folder, tmp_path / "text.gpack", text_only=True)
    with gpack.open(tmp_path / "text.gpack") as pack:
        assert set(pack) == {"encoder.w", "scalar"}


def test_a_file_alone(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "weights.safetensors", {"w": f32(np.ones((2, 3), np.float32))})
    convert(source, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.manifest["model"]["architecture"] == "unknown"
        assert pack.manifest["extensions"]["import"]["runnable"] is False


# --- the conversion itself ---


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    one = qwen3_folder(tmp_path / "one" / "deep", shards=3)
    two = qwen3_folder(tmp_path / "two", shards=3)
    os.utime(two / "config.json", (1, 1))
    convert(one, tmp_path / "one.gpack")
    convert(two, tmp_path / "two.gpack")
    assert (tmp_path / "one.gpack").read_bytes() == (tmp_path / "two.gpack").read_bytes()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00002-of-00003.safetensors"])
def test_a_source_that_changes(tmp_path: Path, name: str) -> None:
    folder = qwen3_folder(tmp_path / "m", shards=3)

    def touch(*_: int) -> None:
        os.utime(folder / name, (1, 1))

    refused(FormatError, "convert.source_changed", folder, name, progress=touch)


def test_a_shard_that_is_cut_meanwhile(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", hidden=256, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"

    def cut(*_: int) -> None:
        os.truncate(shard, 100)

    refused(PathError, "io.short_read", folder, shard.name, progress=cut)


def test_a_file_that_goes_away_is_still_read(tmp_path: Path) -> None:
    """It was opened before anything was written."""
    folder = qwen3_folder(tmp_path / "m", shards=2)
    convert(folder, tmp_path / "a.gpack")

    def remove(*_: int) -> None:
        (folder / "model-00002-of-00002.safetensors").unlink(missing_ok=True)

    convert(folder, tmp_path / "b.gpack", progress=remove)
    assert (tmp_path / "a.gpack").read_bytes() == (tmp_path / "b.gpack").read_bytes()


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", shards=2)
    for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        before = (folder / name).read_bytes()
        with pytest.raises(UsageError) as caught:
            convert(folder, folder / name)
        assert caught.value.code == "convert.same_file"
        assert main(["convert", str(folder), "-o", str(tmp_path / "x"), "--report", str(folder / name)]) == 2
        assert (folder / name).read_bytes() == before
    assert not (tmp_path / "x").exists()


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m")
    refused(UsageError, "usage", folder, "--external-experts", external_experts=True)
    refused(UsageError, "usage", folder, "Q9", quantize="Q9")
    (tmp_path / "x.txt").write_bytes(b"text")
    refused(FormatError, "convert.source", tmp_path / "x.txt", "b'text'")


def test_a_type_that_is_not_known(tmp_path: Path) -> None:
    header = {"odd": {"dtype": "F4", "shape": [32], "data_offsets": [0, 16]}}
    source = write_by_hand(tmp_path / "m.safetensors", header, bytes(16))
    refused(UnsupportedError, "safetensors.dtype", source, "'odd'", "'F4'")


def test_the_report_tells_where_tensors_come_from(tmp_path: Path) -> None:
    tensors = experts(Maker(5), 12)
    folder = tmp_path / "m"
    folder.mkdir()
    items = list(tensors.items())
    write_sharded(folder, [dict(items[:20]), dict(items[20:])])
    write_json(folder / "config.json", qwen3_config(**MOE))
    told = {tensor["name"]: tensor for tensor in report(convert(folder, tmp_path / "m.gpack"))["tensors"]}
    stack = told["blk.0.ffn_up_exps.weight"]
    assert len(stack["source_tensors"]) == 12
    assert stack["source"] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert stack["steps"] == ["experts stacked"]
    assert "source_offset" in told["token_embd.weight"]
