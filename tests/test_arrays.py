"""Arrays into packs and out of them: the same as safetensors gives, types and parts too; and a pack as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpack
from gpack.errors import GpackError, UsageError
from gpack.quants.encode import encoder

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
from safetensors.numpy import save_file as save_safetensors  # noqa: E402

RANDOM = np.random.default_rng(3)
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
ARRAYS = {f"of {dtype}": RANDOM.integers(0, 2 if dtype == "?" else 100, (3, 4, 5)).astype(dtype) for dtype in DTYPES}
ARRAYS |= {
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(7.5, np.float32),
    "long": RANDOM.standard_normal(70).astype(np.float32),
    "ünïcode": np.ones((2, 2), np.float32),
}
METADATA = {"general.architecture": "toy", "who": "wé", "empty": ""}
SLICES: tuple[Any, ...] = (
    slice(None),
    slice(1, 3),
    slice(None, None, 2),
    (slice(1, 2), slice(0, 3)),
    (slice(None), slice(None), slice(2, 4)),
    (0, slice(1, 3)),
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The same as a pack and as safetensors."""
    gpack.save_file(ARRAYS, tmp_path / "m.gpack", METADATA)
    save_safetensors(ARRAYS, tmp_path / "m.safetensors", METADATA)
    return tmp_path / "m.gpack", tmp_path / "m.safetensors"


def test_arrays_come_back(files: tuple[Path, Path]) -> None:
    assert gpack.verify(files[0]).report.ok
    with gpack.safe_open(files[0]) as ours, safetensors.safe_open(files[1], "np") as theirs:
        assert sorted(ours.keys()) == sorted(theirs.keys()) == sorted(ARRAYS)
        assert ours.metadata() == theirs.metadata() == METADATA
        assert sorted(ours.offset_keys()) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            made, wanted = ours.get_tensor(name), theirs.get_tensor(name)
            assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape), name
            assert np.asarray(made).tobytes() == wanted.tobytes() == array.tobytes()


def test_parts_are_those_that_safetensors_gives(files: tuple[Path, Path]) -> None:
    with gpack.safe_open(files[0], framework="numpy") as ours, safetensors.safe_open(files[1], "np") as theirs:
        for name in ("of f4", "of i8", "of ?"):
            made, wanted = ours.get_slice(name), theirs.get_slice(name)
            assert made.get_shape() == wanted.get_shape()
            assert made.get_dtype() == wanted.get_dtype()
            for key in SLICES:
                if key == slice(None, None, 2):  # which safetensors does not do
                    assert made[key].tobytes() == ARRAYS[name][key].tobytes()
                else:
                    assert np.asarray(made[key]).tobytes() == wanted[key].tobytes(), key


def test_the_same_arrays_give_the_same_bytes(files: tuple[Path, Path], tmp_path: Path) -> None:
    gpack.save_file(dict(reversed(ARRAYS.items())), tmp_path / "again.gpack", METADATA)
    with gpack.open(files[0]) as one, gpack.open(tmp_path / "again.gpack") as other:
        assert {name: array.tobytes() for name, array in one.items()} == {
            name: array.tobytes() for name, array in other.items()
        }
        assert one.metadata["general.architecture"] == "toy"
    gpack.save_file(ARRAYS, tmp_path / "third.gpack", METADATA)
    assert (tmp_path / "third.gpack").read_bytes() == files[0].read_bytes()


