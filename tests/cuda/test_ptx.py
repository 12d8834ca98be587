"""The PTX that the package carries: current, without contractions and doubles, and good for all architectures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from exhaustive import IS_EXHAUSTIVE

from codegen.cuda_kernels import MANIFEST, PTX, stale
from codegen.cuda_report import Assembled, find_ptxas, report
from gpack.engine.backends.cpu.kernels import BLOCK_TYPES, PLAIN_TYPES

KERNELS = json.loads(MANIFEST.read_text())["kernels"]
# The library's exponential and hyperbolic functions multiply and add as they like.
FUNCTIONS = {
    "activate",
    "attend_F32",
    "attend_F16",
    "attend_Q8_0",
    "conv_silu",
    "delta_rule",
    "gate",
    "route",
    "soft_cap",
}
# What is assembled for each architecture in an ordinary run.
FEW = ("attend_F16", "matmul_Q4_K_1", "matmul_Q6_K_8", "matmul_Q8_0_1", "quantize_q8")


def lines(kernel: str) -> list[str]:
    return [line.strip() for line in (PTX / f"{kernel}.ptx").read_text().splitlines()]


def test_it_is_current() -> None:
    assert stale() == []


def test_what_is_not_current_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from codegen import cuda_kernels

    for path in PTX.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "add.ptx").write_text("another")
    (tmp_path / "strange.ptx").write_text("")
    monkeypatch.setattr(cuda_kernels, "PTX", tmp_path)
    monkeypatch.setattr(cuda_kernels, "sources_digest", lambda: "another")
    found = stale()
    assert [line.split()[0] for line in found] == ["the", "add.ptx", "strange.ptx"]


def test_every_type_has_its_kernels() -> None:
    for name in (*BLOCK_TYPES, *PLAIN_TYPES):
        for kernel in (f"matmul_{name}_1", f"matmul_{name}_8", f"expert_matmul_{name}", f"embed_{name}"):
            assert kernel in KERNELS


@pytest.mark.parametrize("kernel", KERNELS)
def test_instructions(kernel: str) -> None:
    """Sums have one order only where none is contracted; doubles are slow on most devices."""
    code = lines(kernel)
    assert code[:2] == [".version 6.3", ".target sm_75"]
    assert f".visible .entry {kernel}(" in code
    if kernel not in FUNCTIONS:
        assert not any(line.startswith(("fma.", "mad.rn.f32")) for line in code)
    doubles = [line for line in code if re.match(r"(add|mul|div|fma|sqrt|cvt\S*)\.\S*f64", line)]
    assert not doubles or kernel == "delta_rule"
    product = re.match(r"(?:expert_)?matmul_([A-Z0-9]+)", kernel)
    if product and product[1] not in PLAIN_TYPES:
        assert sum(line.startswith("dp4a.s32.s32") for line in code) >= 8


def check(of: Assembled) -> None:
    """Nothing of a kernel is in local memory, and enough of it fits on a multiprocessor."""
    assert of.spills == of.stack == 0, of
    assert of.registers <= 128, of
    assert of.shared <= 48 << 10, of


def test_every_kernel_is_assembled_without_a_driver(capsys: pytest.CaptureFixture[str]) -> None:
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("ptxas is not installed: python -m pip install 'guild-gpack[cuda-build]'")
    made = list(report(ptxas, sorted(KERNELS) if IS_EXHAUSTIVE else FEW))
    assert len(made) == 4 * (len(KERNELS) if IS_EXHAUSTIVE else len(FEW))
    for of in made:
        check(of)
