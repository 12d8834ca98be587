"""Asks somebody's reader about vectors, and judges its answers.

A crash, a time-out, too much memory or a broken line is never a rejection. After one of those the program is started
again and the run goes on, until it has failed so often that the rest is not tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, Self, TypeVar

from ..cli.units import plural
from ..errors import GpackError
from .compare import at_depth, differences
from .outcomes import MISBEHAVIOUR, Outcome, Result, Run, Subject, program_name
from .process import ChildFaultError, Limits, ended_badly, status_text
from .protocol import (
    DEPTHS,
    EXIT_ACCEPT,
    EXIT_REJECT,
    EXIT_SKIP,
    LEVELS,
    Answer,
    ProtocolError,
    Start,
    parse_output,
    parse_result,
    parse_start,
    run_line,
    stop_line,
)
from .sandbox import Sandbox


class Vector(Protocol):
    """What the runner needs of a vector; `gpack.conformance.vectors.Vector` is one."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def level(self) -> str:
        """Which readers are asked about it."""

    @property
    def required(self) -> bool:
        """Whether an answer that is not right fails the run."""

    @property
    def expect(self) -> str:
        """`accept` or `reject`."""

    @property
    def path(self) -> str | None:
        """Schema path of the field that was changed (`$.header.magic`); None where no single field was."""

    @property
    def large(self) -> bool:
        """Whether it is a sparse file that is larger than memory."""

    @property
    def cls(self) -> str | None:
        """The class of the rejection; None where the file is valid."""

    def write(self, folder: Path) -> Path:
        """Writes the file, and the shards beside it, into a folder; the file's path."""


_SLOWEST_HASH = 64 << 20  # bytes per second

# First parts of schema paths that lie outside of the tables.
_CONTAINER_PARTS = ("header", "footer", "sections", "ManifestJson")

_V = TypeVar("_V", bound=Vector)


@dataclass(frozen=True)
class ReaderOptions:
    """How a reader is run.

    Attributes:
        level: The highest level that it is asked about; None: what it says of itself.
        per_file: The command is started for every file, with its path as the last argument.
        depth: How much its dumps hold, where it does not say it itself.
        large: Ask about sparse files of many GiB whatever the reader does; else only of level `structure`, which has
            no reason to read them whole.
        strict_class: A rejection for a reason of another class fails; else it is noted.
        jobs: Programs that run side by side.
        most_faults: After so many crashes and the like the rest is not tried.
    """

    level: str | None = None
    per_file: bool = False
    depth: str = DEPTHS[-1]
    large: bool = False
    strict_class: bool = False
    jobs: int = 1
    most_faults: int = 100
    limits: Limits = field(default_factory=Limits)


def asked(vectors: Sequence[_V], level: str, depth: str = DEPTHS[-1], *, large: bool = False) -> list[_V]:
    """The vectors that a reader is asked about.

    Args:
        level: The highest level that it knows.
        depth: One that does not look into tables is not asked about broken ones.
        large: Ask about the large ones too where the reader hashes what it reads.
    """
    highest = LEVELS.index(level)
    return [
        vector
        for vector in vectors
        if LEVELS.index(vector.level) <= highest
        and (depth != "container" or _is_outside_tables(vector))
        and (large or level == LEVELS[0] or not vector.large)
    ]


