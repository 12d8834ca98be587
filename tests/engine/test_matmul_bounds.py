"""Weights that lie between pages that may not be read: one byte too many ends the process, so it is another one."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from gpack.engine.backends.cpu.variants import VARIANTS

from .products import BLOCKS, PLAIN, kernels

WORKER = """
import ctypes, mmap, sys
import numpy as np
from engine.products import BLOCKS, NUMBERS, PLAIN, Bed, random_rows
from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.matmul import MatrixView, embed, matmul
from gpack.generated.constants import GgmlType

PAGE = mmap.PAGESIZE
library = ctypes.CDLL(None, use_errno=True)
library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def fenced(raw, *, at_end):
    pages = -(-raw.nbytes // PAGE)
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    view = np.frombuffer(area, np.uint8)
    start = PAGE + (pages * PAGE - raw.nbytes if at_end else 0)
    view[start : start + raw.nbytes] = raw.reshape(-1)
    for fence in (0, (pages + 1) * PAGE):
        if library.mprotect(view.ctypes.data + fence, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return view.ctypes.data + start, view


for name in (*BLOCKS, *PLAIN):
    n_in = GgmlType.BLOCK[NUMBERS[name]] if name in BLOCKS else 77  # 64 at once, 8 and singly
    for rows in (1, 16, 19):
        raw = random_rows(name, rows, n_in)
        for at_end in (False, True):
            address, keep = fenced(raw, at_end=at_end)
            for compute in ("int8", "f32"):
                bed = Bed(sys.argv[1], compute, threads=1, max_batch=9)
                x, out, row = Activations(9, n_in), Buffer(9, rows), Buffer(9, n_in)
                x.array[:] = 1
                matrix = MatrixView(address, NUMBERS[name], rows, n_in, raw.shape[1], name, keep)
                matmul(bed.program, bed.work, matrix, x, out)
                embed(bed.program, bed.work, matrix, np.full(9, rows - 1, np.int32), row)
                bed.run(1, 9)
                assert np.isfinite(out.array).all()
    print(name, flush=True)
"""


@pytest.mark.skipif(not hasattr(mmap, "PAGESIZE") or sys.platform == "win32", reason="no mprotect")
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_read_before_or_behind_the_weights(variant: str) -> None:
    kernels(variant)
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WORKER, variant], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, f"after {done.stdout.split()[-1:]}: {done.stderr[-1000:]}"
    assert done.stdout.split() == [*BLOCKS, *PLAIN]
