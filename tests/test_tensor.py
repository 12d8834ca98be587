"""Tensors as arrays: shapes, types, and values as the `gguf` package dequantises them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from convert.packs import ORACLE
from gguf_maker import Tensor as RawTensor
from gguf_maker import write_gguf

import gpack
from gpack.convert.gguf import convert_gguf
from gpack.errors import UnsupportedError, UsageError
from gpack.tensor import Tensor, array_layout


def is_dequantised(kind: gguf.GGMLQuantizationType) -> bool:
    """Whether the gguf package has a dequantiser for it."""
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


# Types of blocks that the gguf package dequantises.
QUANTISED = [kind for kind, (block, _) in gguf.GGML_QUANT_SIZES.items() if block > 1 and is_dequantised(kind)]


def open_tensor(tmp_path: Path, ggml_type: int, dims: tuple[int, ...], data: bytes) -> gpack.Pack:
    source = write_gguf(tmp_path / "m.gguf", {}, [("t", ggml_type, dims, data)])
    convert_gguf(source, tmp_path / "m.gpack")
    return gpack.open(tmp_path / "m.gpack")


def random_blocks(kind: gguf.GGMLQuantizationType, count: int) -> bytes:
    """Blocks of any bytes whose scales are small: halves beyond 0x4000 would make infinities."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = np.random.default_rng(int(kind)).integers(0, 0x40, (count, size), dtype=np.uint8)
    return data.tobytes()


def values_of(part: Any) -> npt.NDArray[np.float32]:
    """A part of a tensor, dequantised; for numpy's stubs parts are plain arrays."""
    assert isinstance(part, Tensor)
    return part.dequantize()


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_tensors(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = random_blocks(kind, 2 * 3 * 2)
    rows = np.frombuffer(data, np.uint8).reshape(2, 3, 2 * size)
    with open_tensor(tmp_path, int(kind), (2 * block, 3, 2), data) as pack:
        tensor = pack["t"]
        assert (tensor.shape, tensor.dtype, tensor.dims) == ((2, 3, 2 * size), np.uint8, (2 * block, 3, 2))
        assert tensor.type_name == kind.name
        np.testing.assert_array_equal(tensor, rows)
        expected = gguf.dequantize(rows, kind)
        values = tensor.dequantize()
        assert values.shape == (2, 3, 2 * block)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, expected)
        # Slices of the leading axes, in every way that numpy has.
        for part in (np.s_[1], np.s_[0, 2], np.s_[:, 1], np.s_[::-1, 1:], np.s_[1:1], np.s_[[1, 0, 1]], np.s_[..., :]):
            np.testing.assert_array_equal(values_of(tensor[part]), expected[part])
        np.testing.assert_array_equal(values_of(tensor.reshape(6, -1)), expected.reshape(6, -1))
        np.testing.assert_array_equal(values_of(tensor.copy()), expected)


PLAIN: dict[int, str] = {0: "<f4", 1: "<f2", 24: "i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8"}


@pytest.mark.parametrize("ggml_type", PLAIN)
def test_types_that_numpy_has(tmp_path: Path, ggml_type: int) -> None:
    values = np.array([[1, -2, 3], [0, 100, -7]], PLAIN[ggml_type])
    with open_tensor(tmp_path, ggml_type, (3, 2), values.tobytes()) as pack:
        tensor = pack["t"]
        assert (tensor.shape, tensor.dtype, tensor.type_name) == (
            (2, 3),
            values.dtype,
            gguf.GGMLQuantizationType(ggml_type).name,
        )
        np.testing.assert_array_equal(tensor, values)
        for part in (np.s_[:], np.s_[1], np.s_[:, 1], np.s_[0, 0], np.s_[::-1, ::2]):
            found = values_of(tensor[part]) if isinstance(tensor[part], Tensor) else np.float32(tensor[part])
            assert found.dtype == np.float32
            assert type(found) is not Tensor
            np.testing.assert_array_equal(found, values[part].astype(np.float32))


def test_bf16(tmp_path: Path) -> None:
    """1.0, -2.0, the smallest step above 1, infinity: the high halves of their binary32."""
    data = bytes.fromhex("803f 00c0 813f 807f")
    with open_tensor(tmp_path, 30, (2, 2), data) as pack:
        tensor = pack["t"]
        assert (tensor.shape, tensor.dtype, tensor.type_name) == ((2, 4), np.uint8, "BF16")
        assert tensor.dequantize().tolist() == [[1.0, -2.0], [1.0078125, float("inf")]]
        assert tensor[1].dequantize().tolist() == [1.0078125, float("inf")]


def test_values_outlive_the_pack(tmp_path: Path) -> None:
    for ggml_type, data in ((0, bytes.fromhex("0000803f")), (30, bytes.fromhex("803f"))):
        with open_tensor(tmp_path, ggml_type, (1,), data) as pack:
            values = pack["t"].dequantize()
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        assert values.flags.owndata
        assert values.flags.writeable
        assert values.tolist() == [1.0]


