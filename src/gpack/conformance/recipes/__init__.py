"""Recipes of the vectors: base packs, valid variants, and for every rule the changes that break it.

Importing them makes packs: this is for the generator of `spec/vectors` and for tests, not for those who read vectors.
"""

from . import broken_container, broken_tables, broken_tensors
from .case import CASES, Case

__all__ = ["CASES", "Case", "broken_container", "broken_tables", "broken_tensors"]
