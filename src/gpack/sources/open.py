"""Opening a GGUF together with what may belong to it: a pack directory, draft layers."""

from __future__ import annotations

import os
from pathlib import Path

from .composite import CompositeSource
from .gguf import GgufSource
from .mtp_dir import add_mtp
from .pack_dir import add_pack_dir


def open_gguf(
    path: str | os.PathLike[str],
    *,
    pack_dir: str | os.PathLike[str] | None = None,
    mtp_dir: str | os.PathLike[str] | None = None,
    external_experts: bool = False,
) -> GgufSource | CompositeSource:
    """A GGUF model, with what a pack directory says of it and the draft layers of other files.

    Args:
        external_experts: The experts stay in the GGUF, whatever the pack directory has of them.

    Raises:
        GpackError: A file is missing, damaged, or contradicts another.
    """
    base = GgufSource.open(path)
    if pack_dir is None and mtp_dir is None:
        return base
    source = CompositeSource(base)
    try:
        if pack_dir is not None:
            add_pack_dir(source, Path(pack_dir), external_experts=external_experts)
        if mtp_dir is not None:
            add_mtp(source, Path(mtp_dir))
    except BaseException:
        source.close()
        raise
    return source
