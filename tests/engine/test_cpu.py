"""Which kernels a CPU gets, and what is in their code."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import llvmlite.binding as llvm
import pytest
from exhaustive import thinned

from gpack.engine.backends.cpu import variants as cpu
from gpack.engine.backends.cpu.kernels import BLOCK_TYPES, MODULES, PLAIN_TYPES
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.variants import Variant
from gpack.errors import UsageError

from .products import kernels

X86 = ("x86_64", "amd64")
AVX2 = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+popcnt"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("GPACK_CPU", raising=False)
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    cpu.features.cache_clear()
    yield
    cpu.features.cache_clear()


def host(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes this machine an x86 with these features and no others."""
    known = ["avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "avx512f"]
    known += ["avx512vnni", "avx512vl", "avx512bw"]
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {name: name in names for name in known})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


WITHOUT_VNNI = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt")
WITH_VNNI = (*WITHOUT_VNNI, "avx512f", "avx512vl", "avx512bw", "avx512vnni")


@pytest.mark.parametrize(
    ("features", "best"),
    [
        ((), "portable"),
        (("avx2", "fma"), "portable"),  # 16-bit floats would need F16C
        (WITHOUT_VNNI, "avx2"),
        (tuple(name for name in WITH_VNNI if name != "avx512vl"), "avx2"),
        (WITH_VNNI, "vnni"),
    ],
)
def test_the_best_that_the_cpu_can_run(monkeypatch: pytest.MonkeyPatch, features: tuple[str, ...], best: str) -> None:
    host(monkeypatch, *features)
    assert cpu.choose().name == best
    assert cpu.usable()[-1].name == "portable"


def test_other_machines_run_the_portable_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, *WITH_VNNI)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu.choose().name == "portable"


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, *WITHOUT_VNNI)
    assert cpu.choose("portable").name == "portable"
    monkeypatch.setenv("GPACK_CPU", "portable")
    assert cpu.choose().name == "portable"
    monkeypatch.setenv("GPACK_CPU", "auto")
    assert cpu.choose().name == "avx2"


def test_what_the_cpu_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, *WITHOUT_VNNI)
    monkeypatch.setenv("GPACK_CPU", "vnni")
    with pytest.raises(UsageError, match="lacks avx512bw, avx512f, avx512vl, avx512vnni") as caught:
        cpu.choose()
    assert (caught.value.code, caught.value.field) == ("engine.cpu", "GPACK_CPU")
    assert "avx2, portable" in str(caught.value)
    with pytest.raises(UsageError, match="lacks avx512bw") as caught:
        cpu.choose("vnni")
    assert caught.value.field == "cpu"  # the variable had no part in it


def test_kernels_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPACK_CPU", "sse9")
    with pytest.raises(UsageError, match="no kernels 'sse9'") as caught:
        cpu.choose()
    assert caught.value.code == "engine.cpu"


def test_features_by_hand_only_take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, *WITH_VNNI)
    monkeypatch.setenv("NUMBA_CPU_FEATURES", f"{AVX2},-avx512f")
    assert cpu.choose().name == "avx2"
    cpu.features.cache_clear()
    host(monkeypatch, "avx2")
    assert cpu.choose().name == "portable"  # what is claimed here is not there


@pytest.mark.parametrize("value", ["avx2", "+avx2,nonsense", "+avx2,,", "+avx3000", "-"])
def test_features_by_hand_that_are_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    host(monkeypatch, *WITH_VNNI)
    monkeypatch.setenv("NUMBA_CPU_FEATURES", value)
    with pytest.raises(UsageError, match="names no feature") as caught:
        cpu.choose()
    assert caught.value.code == "engine.cpu"
    assert caught.value.field == "NUMBA_CPU_FEATURES"


WRITTEN = [
    "quantize_q8",
    *(f"dot_{name}" for name in (*BLOCK_TYPES, *PLAIN_TYPES)),
    *(f"codes_{name}" for name in BLOCK_TYPES),
]


def assembly(name: str, variant: str) -> str:
    """What is run, as text."""
    # What is only looked at can be compiled for a CPU that is not there.
    found = Kernels(Variant("vnni", (), "cascadelake")) if variant == "vnni" else kernels(variant)
    made = import_module(f"gpack.engine.backends.cpu.kernels.{MODULES[name]}").BUILDERS[name](found.variant)
    return str(found._machine.emit_assembly(found._optimised(made.module("kernel"))))


@pytest.mark.skipif(platform.machine().lower() not in X86, reason="names of x86 registers")
@pytest.mark.parametrize("name", thinned(WRITTEN, 7))
def test_portable_code_is_that_of_any_x86(name: str) -> None:
    """SSE2 and nothing newer: AVX has names that begin with v, and wider registers."""
    text = assembly(name, "portable")
    code = [line.split()[0] for line in text.splitlines() if re.match(r"^\t[a-z]", line)]
    assert len(code) > 30
    newer = (
        r"^(v|pshufb|pmadd?ubs|psign|pabs|pmulld|pmovsx|pmovzx|pblend|blendv|pinsr[bdq]|pextr[bdq]|round|popcnt|dpp)"
    )
    assert [item for item in code if re.match(newer, item)] == []
    assert not re.search(r"%[yz]mm", text)
    symbols = re.findall(r"(?:movabsq|callq?|jmp)\s+\$?([A-Za-z_]\w+)", text)
    assert [item for item in symbols if not re.match(r"look_up|points|grid", item)] == []  # no library of arithmetic


@pytest.mark.skipif(platform.machine().lower() not in X86, reason="names of x86 registers")
@pytest.mark.parametrize("name", ["dot_Q8_0", "dot_Q6_K", "codes_IQ4_XS"])
def test_avx2_code_has_nothing_of_avx512(name: str) -> None:
    text = assembly(name, "avx2")
    assert "%ymm" in text
    assert not re.search(r"%zmm|%k[0-7]|vpdpbusd|%[xy]mm(1[6-9]|2\d|3[01])", text)


@pytest.mark.skipif(platform.machine().lower() not in X86, reason="names of x86 registers")
@pytest.mark.parametrize("name", ["dot_Q8_0", "dot_Q6_K", "dot_IQ4_XS"])
def test_vnni_code_multiplies_four_at_once(name: str) -> None:
    text = assembly(name, "vnni")
    assert "vpdpbusd" in text
    assert "vpmaddubsw" not in text


def test_choosing_does_not_import_numba() -> None:
    code = (
        "import sys; from gpack.engine.backends.cpu.variants import choose; choose(); assert 'numba' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
