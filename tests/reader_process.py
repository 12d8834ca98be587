"""A reader as a process that tests talk to, and how much memory it took."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import running


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The reader's process, and its first line."""
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield process, json.loads(process.stdout.readline())
        process.stdin.write('{"type":"stop"}\n')
        process.stdin.flush()
        assert process.wait(timeout=60) == 0


def ask(process: subprocess.Popen[str], path: Path) -> dict[str, Any]:
    """The reader's answer about a file."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps({"type": "run", "seq": 7, "id": path.name, "path": str(path)}) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    assert answer["seq"] == 7
    return answer


def peak(process: subprocess.Popen[str]) -> int:
    """The most memory that the process ever had resident, in bytes."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        pytest.skip("no /proc here: a process's memory cannot be asked for")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
