"""The processes that somebody's program started: found, measured and ended, as far as that goes without root.

A program is started as the leader of a session of its own, with a token in its environment. What belongs to it is what
shares the session, descends from it, or still has the token. A process that leaves its session, lets its parent die and
clears its environment is found by none of these. Where there is no /proc, only the process group is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

TOKEN_VARIABLE = "GPACK_CONFORMANCE_TOKEN"  # noqa: S105 - a mark to find processes by, no secret
_PROC = "/proc"
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0 (proc(5) counts from 3).
_STATE, _PARENT, _SESSION, _START, _RESIDENT = 0, 1, 3, 19, 21
_POLL_SECONDS = 0.01
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Process:
    """A line of /proc.

    Attributes:
        started: Ticks since the machine started: with the id it names one process for ever.
        resident: Bytes in memory, shared pages included.
    """

    pid: int
    state: str
    parent: int
    session: int
    started: int
    resident: int


def belonging(leader: int, token: str, *, by_token: bool) -> list[Process]:
    """The living processes that belong to a leader, itself included where it lives.

    Args:
        by_token: Also look into the environment of every process, which takes longer.
    """
    everything = {process.pid: process for process in _processes()}
    found = {pid for pid, process in everything.items() if leader in (process.session, pid)}
    if by_token:
        mark = f"{TOKEN_VARIABLE}={token}".encode()
        found |= {pid for pid in everything if pid not in found and _has_mark(pid, mark)}
    grown = True
    while grown:
        children = {pid for pid, process in everything.items() if process.parent in found and pid not in found}
        found |= children
        grown = bool(children)
    return [everything[pid] for pid in sorted(found) if everything[pid].state not in "ZX"]


def end(leader: int, token: str, *, grace: float) -> bool:
    """Asks the leader's group to end, then ends by force whatever is left. The leader must not be reaped before.

    Args:
        grace: Seconds between the two.

    Returns:
        Whether the leader ended when it was asked.
    """
    try:
        return _signal_group(leader, signal.SIGTERM) and _wait(leader, grace)
    finally:  # also where the user insists
        _signal_group(leader, signal.SIGKILL)
        # A process that forks while it is hunted is caught in the next round.
        for _ in range(_ROUNDS):
            rest = [process for process in belonging(leader, token, by_token=True) if process.pid != leader]
            if not rest:
                break
            for process in rest:
                _kill(process)
            time.sleep(_POLL_SECONDS)


def has_ended(leader: int) -> bool:
    """Whether a child of ours has ended; its exit status stays to be fetched, so that its number stays taken."""
    try:
        return os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def exit_status(leader: int) -> int:
    """The exit status of a child that has ended, which stays to be fetched; negative: the number of a signal."""
    ended = os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _wait(leader: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not has_ended(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal_group(leader: int, number: int) -> bool:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _kill(process: Process) -> None:
    """Ends one process, if the number still means the same one."""
    now = _read(process.pid)
    if now is not None and now.started == process.started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)


def _processes() -> list[Process]:
    try:
        names = os.listdir(_PROC)
    except OSError:
        return []
    found = (_read(int(name)) for name in names if name.isdigit())
    return [process for process in found if process is not None]


def _read(pid: int) -> Process | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything.
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) <= _RESIDENT:
        return None
    return Process(
        pid,
        fields[_STATE].decode("ascii", "replace"),
        int(fields[_PARENT]),
        int(fields[_SESSION]),
        int(fields[_START]),
        int(fields[_RESIDENT]) * _PAGE,
    )


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
