"""`guild serve --cache-dir` as processes, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .serving import serving, write_model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
httpx = pytest.importorskip("httpx", reason="the package httpx is not installed")


def test_a_prompt_is_known_after_a_restart(tmp_path: Path) -> None:
    path, cache = write_model(tmp_path), tmp_path / "cache"
    body = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue? " * 8}], "max_tokens": 8}
    seen: list[tuple[Any, int, int]] = []
    for _ in range(2):
        with serving(path, "--cache-dir", str(cache)) as address:
            found = httpx.post(f"{address}/v1/chat/completions", json={**body, "seed": 3}, timeout=60).json()
            text = httpx.get(f"{address}/metrics").text
            read = re.search(r"^gpack_prompt_tokens_read_total\{.*\} (\S+)", text, re.MULTILINE)
            assert read is not None
            cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
            seen.append((found["choices"], cached, int(float(read[1]))))
    (first, cached, read_rows), (second, cached_after, read_after) = seen
    assert first == second
    assert (cached, read_after) == (0, 1)
    assert cached_after == read_rows - 1 > 150
