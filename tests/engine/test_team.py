"""A team runs every step on every thread, waits between steps, and stops when it is told to."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="numba is not installed")

from gpack import machine
from gpack.engine.backends.cpu import team as team_module
from gpack.engine.backends.cpu.store import KERNEL, Kernels
from gpack.engine.backends.cpu.team import Program, Team
from gpack.errors import UsageError
from gpack.machine import usable_cores

from .conftest import TEAM_CORES

KERNEL_WORDS = ctypes.c_int64 * 1


class Recorder(Kernels):
    """Kernels that are functions of Python, so that a test sees who runs what, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int]] = []  # step, thread
        self.nth: set[int] = set()
        self.pause = 0.0
        self.interrupts_at = -1  # a step in which the first thread sends Ctrl-C
        self._own = KERNEL(self._record)

    def _record(self, arguments: int, ith: int, nth: int) -> None:
        self.nth.add(nth)
        step = int(np.ctypeslib.as_array(KERNEL_WORDS.from_address(arguments))[0])
        if ith == 0 and step == self.interrupts_at:
            os.kill(os.getpid(), signal.SIGINT)
        if ith == 0 and self.pause:
            time.sleep(self.pause)
        self.calls.append((step, ith))

    def address(self, name: str) -> int:
        if name == "record":
            return int(ctypes.cast(self._own, ctypes.c_void_p).value or 0)
        return super().address(name)


def program_of(kernels: Recorder, steps: int) -> Program:
    program = Program(kernels)
    for step in range(steps):
        program.add("record", step)
    return program


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_runs_every_step_in_order(threads: int) -> None:
    kernels = Recorder()
    kernels.pause = 0.002
    with Team(kernels, threads) as team:
        team.run(program_of(kernels, 5))
    assert sorted(kernels.calls) == [(step, ith) for step in range(5) for ith in range(threads)]
    # The first thread is slow; nobody may be a step ahead of it.
    assert [step for step, _ in kernels.calls] == sorted(step for step, _ in kernels.calls)


def test_the_host_acts_between_steps() -> None:
    kernels = Recorder()
    program = program_of(kernels, 1)
    seen: list[int] = []
    program.host(lambda: seen.append(len(kernels.calls)))
    program.add("record", 1)
    program.host(lambda: seen.append(len(kernels.calls)))
    with Team(kernels, 2) as team:
        team.run(program)
        team.run(program)
    assert seen == [2, 4, 6, 8]


def test_counters_are_zero_again_after_their_step() -> None:
    kernels = Recorder()
    program = Program(kernels)
    words = program.add("record", 0, counter=True)
    counter = (ctypes.c_int64 * 1).from_address(int(words[1]))
    counter[0] = 17
    for threads in (1, 2):
        counter[0] = 17
        with Team(kernels, threads) as team:
            team.run(program)
        assert counter[0] == 0


def test_an_interrupt_stops_after_a_step_and_the_team_goes_on() -> None:
    kernels = Recorder()
    kernels.pause = 0.05
    kernels.interrupts_at = 2
    program = program_of(kernels, 1000)
    with Team(kernels, 2) as team:
        with pytest.raises(KeyboardInterrupt):
            team.run(program)
        done = len(kernels.calls)
        assert 6 <= done < 2000
        time.sleep(0.15)
        assert len(kernels.calls) == done
        kernels.pause, kernels.interrupts_at = 0.0, -1
        kernels.calls.clear()
        team.run(program)
        assert len(kernels.calls) == 2000


def test_a_fault_of_the_host_leaves_the_team_usable() -> None:
    kernels = Recorder()
    program = program_of(kernels, 1)

    def fail() -> None:
        raise ValueError("the disk")

    program.host(fail)
    with Team(kernels, 2) as team:
        with pytest.raises(ValueError, match="the disk"):
            team.run(program)
        team.run(program_of(kernels, 2))
    assert len(kernels.calls) == 6


def test_wrong_use() -> None:
    kernels = Recorder()
    with pytest.raises(UsageError, match="0 threads"):
        Team(kernels, 0)
    team = Team(kernels, 1)
    team.close()
    team.close()
    with pytest.raises(UsageError, match="closed"):
        team.run(program_of(kernels, 1))


def test_threads_end_with_the_team() -> None:
    before = threading.active_count()
    team = Team(Recorder(), 3)
    assert threading.active_count() == before + 3
    team.close()
    assert threading.active_count() == before


def test_as_many_threads_as_cores() -> None:
    with Team(Recorder()) as team:
        assert team.threads == usable_cores() <= len(os.sched_getaffinity(0))


def test_fewer_threads_by_a_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Affinity to six cores, and a group that may use one and a half."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("31 23 0:28 / /groups rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups/cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(machine, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(Team, "_cores_now", TEAM_CORES)
    kernels = Recorder()
    with Team(kernels) as team:
        assert team.threads == 2
    with Team(kernels, 5) as team:
        team.run(program_of(kernels, 2))
    assert sorted(kernels.calls) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_no_more_threads_take_part_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Recorder()
    program = program_of(kernels, 3)
    monkeypatch.setattr(Team, "_cores_now", TEAM_CORES)
    monkeypatch.setattr(team_module, "core_quota", lambda: None)
    with Team(kernels, 4) as team:
        for cores in (2, 1, 3, 4, 7, 2):  # the affinity changes between runs
            monkeypatch.setattr(team_module, "affine_cores", lambda cores=cores: cores)
            kernels.calls.clear()
            team.run(program)
            taking_part = min(cores, 4)
            assert sorted(kernels.calls) == [(step, ith) for step in range(3) for ith in range(taking_part)]
            assert kernels.nth == {taking_part}
            kernels.nth.clear()
