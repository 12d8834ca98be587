"""A forked child whose system calls are watched by ptrace: killed at one of them, or one of them made to fail.

Linux on x86-64; elsewhere, or where the system forbids it, `available` says so and tests are skipped by name.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

_TRACEME, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 12, 13, 24, 0x4200
_GOOD, _CLONE, _EXITKILL = 0x1, 0x8, 0x100000
_WALL = 0x40000000
_STOPPED_BY_CALL = signal.SIGTRAP | 0x80
# Of all calls those that deal with files, by their numbers.
NAMES = {
    0: "read",
    1: "write",
    3: "close",
    17: "pread64",
    18: "pwrite64",
    73: "flock",
    74: "fsync",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    87: "unlink",
    257: "openat",
    263: "unlinkat",
    265: "linkat",
    285: "fallocate",
    295: "preadv",
}
_WRITES = ("write", "pwrite64")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


_REGISTERS = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss"
_SEGMENTS = "fs_base gs_base ds es fs gs"


class _Registers(ctypes.Structure):
    """`struct user_regs_struct`."""

    _fields_ = tuple((name, ctypes.c_ulong) for name in f"{_REGISTERS} {_SEGMENTS}".split())


@dataclass
class Fault:
    """What happens at one call: the process is killed before it, or it fails, or it writes but half.

    Attributes:
        point: Which call, counted from 0 among those of `names`.
        names: Calls that count; None: all that there are.
        code: The error that it gives; 0: half is written.
    """

    point: int
    names: tuple[str, ...] | None = None
    kill: bool = False
    code: int = 0


@dataclass
class Outcome:
    """How the child ended.

    Attributes:
        status: Exit code, or minus the signal.
        calls: Names of the calls that counted; `other` for those that do not deal with files.
    """

    status: int = 0
    calls: list[str] = field(default_factory=list)


def available() -> str:
    """Empty, or why children cannot be traced here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "ptrace is used on Linux on x86-64 only"
    try:
        done = run(lambda: 7)
    except OSError as error:
        return f"the system forbids ptrace: {error.strerror}"
    return "" if done.status == 7 else "the system forbids ptrace"


def run(work: Callable[[], int], fault: Fault | None = None) -> Outcome:
    """Runs `work` in a child, whose exit code is what it returns.

    Raises:
        OSError: The system forbids it.
    """
    child = os.fork()
    if not child:
        status = 98
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            status = work()
        finally:
            os._exit(status)
    os.waitpid(child, _WALL)
    outcome = Outcome()
    try:
        _ptrace(_SETOPTIONS, child, _GOOD | _CLONE | _EXITKILL)
        _ptrace(_SYSCALL, child)
        _follow(child, fault, outcome)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    return outcome


def _follow(child: int, fault: Fault | None, outcome: Outcome) -> None:
    inside: dict[int, int] = {}  # threads in a call, and what it shall return; 0: what it does
    known = {child}
    while True:
        thread, status = os.waitpid(-1, _WALL)
        if not os.WIFSTOPPED(status):
            if thread == child:
                outcome.status = os.waitstatus_to_exitcode(status)
                return
            continue
        number, deliver = os.WSTOPSIG(status), 0
        if number == _STOPPED_BY_CALL:
            _at_call(child, thread, inside, fault, outcome)
        elif number != signal.SIGTRAP and (thread in known or number != signal.SIGSTOP):
            deliver = number
        known.add(thread)
        _ptrace(_SYSCALL, thread, deliver, gone=True)


def _at_call(child: int, thread: int, inside: dict[int, int], fault: Fault | None, outcome: Outcome) -> None:
    registers = _Registers()
    if thread in inside:
        code = inside.pop(thread)
        if code:
            _ptrace(_GETREGS, thread, ctypes.addressof(registers))
            registers.rax = (1 << 64) - code
            _ptrace(_SETREGS, thread, ctypes.addressof(registers))
        return
    inside[thread] = 0
    _ptrace(_GETREGS, thread, ctypes.addressof(registers), gone=True)
    name = NAMES.get(registers.orig_rax, "other")
    if fault is None or fault.names is None or name in fault.names:
        outcome.calls.append(name)
        if fault is not None and len(outcome.calls) - 1 == fault.point:
            if fault.kill:
                os.kill(child, signal.SIGKILL)
                return
            if fault.code:
                registers.orig_rax, inside[thread] = (1 << 64) - 1, fault.code
            elif name in _WRITES:
                registers.rdx = max(registers.rdx // 2, 1)
            _ptrace(_SETREGS, thread, ctypes.addressof(registers))


def _ptrace(request: int, pid: int, data: int = 0, *, gone: bool = False) -> None:
    """Calls ptrace.

    Args:
        gone: The thread may have been killed meanwhile.
    """
    if _libc.ptrace(request, pid, None, data) < 0 and not gone:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
