"""Models that are whole but cannot be translated: packed under their own names, with every reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import (
    f32,
    kept,
    llama_tensors,
    qwen3_config,
    qwen3_folder,
    qwen3_tensors,
    write_by_hand,
    write_json,
    write_safetensors,
)

import gpack
from gpack.container.payload import Block
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.errors import FormatError
from gpack.generated.constants import GgmlType
from gpack.sources.files import SourceFile
from gpack.sources.hf_narrowing import keep_wide
from gpack.sources.hf_tensor import HfTensor, minus_exp
from gpack.sources.safetensors import StoredTensor

TINY = {"enc.w": f32(np.ones((8, 8)))}


def bare_folder(folder: Path, config: Any) -> Path:
    """A model of an architecture that is not known, of one tensor."""
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", TINY)
    write_json(folder / "config.json", config)
    return folder


# --- odd values in a configuration ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intermediate_size": "big"}, "intermediate_size of config.json: it is 'big', no count"),
        ({"num_attention_heads": [1, "a"]}, "num_attention_heads of config.json: it is the list [1, 'a'], no count"),
        ({"hidden_size": -1}, "hidden_size of config.json: it is -1, no count"),
        ({"hidden_size": 2.5}, "hidden_size of config.json: it is 2.5, no count"),
        ({"num_hidden_layers": 1 << 31}, "no model has 2147483648 layers"),
        ({"rope_scaling": "dynamic"}, "rope_scaling of config.json: it is 'dynamic', no object"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters.full_attention of config.json: it is 3"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_parameters.factor of config.json: it is missing"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps of config.json: it is 'x', not a finite number"),
    ],
)
def test_a_strange_value_costs_its_key(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    kept(bare_folder(tmp_path / "m", {"model_type": "madeup", **change}), words, "'madeup'")


def test_values_for_each_layer(tmp_path: Path) -> None:
    """GGUF has arrays for them; one that repeats itself is a number, and so is one with a point."""
    config = {
        "model_type": "madeup",
        "num_attention_heads": [1, 2, 5, 8],
        "intermediate_size": [96, 96],
        "hidden_size": 2816.0,
        "num_key_value_heads": None,
        "rope_parameters": {"full_attention": None, "rope_theta": 500.0},
    }
    reasons = kept(bare_folder(tmp_path / "m", config))
    assert len(reasons) == 2  # the architecture, the tokenizer
    with gpack.open(tmp_path / "m.kept.gpack") as pack:
        assert pack.metadata["madeup.attention.head_count"] == [1, 2, 5, 8]
        assert pack.metadata["madeup.feed_forward_length"] == 96
        assert pack.metadata["madeup.embedding_length"] == 2816
        assert pack.metadata["madeup.rope.freq_base"] == 500.0
        assert "madeup.attention.head_count_kv" not in pack.metadata


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff", b"[" * 10_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_damaged_files_cost_what_they_say(tmp_path: Path, name: str, text: bytes) -> None:
    folder = qwen3_folder(tmp_path / "m")
    (folder / name).write_bytes(text)
    done = report(convert(folder, tmp_path / "m.gpack"))
    info = done.get("import", {})
    reasons, notes = info.get("reasons", []), done.get("notes", [])
    assert any(name in line for line in (*reasons, *notes))
    # Settings of sampling are nothing that a run needs.
    assert (reasons == []) is (name == "generation_config.json")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert ("token_embd.weight" in pack) is (name != "config.json")
        assert bytes(pack.asset(name)) == text


# --- members of a known family that are no plain decoder ---


@pytest.mark.parametrize(
    "name", ["Qwen3Model", "Qwen3ForSequenceClassification", "LlamaForCausalLMEagle3", "Qwen2ForProcessRewardModel"]
)
def test_another_class_of_a_known_type(tmp_path: Path, name: str) -> None:
    """Its tensors have the names of a plain decoder, and mean something else."""
    folder = qwen3_folder(tmp_path / "m", architectures=[name])
    (reason,) = report(convert(folder, tmp_path / "m.gpack"))["import"]["reasons"]
    assert reason == f"its class '{name}' is not a model that generates text"


def test_code_of_its_own(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "architectures": ["OddForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_odd.OddForCausalLM"},
    }
    folder = qwen3_folder(tmp_path / "m", **own)
    (reason,) = report(convert(folder, tmp_path / "m.gpack"))["import"]["reasons"]
    assert "'OddForCausalLM' is code of its own" in reason


def test_an_embedding_model(tmp_path: Path) -> None:
    """No head, and names without `model.`."""
    tensors = {name.removeprefix("model."): held for name, held in llama_tensors().items()}
    config: dict[str, Any] = {"architectures": ["MistralModel"], "model_type": "mistral", "tie_word_embeddings": False}
    kept(qwen3_folder(tmp_path / "m", tensors=tensors, **config), "'MistralModel'", "the model has no lm_head.weight")


def test_a_draft_head(tmp_path: Path) -> None:
    tensors = {"midlayer.mlp.up_proj.weight": f32(np.ones((4, 4))), "fc.weight": f32(np.ones((4, 12)))}
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    kept(qwen3_folder(tmp_path / "m", tensors=tensors, **config), "'LlamaForCausalLMEagle3'")


def test_a_layer_that_is_none_of_the_architectures(tmp_path: Path) -> None:
    """It lies beside the layers, so that it takes part in what the model computes."""
    tensors = qwen3_tensors() | {"model.embed_layer_norm.weight": f32(np.ones(64))}
    folder = qwen3_folder(tmp_path / "m", tensors=tensors)
    (reason,) = report(convert(folder, tmp_path / "m.gpack"))["import"]["reasons"]
    assert "model.embed_layer_norm.weight" in reason


# --- other prefixes ---


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("model.text_model.", ""),
        ("_orig_mod.model.", "_orig_mod."),
        ("base_model.model.model.", "base_model.model."),
        ("model.language_model.", ""),
        ("language_model.model.", "language_model."),
        ("thinker.model.", "thinker."),
        ("", ""),
    ],
)
def test_the_text_model_under_another_prefix(tmp_path: Path, body: str, head: str) -> None:
    """The pack is that of the model without a wrapper."""
    tensors = qwen3_tensors() | {"lm_head.weight": f32(np.ones((288, 64)))}
    plain = qwen3_folder(tmp_path / "plain", tensors=tensors, tie_word_embeddings=False)
    wrapped = {
        body + name.removeprefix("model.") if name.startswith("model.") else head + name: held
        for name, held in tensors.items()
    }
    other = qwen3_folder(tmp_path / "other", tensors=wrapped, tie_word_embeddings=False)
    packs = [tmp_path / "plain.gpack", tmp_path / "other.gpack"]
    for folder, path in zip((plain, other), packs, strict=True):
        assert "import" not in report(convert(folder, path))
    with gpack.open(packs[0]) as one, gpack.open(packs[1]) as two:
        assert {name: one[name].tobytes() for name in one} == {name: two[name].tobytes() for name in two}


def test_words_of_compilers_inside_of_names(tmp_path: Path) -> None:
    tensors = {name.replace(".mlp.", ".mlp._orig_mod."): held for name, held in qwen3_tensors().items()}
    assert "import" not in report(convert(qwen3_folder(tmp_path / "m", tensors=tensors), tmp_path / "m.gpack"))


# --- what a class takes where nothing is said ---


def test_defaults_of_the_class(tmp_path: Path) -> None:
    """The classes' own values: qwen3 has heads of 128 where head_dim is left out, mistral a window of 4096."""
    config = qwen3_config()
    for key in ("head_dim", "max_position_embeddings", "rms_norm_eps"):
        del config[key]
    folder = qwen3_folder(tmp_path / "m", tensors=qwen3_tensors())
    write_json(folder / "config.json", config)
    kept(folder, "head_dim 128")
    write_json(folder / "config.json", {**config, "head_dim": 32})
    assert "import" not in report(convert(folder, tmp_path / "m.gpack"))
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.metadata["qwen3.context_length"] == 32768
        assert pack.metadata["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)


def test_a_window_that_only_the_class_has(tmp_path: Path) -> None:
    folder = qwen3_folder(
        tmp_path / "m", tensors=llama_tensors(), model_type="mistral", max_position_embeddings=8192, architectures=None
    )
    (reason,) = report(convert(folder, tmp_path / "m.gpack"))["import"]["reasons"]
    assert "window of 4096" in reason


# --- rotary embeddings ---


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}


