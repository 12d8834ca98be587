"""smollm3: SmolLM 3; llama, of which every fourth layer does not rotate queries and keys.

Sources: Hugging Face, SmolLM3 (2025); Yang et al., Rope to Nope and Back Again (2025).
"""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph, Value
from .blocks import Model
from .llama import logits, read

__all__ = ["logits", "read", "trace"]

_INTERVAL = 4  # GGUF has no key for it


def trace(g: Graph, model: Model) -> Value:
    """The normed hidden states."""
    x, still = model.embed(g), replace(model.h.rope, n_rotated=0, divisors=None, yarn=None)
    for number in range(model.h.n_layer):
        layer = model.layer(number)
        rope = model.h.rope if (number + 1) % _INTERVAL else still
        x = g.add(x, layer.attention(g, layer.norm(g, x, "attn_norm"), rope=rope))
        x = g.add(x, layer.feed_forward(g, layer.norm(g, x, "ffn_norm")))
    return model.norm(g, x)
