"""Products with quantised weights: how fast they stream, against a compiled sum over the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.matmul import MatrixView, Workspace, matmul
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.team import Program, Team
from gpack.engine.backends.cpu.variants import usable
from gpack.generated.constants import GgmlType
from gpack.terminal import units

from .measure import Outcome, Row, Samples, Way, by_turns, samples

CASE = "kernels"
N_IN = 4096
_FULL, _QUICK = 256 << 20, 32 << 20  # bytes of weights; the first is beyond most caches
_LEAST = 0.85
_PROMPT = 512
_FEW = (1, 2, 4, 8, 16)
_NUMBERS = {name: number for number, name in GgmlType.NAMES.items()}
TYPES = (
    "Q8_0",
    "Q4_K",
    "Q6_K",
    "Q5_K",
    "Q4_1",
    "Q4_0",
    "Q5_0",
    "Q5_1",
    "Q2_K",
    "Q3_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "F16",
    "BF16",
    "F32",
)
# The kernels of a model of Q4_1 with a head of Q8_0, as SmolLM2's file is.
START = (
    "execute",
    "matmul",
    "embed",
    "quantize_q8",
    "dot_Q4_1",
    "codes_Q4_1",
    "dot_Q8_0",
    "codes_Q8_0",
    "floats_Q8_0",
    "multiply_32",
    "multiply_bytes",
)


class Settings(Protocol):
    """What the cases need to know."""

    rounds: int
    quick: bool


def kernels(bench: Settings) -> list[Row]:
    """Matrix times vector for each type; times a few rows and 512 for some; what compiling costs."""
    size = _QUICK if bench.quick else _FULL
    rows = []
    for variant in usable()[:-1] or usable():  # the portable ones are no match for a sum
        found = Kernels(variant)
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            rows += [_streaming(found, name, size, threads, bench.rounds) for name in TYPES]
        rows += [_prompt(found, name, bench.rounds) for name in ("Q4_1", "Q8_0", "Q4_K", "Q6_K", "F16")]
        rows += [_few(found, name, size, bench.rounds) for name in ("Q4_1", "Q8_0", "Q4_K", "Q6_K")]
    return [*rows, _start(bench.rounds)]


@cache
def _bytes(size: int) -> npt.NDArray[np.uint8]:
    """Random bytes of 0x10 to 0x1F: as scales or values of any type they are small numbers, none of them subnormal."""
    made = np.random.default_rng(0).integers(0x10, 0x20, size, np.uint8)
    made.flags.writeable = False
    return made


def _weights(name: str, size: int) -> MatrixView:
    number = _NUMBERS[name]
    row_bytes = N_IN // GgmlType.BLOCK[number] * GgmlType.BYTES[number]
    n_out = size // row_bytes // 16 * 16
    raw = _bytes(size)[: n_out * row_bytes]
    return MatrixView(int(raw.ctypes.data), number, n_out, N_IN, row_bytes, name, raw)


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Keeps this thread, and those that it starts, to so many cores."""
    able = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(able)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, able)


@contextmanager
def _bed(found: Kernels, matrix: MatrixView, threads: int, tokens: int) -> Iterator[tuple[Team, Program]]:
    state = np.zeros(16, np.int64)
    state[0] = tokens
    work = Workspace(found, state, max_batch=tokens, threads=threads)
    program = Program(found)
    x, out = Activations(tokens, matrix.n_in), Buffer(tokens, matrix.n_out)
    x.array[:] = np.random.default_rng(1).standard_normal(x.array.shape)
    matmul(program, work, matrix, x, out)
    with Team(found, threads) as team:
        yield team, program