def test_a_parameter_of_yarn_without_a_translation(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", rope_parameters={**YARN, "llama_4_scaling_beta": 0.1})
    reasons = report(convert(folder, tmp_path / "m.gpack"))["import"]["reasons"]
    assert any("rope_parameters.llama_4_scaling_beta is 0.1" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("extra", "attn_factor"),
    [
        ({}, None),
        ({"mscale": 1.0}, None),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 0.878249),  # 1 / (1 + 0.1 ln 4)
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, 0.846919),  # (1 + 0.0707 ln 4) / (1 + 0.1 ln 4)²
        ({"attention_factor": 1.2, "mscale": 3.0}, 1.053899),  # 1.2 / (1 + 0.1 ln 4)
        ({"truncate": False}, None),
    ],
)
def test_parameters_of_yarn_become_a_factor(tmp_path: Path, extra: dict[str, Any], attn_factor: float | None) -> None:
    folder = qwen3_folder(tmp_path / "m", rope_parameters={**YARN, **extra})
    assert "import" not in report(convert(folder, tmp_path / "m.gpack"))
    with gpack.open(tmp_path / "m.gpack") as pack:
        metadata = {key: pack.metadata[key] for key in pack.metadata if ".rope.scaling." in key}
    made = metadata.get("qwen3.rope.scaling.attn_factor")
    assert made == (None if attn_factor is None else pytest.approx(attn_factor, abs=2e-6))
    assert metadata.get("qwen3.rope.scaling.gpack_truncate") == (False if extra.get("truncate") is False else None)


