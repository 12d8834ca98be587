"""The schemas as the generator reads them, each once in a process: reading one takes about a second."""

from __future__ import annotations

from pathlib import Path

from codegen.loader import load

ROOT = Path(__file__).parents[1]
GPACK = load(ROOT / "schema" / "gpack.yaml")
GGUF = load(ROOT / "schema" / "gguf.yaml")
