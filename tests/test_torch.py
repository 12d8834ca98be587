"""Packs in torch: views without warnings, blocks as floats, the same tensors as safetensors gives."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpack
from gpack.errors import GpackError
from gpack.quants.encode import encoder

NEEDED = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import torch"], check=False, capture_output=True).returncode != 0,
    reason="torch is not installed",
)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "gpack.torch", raising=False)
    with pytest.raises(GpackError) as caught:
        import gpack.torch  # noqa: F401
    assert caught.value.code == "torch.library"


@NEEDED
def test_tensors_come_back_without_a_copy_or_a_warning(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_safetensors
    from safetensors.torch import save_file as save_safetensors

    import gpack.torch

    torch.manual_seed(1)
    tensors = {
        **{
            str(dtype): (torch.rand(4, 6) * 100).to(dtype)
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8)
        },
        "f8": torch.randn(3, 8).to(torch.float8_e4m3fn),
        "bool": torch.rand(5) > 0.5,
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
        "transposed": torch.rand(3, 5).t().contiguous(),
    }
    pack, other = tmp_path / "m.gpack", tmp_path / "m.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpack.torch.save_file(tensors, pack, {"a": "b"})
        made = gpack.torch.load_file(pack)
    save_safetensors(tensors, other, {"a": "b"})
    wanted = load_safetensors(other)
    assert made.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert made[name].dtype == tensor.dtype
        assert made[name].shape == tensor.shape
        assert bytes(made[name].reshape(-1).view(torch.uint8).numpy()) == bytes(
            tensor.reshape(-1).view(torch.uint8).numpy()
        )
    before = pack.read_bytes()
    made["torch.float32"].add_(1)  # the process's own copy of the page
    assert pack.read_bytes() == before
    with gpack.safe_open(pack, framework="pt") as opened:
        for name, tensor in wanted.items():
            assert torch.equal(
                opened.get_tensor(name).reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
            )
        assert torch.equal(opened.get_slice("torch.bfloat16")[1:3, 2], wanted["torch.bfloat16"][1:3, 2])


@NEEDED
def test_a_view_of_the_file_outlives_the_pack(tmp_path: Path) -> None:
    import torch

    gpack.save_file({"a": np.arange(1 << 20, dtype=np.float32)}, tmp_path / "m.gpack")
    with gpack.safe_open(tmp_path / "m.gpack", framework="pt") as opened:
        found = opened.get_tensor("a")
    assert torch.equal(found[-3:], torch.tensor([(1 << 20) - 3, (1 << 20) - 2, (1 << 20) - 1], dtype=torch.float32))


@NEEDED
def test_blocks_become_floats(tmp_path: Path) -> None:
    import torch

    import gpack.torch

    values = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    blocks = encoder(2)(values).tobytes()
    gpack.save_file({"w": gpack.Tensor.over(memoryview(blocks), name="w", ggml_type=2, dims=(64, 4))}, tmp_path / "m")
    with gpack.open(tmp_path / "m") as pack:
        wanted = torch.from_numpy(pack["w"].dequantize())
    assert torch.equal(gpack.torch.load_file(tmp_path / "m")["w"], wanted)
    with gpack.safe_open(tmp_path / "m", framework="pt") as opened:
        assert torch.equal(opened.get_slice("w")[1:3, :5], wanted[1:3, :5])
        assert torch.equal(opened.get_slice("w")[2], wanted[2])


@NEEDED
def test_what_cannot_be_saved(tmp_path: Path) -> None:
    import torch

    import gpack.torch

    for tensor, code in (
        (torch.eye(3).to_sparse(), "usage"),
        (np.zeros(3), "usage"),
        (torch.zeros(3, dtype=torch.complex128), "convert.dtype"),
    ):
        with pytest.raises(GpackError) as caught:
            gpack.torch.save_file({"a": tensor}, tmp_path / "m.gpack")
        assert caught.value.code == code
