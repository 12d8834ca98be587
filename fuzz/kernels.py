"""The engine's kernels in memory between pages that may not be touched, with products and models made by chance."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from itertools import cycle, product
from pathlib import Path

from .result import Result

_TESTS = Path(__file__).parents[1] / "tests"
_SLICE = 20  # seconds of one process


def run(*, seconds: int, runs: int = 0) -> Result:
    """Tries until the time is over (0: the number of trials decides), each variant of the CPU, both ends by turns."""
    if importlib.util.find_spec("numba") is None:
        return Result("kernels", skipped="numba is not installed here")
    from gpack.engine.backends.cpu.variants import usable

    ends = time.monotonic() + seconds if seconds else float("inf")
    trials = 0
    for seed, (variant, end) in enumerate(cycle(product([variant.name for variant in usable()], ("end", "begin")))):
        left = min(ends - time.monotonic(), _SLICE)
        if (runs and trials >= runs) or left <= 0:
            break
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "engine.fenced_trials",
            variant,
            end,
            str(seed),
            str(left),
        ]
        done = subprocess.run(command, cwd=_TESTS, capture_output=True, text=True, check=False)
        last = done.stdout.splitlines()[-1:]
        if done.returncode:
            told = f"{' '.join(command[3:])}\nin {last}\n{done.stderr[-3000:]}"
            return Result("kernels", executions=trials, passed=trials, opened=trials, finding=told)
        trials += int(last[0].split()[1])
    return Result("kernels", executions=trials, passed=trials, opened=trials, by="pages that may not be touched")
