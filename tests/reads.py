"""What a test reads of files: every `pread` and `preadv` is noted."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest


class Reads:
    """What was read of which file, by byte range."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
        pread, preadv = os.pread, os.preadv

        def count_pread(descriptor: int, length: int, offset: int) -> bytes:
            data = pread(descriptor, length, offset)
            self._add(descriptor, offset, len(data))
            return data

        def count_preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
            count = preadv(descriptor, buffers, offset, flags)
            self._add(descriptor, offset, count)
            return count

        monkeypatch.setattr(os, "pread", count_pread)
        monkeypatch.setattr(os, "preadv", count_preadv)

    def touched(self, name: str, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The reads of a file that touch any of these ranges."""
        return [(a, b) for a, b in self.ranges[name] if any(a < end and start < b for start, end in ranges)]

    def _add(self, descriptor: int, offset: int, count: int) -> None:
        self.ranges[os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))].append((offset, offset + count))
