"""Threads that end, wherever the caller was interrupted."""

from __future__ import annotations

import dis
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="numba is not installed")

from gpack.engine.backends.cpu import team as team_module
from gpack.engine.backends.cpu.team import Program, Team

from .products import kernels


def test_closing_right_after_a_run() -> None:
    """A thread that just reported may still be on its way back to its queue when the team is closed."""
    found = kernels("portable")
    program = Program(found)
    state, rows = np.zeros(16, np.int64), np.zeros(64, np.float32)
    program.add("quantize_q8", state.ctypes.data, rows.ctypes.data, 0, rows.ctypes.data)
    for _ in range(200):  # an exception of a thread is a warning, and warnings are errors here
        with Team(found, 3) as team:
            team.run(program)


class Interrupt:
    """Ctrl-C at the n-th of the moments when Python looks for signals: after a call, or where a loop goes back.

    A signal's own time is up to chance; this goes through all of them in turn.
    """

    _LOOKS = ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX")

    def __init__(self, moment: int) -> None:
        self._left = moment
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != team_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if last in self._LOOKS:
                self._left -= 1
                if self._left == 0:
                    raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_moment_lets_the_team_go_on_and_end() -> None:
    found = kernels("portable")
    counted = np.zeros(1, np.int64)
    program = Program(found)
    state, rows = np.zeros(16, np.int64), np.zeros(64, np.float32)

    def count() -> None:
        counted[0] += 1

    for _ in range(2):
        program.add("quantize_q8", state.ctypes.data, rows.ctypes.data, 0, rows.ctypes.data)
        program.host(count)
    before = threading.active_count()
    moment, interrupted = 0, True
    while interrupted:
        moment += 1
        with Team(found, 3) as team:
            tracer = sys.gettrace()
            sys.settrace(Interrupt(moment))
            try:
                team.run(program)
            except KeyboardInterrupt:
                pass
            else:
                interrupted = False
            finally:
                sys.settrace(tracer)
            counted[0] = 0
            team.run(program)
            assert counted[0] == 2
        assert threading.active_count() == before
    assert moment > 20