def _streaming(found: Kernels, name: str, size: int, threads: int, rounds: int) -> Row:
    matrix = _weights(name, size)
    total = matrix.n_out * matrix.row_bytes
    words = matrix.keep.reshape(-1).view(np.uint64)
    # The threads of both sides share these cores: one that waited while the other side ran elsewhere is slow at first.
    with _cores(threads), _bed(found, matrix, threads, 1) as (team, program), ThreadPoolExecutor(threads) as pool:
        ways: dict[str, Way] = {
            "ours": lambda: _timed(lambda: team.run(program)),
            "sum": lambda: _timed(lambda: _sum(words, threads, pool)),
        }
        for way in ways.values():
            way()
        done = by_turns(3 * rounds, ways)
    ours, peer = samples(done["ours"]), samples(done["sum"])
    ratio = peer.median / ours.median
    is_target = name == "Q8_0" and found.variant == usable()[0]
    return Row(
        CASE,
        f"{name} x vector, {found.variant.name}, {threads} thread{'s' * (threads > 1)}",
        _rate(total, ours),
        f"compiled sum: {_rate(total, peer)}",
        f"{ratio:.3g}x",
        f"at least {_LEAST}x" if is_target else "",
        ratio >= _LEAST if is_target else None,
        max(ours.elsewhere, peer.elsewhere),
        {"bytes": total, "ours": ours.to_dict(), "peer": peer.to_dict(), "ratio": ratio},
    )


def _rate(total: int, found: Samples) -> str:
    low, high = total / max(found.seconds) / 1e9, total / min(found.seconds) / 1e9
    return f"{total / found.median / 1e9:.1f} GB/s ({low:.1f} to {high:.1f})"


def _prompt(found: Kernels, name: str, rounds: int) -> Row:
    matrix = _weights(name, 8 << 20)
    work = 2.0 * matrix.n_out * matrix.n_in * _PROMPT
    with _bed(found, matrix, 1, _PROMPT) as (team, program):
        team.run(program)
        done = samples(by_turns(rounds, {"ours": lambda: _timed(lambda: team.run(program))})["ours"])
    rate = work / done.median / 1e9
    return Row(
        CASE,
        f"{name} x {_PROMPT} tokens, {found.variant.name}, 1 thread",
        f"{rate:.0f} GFLOP/s",
        elsewhere=done.elsewhere,
        data={"gflops": rate, "ours": done.to_dict()},
    )


def _few(found: Kernels, name: str, size: int, rounds: int) -> Row:
    """What a step of a few rows costs, in steps of one: texts together live there."""
    matrix, threads = _weights(name, size), len(os.sched_getaffinity(0))
    with ExitStack() as beds:
        able = {n: beds.enter_context(_bed(found, matrix, threads, n)) for n in _FEW}
        ways: dict[str, Way] = {
            str(n): partial(_timed, partial(team.run, program)) for n, (team, program) in able.items()
        }
        for way in ways.values():
            way()
        done = {n: samples(found) for n, found in by_turns(rounds, ways).items()}
    one = done["1"].median
    return Row(
        CASE,
        f"{name} x {', '.join(list(ways)[1:])} rows, {found.variant.name}, {threads} threads",
        ", ".join(f"{done[n].median / one:.2f}" for n in list(ways)[1:]) + " steps of one row",
        elsewhere=max(item.elsewhere for item in done.values()),
        data={n: item.to_dict() for n, item in done.items()},
    )


def _start(rounds: int) -> Row:
    """Seconds until all kernels of a model can be called: nothing kept on disk, and all of them."""
    code = (
        "import time; began = time.perf_counter(); from gpack.engine.backends.cpu.store import Kernels;"
        " found = Kernels();"
        f" [found.address(name) for name in {START!r}]; print(time.perf_counter() - began)"
    )

    def seconds(folder: str) -> float:
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE)
        return float(json.loads(done.stdout))

    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(seconds(folder))
            warm.append(seconds(folder))
    before, after = Samples(tuple(cold)), Samples(tuple(warm))
    return Row(
        CASE,
        f"{len(START)} kernels of products: from disk",
        str(after),
        f"compiled: {units.duration(before.median)}",
        data={"cold": before.to_dict(), "warm": after.to_dict()},
    )


def _timed(job: Callable[[], object]) -> Outcome:
    started = time.perf_counter()
    job()
    return {"seconds": time.perf_counter() - started}


def _sum(words: npt.NDArray[np.uint64], threads: int, pool: ThreadPoolExecutor) -> None:
    """The sum of 64-bit words, each thread its share: about all that a core can read."""
    compiled: Callable[..., Any] = _compiled_sum()
    if threads == 1:
        compiled(words)
    else:
        list(pool.map(compiled, np.array_split(words, threads)))


@cache
def _compiled_sum() -> Any:
    from numba import njit

    def total(words: Any) -> Any:
        made = np.uint64(0)
        for place in range(words.size):
            made += words[place]
        return made

    return njit(nogil=True)(total)
