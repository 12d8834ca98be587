"""What kind of GGUF a file is where it is no model that writes text: an adapter, a projector, a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..container.strict_json import shorten
from ..sections.placement import ARCHITECTURE
from ..sections.tokenizer import TOKENS

_TYPES = {
    "adapter": "it is an adapter ({0}), which goes with a model and is none itself",
    "mmproj": "it is the projector of a model that sees or hears, which goes with the model",
    "imatrix": "it holds statistics for quantisation (an imatrix), not a model",
    "vocab": "it is a vocabulary without weights",
}
_POOLING = {1: "mean", 2: "first token", 3: "last token", 4: "rank"}


def other_kind(get: Callable[[str], Any], names: Sequence[str]) -> str | None:
    """What a GGUF is in the place of a model that writes text, as a sentence; None where nothing speaks against one.

    Args:
        get: Decoded metadata value of a key, or None.
        names: The tensors.
    """
    kind, architecture = get("general.type"), get(ARCHITECTURE)
    if kind == "adapter" or any(name.endswith((".lora_a", ".lora_b")) for name in names):
        what = get("adapter.type")
        return _TYPES["adapter"].format(what if isinstance(what, str) else "LoRA")
    if kind == "mmproj" or architecture == "clip":
        return _TYPES["mmproj"]
    if kind == "imatrix" or (names and all(name.endswith((".in_sum2", ".counts")) for name in names)):
        return _TYPES["imatrix"]
    if kind == "vocab" or (not names and get(TOKENS) is not None and architecture is not None):
        return _TYPES["vocab"]
    pooling = get(f"{architecture}.pooling_type")
    if isinstance(pooling, int) and not isinstance(pooling, bool) and pooling > 0:
        return f"it is an embedding model, which turns a text into numbers (pooling: {_POOLING.get(pooling, pooling)})"
    if isinstance(kind, str) and kind not in ("model", ""):
        return f"its general.type is {shorten(kind)}, not model"
    return None
