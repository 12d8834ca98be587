"""Whole models against llama.cpp's logits: F32 weights to 1e-4, quantised ones as near as llama.cpp itself comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import each_value
from tiny_models import DATA, ORACLE

from gpack.convert.gguf import convert_gguf
from gpack.engine.backends.cpu.variants import usable
from gpack.model import GuildModel, ModelPaths

NAMES = ["llama", "llama_moe", "llama_ropefreqs", "qwen2", "qwen3", "qwen3_yarn", "qwen3moe", "gemma3"]
RECURRENT = ["qwen35", "qwen35_mtp", "qwen35moe", "qwen35moe_mtp"]  # delta nets amplify rounding at some positions
VARIANTS = [variant.name for variant in usable()]
# Formats of the dense model; the largest of the rows is a multiple of 128 or 256.
QUANTISED = [
    *(f"qwen3-256-{name}" for name in ("Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q4_K_M")),
    *(f"qwen3-128-{name}" for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")),
]
EXACT: dict[str, Any] = {"compute": "f32", "cache_type": "F32"}


def find(folder: str, name: str) -> tuple[Path, dict[str, npt.NDArray[Any]]]:
    """A golden model and its logits; two of them are here, the others lie beside the repository."""
    for place in (DATA, ORACLE / folder):
        if (place / f"{name}.gguf").exists():
            with np.load(place / f"{name}.npz") as stored:
                return place / f"{name}.gguf", {key: stored[key] for key in stored}
    pytest.skip(f"no golden model {name}: set GPACK_ORACLE")


def load(path: Path, **options: Any) -> GuildModel:
    return GuildModel.load(ModelPaths(primary_model_path=path), **options)


def expected(stored: dict[str, npt.NDArray[Any]], part: str) -> npt.NDArray[Any]:
    """Logits; gemma3's with the gelu that is not looked up in a table of 16-bit floats."""
    return stored.get(f"logits_{part}_exact_gelu", stored[f"logits_{part}"])


@pytest.mark.parametrize("name", [*NAMES, *RECURRENT])
def test_a_prompt_at_once_and_greedy_tokens(name: str) -> None:
    path, stored = find("models", name)
    atol = 5e-4 if name in RECURRENT else 1e-4
    with load(path) as model, model.session(**EXACT) as session:
        made = session.decode(stored["prompt"].tolist(), all_logits=True)
        assert made.shape == stored["logits_prompt"].shape
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, expected(stored, "prompt"), atol=atol, rtol=0)
        chosen, last = [], made[-1]
        for step in expected(stored, "greedy"):
            chosen.append(int(last.argmax()))
            last = session.decode(chosen[-1:])
            np.testing.assert_allclose(last, step, atol=atol, rtol=0)
        assert chosen == stored["greedy"].tolist()
        assert session.position == len(stored["prompt"]) + len(chosen)


@each_value
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_token_by_token_and_in_pieces(name: str, variant: str) -> None:
    path, stored = find("models", name)
    ids, wanted = stored["prompt"].tolist(), expected(stored, "prompt")
    with load(path) as model:
        with model.session(**EXACT, cpu=variant) as session:
            singly = np.array([session.decode([number]) for number in ids])
        with model.session(**EXACT, cpu=variant, batch=5, threads=3) as session:
            pieces = np.concatenate(
                [session.decode(part, all_logits=True) for part in (ids[:13], ids[13:14], ids[14:])]
            )
    np.testing.assert_allclose(singly, wanted, atol=1e-4, rtol=0)
    np.testing.assert_allclose(pieces, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma3"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(name: str, threads: int) -> None:
    path, stored = find("models", name)
    with load(path) as model:
        made = model.logits(stored["prompt"].tolist(), **EXACT, threads=threads)
    np.testing.assert_allclose(made, expected(stored, "prompt"), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_pack_gives_the_same_bits_as_its_gguf(name: str, tmp_path: Path) -> None:
    path, stored = find("models", name)
    convert_gguf(path, tmp_path / "m.gpack")
    ids = stored["prompt"].tolist()
    with load(path) as model, GuildModel.load(tmp_path / "m.gpack") as packed:
        assert packed.pack is not None
        assert np.array_equal(model.logits(ids, threads=1), packed.logits(ids, threads=1))


# Largest difference that a cache of less precision makes to these models' logits, which deviate by 2.
@each_value
@pytest.mark.parametrize(("kind", "bound"), [("F16", 0.02), ("Q8_0", 0.4)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_caches_of_less_precision(name: str, kind: str, bound: float, variant: str) -> None:
    path, stored = find("models", name)
    ids, wanted = stored["prompt"].tolist(), expected(stored, "prompt")
    with load(path) as model:
        made = model.logits(ids, compute="f32", cache_type=kind, cpu=variant)
        with model.session(compute="f32", cache_type=kind, cpu=variant) as session:
            singly = np.array([session.decode([number]) for number in ids])
    assert np.abs(made - wanted).max() < bound
    assert np.abs(singly - wanted).max() < bound
    assert np.sqrt(np.square(made - wanted).mean()) < bound / 8
    # The cache was rounded: a cache that stayed F32 would be as near as 1e-5.
    assert np.abs(made - wanted).max() > 1e-4


@each_value
@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_quantised_weights_in_float32(name: str, variant: str) -> None:
    path, stored = find("quant", name)
    ids = stored["prompt"].tolist()
    with load(path) as model:
        made = model.logits(ids, **EXACT, cpu=variant)
        with model.session(**EXACT, cpu=variant) as session:
            singly = np.array([session.decode([number]) for number in ids])
    np.testing.assert_allclose(made, stored["logits_prompt"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(singly, stored["logits_prompt"], atol=1e-4, rtol=0)


def deviation(made: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.square(made - wanted).mean()))


def test_activations_of_8_bits_are_no_further_off_than_llama_cpp() -> None:
    ours, theirs = [], []
    for name in QUANTISED:
        path, stored = find("quant", name)
        ids, wanted = stored["prompt"].tolist(), stored["logits_prompt"]
        with load(path) as model:
            made = model.logits(ids, cache_type="F32")
            with model.session(cache_type="F32") as session:
                singly = np.array([session.decode([number]) for number in ids])
        theirs.append(deviation(stored["logits_prompt_native"], wanted))
        ours.append(max(deviation(made, wanted), deviation(singly, wanted)))
        assert ours[-1] <= theirs[-1], name
        # The one worst of thousands of logits is chance.
        assert np.abs(made - wanted).max() < 1.25 * np.abs(stored["logits_prompt_native"] - wanted).max(), name
    assert sum(ours) < sum(theirs)


def test_the_model_of_a_clone_without_golden_files() -> None:
    """Two models are in the repository, so that these tests never all skip."""
    for name in ("llama", "qwen3moe"):
        path, _ = find("models", name)
        assert path.parent == DATA
