"""Asks somebody's reader about vectors, and judges its answers.

A crash, a time-out, too much memory or a broken line is never a rejection. After one of those the program is started
again and the run goes on, until it has failed so often that the rest is not tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import GpackError
from ..terminal.interrupts import held_interrupts
from .outcomes import MISBEHAVIOUR, Outcome, Result, Run, Subject
from .process import ChildFaultError
from .protocol import Answer
from .reader_judge import Judge, ReaderOptions, Vector, asked
from .reader_talk import Talk, ask_once, introduce
from .sandbox import Sandbox
from .workers import side_by_side


def run_reader(
    command: Sequence[str],
    vectors: Sequence[Vector],
    options: ReaderOptions,
    dump: Callable[[Path], dict[str, Any]],
    *,
    progress: Callable[[Result], None] | None = None,
) -> Run:
    """Asks a reader about all vectors of its level.

    Args:
        command: The program and its arguments.
        dump: What gpack itself reads from a valid file.
        progress: Called with each result as it comes, in any order.

    Raises:
        PathError: The command cannot be started at all, or a folder cannot be made.
        KeyboardInterrupt: The user stopped it; the programs have ended and the folders are gone.
    """
    started = time.monotonic()
    stop = threading.Event()
    with held_interrupts(stop):
        start = introduce(command, options, stop)
        run = Run(Subject("reader", start.name, start.language, start.version, start.level, list(command)))
        judge = Judge(options, start.depth, dump)
        waiting: SimpleQueue[Vector] = SimpleQueue()
        chosen = asked(vectors, start.level, start.depth, large=options.large)
        for vector in chosen:
            waiting.put(vector)
        workers = _Workers(command, options, judge, waiting, progress, stop)
        side_by_side(max(1, min(options.jobs, len(chosen))), workers.work, stop)
    run.results = sorted(workers.results, key=lambda result: result.id)
    run.notes = sorted(set(workers.notes))
    run.seconds = time.monotonic() - started
    return run


class _Workers:
    """Threads that each run one program after the other, and take vectors from one queue."""

    def __init__(
        self,
        command: Sequence[str],
        options: ReaderOptions,
        judge: Judge,
        waiting: SimpleQueue[Vector],
        progress: Callable[[Result], None] | None,
        stop: threading.Event,
    ) -> None:
        self.command, self.options, self.judge, self.stop = command, options, judge, stop
        self._waiting, self._progress = waiting, progress
        self._lock = threading.Lock()
        self._faults = 0
        self.results: list[Result] = []
        self.notes: list[str] = []

    def work(self) -> None:
        """One thread's part: its own folders, its own program."""
        with Sandbox() as sandbox:
            _Worker(self, sandbox).run()

    # ------------------------------------------------------------ for workers

    def take(self) -> Vector | None:
        """The next vector; None where there is none, or the run was stopped."""
        if self.stop.is_set():
            return None
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def put(self, result: Result) -> None:
        """Keeps a result, unless the run was stopped: then it tells nothing of the program."""
        if self.stop.is_set():
            return
        with self._lock:
            self.results.append(result)
        if self._progress:
            self._progress(result)

    def note(self, *notes: str) -> None:
        """Keeps what belongs to no single vector."""
        self.notes += [note for note in notes if note]

    @property
    def tired(self) -> bool:
        """Whether it has failed so often that the rest is not tried."""
        return self._faults >= self.options.most_faults

    def fault(self) -> None:
        """Counts a crash or the like."""
        with self._lock:
            self._faults += 1


class _Worker:
    """One thread's program, folders and vectors."""

    def __init__(self, workers: _Workers, sandbox: Sandbox) -> None:
        self._workers, self._sandbox = workers, sandbox
        self._options, self._judge = workers.options, workers.judge
        self._talk: Talk | None = None

    def run(self) -> None:
        """Asks about vectors until there are none."""
        try:
            while (vector := self._workers.take()) is not None:
                self._one(vector)
            if self._talk is not None:
                self._workers.note(self._talk.stop())
        finally:
            self._hang_up()
        self._workers.note(*self._sandbox.leftovers())

    def _one(self, vector: Vector) -> None:
        result = self._judge.blank(vector)
        if self._workers.tired:
            result.outcome, result.message = "not-run", f"it failed {self._options.most_faults} times before"
            self._workers.put(result)
            return
        started = time.monotonic()
        path = vector.write(self._sandbox.input)
        self._sandbox.seal()
        answer: Answer | None = None
        try:
            answer = self._ask(vector, path, result)
        except ChildFaultError as error:
            self._fail(result, error.outcome, str(error))
        except GpackError as error:  # it could not be started again
            self._fail(result, "crash", error.message)
        if touched := self._sandbox.touched():
            self._fail(result, "touched", f"it changed what is not its own: {'; '.join(touched[:5])}")
        elif answer is not None:
            self._judge.judge(vector, path, answer, result)
        if result.outcome in MISBEHAVIOUR:
            # Anything may lie there now; the next program begins anew.
            result.notes += self._sandbox.leftovers()
            self._sandbox.sweep()
        self._sandbox.empty_input()
        result.seconds = time.monotonic() - started
        self._workers.put(result)

    def _ask(self, vector: Vector, path: Path, result: Result) -> Answer:
        workers = self._workers
        if self._options.per_file:
            return ask_once(workers.command, path, self._options.limits, self._sandbox, workers.stop, result)
        if self._talk is None:
            self._talk = Talk(workers.command, self._options, self._sandbox, workers.stop)
        return self._talk.ask(vector.id, path)

    def _fail(self, result: Result, outcome: Outcome, message: str) -> None:
        result.outcome, result.message = outcome, message
        self._workers.fault()
        if self._talk is not None:
            self._hang_up()
            result.stderr = self._talk_stderr

    def _hang_up(self) -> None:
        if self._talk is None:
            return
        self._talk.child.close()
        self._talk_stderr = self._talk.child.stderr_tail
        self._workers.note(*self._talk.child.notes)
        self._talk = None
