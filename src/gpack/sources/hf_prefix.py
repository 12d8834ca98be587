"""Where the text model lies among a model's tensors: wrappers put words before its names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .hf_config import HfConfig
from .safetensors import StoredTensor

# What tools put between the parts of a name, anywhere.
_WORDS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
TEXT = re.compile(
    r"model\.(?:layers\.|embed_tokens\.|norm\.|hyper_connection_mixer\.)|lm_head\."
)  # plain names of the text model
_LAYER = re.compile(r"((?:.*\.)?)layers\.0\..+")
_USUAL = ("model.", "model.language_model.", "language_model.model.", "model.text_model.", "language_model.", "")
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head."


@dataclass(frozen=True)
class TextPrefix:
    """What stands before the names of the text model's tensors.

    Attributes:
        body: Before `layers.` and the like; `model.` where the model is not wrapped.
        heads: What may stand before `lm_head.`, the likeliest first.
    """

    body: str
    heads: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[StoredTensor], config: HfConfig) -> TextPrefix:
        """The prefix under which there are layers and an embedding; of several the usual one, else the one that fits.

        Args:
            config: Says how many tokens there are, and how wide an embedding is.
        """
        shapes = {plain_name(tensor.name): tensor.shape for tensor in tensors}
        found = {match[1] for name in shapes if (match := _LAYER.fullmatch(name))}
        found = {prefix for prefix in found if prefix + _EMBEDDING in shapes}
        body = next((prefix for prefix in _USUAL if prefix in found), None)
        if body is None and found:
            wanted = (config.values.get("vocab_size"), config.values.get("hidden_size"))
            body = next((p for p in sorted(found) if shapes[p + _EMBEDDING] == wanted), min(found))
        body = "model." if body is None else body
        parts = body.split(".")[:-1]
        heads = (".".join(parts[:count]) for count in range(len(parts), -1, -1))
        return cls(body, tuple(f"{head}." if head else "" for head in heads))

    def plain(self, name: str) -> str:
        """The name as a text model that is not wrapped has it: `model.layers.0. ...`, `lm_head.weight`."""
        name = plain_name(name)
        for head in self.heads:
            if name.startswith(head + _HEAD):
                return name.removeprefix(head)
        bare = f"model.{name.removeprefix(self.body)}"
        # Where nothing stands before the layers, nothing tells a tower's tensor from the text model's but its name.
        return bare if name.startswith(self.body) and (self.body or TEXT.match(bare)) else name

    def holds(self, name: str) -> bool:
        """Whether a tensor lies among those of the text model."""
        return bool(self.body) and plain_name(name).startswith(self.body)


def plain_name(name: str) -> str:
    """The name without the words that compilers and trainers put into it."""
    for word in _WORDS:
        name = name.replace(word, "")
    return name
