"""What operations mean: each a few lines of numpy in float64 that a reader can check against its paper."""

from .backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
