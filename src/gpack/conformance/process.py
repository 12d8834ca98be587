"""Somebody else's program, run within bounds: time, memory, output, disk. Whatever it does, it ends, and so do we.

Nothing here blocks: one loop reads what the program says, feeds it, samples its memory and its folders, and knows the
time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, Self

from ..errors import PathError
from . import process_group
from .disk import used_bytes
from .outcomes import Outcome

MIB = 1 << 20
_CHUNK = 1 << 16
_SAMPLE_SECONDS = 0.05
_END_SECONDS = 0.005
_CLOSED_SECONDS = 1.0
_REAP_SECONDS = 10.0
_PIPE_BYTES = 1 << 20  # the most that Linux gives an ordinary user
_STDERR_KEPT = 8 << 10
_BLOCK = 512  # unit of `ulimit -f`
_LARGEST_FILE_FACTOR = 4  # some runtimes reserve large files in memory that they never fill


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        timeout: Seconds for one answer, or one file.
        start_timeout: Seconds from the start to the first line: runtimes need theirs.
        memory: Bytes of all its processes together.
        processes: How many of them there may be at a time; threads do not count.
        line: Bytes of the longest line, and of all that is not asked for.
        stderr: Bytes on standard error; the last few are kept for the report, the rest is read and dropped.
        disk: Bytes in its working and temporary folders. One file anywhere may have four times that.
        grace: Seconds to end when it is asked to.
    """

    timeout: float = 10.0
    start_timeout: float = 30.0
    memory: int = 2048 * MIB
    processes: int = 256
    line: int = 64 * MIB
    stderr: int = 64 * MIB
    disk: int = 1024 * MIB
    grace: float = 0.5


