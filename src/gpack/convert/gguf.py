"""GGUF into a pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..sources.gguf import GgufSource
from .conversion import Conversion, convert_model


def convert_gguf(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Converts a GGUF model, one file or any of its shards, into a pack.

    Args, errors and result are those of `convert_model`.
    """
    started = time.perf_counter()
    with GgufSource.open(source) as model:
        return convert_model(model, output, name=name, dry_run=dry_run, progress=progress, started=started)
