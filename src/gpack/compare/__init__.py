"""What differs between two packs: fixed records, directory, metadata, tensors, tokenizer, files, manifest, bytes."""

from .files import diff
from .result import Diff, Difference, NotCompared

__all__ = ["Diff", "Difference", "NotCompared", "diff"]
