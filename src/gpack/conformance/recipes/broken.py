"""All broken packs: importing the tables fills them, which makes the base packs."""

from . import (
    broken_assets,
    broken_chunks,
    broken_container,
    broken_manifest,
    broken_metadata,
    broken_tables,
    broken_tensors,
    broken_tokenizer,
    swept,
)
from .case import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "broken_assets",
    "broken_chunks",
    "broken_container",
    "broken_manifest",
    "broken_metadata",
    "broken_tables",
    "broken_tensors",
    "broken_tokenizer",
    "swept",
]
