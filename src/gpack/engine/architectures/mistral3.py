"""mistral3: Ministral 3; llama whose queries grow beyond the positions that it was first trained on.

Source: Mistral AI, Ministral 3 (2025). Within those positions the factor of queries is exactly 1: texts are kept there.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..hyperparameters import MOST_CONTEXT, Keys
from ..weights import Weights
from . import llama
from .blocks import Hyperparameters
from .llama import logits, trace

__all__ = ["logits", "read", "trace"]


def read(keys: Keys, w: Weights) -> Hyperparameters:
    """The hyperparameters."""
    h = llama.read(keys, w)
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", default=0.0, above=-math.inf)
    yarn = h.rope.yarn
    if multiplier and yarn is not None and h.rope.factor > 1:  # files that say so have no factor of their own
        grown = 1 + 0.1 * multiplier * math.log(h.rope.factor)
        h = replace(h, rope=replace(h.rope, yarn=replace(yarn, attention_factor=1 / grown)))
    if keys.number("attention.temperature_scale", default=0.0, above=-math.inf):
        first = keys.integer("rope.scaling.original_context_length", most=MOST_CONTEXT, default=h.n_context)
        h = replace(h, most_context=first)
    return h
