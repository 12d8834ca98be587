"""GGUF into a pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..sources.gguf import GgufSource
from .conversion import Conversion, convert_model
from .external import ExternalFiles


def convert_gguf(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    external_experts: bool = False,
    hash_shards: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Converts a GGUF model, one file or any of its shards, into a pack.

    Errors, result and the other arguments are those of `convert_model`.

    Args:
        external_experts: Leave the routed experts in the GGUF's files: the pack records where they are, and the
            digest of each file's header. Their bytes are not read, so that their size costs no time.
        hash_shards: With external experts, record a digest of every byte of their files, which reads them whole.
    """
    started = time.perf_counter()
    with GgufSource.open(source) as model:
        external = ExternalFiles(model, hash_shards) if external_experts else None
        return convert_model(
            model, output, name=name, external=external, dry_run=dry_run, progress=progress, started=started
        )
