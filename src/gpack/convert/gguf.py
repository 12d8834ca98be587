"""GGUF into a pack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..sources.composite import columns_of
from ..sources.open import open_gguf
from .conversion import Conversion, convert_model
from .external import external_files


def convert_gguf(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    pack_dir: str | os.PathLike[str] | None = None,
    mtp_dir: str | os.PathLike[str] | None = None,
    external_experts: bool = False,
    hash_shards: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Converts a GGUF model, one file or any of its shards, into a pack.

    Errors, result and the other arguments are those of `convert_model`.

    Args:
        pack_dir: Pack directory of the model: `index.txt`, `dense.bin`, `native_experts.txt`, `tokenizer/`.
        mtp_dir: Directory of its draft layers, or an `mtp-*.gguf`.
        external_experts: Leave the routed experts in the GGUF's files: the pack records where they are, and the
            digest of each file's header. Their bytes are not read, so that their size costs no time.
        hash_shards: With external experts, record a digest of every byte of their files, which reads them whole.
    """
    started = time.perf_counter()
    with open_gguf(source, pack_dir=pack_dir, mtp_dir=mtp_dir, external_experts=external_experts) as model:
        return convert_model(
            model,
            output,
            name=name,
            external=external_files(model, hash_shards=hash_shards) if external_experts else None,
            dense_columns=columns_of(model),
            dry_run=dry_run,
            progress=progress,
            started=started,
        )
