"""qwen3moe: Qwen 3 with experts in every layer, none of them shared.

Source: Yang et al., Qwen3 Technical Report (2025).
"""

from __future__ import annotations

from ..hyperparameters import Keys
from ..weights import Weights
from . import blocks
from .blocks import Hyperparameters
from .llama import logits
from .qwen3 import trace

__all__ = ["logits", "read", "trace"]


def read(keys: Keys, _w: Weights) -> Hyperparameters:
    """The hyperparameters."""
    return blocks.read(keys, "neox", experts="always")