def test_an_array_that_outlives_the_pack_does_not_crash(tmp_path: Path) -> None:
    """In a process of its own: bytes that were unmapped under an array would end it with SIGSEGV."""
    program = (
        "import sys, gpack\n"
        "with gpack.open(sys.argv[1]) as pack:\n    tensor = pack['t']; row = tensor[1:]\n"
        "del tensor\nassert row.sum() == 300 and row.dequantize().sum() == 300\n"
    )
    values = np.array([[1, 2], [100, 200]], "<f4")
    open_tensor(tmp_path, 0, (2, 2), values.tobytes()).close()
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "m.gpack")], check=False)
    assert done.returncode == 0


@pytest.fixture
def tensor(tmp_path: Path) -> Tensor:
    """4 rows of 64 elements in Q8_0: 68 bytes to a row."""
    data = random_blocks(gguf.GGMLQuantizationType.Q8_0, 8)
    return open_tensor(tmp_path, 8, (64, 4), data)["t"]


CUTS: dict[str, Callable[[Tensor], Any]] = {
    "half a row": lambda t: t[:, :34],
    "a column": lambda t: t[:, 0],
    "turned": lambda t: t.T,
    "backwards": lambda t: t[:, ::-1],
    "a byte": lambda t: t[0, :1],
    "other type": lambda t: t.view(np.int8),
    "widened": lambda t: t.astype(np.float32),
    "joined": lambda t: np.concatenate([t, t]),
    "square turned": lambda t: t.reshape(-1)[: 68 * 4],
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_not_made_of_whole_rows(tensor: Tensor, cut: str) -> None:
    part = CUTS[cut](tensor)
    if isinstance(part, Tensor):
        with pytest.raises(UsageError) as caught:
            part.dequantize()
        assert caught.value.code == "quants.partial_row"
        assert caught.value.exit_code == 2


def test_what_is_computed_is_no_tensor(tensor: Tensor) -> None:
    """The bytes of `tensor + 1` are of no type any more, and cannot be dequantised by mistake."""
    out: npt.NDArray[Any] = np.empty_like(np.asarray(tensor))
    made = (
        tensor + 1,
        -tensor,
        tensor == tensor,
        np.minimum(tensor, 3),
        np.add(tensor, 1, out=out),
        tensor.sum(axis=0),
    )
    for array in made:
        assert type(array) is np.ndarray
    assert isinstance(tensor.sum(), np.integer)
    assert isinstance(tensor.max(), np.integer)


def test_types_without_a_dequantiser() -> None:
    """Complex numbers are no float32."""
    tensor = Tensor.over(memoryview(bytes(16)), name="t", ggml_type=0x10008, dims=(2,))
    with pytest.raises(UnsupportedError) as caught:
        tensor.dequantize()
    assert caught.value.code == "quants.no_codec"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("ggml_type", "dims", "shape", "dtype"),
    [
        (0, (), (), "<f4"),
        (0, (3,), (3,), "<f4"),
        (1, (2, 3, 4, 5), (5, 4, 3, 2), "<f2"),
        (30, (3, 2), (2, 6), "u1"),
        (2, (64, 3), (3, 36), "u1"),
        (12, (256, 2, 3), (3, 2, 144), "u1"),
        (0x10000, (5,), (5,), "u1"),
        (0x10002, (5,), (5,), "u1"),
        (0x10003, (5,), (5,), "<u2"),
        (0x10004, (5,), (5,), "<u4"),
        (0x10005, (5,), (5,), "<u8"),
        (0x10006, (5,), (5,), "?"),
        (0x10008, (5,), (5,), "<c8"),
        (30, (), (2,), "u1"),
    ],
)
def test_layouts(ggml_type: int, dims: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> None:
    assert array_layout(ggml_type, dims) == (shape, np.dtype(dtype))


def test_experts_are_spread(tmp_path: Path) -> None:
    """Each expert of 4 bytes starts a page of its own with its other matrix after it."""
    up, down = np.arange(3, dtype="<f4"), np.arange(10, 13, dtype="<f4")
    tensors: list[RawTensor] = [
        ("blk.0.ffn_up_exps.weight", 0, (1, 1, 3), up.tobytes()),
        ("blk.0.ffn_down_exps.weight", 0, (1, 1, 3), down.tobytes()),
    ]
    convert_gguf(write_gguf(tmp_path / "m.gguf", {}, tensors), tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        for name, values in (("up", up), ("down", down)):
            tensor = pack[f"blk.0.ffn_{name}_exps.weight"]
            assert (tensor.shape, tensor.strides) == ((3, 1, 1), (4096, 4, 4))
            np.testing.assert_array_equal(tensor.ravel(), values)
            np.testing.assert_array_equal(tensor.dequantize().ravel(), values)
            assert tensor[2].dequantize() == values[2]


REAL = ORACLE / "quant"


@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent: no real models")
@pytest.mark.parametrize("name", ["qwen3-256-Q4_K_M", "qwen35moe-256-Q3_K", "qwen35moe-128-MXFP4"])
def test_real_models(tmp_path: Path, name: str) -> None:
    convert_gguf(REAL / f"{name}.gguf", tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        for theirs in gguf.GGUFReader(REAL / f"{name}.gguf").tensors:
            expected = gguf.dequantize(theirs.data, theirs.tensor_type)
            np.testing.assert_array_equal(pack[theirs.name].dequantize(), expected)
