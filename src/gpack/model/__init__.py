"""A loaded model: tensors, routed experts, the table of per-layer embeddings, and running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .experts import Expert, FileExpertSource
from .load import ModelPaths
from .ngram import NgramHash, ngram_rows
from .ple import PleIo, PleTable

if TYPE_CHECKING:
    from ..generate.guild_model import GuildModel

__all__ = ["Expert", "FileExpertSource", "GuildModel", "ModelPaths", "NgramHash", "PleIo", "PleTable", "ngram_rows"]


def __getattr__(name: str) -> Any:
    """`GuildModel` lives above this package, which nothing in here needs: it is found when it is asked for."""
    if name == "GuildModel":
        from ..generate.guild_model import GuildModel

        return GuildModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
