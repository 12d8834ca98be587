"""Runs a target in a process of its own under atheris, and counts what it did."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .child import COUNTS
from .log import FuzzerLog
from .registry import targets
from .result import Result

ROOT = Path(__file__).parents[1]
_TIMEOUT, _MEMORY = 20, 2048  # seconds of one input, MiB of the process


def run(name: str, *, seconds: int, runs: int, folder: Path) -> Result:
    """Fuzzes until a limit is reached (0: none), or something is found.

    Args:
        folder: For the corpus, which a later run begins with, and the input that something was found with.
    """
    if importlib.util.find_spec("atheris") is None:
        return Result(name, skipped="atheris is not installed: pip install -e '.[fuzz]'")
    corpus, counts = folder / "corpus", folder / "counts"
    corpus.mkdir(parents=True, exist_ok=True)
    counts.write_bytes(bytes(COUNTS.size))
    target = targets()[name]
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    limits = [f"-max_total_time={seconds}", f"-runs={runs or -1}", f"-max_len={target.limit}"]
    guards = [f"-timeout={_TIMEOUT}", f"-rss_limit_mb={_MEMORY}", f"-artifact_prefix={folder}/"]
    command = [sys.executable, "-m", "fuzz.child", name, str(counts), *limits, *guards, str(corpus)]
    log = FuzzerLog()
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="gpack-fuzz-", dir=memory if memory.is_dir() else None))
    try:
        with subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # atheris shows what escaped on the other
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": str(scratch)},
        ) as process:
            for line in process.stdout or ():
                log.take(line)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    executions, passed, taken = COUNTS.unpack(counts.read_bytes())
    return Result(
        name,
        executions=executions,
        passed=passed,
        opened=taken,
        edges=log.edges,
        since_edge=executions - log.last_edge,
        finding=None if process.returncode == 0 else log.told(),
        by="atheris",
    )