def test_layouts_that_are_not_a_files(tmp_path: Path) -> None:
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    odd = {"transposed": plain.T, "every second": plain[::2, ::3], "big endian": plain.astype(">f4")}
    gpack.save_file(odd, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        for name, array in odd.items():
            np.testing.assert_array_equal(pack[name], array)
    with gpack.safe_open(tmp_path / "m.gpack") as opened:
        assert opened.metadata() is None


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    types = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    values = RANDOM.standard_normal((4, 32)).astype(np.float32)
    made = {name: values.astype(getattr(types, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    gpack.save_file(made, tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert [pack[name].type_name for name in made] == ["BF16", "F8_E4M3", "F8_E5M2"]
    with gpack.safe_open(tmp_path / "m.gpack") as opened:
        for name, array in made.items():
            np.testing.assert_array_equal(opened.get_tensor(name), array.astype(np.float32))


def test_blocks_stay_blocks_and_are_dequantised_on_demand(tmp_path: Path) -> None:
    values = RANDOM.standard_normal((6, 64)).astype(np.float32)
    blocks = encoder(8)(values)
    first = tmp_path / "blocks.gpack"
    source = gpack.Tensor.over(memoryview(blocks.tobytes()), name="w", ggml_type=8, dims=(64, 6))
    gpack.save_file({"w": source, "part": source[2:4]}, first)
    with gpack.safe_open(first) as opened, gpack.open(first) as pack:
        assert (pack["w"].type_name, pack["w"].dims, pack["part"].dims) == ("Q8_0", (64, 6), (64, 2))
        assert pack["w"].tobytes() == blocks.tobytes()
        whole = opened.get_tensor("w")
        assert np.abs(whole - values).max() < 0.03
        part = opened.get_slice("w")
        assert (part.get_shape(), part.get_dtype()) == ([6, 64], "F32")
        for key in ((slice(1, 3)), (slice(1, 3), slice(5, 9)), (2, slice(5, 9)), (-1,), (slice(None), 3)):
            np.testing.assert_array_equal(part[key], whole[key])
        with pytest.raises(IndexError):
            part[6]


@pytest.mark.parametrize(
    ("tensors", "metadata", "code"),
    [
        ({"a": np.zeros(3, "U4")}, None, "convert.dtype"),
        ({"a": np.zeros(3, np.complex128)}, None, "convert.dtype"),
        ({"a": np.array([None])}, None, "convert.dtype"),
        ({"a": [1, 2]}, None, "usage"),
        ({1: np.zeros(3)}, None, "usage"),
        ({"a": np.zeros(3)}, {"n": 1}, "usage"),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, tensors: Any, metadata: Any, code: str) -> None:
    with pytest.raises(GpackError) as caught:
        gpack.save_file(tensors, tmp_path / "m.gpack", metadata)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_frameworks_and_devices_that_there_are_not(files: tuple[Path, Path]) -> None:
    for options in ({"framework": "jax"}, {"framework": "np", "device": "cuda:0"}):
        with pytest.raises(UsageError):
            gpack.safe_open(files[0], **options)


def test_a_pack_is_a_mapping(files: tuple[Path, Path]) -> None:
    with gpack.open(files[0]) as pack, gpack.open(files[0]) as other:
        assert isinstance(pack, Mapping)
        assert sorted(pack.keys()) == sorted(ARRAYS)
        assert pack.get("absent") is None
        assert pack.get("one") is not None
        assert {name: array.tobytes() for name, array in pack.items()} == {
            name: array.tobytes() for name, array in ARRAYS.items()
        }
        assert len(list(pack.values())) == len(pack) == len(ARRAYS)
        assert pack != other
        assert len({pack, other}) == 2
        assert dict(pack.metadata) == {"general.architecture": "toy"}


def test_what_several_files_say_beside_the_tensors(tmp_path: Path) -> None:
    """As a pack of sharded safetensors keeps it: a list, with null for those that say nothing."""
    from gpack.convert.edit import Changes, edit

    gpack.save_file({"a": np.zeros(3, np.float32)}, tmp_path / "m.gpack", {"format": "pt"})
    said = b'[{"format": "pt", "a": "1"}, null, {"format": "np", "b": "2"}]'
    edit(tmp_path / "m.gpack", tmp_path / "n.gpack", Changes(assets={"__metadata__.json": said}))
    with gpack.safe_open(tmp_path / "n.gpack") as opened:
        assert opened.metadata() == {"format": "pt", "a": "1", "b": "2"}