def _is_outside_tables(vector: Vector) -> bool:
    """Whether it can be judged without looking into a section: by the fixed records, the manifest and digests."""
    if vector.expect == "accept" or vector.path is None or vector.level == "digest":
        return True
    part = vector.path.removeprefix("$.").partition(".")[0].partition("[")[0]
    return part in _CONTAINER_PARTS


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
    """
    started = time.monotonic()
    start = introduce(command, options)
    run = Run(Subject("reader", start.name, start.language, start.version, start.level, list(command)))
    judge = _Judge(options, start, dump)
    waiting: SimpleQueue[Vector] = SimpleQueue()
    chosen = asked(vectors, start.level, start.depth, large=options.large)
    for vector in chosen:
        waiting.put(vector)
    crew = _Crew(command, options, judge, waiting, progress)
    crew.work(max(1, min(options.jobs, len(chosen))))
    run.results = sorted(crew.results, key=lambda result: result.id)
    run.notes = sorted(set(crew.notes))
    run.seconds = time.monotonic() - started
    return run


def introduce(command: Sequence[str], options: ReaderOptions) -> Start:
    """Who the reader is: its first line; of a reader that is started for each file only what the caller says.

    Raises:
        PathError: It cannot be started, or gives no first line (`conformance.command`).
    """
    if options.per_file:
        return Start(program_name(command), "", "", options.level or LEVELS[0], options.depth)
    with Sandbox() as sandbox, _Talk(command, options, sandbox) as talk:
        start = talk.start
        talk.stop()
    wanted = options.level or start.level
    level = min(wanted, start.level, key=LEVELS.index)
    return Start(start.name, start.language, start.version, level, start.depth)


def patience(limits: Limits, path: Path) -> float:
    """Seconds for an answer about a file: a reader that hashes takes longer for a large one."""
    return limits.timeout + path.stat().st_size / _SLOWEST_HASH


class _Talk:
    """A reader that was started, and its first line."""

    def __init__(
        self, command: Sequence[str], options: ReaderOptions, sandbox: Sandbox, stop: threading.Event | None = None
    ) -> None:
        self.limits = options.limits
        self.child = sandbox.start(command, options.limits, stop)
        self._seq = 0
        try:
            self.start = parse_start(self.child.line(self.limits.start_timeout, "its first line"))
        except (ChildFaultError, ProtocolError) as error:
            self.child.close()
            raise _did_not_start(command, error, self.child.stderr_tail) from error
        except BaseException:
            self.child.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.close()

    def ask(self, vector_id: str, path: Path) -> Answer:
        """Its answer about a file.

        Raises:
            ChildFaultError: There is none.
        """
        if unasked := self.child.unasked():
            raise ChildFaultError("protocol", f"before it was asked, it said {unasked[:60]!r}")
        self._seq += 1
        self.child.send(run_line(self._seq, vector_id, str(path)))
        line = self.child.line(patience(self.limits, path), "its answer")
        try:
            answer = parse_result(line, self._seq)
        except ProtocolError as error:
            raise ChildFaultError("protocol", str(error)) from error
        if unasked := self.child.unasked():
            raise ChildFaultError("protocol", f"behind its answer, it said {unasked[:60]!r}")
        return answer

    def stop(self) -> str:
        """Asks it to end; what is wrong with how it does, in words, or nothing."""
        self.child.send(stop_line())
        try:
            said = self.child.rest(self.limits.timeout, "its end after the stop")
        except ChildFaultError as error:
            return f"after the stop: {error}"
        status = self.child.close()
        if status:
            return f"after the stop it ended with {status_text(status)}"
        return f"after the stop it said {said[:60]!r}" if said.strip() else ""


def _did_not_start(command: Sequence[str], error: Exception, stderr: str) -> GpackError:
    from ..errors import PathError

    last = stderr.splitlines()[-1] if stderr else ""
    return PathError(
        f"it does not introduce itself: {error}" + (f"; standard error ends with: {last}" if last else ""),
        code="conformance.command", path=" ".join(command),
        hint="a reader's first line is a start message; --per-file is for programs that are started once for each file",
    )  # fmt: skip


class _Judge:
    """Turns answers into results."""

    def __init__(self, options: ReaderOptions, start: Start, dump: Callable[[Path], dict[str, Any]]) -> None:
        self._options, self._depth, self._dump = options, start.depth, dump

    def blank(self, vector: Vector) -> Result:
        """A result that says nothing yet."""
        expect = "accept" if vector.expect == "accept" else f"reject ({vector.cls})"
        return Result(vector.id, vector.level, vector.required, expect, "pass")

    def judge(self, vector: Vector, path: Path, answer: Answer, result: Result) -> None:
        """Fills in what an answer means."""
        if answer.verdict == "skip":
            result.outcome, result.message = "skip", answer.message
        elif answer.verdict == "accept" and vector.expect == "accept":
            found = list(differences(at_depth(self._dump(path), self._depth), at_depth(answer.dump or {}, self._depth)))
            if found:
                result.outcome, result.message = (
                    "dump",
                    f"the dump differs from the file in {plural(len(found), 'place')}",
                )
                result.differ(found)
        elif answer.verdict == "accept":
            result.outcome, result.message = "accepted", "it accepted the file"
        elif vector.expect == "accept":
            result.outcome, result.message = "rejected", f"{answer.reject_class}: {answer.message}"
        elif answer.reject_class != vector.cls:
            self._other_class(vector, answer, result)

    def _other_class(self, vector: Vector, answer: Answer, result: Result) -> None:
        """Damage and age must not be mixed up; how deep a damage lies is a matter of where a reader looks first."""
        said = f"the class is {vector.cls}, it said {answer.reject_class}: {answer.message}"
        if self._options.strict_class or "unsupported" in (answer.reject_class, vector.cls):
            result.outcome, result.message = "class", said
        else:
            result.notes.append(said)


class _Crew:
    """Threads that each run one program after the other, and take vectors from one queue."""

    def __init__(
        self,
        command: Sequence[str],
        options: ReaderOptions,
        judge: _Judge,
        waiting: SimpleQueue[Vector],
        progress: Callable[[Result], None] | None,
    ) -> None:
        self.command, self.options, self.judge = command, options, judge
        self._waiting, self._progress = waiting, progress
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self._faults = 0
        self._errors: list[BaseException] = []
        self.results: list[Result] = []
        self.notes: list[str] = []

    def work(self, jobs: int) -> None:
        """Works until the queue is empty; what went wrong in a thread is raised here."""
        if jobs == 1:
            self._guarded()
        else:
            threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(jobs)]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except BaseException:
                self.stop.set()
                for thread in threads:
                    thread.join()
                raise
        if self._errors:
            raise self._errors[0]

    def _guarded(self) -> None:
        try:
            with Sandbox() as sandbox:
                _Worker(self, sandbox).run()
        except BaseException as error:  # raised again by `work`
            self._errors.append(error)

    # ------------------------------------------------------------ for workers

    def take(self) -> Vector | None:
        """The next vector; None where there is none, or another thread failed."""
        if self._errors or self.stop.is_set():
            return None
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def put(self, result: Result) -> None:
        """Keeps a result."""
        with self._lock:
            self.results.append(result)
        if self._progress:
            self._progress(result)

    def note(self, *told: str) -> None:
        """Keeps what belongs to no single vector."""
        self.notes += [note for note in told if note]

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

    def __init__(self, crew: _Crew, sandbox: Sandbox) -> None:
        self._crew, self._sandbox = crew, sandbox
        self._options, self._judge = crew.options, crew.judge
        self._talk: _Talk | None = None

    def run(self) -> None:
        """Asks about vectors until there are none."""
        try:
            while (vector := self._crew.take()) is not None:
                self._one(vector)
            if self._talk is not None:
                self._crew.note(self._talk.stop())
        finally:
            self._hang_up()
        self._crew.note(*self._sandbox.leftovers())

    def _one(self, vector: Vector) -> None:
        result = self._judge.blank(vector)
        if self._crew.tired:
            result.outcome, result.message = "not-run", f"it failed {self._options.most_faults} times before"
            self._crew.put(result)
            return
        started = time.monotonic()
        path = vector.write(self._sandbox.input)
        self._sandbox.seal()
        try:
            answer = self._per_file(path, result) if self._options.per_file else self._persistent(vector, path)
            self._judge.judge(vector, path, answer, result)
        except ChildFaultError as error:
            self._fail(result, error.outcome, str(error))
        except GpackError as error:  # it could not be started again
            self._fail(result, "crash", error.message)
        if told := self._sandbox.touched():
            self._fail(result, "touched", f"it changed what is not its own: {'; '.join(told[:5])}")
        if result.outcome in MISBEHAVIOUR:
            # Anything may lie there now; the next program begins anew.
            result.notes += self._sandbox.leftovers()
            self._sandbox.sweep()
        self._sandbox.empty_input()
        result.seconds = time.monotonic() - started
        self._crew.put(result)

    def _persistent(self, vector: Vector, path: Path) -> Answer:
        if self._talk is None:
            self._talk = _Talk(self._crew.command, self._options, self._sandbox, self._crew.stop)
        return self._talk.ask(vector.id, path)

    def _per_file(self, path: Path, result: Result) -> Answer:
        """Starts the program for one file.

        Raises:
            ChildFaultError: It used too much, or ended in a way that means nothing.
        """
        limits = self._options.limits
        with self._sandbox.start([*self._crew.command, str(path)], limits, self._crew.stop) as child:
            child.end_input()
            try:
                output = child.rest(patience(limits, path), "its end")
            finally:
                status = child.close()
                result.notes += child.notes
                result.stderr = child.stderr_tail if status not in (EXIT_ACCEPT, EXIT_REJECT, EXIT_SKIP) else ""
        if status not in (EXIT_ACCEPT, EXIT_REJECT, EXIT_SKIP):
            raise ended_badly(status)
        try:
            return parse_output(output, status)
        except ProtocolError as error:
            raise ChildFaultError("protocol", str(error)) from error

    def _fail(self, result: Result, outcome: Outcome, message: str) -> None:
        result.outcome, result.message = outcome, message
        self._crew.fault()
        if self._talk is not None:
            self._hang_up()
            result.stderr = self._talk_stderr

    def _hang_up(self) -> None:
        if self._talk is None:
            return
        self._talk.child.close()
        self._talk_stderr = self._talk.child.stderr_tail
        self._crew.note(*self._talk.child.notes)
        self._talk = None
