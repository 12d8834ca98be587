"""A loaded model's weights: tensors, routed experts, the table of per-layer embeddings; what an engine stands on."""

from .experts import Expert, FileExpertSource
from .load import GuildModel, ModelPaths
from .ngram import NgramHash, ngram_rows
from .ple import PleIo, PleTable

__all__ = ["Expert", "FileExpertSource", "GuildModel", "ModelPaths", "NgramHash", "PleIo", "PleTable", "ngram_rows"]