class ChildFaultError(Exception):
    """The program did what ends it.

    Attributes:
        outcome: One of `crash`, `timeout`, `memory`, `processes`, `output`, `disk`, `protocol`; `not-run` where the
            run is stopped.
    """

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Child:
    """A running program. Use it as a context manager, or call `close`: then everything that it started is gone.

    Attributes:
        notes: What was noticed when it ended: processes left behind, a request to end that it ignored.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        watched: Sequence[Path],
        limits: Limits,
        environment: Mapping[str, str],
        stop: Event,
    ) -> None:
        """Starts the program.

        Args:
            folder: Its working directory.
            watched: The folders whose size is bounded.
            environment: Added to our own.
            stop: Set from elsewhere, it ends all waiting.

        Raises:
            PathError: It cannot be started (`conformance.command`).
        """
        self.limits, self.notes = limits, list[str]()
        self._watched = tuple(watched)
        self._stop = stop
        self._token = secrets.token_hex(16)
        self._out, self._err, self._err_bytes = bytearray(), bytearray(), 0
        self._lines = 0
        self._pending = memoryview(b"")
        self._next_sample = 0.0
        self._closed, self._status = False, 0
        self._process = _start(
            command, folder, limits, {**os.environ, **environment, process_group.TOKEN_VARIABLE: self._token}
        )
        self._selector = selectors.DefaultSelector()
        self._streams = {"out": self._process.stdout, "err": self._process.stderr}
        for name, stream in self._streams.items():
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ talking

    def send(self, data: bytes) -> None:
        """Puts bytes into its standard input; they are written while lines are waited for."""
        stdin = self._process.stdin
        if not self._pending:
            assert stdin is not None
            self._selector.register(stdin, selectors.EVENT_WRITE, "in")
        self._pending = memoryview(bytes(self._pending) + data)

    def line(self, seconds: float, what: str) -> bytes:
        """The next line of its standard output, without the line feed.

        Args:
            what: What is waited for, for messages.

        Raises:
            ChildFaultError: It ended, took too long, or used too much.
        """
        self._pump(lambda: self._lines > 0, seconds, what)
        self._lines -= 1
        end = self._out.index(b"\n")
        line = bytes(self._out[:end])
        del self._out[: end + 1]
        return line

    def rest(self, seconds: float, what: str) -> bytes:
        """All of its standard output until it ends.

        Raises:
            ChildFaultError: It took too long or used too much.
        """
        self._pump(lambda: False, seconds, what, until_end=True)
        return bytes(self._out)

    def unasked(self) -> bytes:
        """What it has said by now that nobody waits for."""
        if not self._lines:
            self._turn(0.0)
        return bytes(self._out)

    def end_input(self) -> None:
        """Closes its standard input."""
        assert self._process.stdin is not None
        self._drop("in")

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return process_group.has_ended(self._process.pid)

    @property
    def stderr_tail(self) -> str:
        """The end of what it said on standard error."""
        return bytes(self._err).decode("utf-8", "backslashreplace").strip()

    # ------------------------------------------------------------ ending

    def close(self) -> int:
        """Ends it and everything that belongs to it.

        Returns:
            Its exit status; negative: the number of the signal that ended it, ours included.
        """
        if self._closed:
            return self._status
        self._closed = True
        pid = self._process.pid
        ended = self.has_ended
        left = [p for p in process_group.belonging(pid, self._token, by_token=True) if p.pid != pid]
        if ended and left:
            self.notes.append(f"left {len(left)} running process{'es' if len(left) > 1 else ''} behind")
        obeyed = process_group.end(pid, self._token, grace=self.limits.grace)
        if not ended and not obeyed:
            self.notes.append("ignored SIGTERM")
        try:
            status = self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:  # it became somebody else's, or waits for a device
            self.notes.append("could not be ended, and was left behind")
            status = self._process.returncode = -signal.SIGKILL  # nobody waits for it any more
        self._drain("err")
        for name in ("in", "out", "err"):
            self._drop(name)
        self._selector.close()
        self._status = status
        return status

    # ------------------------------------------------------------ the loop

    def _pump(self, done: Callable[[], bool], seconds: float, what: str, *, until_end: bool = False) -> None:
        deadline = time.monotonic() + seconds
        closed = False
        while not done():
            if self._stop.is_set():
                raise ChildFaultError("not-run", "the run was stopped")
            left = deadline - time.monotonic()
            if left <= 0 and closed:
                raise ChildFaultError("crash", f"it closed its standard output before {what} came")
            if left <= 0:
                raise ChildFaultError("timeout", f"{what} did not come within {round(seconds, 1):g} s")
            self._turn(min(_SAMPLE_SECONDS, left))
            if self.has_ended:
                self._drain("out")
                self._drain("err")
                self._check_output()
                if done() or until_end:
                    return
                raise ended_badly(process_group.exit_status(self._process.pid), f" before {what} came")
            if "out" not in self._open() and not until_end and not done():
                # A process that ends closes its streams a moment before.
                deadline = min(deadline, time.monotonic() + _CLOSED_SECONDS) if not closed else deadline
                closed = True

    def _turn(self, seconds: float) -> None:
        """One turn of the loop: whatever is ready is read or written, then the limits are looked at."""
        if not self._open():
            time.sleep(min(seconds, _END_SECONDS))  # nothing to wait for but the program's end
            ready = []
        else:
            ready = [key.data for key, _ in self._selector.select(seconds)]
        for name in ready:
            if name == "in":
                self._feed()
            else:
                self._take(name)
        self._check()

    def _open(self) -> set[str]:
        return {key.data for key in self._selector.get_map().values()}

    def _feed(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            written = os.write(stdin.fileno(), self._pending[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # it has closed its input; whether that matters, its answer tells
            self._pending = memoryview(b"")
        else:
            self._pending = self._pending[written:]
        if not self._pending:
            self._selector.unregister(stdin)

    def _take(self, name: str) -> int:
        """Reads what one stream has; the number of bytes, 0 where it has none now, or has ended."""
        stream = self._streams[name]
        assert stream is not None
        try:
            chunk = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._selector.unregister(stream)
        elif name == "out":
            self._out += chunk
            self._lines += chunk.count(b"\n")  # searching all of a long line again and again takes quadratic time
        else:
            self._err_bytes += len(chunk)
            self._err += chunk
            del self._err[:-_STDERR_KEPT]
        return len(chunk)

    def _drain(self, name: str) -> None:
        """What it said before it ended: no more than a pipe holds, for its children may speak on for ever."""
        left = _PIPE_BYTES
        while left > 0 and name in self._open() and (taken := self._take(name)):
            left -= taken

    def _check(self) -> None:
        self._check_output()
        now = time.monotonic()
        if now < self._next_sample:
            return
        family = process_group.belonging(self._process.pid, self._token, by_token=False)
        if len(family) > self.limits.processes:
            raise ChildFaultError("processes", f"it has {len(family)} processes, allowed are {self.limits.processes}")
        used = sum(process.resident for process in family)  # pages that several of them share count for each
        if used > self.limits.memory:
            raise ChildFaultError("memory", f"it used {used // MIB} MiB, allowed are {self.limits.memory // MIB}")
        stored = used_bytes(self._watched, enough=self.limits.disk)
        if stored > self.limits.disk:
            raise ChildFaultError("disk", f"it stored over {self.limits.disk // MIB} MiB in its folders")
        # A slow look at a full folder must not become all that we do.
        self._next_sample = time.monotonic() + max(_SAMPLE_SECONDS, 4 * (time.monotonic() - now))

    def _check_output(self) -> None:
        if len(self._out) > self.limits.line:
            raise ChildFaultError("output", f"it wrote over {self.limits.line} bytes to its standard output")
        if self._err_bytes > self.limits.stderr:
            raise ChildFaultError("output", f"it wrote over {self.limits.stderr} bytes to its standard error")

    def _drop(self, name: str) -> None:
        stream: IO[bytes] | None = self._process.stdin if name == "in" else self._streams[name]
        if stream is None or stream.closed:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream)
        with contextlib.suppress(OSError):
            stream.close()


def ended_badly(status: int, when: str = "") -> ChildFaultError:
    """The fault of a program that ended in a way that means nothing.

    Args:
        status: Its exit status; negative: the number of a signal.
    """
    if status == -signal.SIGXFSZ:
        return ChildFaultError("disk", "it was stopped when it wrote a file beyond the largest size")
    return ChildFaultError("crash", f"it ended with {status_text(status)}{when}")


def status_text(status: int) -> str:
    """An exit status, or the name of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _start(
    command: Sequence[str], folder: Path, limits: Limits, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts the command through a shell that sets the limits which only the process itself can set."""
    blocks = _LARGEST_FILE_FACTOR * limits.disk // _BLOCK
    script = f'ulimit -c 0; ulimit -f {blocks}; exec "$@"'
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise PathError(
            f"the command cannot be started: {error}", code="conformance.command", path=command[0]
        ) from error
