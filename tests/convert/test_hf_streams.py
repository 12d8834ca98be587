"""Models with gated delta nets from safetensors: the logits of their makers' code, of their GGUF and of their pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.toy_qwen4exp import NGRAM_LAYER
from hf_maker import ORACLE, Tensors, f32, kept
from qwen4exp_folder import pair, wrapped, write
from tiny_models import text

import gpack
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.engine.engine import Chunk
from gpack.model import GuildModel, ModelPaths
from gpack.sources.hf_import import HfSource
from gpack.sources.ngram_constants import derive_multipliers, derive_offsets, derive_vocab_sizes

needs_oracle = pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
FOLDERS = ["qwen35", "qwen35moe", "qwen35moe-wrapped", "qwen4exp", "qwen4exp-wrapped"]
EXACT: dict[str, Any] = {"compute": "f32", "cache_type": "F32"}
TABLE = f"model.layers.{NGRAM_LAYER}.ple.ple_embedding"


# --- their makers' code ---


@needs_oracle
@pytest.mark.parametrize("folder", FOLDERS)
def test_logits_of_the_folder_are_those_of_transformers_and_of_the_gguf(folder: str, tmp_path: Path) -> None:
    convert(ORACLE / "hf" / folder, tmp_path / "m.gpack")
    with np.load(ORACLE / "hf" / folder / "ref.npz") as stored:
        ids, wanted = stored["prompt"].tolist(), stored["logits"]
    gguf = ORACLE / "hf" / folder.removesuffix("-wrapped") / "m.gguf"
    with GuildModel.load(tmp_path / "m.gpack") as pack, GuildModel.load(ModelPaths(primary_model_path=gguf)) as other:
        for device in ("cpu", "reference"):
            made = pack.logits(ids, device=device, **EXACT)
            np.testing.assert_allclose(made, wanted, rtol=0, atol=3e-4)
            # The decay is an exponential, whose last bit depends on who computes it.
            np.testing.assert_allclose(made, other.logits(ids, device=device, **EXACT), rtol=0, atol=1e-4)


@needs_oracle
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_greedy_tokens_of_the_folder(folder: str, tmp_path: Path) -> None:
    convert(ORACLE / "hf" / folder, tmp_path / "m.gpack")
    with np.load(ORACLE / "hf" / folder / "ref.npz") as stored:
        ids, wanted = stored["prompt"].tolist(), stored["greedy"].tolist()
    with GuildModel.load(tmp_path / "m.gpack") as model, model.session(**EXACT) as session:
        made = [int(session.decode(ids).argmax())]
        while len(made) < len(wanted):
            made.append(int(session.decode(made[-1:]).argmax()))
    assert made == wanted


@needs_oracle
def test_constants_are_derived_as_the_folder_has_them() -> None:
    with HfSource.open(ORACLE / "hf" / "qwen4exp") as source:
        assert source.reasons == []
        assert source.get("qwen4exp.ple.layer_multipliers") == derive_multipliers(512, 3)
        sizes = derive_vocab_sizes(8, 99)
        assert source.get("qwen4exp.ple.head_vocab_sizes") == sizes
        assert source.get("qwen4exp.ple.head_offsets") == derive_offsets(sizes)


# --- a model of our own: without the golden files too ---


@pytest.mark.parametrize("way", ["one file", "wrapped", "one table", "spelled anew"])
def test_the_same_logits_as_the_gguf_bit_for_bit(way: str, tmp_path: Path) -> None:
    model, tensors = pair(table_parts=1 if way == "one table" else 12)
    options: dict[str, Any] = {}
    if way == "wrapped":
        tensors, options = wrapped(tensors), {"is_wrapped": True, "shards": 3}
    if way == "spelled anew":
        options = {"layer_types": ["linear_attention"] * 2 + ["indexed_attention"] * 2, "ple_embed_dim": None}
    ids = text(90, 288)
    made = convert(write(tmp_path / "m", tensors, **options), tmp_path / "m.gpack")
    assert "reasons" not in report(made).get("import", {})
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with GuildModel.load(tmp_path / "m.gpack") as pack, model.open(tmp_path / "m.gguf") as gguf:
        assert pack.logits(ids, threads=1).tobytes() == gguf.logits(ids, threads=1).tobytes()
        keys = [key for key in gguf.metadata if key.startswith("qwen4exp.")]
        assert {key: pack.metadata[key] for key in keys} == {key: gguf.metadata[key] for key in keys}
    if way == "wrapped":
        with gpack.open(tmp_path / "m.gpack") as opened:
            assert {"mtp.fc_embedding.weight", "model.visual.merger.norm.weight"} <= set(opened)
        (note,) = [note for note in report(made)["notes"] if "draft" in note]
        assert "is not run" in note


def test_the_draft_layer_is_that_of_the_gguf(tmp_path: Path) -> None:
    model, tensors = pair(drafts=True)
    made = convert(write(tmp_path / "m", tensors, mtp_num_hidden_layers=1), tmp_path / "m.gpack")
    assert "reasons" not in report(made).get("import", {})
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.manifest["mtp"]["tensor_count"] == sum(name.startswith("blk.4.") for name in model.tensors)
        joined = np.frombuffer(pack["blk.4.nextn.eh_proj.weight"].data, "<f4")
        assert joined.tobytes() == model.tensors["blk.4.nextn.eh_proj.weight"].tobytes()
    found = []
    with GuildModel.load(tmp_path / "m.gpack") as loaded, model.open(tmp_path / "m.gguf") as gguf:
        keys = [key for key in gguf.metadata if key.startswith("qwen4exp.")]
        assert {key: loaded.metadata[key] for key in keys} == {key: gguf.metadata[key] for key in keys}
        for each in (loaded, gguf):
            with each.engine(threads=1) as engine, engine.sequence(drafts=True) as sequence:
                assert engine.drafts_off is None
                engine.step([Chunk(sequence, text(90, 288), "none")]).raise_error()
                found.append(engine.draft([(sequence, 7, 5)])[0])
    assert found[0] == found[1]
    assert len(found[0]) == 5


def test_constants_that_the_model_does_not_bring(tmp_path: Path) -> None:
    _, tensors = pair()
    for name in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"):
        del tensors[f"{TABLE}.{name}"]
    with HfSource.open(write(tmp_path / "m", tensors, seed=99)) as source:
        assert source.reasons == []
        assert source.get("qwen4exp.ple.head_vocab_sizes") == [11, 13, 17, 19]
        assert source.get("qwen4exp.ple.head_offsets") == [0, 11, 24, 41]
        assert source.get("qwen4exp.ple.layer_multipliers") == derive_multipliers(288, 3, seed=99)


def test_what_a_configuration_does_not_say_of_positions(tmp_path: Path) -> None:
    """Whole heads are rotated, not a quarter as in other models with delta nets."""
    _, tensors = pair()
    with HfSource.open(write(tmp_path / "m", tensors, rope_parameters={"rope_type": "default"})) as source:
        assert source.get("qwen4exp.rope.dimension_count") == 8


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"output_gate_type": None}, "output_gate_type is 'silu'"),
        ({"output_gate_type": "silu"}, "output_gate_type is 'silu'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is false"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05"),
    ],
)
def test_settings_without_a_translation_are_reasons(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, tensors = pair()
    with HfSource.open(write(tmp_path / "m", tensors, **said)) as source:
        assert source.get("general.architecture") == "qwen4exp"
        assert words in " / ".join(source.reasons)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"ple_layer_ids": [1, 2]}, "ple_layer_ids"),
        ({"ple_layer_ids": [0]}, "ple_layer_ids"),
        ({"ple_layer_ids": [3]}, "no gated delta net"),
        ({"indexer_head_dim": None}, "indexer_head_dim"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_budget": 66}, "indexer_budget"),
        ({"hc_count": 1}, "hc_count"),
        ({"ngram_size": 1}, "ngram_size"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"ple_embed_dim": 33}, "ple_embed_dim"),
        ({"layer_types": ["linear_attention"] * 3 + ["sliding_attention"]}, "layer_types"),
    ],
)
def test_what_no_model_can_have_is_kept_and_told(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    _, tensors = pair()
    kept(write(tmp_path / "m", tensors, **said), words)


def _without(tensors: Tensors, *names: str) -> Tensors:
    return {name: stored for name, stored in tensors.items() if name not in names}


def damaged(tensors: Tensors, how: str) -> Tensors:
    place = f"{TABLE}.ngram_embedding.shard"
    if how == "a part is missing":
        return _without(tensors, f"{place}_4.weight")
    if how == "the table ends early":
        return _without(tensors, f"{place}_10.weight", f"{place}_9.weight")
    if how == "a part of another width":
        return tensors | {f"{place}_3.weight": f32(np.zeros((6, 4), np.float32))}
    if how == "constants as floats":
        return tensors | {f"{TABLE}.layer_multipliers": f32(np.ones(3, np.float32))}
    if how == "too few constants":
        return tensors | {f"{TABLE}.ngram_heads_vocab_sizes": ("int64", (1,), bytes(8))}
    if how == "an indexer of another shape":
        return tensors | {"model.layers.2.self_attn.indexer.index_qk_proj.weight": f32(np.zeros((47, 32), np.float32))}
    assert how == "no mixer"
    return _without(tensors, "model.hyper_connection_mixer.hc_norm.weight")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("a part is missing", "part 4 is missing"),
        ("the table ends early", "the hash has 60"),
        ("a part of another width", "its shape is [6, 4]"),
        ("constants as floats", "no vector of 64-bit integers"),
        ("too few constants", "head_vocab_sizes"),
        ("an indexer of another shape", "the configuration asks for 48"),
        ("no mixer", "output_hc_norm.weight"),
    ],
)
def test_damaged_models_are_kept_and_told(how: str, words: str, tmp_path: Path) -> None:
    _, tensors = pair()
    kept(write(tmp_path / "m", damaged(tensors, how)), words)
