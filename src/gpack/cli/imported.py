"""What an import of safetensors had to say, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..terminal import units
from ..terminal.table import printable


def import_lines(info: Any) -> Iterator[str]:
    """The lines of a manifest's `extensions.import`; a pack by another hand may hold anything there."""
    if not isinstance(info, dict):
        return
    if info.get("runnable") is False:
        reasons = info.get("reasons")
        listed = "; ".join(map(str, reasons)) if isinstance(reasons, list) else "no reason is given"
        yield printable(f"cannot be run: {listed}")
    for key, text in (("parts", "beside the text model"), ("left_out", "left out")):
        parts = info.get(key)
        if isinstance(parts, dict) and parts:
            yield printable(f"{text}: {', '.join(_part(name, part) for name, part in parts.items())}")
    computed = info.get("computed")
    if isinstance(computed, list) and computed:
        yield f"left out: {len(computed)} tables that the configuration tells"


def _part(name: str, part: Any) -> str:
    tensors, size = (part.get("tensors"), part.get("bytes")) if isinstance(part, dict) else (None, None)
    if not isinstance(tensors, int) or not isinstance(size, int):
        return name
    return f"{name} ({tensors} tensors, {units.size(size)})"