# --- values that a translation would make infinite ---


def f64(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return "float64", array.shape, array.astype("<f8").tobytes()


def test_f64_beyond_f32(tmp_path: Path) -> None:
    """What fits becomes F32, rounded; what does not stays F64, and that is a reason with tensor and index."""
    norm, matrix = np.linspace(0, 1, 64), np.full((128, 64), 0.1)
    matrix[5, 7] = -1e300
    tensors = qwen3_tensors(layers=1) | {
        "model.norm.weight": f64(norm),
        "model.layers.0.mlp.up_proj.weight": f64(matrix),
    }
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, layers=1)
    info = report(convert(folder, tmp_path / "m.gpack"))["import"]
    (reason,) = info["reasons"]
    assert reason.startswith("model.layers.0.mlp.up_proj.weight[5, 7] is -1e+300, which F32 cannot hold")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["output_norm.weight"].type_name == "F32"
        assert np.array_equal(pack["output_norm.weight"], norm.astype(np.float32))
        up = pack["blk.0.ffn_up.weight"]
        assert up.type_name == "F64"
        assert np.array_equal(up, matrix)
        with pytest.raises(FormatError) as caught:
            up.dequantize()
    assert (caught.value.code, caught.value.field) == ("quantize.value", "blk.0.ffn_up.weight")
    assert "element [5, 7]" in caught.value.message
    # Infinities are the file's own.
    matrix[5, 7] = np.inf
    tensors["model.layers.0.mlp.up_proj.weight"] = f64(matrix)
    assert "import" not in report(convert(qwen3_folder(folder, tensors=tensors, layers=1), tmp_path / "n.gpack"))


def test_an_exponential_beyond_f32(tmp_path: Path) -> None:
    """exp(88.73) is the first that float32 cannot hold; the logarithms are kept as they are."""
    for value, kept_name in ((88.7, "blk.0.ssm_a"), (88.73, "A_log")):
        data = np.array([0.0, value], "<f4").tobytes()
        with SourceFile(__file__) as file:
            source = StoredTensor("A_log", GgmlType.F32, (2,), file, 0, 8)
            tensor = HfTensor(
                "blk.0.ssm_a", GgmlType.F32, (2,), (Block(data),), GgmlType.F32, (source,), value=minus_exp
            )
            (made,), reasons = keep_wide([tensor])
        assert made.name == kept_name
        assert bool(reasons) is (kept_name == "A_log")


# --- files beside the weights ---


def test_companions_are_kept_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = qwen3_folder(tmp_path / "m")
    beside = {
        "tekken.json": b'{"vocab": []}',
        "params.json": b"{}",
        "spiece.model": b"\x0a\x00",
        "vocab.txt": b"a\r\nb",
        "adapter_config.json": b"no JSON",
        "video_preprocessor_config.json": b"{}",
        "LICENSE.txt": b"free",
        "README.md": b"# M",
    }
    for name, data in beside.items():
        (folder / name).write_bytes(data)
    (folder / "holiday.txt").write_bytes(b"private")
    (folder / "qwen.tiktoken").write_bytes(b"x" * 5000)
    monkeypatch.setattr("gpack.sources.hf_files.MAX_KEPT", 4900)
    done = report(convert(folder, tmp_path / "m.gpack"))
    assert done["notes"] == ["not kept: qwen.tiktoken: it has 5000 bytes, and 4900 are kept"]
    with gpack.open(tmp_path / "m.gpack") as pack:
        kept_files = {name: bytes(pack.asset(name)) for name in pack.assets()}
    assert beside.items() <= kept_files.items()
    assert set(kept_files) - set(beside) == {
        "__metadata__.json",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert kept_files["__metadata__.json"] == b'{"format": "pt"}'


def test_papers_of_a_folder_without_a_configuration_are_not_the_models(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", TINY)
    (tmp_path / "README.md").write_text("of something else")
    convert(tmp_path / "x.safetensors", tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.assets() == ["__metadata__.json"]


def test_what_shards_say_beside_their_tensors(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    write_by_hand(tmp_path / "m-1-of-3.safetensors", {"__metadata__": {"x": "1"}, **header})
    write_by_hand(tmp_path / "m-2-of-3.safetensors", {"b": header["a"]})
    write_by_hand(tmp_path / "m-3-of-3.safetensors", {"__metadata__": None, "c": header["a"]})
    done = report(convert(tmp_path / "m-1-of-3.safetensors", tmp_path / "m.gpack"))
    assert "__metadata__ of the tensors is no object of strings; it is kept as it is" in done["notes"]
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert bytes(pack.asset("__metadata__.json")) == b'[{"x": "1"}, null, null]'
