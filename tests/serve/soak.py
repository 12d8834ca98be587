"""`make soak`: requests over many connections, with aborts at random, against a server of this machine.

    python tests/serve/soak.py [--requests N] [--seconds S] [--model FILE]

Every request that is not aborted must give the text that the same request gave before; the memory after all of them
must be that after the first tenth, and nothing may be left running. Without `--model` a tiny one is made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).parents[1])]

_CONNECTIONS, _KINDS = 32, 40
_MOST_GROWTH = 1.05


@dataclass
class Tally:
    """What came of the requests."""

    done: int = 0
    aborted: int = 0
    refused: int = 0
    wrong: int = 0
    texts: dict[int, str] = field(default_factory=dict)


def request(kind: int, model: str) -> dict[str, object]:
    """One of some requests, the same each time."""
    draw = random.Random(kind)
    words = " ".join(draw.choices(["a", "bc", "the", "rain", "in", "spain", "falls"], k=draw.randint(1, 25)))
    return {
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": draw.randint(1, 40),
        "seed": kind,
        "stream": True,
    }


async def ask(client: httpx.AsyncClient, kind: int, model: str, tally: Tally, patience: float | None) -> None:
    """One request; with patience for so many events only, its client leaves."""
    text: list[str] = []
    async with client.stream("POST", "/v1/chat/completions", json=request(kind, model)) as response:
        if response.status_code == 429:
            tally.refused += 1
            return
        response.raise_for_status()
        seen = 0
        async for line in response.aiter_lines():
            seen += line.startswith("data: ")
            if patience is not None and seen > patience:
                tally.aborted += 1
                return
            if line.startswith("data: {"):
                text += [choice["delta"].get("content", "") for choice in json.loads(line[6:])["choices"]]
    found = "".join(text)
    tally.done += 1
    if tally.texts.setdefault(kind, found) != found:
        tally.wrong += 1


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss, threads = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "Threads"))  # type: ignore[index]
    return rss * 1024, threads


async def soak(address: str, pid: int, model: str, n_requests: int, seconds: float) -> int:
    """All requests; the exit code."""
    tally, began, draw = Tally(), time.monotonic(), random.Random(1)
    early: tuple[int, int] | None = None
    limits = httpx.Limits(max_connections=_CONNECTIONS)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.1)
        for kind in range(_KINDS):  # what each gives when nothing runs beside it
            await ask(client, kind, model, tally, None)
        waiting: set[asyncio.Task[None]] = set()
        for number in range(n_requests):
            if time.monotonic() - began > seconds:
                break
            patience = draw.randint(0, 12) if draw.random() < 0.3 else None
            waiting.add(asyncio.create_task(ask(client, draw.randrange(_KINDS), model, tally, patience)))
            if len(waiting) >= _CONNECTIONS:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if number == n_requests // 10:
                early = memory(pid)
        for task in waiting:
            await task
        text = (await client.get("/metrics")).text
    late = memory(pid)
    left = [
        float(found) for found in re.findall(r"^gpack_requests_(?:waiting|running)\{.*\} (\S+)", text, re.MULTILINE)
    ]
    growth = late[0] / early[0] if early else 1.0
    print(
        f"{tally.done} answers, {tally.aborted} aborted, {tally.refused} refused, {tally.wrong} wrong;"
        f" resident {late[0] >> 20} MiB, {growth:.3f} times that after a tenth;"
        f" threads {late[1]}, before {early[1] if early else late[1]}; left over {sum(left):g};"
        f" {time.monotonic() - began:.0f} s"
    )
    return int(tally.wrong > 0 or growth > _MOST_GROWTH or sum(left) > 0)


def main() -> int:
    """Starts the server, and ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            from gguf_maker import tiny_llama, write_gguf

            args.model = str(write_gguf(Path(folder) / "tiny.gguf", *tiny_llama()))
        words = [sys.executable, "-m", "gpack", "serve", args.model, "--port", "0", "--model-alias", "m"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
            assert process.stderr is not None
            try:
                found = next(filter(None, (re.search(r"at (http://\S+)", line) for line in process.stderr)))
                return asyncio.run(soak(found[1], process.pid, "m", args.requests, args.seconds))
            finally:
                process.terminate()
                process.communicate()


if __name__ == "__main__":
    raise SystemExit(main())
