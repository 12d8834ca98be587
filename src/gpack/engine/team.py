"""A team of threads that run a program together, step by step, and the program itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .store import Kernels

Words = npt.NDArray[np.int64]
MOST_THREADS = 1024

# As kernels/executor.py has them; that file imports numba.
_STEP_WORDS = 4
_ARRIVED, _GENERATION, _ABORT, _STOPPED_AT, _SYNC_WORDS = 0, 16, 32, 48, 64


class Program:
    """Steps in order: each a kernel with its arguments, or something that the host does between kernels.

    Arguments are addresses and numbers; the arrays behind the addresses are kept alive with `keep`.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.names: list[str] = []  # of the steps, for messages and timing
        self._steps: list[tuple[int, int, int, int]] = []
        self._hosts: dict[int, Callable[[], None]] = {}
        self._kept: list[Any] = []
        self._table: Words | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def keep(self, thing: Any) -> Any:
        """Keeps something alive as long as the program."""
        self._kept.append(thing)
        return thing

    def add(self, kernel: str, *arguments: int, counter: bool = False) -> Words:
        """Adds a kernel's step; returns its arguments, which may be changed between runs.

        Args:
            counter: The kernel shares out work by an atomic counter: its address is put behind the arguments.
        """
        words = np.zeros(len(arguments) + 1 + 16, np.int64)
        words[: len(arguments)] = arguments
        count = 0
        if counter:
            cell = self.keep(np.zeros(16, np.int64))
            count = words[len(arguments)] = cell.ctypes.data
        self.keep(words)
        self._steps.append((self.kernels.address(kernel), words.ctypes.data, int(count), 0))
        self.names.append(kernel)
        self._table = None
        return words

    def join(self, step: int) -> None:
        """Lets a thread go on behind a step before the others have done their shares of it.

        The next step must be a kernel's that reads nothing of what other threads write in this one, nor overwrites
        what they read.
        """
        self._steps[step] = (*self._steps[step][:3], 1)
        self._table = None

    def host(self, action: Callable[[], None]) -> None:
        """Adds a step of the host: the threads wait while `action` runs."""
        if self._steps:
            self._steps[-1] = (*self._steps[-1][:3], 0)
        self._hosts[len(self._steps)] = action
        self._steps.append((0, 0, 0, 0))
        self.names.append("host")
        self._table = None

    def table(self) -> Words:
        """The steps as the executor reads them."""
        if self._table is None:
            self._table = np.array(self._steps, np.int64).reshape(-1, _STEP_WORDS)
        return self._table

    def action(self, step: int) -> Callable[[], None]:
        """What the host does at a step."""
        return self._hosts[step]


class Team:
    """Threads for running programs, one program at a time. Use it as a context manager, or call `close`.

    The threads are not the caller's: while a program runs the caller waits, and can be interrupted.
    """

    def __init__(self, kernels: Kernels, threads: int | None = None) -> None:
        """Starts the threads: as many as the process may use cores, unless told.

        Raises:
            UsageError: Not from 1 to 1024; or the system does not allow so many.
        """
        count = len(os.sched_getaffinity(0)) if threads is None else threads
        if not 1 <= count <= MOST_THREADS:
            raise UsageError(f"{count} threads cannot run anything", code="usage", field="threads")
        self.threads = count
        self.kernels = kernels
        self._execute = kernels.function("execute")
        self._sync: Words = np.zeros(_SYNC_WORDS + 16, np.int64)
        self._arguments = np.zeros(4, np.int64)
        self._orders: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(count)]
        self._finished: list[int] = []  # threads that have ended the run
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._busy = threading.Lock()
        self._members = [
            threading.Thread(target=self._work, args=(ith, orders), daemon=True)
            for ith, orders in enumerate(self._orders)
        ]
        for started, member in enumerate(self._members):
            try:
                member.start()
            except RuntimeError as error:
                del self._members[started:]
                self.close()
                raise UsageError(
                    f"the system allows no more than {started} threads of {count}", code="usage", field="threads"
                ) from error

    def _work(self, ith: int, orders: SimpleQueue[bool]) -> None:
        arguments = self._arguments.ctypes.data
        while orders.get():  # not through `self`: `close` takes the queues away
            self._execute(arguments, ith, self.threads)
            self._finished.append(ith)
            self._wake.put(None)

    def run(self, program: Program) -> None:
        """Runs a program from its first step to its last.

        Raises:
            KeyboardInterrupt: The caller was interrupted; all threads have stopped after a step.
            UsageError: The team was closed.
        """
        with self._busy:
            if not self._orders:
                raise UsageError("the engine is closed", code="usage")
            table, start = program.table(), 0
            while start < len(table):
                stopped = self._run_from(table, start)
                if stopped < len(table):
                    program.action(stopped)()
                start = stopped + 1

    def _run_from(self, table: Words, start: int) -> int:
        self._sync[:] = 0
        self._arguments[:] = table.ctypes.data, len(table), start, self._sync.ctypes.data
        self._finished.clear()
        for order in self._orders:
            order.put(True)
        interrupted: BaseException | None = None
        # Waking up is no news in itself: an interrupt may swallow it, or leave it for the next run.
        while len(self._finished) < self.threads:
            try:
                self._wake.get()
            except BaseException as error:  # Ctrl-C: the threads stop at the next step, then it goes on
                interrupted = error
                self._sync[_ABORT] = 1
        if interrupted is not None:
            raise interrupted
        return int(self._sync[_STOPPED_AT])

    def close(self) -> None:
        """Ends the threads; a second call does nothing."""
        with self._busy:
            orders, self._orders = self._orders, []
            for order in orders:
                order.put(False)
        for member in self._members:
            member.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
