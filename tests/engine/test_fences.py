"""Buffers between pages that may not be touched: one byte too many ends the process, so it is another one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpack.engine.backends.cpu.variants import VARIANTS, usable

FOLDER = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no mprotect")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=FOLDER)


@pytest.mark.parametrize("end", ["begin", "end"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_step_beyond_weights_tables_and_activations(variant: str, end: str) -> None:
    """All types of weights, plain and of experts, and models with every kind of layer; the results are the same."""
    if VARIANTS[variant] not in usable():
        pytest.skip(f"this CPU cannot run the kernels {variant}")
    done = run("-m", "engine.fenced_trials", variant, end, "1", "0")
    assert done.returncode == 0, f"in {done.stdout.splitlines()[-1:]}: {done.stderr[-1000:]}"
    assert done.stdout.splitlines()[-1] == "trials 111"


@pytest.mark.parametrize(("at_end", "step"), [(True, 100), (False, -1)])
def test_the_fences_stand(at_end: bool, step: int) -> None:
    program = (
        "import ctypes\nfrom engine.fenced import room\n"
        f"made = room(100, at_end={at_end})\nprint(ctypes.string_at(made.ctypes.data, 100).count(0), flush=True)\n"
        f"ctypes.string_at(made.ctypes.data + {step}, 1)\n"
    )
    done = run("-c", program)
    assert (done.stdout, done.returncode) == ("100\n", -signal.SIGSEGV)
