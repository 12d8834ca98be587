"""8-bit floats with scales: the products, worked out in float64 from the format's definition, rounded to BF16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import MOE, Maker, Stored, Tensors, bf16, experts, f32, llama_tensors, qwen3_folder, qwen3_tensors
from numpy.typing import NDArray

import gpack
from gpack.convert.anything import convert
from gpack.convert.conversion import report
from gpack.errors import FormatError

NAME = "model.layers.0.mlp.up_proj.weight"  # [128, 64]
TARGET = "blk.0.ffn_up.weight"


def value(code: int) -> float:
    """An F8_E4M3 by its definition: sign, four exponent bits of bias 7, three of the fraction."""
    sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


def nearest_bf16(number: float) -> float:
    """By exact arithmetic: 8 bits of the fraction, ties to even."""
    if not number:
        return number
    scale = 2.0 ** (math.frexp(number)[1] - 8)
    return round(number / scale) * scale


def codes(rows: int, columns: int) -> NDArray[np.uint8]:
    made = np.random.default_rng(7).integers(0, 256, (rows, columns), np.uint8)
    made[(made & 0x7F) == 0x7F] = 0  # those are NaN
    return made


def f8(array: NDArray[np.uint8]) -> Stored:
    return "float8_e4m3fn", array.shape, array.tobytes()


def converted(tmp_path: Path, tensors: Tensors, **options: Any) -> tuple[dict[str, Any], Path]:
    config = options.pop("config", {})
    folder = qwen3_folder(tmp_path / "m", tensors=tensors, **config)
    return report(convert(folder, tmp_path / "m.gpack", **options)), tmp_path / "m.gpack"


# Rows and columns that share a scale, and how the scales are stored.
GRIDS: list[tuple[tuple[int, int], tuple[int, ...]]] = [
    ((32, 16), (4, 4)),
    ((128, 64), (1, 1)),
    ((128, 64), (1,)),
    ((128, 64), ()),
    ((1, 64), (128, 1)),
]


@pytest.mark.parametrize(("block", "shape"), GRIDS)
@pytest.mark.parametrize("stored", [f32, bf16])
def test_products(tmp_path: Path, block: tuple[int, int], shape: tuple[int, ...], stored: Any) -> None:
    stored_codes = codes(128, 64)
    scales = (np.random.default_rng(3).integers(1, 255, shape) / 256).astype(np.float32).reshape(shape)
    told, path = converted(
        tmp_path, qwen3_tensors() | {NAME: f8(stored_codes), NAME + "_scale_inv": stored(np.asarray(scales))}
    )
    assert "import" not in told
    grid = np.asarray(scales, np.float64).reshape(128 // block[0], 64 // block[1])
    with gpack.open(path) as pack:
        assert pack[TARGET].type_name == "BF16"
        found = pack[TARGET].dequantize()
    for row in range(0, 128, 5):
        for column in range(64):
            exact = value(int(stored_codes[row, column])) * grid[row // block[0], column // block[1]]
            assert found[row, column] == nearest_bf16(exact)


def test_blocks_that_end_beyond_the_matrix(tmp_path: Path) -> None:
    """128 rows in blocks of 48: three lines of scales, the last for 32 rows."""
    stored_codes = np.full((128, 64), 0x38, np.uint8)  # 1.0
    scales = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    tensors = qwen3_tensors() | {NAME: f8(stored_codes), NAME + "_scale_inv": f32(scales)}
    told, path = converted(
        tmp_path, tensors, config={"quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 32]}}
    )
    assert "import" not in told
    with gpack.open(path) as pack:
        found = pack[TARGET].dequantize()
    assert found[::16, 0].tolist() == [1.0] * 3 + [3.0] * 3 + [5.0] * 2
    assert found[0, ::16].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_exponents_as_scales(tmp_path: Path) -> None:
    """A byte is a power of two of bias 127."""
    tensors = qwen3_tensors() | {
        NAME: f8(np.full((128, 64), 0x3C, np.uint8)),  # 1.5
        NAME + "_scale_inv": ("uint8", (1, 2), bytes([126, 130])),
    }
    _, path = converted(tmp_path, tensors)
    with gpack.open(path) as pack:
        found = pack[TARGET].dequantize()
    assert found[5, [0, 31, 32, 63]].tolist() == [0.75, 0.75, 12.0, 12.0]


def test_each_expert_has_its_own(tmp_path: Path) -> None:
    tensors: Tensors = experts(Maker(5), 4)
    for expert in range(4):
        name = f"model.layers.0.mlp.experts.{expert}.up_proj.weight"
        tensors[name] = f8(np.full((32, 64), 0x38, np.uint8))
        tensors[name + "_scale_inv"] = f32(np.full((1, 1), expert + 1))
    told, path = converted(tmp_path, tensors, config={**MOE, "num_experts": 4})
    assert "import" not in told
    with gpack.open(path) as pack:
        assert pack["blk.0.ffn_up_exps.weight"].dequantize()[:, 3, 5].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_fused_experts(tmp_path: Path) -> None:
    """Gate and up of all experts in one tensor, with lines of scales for each."""
    tensors: Tensors = {name: held for name, held in experts(Maker(5), 2).items() if ".experts." not in name}
    layer = "model.layers.0.mlp.experts"
    tensors[f"{layer}.gate_up_proj"] = f8(np.full((2, 64, 64), 0x38, np.uint8))
    tensors[f"{layer}.gate_up_proj_scale_inv"] = f32(np.arange(1, 5).reshape(2, 2, 1))
    tensors[f"{layer}.down_proj"] = f32(np.ones((2, 64, 32)))
    told, path = converted(tmp_path, tensors, config={**MOE, "num_experts": 2})
    assert "import" not in told
    with gpack.open(path) as pack:
        assert pack["blk.0.ffn_gate_exps.weight"].dequantize()[:, 31, 5].tolist() == [1.0, 3.0]
        assert pack["blk.0.ffn_up_exps.weight"].dequantize()[:, 0, 5].tolist() == [2.0, 4.0]


def test_quantize_starts_from_the_product(tmp_path: Path) -> None:
    """1.125 x 1.00390625 has 11 bits: F32 keeps them, BF16 would not."""
    tensors = qwen3_tensors() | {
        NAME: f8(np.full((128, 64), 0x39, np.uint8)),
        NAME + "_scale_inv": f32(np.full((1, 1), 1.00390625)),
    }
    _, path = converted(tmp_path, tensors, quantize="F32")
    with gpack.open(path) as pack:
        assert pack[TARGET][3, 4] == 1.125 * 1.00390625


def test_scales_of_activations_are_named(tmp_path: Path) -> None:
    tensors = qwen3_tensors() | {
        NAME: f8(codes(128, 64)),
        NAME + "_scale_inv": f32(np.ones(())),
        NAME.removesuffix("weight") + "activation_scale": f32(np.ones(())),
    }
    told, _ = converted(tmp_path, tensors)
    assert "import" not in told
    assert any("1 scales of activations are left out" in note for note in told["notes"])


@pytest.mark.parametrize("shape", [(3, 4), (128,), (5,), (2, 4, 4)])
def test_scales_that_do_not_fit_stay_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = llama_tensors() | {NAME: f8(codes(128, 64)), NAME + "_scale_inv": f32(np.ones(shape))}
    told, path = converted(tmp_path, tensors, config={"model_type": "llama"})
    reasons = " / ".join(told["import"]["reasons"])
    assert "F8_E4M3" in reasons
    assert "up_proj.weight_scale_inv" in reasons
    with gpack.open(path) as pack:
        assert pack[TARGET].tobytes() == codes(128, 64).tobytes()


def test_a_product_that_is_infinite(tmp_path: Path) -> None:
    tensors = qwen3_tensors() | {
        NAME: f8(np.full((128, 64), 0x7E, np.uint8)),
        NAME + "_scale_inv": f32(np.full((), 1e37)),
    }
    with pytest.raises(FormatError) as caught:
        converted(tmp_path, tensors)
    assert (caught.value.code, caught.value.field) == ("quantize.value", NAME)
    assert "element [0, 0]" in caught.value.message


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes"])
def test_other_ways_to_pack_are_named(tmp_path: Path, method: str) -> None:
    told, _ = converted(tmp_path, qwen3_tensors(), config={"quantization_config": {"quant_method": method}})
    assert told["import"]["reasons"] == [f"the weights are packed by '{method}', and are kept as they are"]
