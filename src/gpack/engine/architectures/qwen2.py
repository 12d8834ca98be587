"""qwen2: Qwen 2 and 2.5; llama with the other pairing of rotated elements, and biases of queries, keys and values.

Source: Yang et al., Qwen2 Technical Report (2024).
"""

from __future__ import annotations

from ..hyperparameters import Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters
from .llama import logits, trace

__all__ = ["logits", "read", "trace"]


def read(keys: Keys, _w: Weights) -> Hyperparameters:
    """The hyperparameters."""
    h = blocks.read(keys, "neox")
    blocks.check_width(keys, h)
    return h
