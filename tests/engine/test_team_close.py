"""Threads that end."""

from __future__ import annotations

import numpy as np

from gpack.engine.team import Program, Team

from .products import kernels


def test_closing_right_behind_a_run() -> None:
    """A thread that just reported may still be on its way back to its queue when the team is closed."""
    found = kernels("portable")
    program = Program(found)
    state, rows = np.zeros(16, np.int64), np.zeros(64, np.float32)
    program.add("quantize_x8", state.ctypes.data, rows.ctypes.data, 0, rows.ctypes.data)
    for _ in range(200):  # an exception of a thread is a warning, and warnings are errors here
        with Team(found, 3) as team:
            team.run(program)
