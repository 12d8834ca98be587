"""safetensors imported: equal to the pack of the converter's GGUF, and what else an import promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import ORACLE, f32, kept, qwen3_config, qwen3_folder, qwen3_tensors, write_json, write_safetensors

import gpack
from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.errors import UnsupportedError
from gpack.model import GuildModel
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
    info = {entry[0]: entry[2] for entry in MODELS}
    quantize = "F32" if folder == "qwen3-bf16" else None
    convert(ORACLE / "hf" / folder, tmp_path / "hf.gpack", name=info[folder], quantize=quantize)
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
        assert list(assets.names()) == ["__metadata__.json", *names]
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
        own = [f"tokenizer.gpack.{name}" for name in ("normalizer", "exact_types", "ignore_merges")]
        assert list(made.metadata) == [*known.metadata, *own]
        equal = [made.read(a) == known.read(b) for a, b in zip(made.tensors, known.tensors, strict=True)]
        assert sum(not same for same in equal) <= 3  # ssm_a of three layers
    # The export converts to the same tensors again.
    convert(tmp_path / "m.gguf", tmp_path / "again.gpack")
    with gpack.open(tmp_path / "m.gpack") as first, gpack.open(tmp_path / "again.gpack") as second:
        assert first.section("ExpertBlobs") == second.section("ExpertBlobs")
        assert first.section("DensePackBlob") == second.section("DensePackBlob")


# --- spellings ---


def test_old_and_new_spellings_say_the_same(tmp_path: Path) -> None:
    new = qwen3_folder(
        tmp_path / "new",
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    )
    old = qwen3_folder(tmp_path / "old")
    config = qwen3_config()
    del config["rope_parameters"]
    config |= {
        "rope_theta": 1e4,
        "torch_dtype": "float32",
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    }
    write_json(old / "config.json", config)
    nested = qwen3_folder(tmp_path / "nested")
    write_json(
        nested / "config.json", {"model_type": "wrapper", "text_config": json.loads((new / "config.json").read_text())}
    )
    info = []
    for folder in (new, old, nested):
        convert(folder, tmp_path / "m.gpack")
        with gpack.open(tmp_path / "m.gpack") as pack:
            info.append(dict(pack.metadata))
    assert info[0] == info[1] == info[2]
    assert info[0]["qwen3.rope.scaling.type"] == "yarn"
    assert info[0]["qwen3.rope.scaling.original_context_length"] == 256
    assert (info[0]["general.sampling.top_k"], info[0]["general.sampling.temp"]) == (7, 0.5)


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
    kept(qwen3_folder(tmp_path / "m", **change), field)


def test_a_scaling_that_has_no_translation_cannot_be_run(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4})
    info = report(convert(folder, tmp_path / "m.gpack"))["import"]
    assert info["runnable"] is False
    assert "longrope" in info["reasons"][0]


@pytest.mark.parametrize("missing", [False, True])
def test_what_cannot_be_run_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, missing: bool) -> None:
    """A known architecture with a setting that its graph does not have, or without a tokenizer."""
    folder = qwen3_folder(tmp_path / "m", hidden_act="silu" if missing else "gelu")
    if missing:
        (folder / "tokenizer.json").unlink()
    convert(folder, tmp_path / "m.gpack")
    reason = "there is no tokenizer.json" if missing else "hidden_act is 'gelu'"
    for options in ([], ["--raw"], ["--json"]):
        assert main(["run", str(tmp_path / "m.gpack"), "-p", "a", *options]) == 4
        info = capsys.readouterr()
        assert reason in (info.out if "--json" in options else info.err)
        assert "engine.obstacle" in info.out + info.err
    with GuildModel.load(tmp_path / "m.gpack") as model:
        assert [text for text in model.obstacles if reason in text]
        for use in (model.session, lambda: model.logits([1]), lambda: model.generate("a"), lambda: model.embed([1])):
            with pytest.raises(UnsupportedError, match=reason):
                use()
        assert model.tensors["output_norm.weight"].shape  # its weights are there all the same
        if not missing:
            assert model.tokenizer.encode("a")


def test_a_runnable_pack_has_no_obstacle(tmp_path: Path) -> None:
    convert(qwen3_folder(tmp_path / "m"), tmp_path / "m.gpack")
    with GuildModel.load(tmp_path / "m.gpack") as model:
        assert model.obstacles == []


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
    info = capsys.readouterr().out
    assert "cannot be run: the architecture 'odd-net'" in info
    assert "vision_tower (1 tensors" in info
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
