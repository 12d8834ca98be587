"""A vector of a few bytes, for tests of the reader's runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fake:
    id: str = "v"
    expect: str = "accept"
    cls: str | None = None
    level: str = "structure"
    required: bool = True
    path: str | None = None
    large: bool = False
    doc: str = ""

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.id}.gpack"
        path.write_bytes(b"vector\n")
        return path
