"""A reader, and a writer, that behave as they are told: `bad_program.py MODE [PIDFILE]`. They misbehave at the file
whose id holds `bad`, and do what they should at all others.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLEEP = 600  # seconds: longer than any test may take
DUMP = {"header": {"x": 1}, "footer": {}, "sections": []}


def say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def flood(stream: int, data: bytes) -> None:
    while True:
        os.write(stream, data)


def grow() -> None:
    held = []
    while True:
        held.append(b"\1" * (1 << 22))


def breed(number: int) -> None:
    for _ in range(number):
        if os.fork() == 0:
            time.sleep(SLEEP)
            os._exit(0)


def fill(folder: Path, size: int) -> None:
    for number in itertools.count():
        (folder / f"fill{number}").write_bytes(b"x" * size)


def large_file(path: Path) -> None:
    with path.open("wb") as file:
        while True:
            file.write(b"x" * (1 << 20))


def leave_child(pid_file: str, *, session: bool) -> None:
    """A process that outlives us and holds our streams open."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=session)
    Path(pid_file).write_text(str(child.pid))
    time.sleep(0.3)  # until it ignores the signal
    child.returncode = 0  # nobody waits for it, and nobody complains


def leave_speaking_child(pid_file: str) -> None:
    """A process in a session of its own that outlives us and never stops to write to our standard output."""
    if os.fork() == 0:
        os.setsid()
        Path(pid_file).write_text(str(os.getpid()))
        flood(1, b" ")
    while not Path(pid_file).exists():
        time.sleep(0.01)


def behave_badly(mode: str, seq: int, path: Path, rest: list[str]) -> None:
    result: dict[str, Any] = {"type": "result", "seq": seq}
    accept = {**result, "verdict": "accept", "dump": DUMP}
    work = path.parent.parent / "work"
    actions: dict[str, list[Callable[[], object]]] = {
        "hang": [lambda: time.sleep(SLEEP)],
        "stubborn": [lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: time.sleep(SLEEP)],
        "flood-stdout": [lambda: flood(1, b"x" * 65536)],
        "flood-lines": [lambda: flood(1, b"{}\n" * 20000)],
        "flood-stderr": [lambda: flood(2, b"noise\n" * 10000)],
        "partial": [lambda: raw(b'{"type":"result",'), lambda: time.sleep(SLEEP)],
        "partial-exit": [lambda: raw(b'{"type":"result",'), lambda: os._exit(0)],
        "exit": [lambda: os._exit(0)],
        "exit-3": [lambda: sys.stderr.write("it broke\n"), sys.stderr.flush, lambda: os._exit(3)],
        "signal": [lambda: os.kill(os.getpid(), signal.SIGSEGV)],
        "wrong-seq": [lambda: say({**accept, "seq": seq + 1})],
        "true-seq": [lambda: say({**accept, "seq": True})],
        "no-json": [lambda: raw(b"accept\n")],
        "no-utf8": [lambda: raw(b'{"type":"result","seq":%d,"verdict":"skip","reason":"\xff"}\n' % seq)],
        "nan": [lambda: raw(b'{"type":"result","seq":%d,"verdict":"accept","dump":{"x":NaN}}\n' % seq)],
        "doubled-key": [lambda: raw(b'{"type":"result","type":"result","seq":%d}\n' % seq)],
        "deep": [lambda: raw(b"[" * 100_000 + b"\n")],
        "array": [lambda: raw(b"[]\n")],
        "enormous-line": [lambda: raw(b'{"x":"' + b"x" * (3 << 20)), lambda: raw(b'"}\n')],
        "verdict": [lambda: say({**result, "verdict": "perhaps"})],
        "no-dump": [lambda: say({**result, "verdict": "accept"})],
        "no-class": [lambda: say({**result, "verdict": "reject", "message": "no"})],
        "class": [lambda: say({**result, "verdict": "reject", "class": "bad", "message": "no"})],
        "twice": [lambda: say(accept), lambda: say(accept)],
        "close": [lambda: os.close(1), lambda: time.sleep(SLEEP)],
        "memory": [grow],
        "processes": [lambda: breed(100), lambda: time.sleep(SLEEP)],
        "disk": [lambda: fill(Path.cwd(), 1 << 18)],
        "disk-temporary": [lambda: fill(Path(os.environ["TMPDIR"]), 1 << 18)],
        "many-files": [lambda: fill(Path.cwd(), 0)],
        "large-file": [lambda: large_file(Path(rest[0]))],
        "change": [lambda: path.write_bytes(path.read_bytes()[::-1]), lambda: say(accept)],
        "append-undo": [lambda: os.truncate(path, 0), lambda: path.write_bytes(b"vector\n"), lambda: say(accept)],
        "remove": [path.unlink, lambda: say(accept)],
        "pipe": [path.unlink, lambda: os.mkfifo(path), lambda: say(accept)],
        "mode": [lambda: path.chmod(0o600), lambda: say(accept)],
        "beside": [lambda: (path.parent / "new").write_text("x"), lambda: say(accept)],
        "bystander": [(Path.cwd().parent / "beside" / "bystander.txt").unlink, lambda: say(accept)],
        "outside": [lambda: (Path.cwd().parent / "new").write_text("x"), lambda: say(accept)],
        "link": [lambda: Path.cwd().rename(rest[0]), lambda: work.symlink_to(rest[0]), lambda: say(accept)],
        "leave": [lambda: Path("left").write_text("x"), lambda: say(accept)],
        "leave-temporary": [lambda: (Path(os.environ["TMPDIR"]) / "left").write_text("x"), lambda: say(accept)],
        "child": [lambda: leave_child(rest[0], session=False), lambda: os._exit(0)],
        "child-session": [lambda: leave_child(rest[0], session=True), lambda: os._exit(0)],
        "child-flood": [lambda: leave_speaking_child(rest[0]), lambda: os._exit(0)],
        "child-answer": [lambda: leave_child(rest[0], session=True), lambda: say(accept)],
    }
    for action in actions[mode]:
        action()


def reader(mode: str, rest: list[str]) -> None:
    start = {"type": "start", "protocol": 1, "name": "bad", "language": "python", "version": "0", "level": "semantic"}
    if mode == "unasked":
        say(start)
        say({"type": "hello"})
        time.sleep(SLEEP)
    say(start)
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "stop":
            break
        if "bad" in request["id"]:
            behave_badly(mode, request["seq"], Path(request["path"]), rest)
        else:
            say({"type": "result", "seq": request["seq"], "verdict": "accept", "dump": DUMP})
    if mode == "no-stop":
        time.sleep(SLEEP)
    if mode == "stop-3":
        sys.exit(3)


def start_badly(mode: str) -> None:
    start = {"type": "start", "protocol": 1, "name": "bad", "language": "python", "version": "0", "level": "semantic"}
    lines: dict[str, Any] = {
        "nothing": None,
        "protocol": {**start, "protocol": 2},
        "level": {**start, "level": "all"},
        "name": {**start, "name": 7},
        "type": {**start, "type": "hello"},
        "depth": {**start, "depth": "deep"},
    }
    if mode == "hang":
        time.sleep(SLEEP)
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    if lines[mode] is not None:
        say(lines[mode])


def main() -> None:
    kind, mode, *rest = sys.argv[1:]
    if kind == "reader":
        reader(mode, rest)
    else:
        start_badly(mode)


if __name__ == "__main__":
    main()
