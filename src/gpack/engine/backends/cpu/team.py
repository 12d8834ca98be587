"""A team of threads that run a program together, step by step, and the program itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ....errors import UsageError
from ....machine import affine_cores, core_quota, usable_cores
from .kernels.program_layout import ABORT, STEP_WORDS, STOPPED_AT, SYNC_WORDS
from .store import Kernels

Words = npt.NDArray[np.int64]
MOST_THREADS = 1024


class Program:
    """Steps in order: each a kernel with its arguments, or something that the host does between kernels.

    Arguments are addresses and numbers; the arrays at these addresses are kept alive with `keep`.
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
            counter: The kernel shares out work by an atomic counter: its address follows the arguments.
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
        """Lets a thread go on after a step before the others have done their shares of it.

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
            self._table = np.array(self._steps, np.int64).reshape(-1, STEP_WORDS)
        return self._table

    def action(self, step: int) -> Callable[[], None]:
        """What the host does at a step."""
        return self._hosts[step]


class _Run:
    """One start of the threads, with memory of its own: one that goes on for a moment disturbs no later one."""

    def __init__(self, program: Program, start: int) -> None:
        self.program = program  # keeps alive what the steps point to
        self.table = program.table()
        self.sync: Words = np.zeros(SYNC_WORDS, np.int64)
        self.arguments: Words = np.array(
            [self.table.ctypes.data, len(self.table), start, self.sync.ctypes.data], np.int64
        )
        self.nth = 0  # threads that take part
        self.ended: SimpleQueue[int] = SimpleQueue()  # the step that it stopped at


class Team:
    """Threads for running programs, one program at a time. Use it as a context manager, or call `close`.

    The threads are not the caller's: while a program runs the caller waits, and can be interrupted. The first thread
    leads the others, so that an interrupt, which may come after any statement, finds a run begun
    by all or by none.

    Of more threads than cores only as many take part in a run as there are cores at that time: threads wait for one
    another after every step, and each step would last until the last of them had had its turn on a core.

    Attributes:
        threads: Most that take part.
    """

    def __init__(self, kernels: Kernels, threads: int | None = None) -> None:
        """Starts the threads: as many as the process may use cores, by its affinity and CPU quota, by default.

        Raises:
            UsageError: Not from 1 to 1024; or the system does not allow so many.
        """
        self._quota = core_quota()
        count = usable_cores() if threads is None else threads
        if not 1 <= count <= MOST_THREADS:
            raise UsageError(f"{count} threads cannot run anything", code="usage", field="threads")
        self.threads = count
        self.kernels = kernels
        self._execute = kernels.function("execute")
        self._closed = False
        self._busy = threading.Lock()
        self._orders: SimpleQueue[_Run | threading.Event | None] = SimpleQueue()  # for the leader
        self._shares: list[SimpleQueue[_Run | None]] = [SimpleQueue() for _ in range(1, count)]  # for the others
        self._done: SimpleQueue[None] = SimpleQueue()  # one for each of the others that has done its share
        self._members = [threading.Thread(target=self._lead, daemon=True)]
        self._members += [
            threading.Thread(target=self._follow, args=(ith, shares), daemon=True)
            for ith, shares in enumerate(self._shares, start=1)
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

    def _lead(self) -> None:
        while (order := self._orders.get()) is not None:
            if isinstance(order, threading.Event):
                order.set()
                continue
            order.nth = min(self.threads, self._cores_now())
            others = self._shares[: order.nth - 1]
            for shares in others:
                shares.put(order)
            self._execute(order.arguments.ctypes.data, 0, order.nth)
            for _ in others:
                self._done.get()
            order.ended.put(int(order.sync[STOPPED_AT]))
        for shares in self._shares:
            shares.put(None)

    def _follow(self, ith: int, shares: SimpleQueue[_Run | None]) -> None:
        while (order := shares.get()) is not None:
            self._execute(order.arguments.ctypes.data, ith, order.nth)
            self._done.put(None)

    def _cores_now(self) -> int:
        """Cores that the threads may keep busy now. The affinity may change at any time; the quota is read once."""
        cores = affine_cores()
        return cores if self._quota is None else min(cores, self._quota)

    def run(self, program: Program) -> None:
        """Runs a program from its first step to its last.

        Raises:
            KeyboardInterrupt: The caller was interrupted; all threads have stopped after a step.
            UsageError: The team was closed.
        """
        with self._busy:
            if self._closed:
                raise UsageError("the engine is closed", code="usage")
            start = 0
            while start < len(program):
                stopped = self._run_from(program, start)
                if stopped < len(program):
                    program.action(stopped)()
                start = stopped + 1

    def _run_from(self, program: Program, start: int) -> int:
        run = _Run(program, start)
        try:
            self._orders.put(run)
            return run.ended.get()
        except BaseException:  # Ctrl-C: the threads stop at the next step, then it goes on
            run.sync[ABORT] = 1
            self._settle()
            raise

    def _settle(self) -> None:
        """Waits until the leader has finished all that it was given; an impatient second Ctrl-C changes nothing."""
        while True:
            try:
                reached = threading.Event()
                self._orders.put(reached)
                reached.wait()
            except KeyboardInterrupt:
                continue
            return

    def close(self) -> None:
        """Ends the threads; a second call does nothing."""
        with self._busy:
            self._closed = True
            self._orders.put(None)
        for member in self._members:
            if member is not threading.current_thread():  # where one of them happens to collect garbage
                member.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
