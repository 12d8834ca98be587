"""Opening a GGUF together with what may belong to it."""

from __future__ import annotations

import os

from .gguf import GgufSource
from .model import ModelSource


def open_gguf(
    path: str | os.PathLike[str],
    *,
    pack_dir: str | os.PathLike[str] | None = None,
    mtp_dir: str | os.PathLike[str] | None = None,
) -> ModelSource:
    """A GGUF model."""
    return GgufSource.open(path)
