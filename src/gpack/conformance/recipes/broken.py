"""All broken packs: importing the tables fills them, which makes the base packs."""

from . import broken_chunks, broken_container, broken_tables, broken_tensors, swept
from .case import CASES, Case

__all__ = ["CASES", "Case", "broken_chunks", "broken_container", "broken_tables", "broken_tensors", "swept"]
