"""Single steps against numpy, in every variant of kernels and shared out among any number of threads."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpack.engine.backends.cpu import store
from gpack.engine.backends.cpu.attention import float_bits
from gpack.engine.backends.cpu.buffers import aligned
from gpack.engine.backends.cpu.rope_table import RopeTable
from gpack.engine.backends.cpu.step import PickBlock
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.team import Program, Team
from gpack.engine.backends.cpu.variants import usable
from gpack.engine.graph.rope import Rope, Yarn

Floats = npt.NDArray[np.float32]
VARIANTS = [variant.name for variant in usable()]
STATE = np.array([3, 0] + [0] * 14, np.int64)  # three tokens


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def run(kernels: Kernels, name: str, *arguments: int, threads: int = 2, state: npt.NDArray[np.int64] = STATE) -> None:
    """One step, its threads one after the other."""
    words = np.array([state.ctypes.data, *arguments, 0, 0], np.int64)
    for ith in range(threads):
        kernels.function(name)(words.ctypes.data, ith, threads)


def rows(width: int, seed: int = 0, count: int = 3, scale: float = 1.0) -> Floats:
    made = aligned((count, width), np.float32)
    made[:] = np.random.default_rng(seed).standard_normal((count, width)) * scale
    return made


def at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [32, 40, 576, 1])
@pytest.mark.parametrize("add", [0, 1])
def test_rms_norm(kernels: Kernels, width: int, threads: int, add: int) -> None:
    x, w, out = rows(width), rows(width, 1, 1), rows(width, 2)
    wanted = x / np.sqrt((x.astype(float) ** 2).mean(axis=1, keepdims=True) + 1e-3) * w + add * out
    run(
        kernels,
        "rms_norm",
        at(x),
        4 * width,
        at(w),
        at(out),
        4 * width,
        width,
        float_bits(1e-3),
        add,
        1,
        threads=threads,
    )
    np.testing.assert_allclose(out, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_of_rows(kernels: Kernels, threads: int) -> None:
    x, out, factor = rows(48), rows(12), rows(1, 5)
    run(kernels, "columns", at(x), 192, at(out), 48, 2, 3, 10, 4, threads=threads)
    assert np.array_equal(out, x[:, [2, 3, 4, 12, 13, 14, 22, 23, 24, 32, 33, 34]])
    scaled = rows(48, 3)
    run(kernels, "sigmoid_scale", at(factor), 4, at(x), 192, at(scaled), 192, 48, threads=threads)
    np.testing.assert_allclose(scaled, x / (1 + np.exp(-factor.astype(float))), rtol=2e-6)
    w, made = rows(16, 4, 1), rows(48, 6)
    run(kernels, "rms_norm", at(x), 64, at(w), at(made), 64, 16, float_bits(1e-6), 0, 3, threads=threads)
    pieces = x.astype(float).reshape(3, 3, 16)
    wanted = pieces / np.sqrt((pieces**2).mean(axis=2, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(made.reshape(3, 3, 16), wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_values_that_are_not_finite_are_found(kernels: Kernels, threads: int) -> None:
    x, found = rows(70, scale=1e38), np.zeros(1, np.int64)
    x[0, 0] = np.finfo(np.float32).max
    for place, value in ((None, 0.0), ((0, 0), np.inf), ((1, 69), -np.inf), ((2, 33), np.nan)):
        changed = aligned(x.shape, np.float32)
        changed[:] = x
        if place is not None:
            changed[place] = value
        found[0] = 0
        run(kernels, "check_finite", at(changed), 280, 70, at(found), threads=threads)
        assert found[0] == (place is not None)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [64, 50, 7])
def test_gates(kernels: Kernels, width: int, threads: int) -> None:
    for name in ("silu_gate", "gelu_gate", "sigmoid_gate"):
        gate, up = rows(width, scale=8), rows(width, 1)
        gate[0, :4] = 0, -120, 120, 1e-30
        x = gate.astype(float)
        if name == "silu_gate":
            wanted = x / (1 + np.exp(-x)) * up
        elif name == "sigmoid_gate":
            wanted = up / (1 + np.exp(-x))
        else:
            wanted = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) * up
        row = 4 * width
        run(kernels, name, at(gate), row, at(up), row, at(gate), row, width, 1, threads=threads)
        np.testing.assert_allclose(gate, wanted, rtol=3e-6, atol=1e-6)


def test_gates_keep_what_is_no_number(kernels: Kernels) -> None:
    for name in ("silu_gate", "gelu_gate", "sigmoid_gate"):
        gate, up = rows(48), rows(48, 1)
        gate[1, 5] = gate[2, 47] = np.nan
        run(kernels, name, at(gate), 192, at(up), 192, at(gate), 192, 48, 1)
        assert np.argwhere(np.isnan(gate)).tolist() == [[1, 5], [2, 47]]


def test_sums_scales_caps_and_rows(kernels: Kernels) -> None:
    x, y = rows(50), rows(50, 1)
    before = x.copy()
    run(kernels, "add", at(x), 200, at(y), 200, 50, float_bits(0.5), 1)
    np.testing.assert_allclose(x, before + 0.5 * y, rtol=1e-6, atol=1e-7)
    run(kernels, "add", at(x), 200, at(y), 200, 50, float_bits(3), 0)
    np.testing.assert_array_equal(x, 3 * y)
    run(kernels, "soft_cap", at(x), 200, 50, float_bits(2))
    np.testing.assert_allclose(x, 2 * np.tanh(3.0 * y / 2), rtol=1e-5, atol=1e-6)
    picked = PickBlock(3)
    for numbers in ([2, 0, 2], [1], []):
        x[:] = before
        picked.fill(numbers)
        run(kernels, "pick_rows", at(y), 200, at(x), 200, 50, state=picked.words)
        np.testing.assert_array_equal(x, [*y[numbers], *before[len(numbers) :]])


def routed(kernels: Kernels, scores: Floats, n_used: int, scale: float = 1.0) -> tuple[npt.NDArray[Any], Floats]:
    n, n_expert = scores.shape
    state = np.array([n, 0] + [0] * 14, np.int64)
    chosen, weights = np.full((n, n_used), -1, np.int32), np.zeros((n, n_used), np.float32)
    run(
        kernels,
        "route",
        at(scores),
        4 * n_expert,
        n_expert,
        n_used,
        at(chosen),
        at(weights),
        float_bits(scale),
        state=state,
    )
    return chosen, weights


def test_the_router(kernels: Kernels) -> None:
    scores = rows(9, count=20, scale=3)
    p = np.exp(scores.astype(float))
    p /= p.sum(axis=1, keepdims=True)
    order = np.argsort(-p, axis=1)[:, :4]
    top = np.take_along_axis(p, order, 1)
    chosen, weights = routed(kernels, scores, 4, 2.5)
    np.testing.assert_array_equal(chosen, order)
    np.testing.assert_allclose(weights, 2.5 * top / top.sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_router_takes_the_lower_number_of_two_alike(kernels: Kernels) -> None:
    scores = np.array([[1, 3, 3, 1, 3]], np.float32)
    chosen, weights = routed(kernels, scores, 3)
    assert chosen.tolist() == [[1, 2, 4]]
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


def test_the_router_never_divides_by_less_than_a_half_float(kernels: Kernels) -> None:
    """65536 experts alike: each of the two that are chosen has 2**-16, and their sum is below 2**-14."""
    scores = np.zeros((1, 1 << 16), np.float32)
    chosen, weights = routed(kernels, scores, 2)
    assert chosen.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, 2.0**-16 / 2.0**-14, rtol=1e-3)


def test_the_router_stays_inside_when_scores_are_no_numbers(kernels: Kernels) -> None:
    scores = np.full((2, 6), np.nan, np.float32)
    chosen, weights = routed(kernels, scores, 3)
    assert ((chosen >= 0) & (chosen < 6)).all()
    assert np.isnan(weights).all()


def test_the_mixture(kernels: Kernels) -> None:
    x, results, weights = rows(40), rows(40, 1, 6), rows(2, 2)
    wanted = (results.reshape(3, 2, 40) * weights[:, :, None]).sum(axis=1)
    before = x.copy()
    for add in (0, 1):
        x[:] = before
        run(kernels, "mix", at(x), 160, at(results), 160, 2, at(weights), 40, add)
        np.testing.assert_allclose(x, wanted + add * before, rtol=1e-5, atol=1e-6)


def test_angles_of_positions() -> None:
    rope = Rope(8, 10000.0, interleaved=True)
    np.testing.assert_allclose(rope.frequencies(), [1, 0.1, 0.01, 0.001])
    assert rope.magnitude() == 1
    table = RopeTable(rope)
    for end in (1, 651, 700, 1030):  # the table grows and moves; its cell follows
        table.reach(end)
        made = np.ctypeslib.as_array((ctypes.c_float * (8 * end)).from_address(int(table.cell[0]))).reshape(end, 8)
        angle = (end - 1) * np.array([1, 0.1, 0.01, 0.001])
        np.testing.assert_allclose(made[-1], [*np.cos(angle), *np.sin(angle)], atol=1e-6)
        np.testing.assert_allclose(made[0], [1, 1, 1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(Rope(4, 100.0, interleaved=False, factor=4.0).frequencies(), [0.25, 0.025])
    np.testing.assert_allclose(Rope(4, 100.0, interleaved=False, divisors=(1, 8)).frequencies(), [1, 0.0125])


def test_yarn_keeps_fast_and_divides_slow_frequencies() -> None:
    """By hand: 64 rotated, base 10000, 4096 positions: the corners are floor(10.5) and ceil(22.5)."""
    yarn = Yarn(4096)
    ramp = yarn.ramp(64, 10000.0)
    assert (ramp[:11] == 1).all()
    np.testing.assert_allclose(ramp[11:23], 1 - np.arange(1, 13) / 13)
    assert (ramp[23:] == 0).all()
    rope = Rope(64, 10000.0, interleaved=False, factor=4.0, yarn=yarn)
    assert rope.frequencies()[0] == 1
    np.testing.assert_allclose(rope.frequencies()[31], 10000.0 ** (-62 / 64) / 4)
    np.testing.assert_allclose(rope.magnitude(), 1 + 0.1 * math.log(4))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_joined_steps_and_counters(kernels: Kernels, threads: int) -> None:
    """Threads go on after a joined step; the counters of all joined steps are set back at the end of the last."""
    program = Program(kernels)
    state = program.keep(np.array([1, 0] + [0] * 14, np.int64))
    n = 64 * 40
    x, gate, up, w = (program.keep(rows(n, seed, 1)) for seed in range(4))
    out = program.keep(rows(n, 9, 1))
    for _ in range(30):
        program.add("rms_norm", at(state), at(x), 4 * n, at(w), at(out), 4 * n, n, float_bits(1e-5), 0, 1)
        program.join(len(program) - 1)
        # Each thread reads only what it made: the same groups.
        program.add("silu_gate", at(state), at(out), 4 * n, at(up), 4 * n, at(gate), 4 * n, n, 1)
        program.add("add", at(state), at(x), 4 * n, at(gate), 4 * n, n, float_bits(0.1), 1)
    wanted = x.astype(float)
    for _ in range(30):
        normed = wanted / np.sqrt((wanted**2).mean() + 1e-5) * w
        wanted = wanted + 0.1 * normed / (1 + np.exp(-normed)) * up
    with Team(kernels, threads) as team:
        team.run(program)
    np.testing.assert_allclose(x, wanted, rtol=2e-4, atol=1e-4)


def test_the_host_may_follow_a_joined_step(kernels: Kernels) -> None:
    program, seen = Program(kernels), []
    state = program.keep(np.array([1, 0] + [0] * 14, np.int64))
    x, y = program.keep(rows(64, 0, 1)), program.keep(rows(64, 1, 1))
    before = x.copy()
    program.add("add", at(state), at(x), 256, at(y), 256, 64, float_bits(1), 1)
    program.join(0)
    program.host(lambda: seen.append(x.copy()))
    with Team(kernels, 3) as team:
        team.run(program)
    np.testing.assert_allclose(seen[0], before + y)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for instructions of x86")
@pytest.mark.parametrize(
    ("variant", "foreign"),
    [
        ("portable", r"%[yz]mm|\bv(add|mul|mov|cvt|fmadd)[a-z0-9]*\b|popcnt|pshufb|pmulld"),
        ("avx2", r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b|vpdpbusd"),
    ],
)
def test_machine_code_keeps_to_what_its_variant_may_use(variant: str, foreign: str, tmp_path: Path) -> None:
    """Numba optimises for this machine; what LLVM makes of it must run on all that have the variant's features."""
    if variant not in VARIANTS:
        pytest.skip(f"this CPU cannot run {variant}")
    kernels, folder = Kernels(variant), store._folder()
    assert folder is not None
    for name in ("execute", "rms_norm", "silu_gate", "route", "mix", "heads_f16", "heads_q8_0", "attention_f16"):
        kernels.address(name)
        stored = folder / f"{name}-{variant}-{kernels._key(name)}.o"
        (tmp_path / "code.o").write_bytes(stored.read_bytes()[:-32])  # its digest follows the code
        shown = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", tmp_path / "code.o"], capture_output=True, text=True, check=True
        ).stdout
        assert "ret" in shown
        assert re.findall(foreign, shown) == [], name


