"""Models of many families against the logits of `transformers`, from safetensors and from the GGUF that we export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.families import FAMILIES, prompt, stored, weight
from hf_maker import ORACLE, f32, write_json, write_safetensors, write_tokenizer

from gpack.convert.anything import convert
from gpack.convert.export import export_gguf
from gpack.errors import UsageError
from gpack.model import GuildModel, ModelPaths
from gpack.pack import open as open_pack

EXACT: dict[str, Any] = {"compute": "f32", "cache_type": "F32"}


def folder_of(family: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    said = stored(family)
    tensors = {name: f32(weight(name, shape)) for name, shape in said["shapes"].items()}
    write_safetensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", said["config"])
    write_tokenizer(folder)
    return folder, said


def check(path: Path, family: str, said: dict[str, Any], **options: Any) -> None:
    """Compares logits and greedy tokens."""
    paths = ModelPaths(gpack_path=path) if path.suffix == ".gpack" else ModelPaths(primary_model_path=path)
    with GuildModel.load(paths) as model, model.session(**EXACT, **options) as session:
        made = session.decode(prompt(family), all_logits=True)
        np.testing.assert_allclose(made[1::3], said["logits"], atol=3e-4, rtol=0)
        last, chosen = made[-1], []
        for _ in said["greedy"]:
            chosen.append(int(last.argmax()))
            last = session.decode(chosen[-1:])
    assert chosen == said["greedy"]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens(family: str, tmp_path: Path) -> None:
    source, said = folder_of(family, tmp_path)
    pack = tmp_path / "m.gpack"
    convert(source, pack)
    with open_pack(pack) as opened:
        assert "import" not in opened.manifest.get("extensions", {}), opened.manifest["extensions"]["import"]
    check(pack, family, said)
    export_gguf(pack, tmp_path / "m.gguf")
    check(tmp_path / "m.gguf", family, said, n_ctx=32)
    check(pack, family, said, device="reference")


@pytest.mark.parametrize("name", ["linear", "yarn-attention-factor", "yarn-truncate-false"])
def test_ways_to_scale_positions(name: str, tmp_path: Path) -> None:
    source = ORACLE / "hf" / "rope" / name
    if not source.exists():
        pytest.skip(f"no golden model {name}: set GPACK_ORACLE")
    pack = tmp_path / "m.gpack"
    convert(source, pack)
    with np.load(source / "ref.npz") as said, GuildModel.load(ModelPaths(gpack_path=pack)) as model:
        with model.session(**EXACT) as session:
            made = session.decode(said["prompt"].tolist(), all_logits=True)
        np.testing.assert_allclose(made, said["logits"], atol=1e-4, rtol=0)


def test_texts_beyond_what_long_rotations_are_for_are_refused(tmp_path: Path) -> None:
    source, _ = folder_of("phi3-longrope", tmp_path)
    convert(source, tmp_path / "m.gpack")
    with GuildModel.load(ModelPaths(gpack_path=tmp_path / "m.gpack")) as model:
        with model.session(**EXACT) as session:
            assert session.n_ctx == 32
        with pytest.raises(UsageError, match="beyond 32") as caught:
            model.session(**EXACT, n_ctx=33)
    assert caught.value.code == "engine.context"
