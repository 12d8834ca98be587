"""A loaded model: tensors, routed experts, the table of per-layer embeddings, and running it."""

from ..generate.guild_model import GuildModel
from .experts import Expert, FileExpertSource
from .load import ModelPaths
from .ngram import NgramHash, ngram_rows
from .ple import PleIo, PleTable

__all__ = ["Expert", "FileExpertSource", "GuildModel", "ModelPaths", "NgramHash", "PleIo", "PleTable", "ngram_rows"]