@pytest.mark.parametrize("width", [32, 50, 576])
def test_a_row_s_bits_are_its_own(kernels: Kernels, width: int) -> None:
    """Of steps on rows: alone, or among others, shared out among any number of threads."""
    count, row = 9, 4 * width
    x, y, w = rows(width, count=count), rows(width, 1, count), rows(width, 2, 1)
    steps: dict[str, tuple[Any, ...]] = {
        "rms_norm": ("x", row, at(w), "out", row, width, float_bits(1e-5), 1, 1),
        "silu_gate": ("x", row, "y", row, "out", row, width, 1),
        "gelu_gate": ("x", row, "y", row, "out", row, width, 1),
        "add": ("out", row, "x", row, width, float_bits(0.3), 1),
        "add_vector": ("out", row, at(w), width),
        "soft_cap": ("out", row, width, float_bits(2)),
    }
    for name, arguments in steps.items():

        def made(some: slice, threads: int, name: str = name, arguments: tuple[Any, ...] = arguments) -> Floats:
            source, other, out = x[some].copy(), y[some].copy(), y[some].copy()
            found = {"x": at(source), "y": at(other), "out": at(out)}
            state = np.array([len(out), 0] + [0] * 14, np.int64)
            words = [found[item] if isinstance(item, str) else item for item in arguments]
            run(kernels, name, *words, threads=threads, state=state)
            return out

        alone = np.concatenate([made(slice(place, place + 1), 1) for place in range(count)])
        for threads in (1, 2, 3, 7):
            for some in (slice(0, 2), slice(1, 4), slice(0, count)):
                assert np.array_equal(made(some, threads).view(np.uint32), alone[some].view(np.uint32)), name
