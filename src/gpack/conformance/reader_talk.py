"""A conversation with somebody's reader, and the runs of one that is started for each file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Self

from ..errors import PathError
from .outcomes import Result, program_name
from .process import ChildFaultError, Limits, ended_badly, status_text
from .protocol import (
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
from .reader_judge import ReaderOptions
from .sandbox import Sandbox

_SLOWEST_HASH = 64 << 20  # bytes per second


def introduce(command: Sequence[str], options: ReaderOptions, stop: Event) -> Start:
    """Who the reader is: its first line; of a reader that is started for each file only what the caller says.

    Args:
        stop: Set from elsewhere, it ends all waiting.

    Raises:
        PathError: It cannot be started, or gives no first line (`conformance.command`).
    """
    if options.per_file:
        return Start(program_name(command), "", "", options.level or LEVELS[0], options.depth)
    with Sandbox() as sandbox, Talk(command, options, sandbox, stop) as talk:
        start = talk.start
        talk.stop()
    wanted = options.level or start.level
    level = min(wanted, start.level, key=LEVELS.index)
    return Start(start.name, start.language, start.version, level, start.depth)


def patience(limits: Limits, path: Path) -> float:
    """Seconds for an answer about a file: a reader that hashes takes longer for a large one."""
    return limits.timeout + path.stat().st_size / _SLOWEST_HASH


class Talk:
    """A reader that was started, and its first line."""

    def __init__(self, command: Sequence[str], options: ReaderOptions, sandbox: Sandbox, stop: Event) -> None:
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
            raise ChildFaultError("protocol", f"after its answer, it said {unasked[:60]!r}")
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


def _did_not_start(command: Sequence[str], error: Exception, stderr: str) -> PathError:
    last = stderr.splitlines()[-1] if stderr else ""
    return PathError(
        f"it does not introduce itself: {error}" + (f"; standard error ends with: {last}" if last else ""),
        code="conformance.command",
        path=" ".join(command),
        hint="a reader's first line is a start message; --per-file is for programs that are started once for each file",
    )


def ask_once(
    command: Sequence[str], path: Path, limits: Limits, sandbox: Sandbox, stop: Event, result: Result
) -> Answer:
    """Starts a program for one file; what is noticed of it goes into the result.

    Raises:
        ChildFaultError: It used too much, or ended in a way that means nothing.
    """
    with sandbox.start([*command, str(path)], limits, stop) as child:
        child.end_input()
        try:
            output = child.rest(patience(limits, path), "its end")
        finally:
            status = child.close()
            result.notes += child.notes
            result.stderr = child.stderr_tail
    if status == EXIT_REJECT and not output.strip():  # as after an error that nobody caught
        raise ended_badly(status, " and no reason on its standard output")
    if status not in (EXIT_ACCEPT, EXIT_REJECT, EXIT_SKIP):
        raise ended_badly(status)
    try:
        answer = parse_output(output, status)
    except ProtocolError as error:
        raise ChildFaultError("protocol", str(error)) from error
    result.stderr = ""  # it said what it had to
    return answer
