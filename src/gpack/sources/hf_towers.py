"""Which tensors of a Hugging Face model are the text model's, which towers beside it, and which are no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .hf_config import HfConfig
from .hf_prefix import TEXT, TextPrefix, plain_name
from .hf_streams import DRAFT_OF_STREAMS
from .safetensors import StoredTensor

# Tables that a model computes from its configuration.
_BUFFERS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
# Towers of models whose architecture is not known; of a known one, all that is not the text model's is a tower.
_TOWERS = (
    "visual",
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "vision_embed_tokens",
    "vit",
    "multi_modal_projector",
    "mm_projector",
    "embed_vision",
    "audio_tower",
    "audio_encoder",
    "audio_model",
    "embed_audio",
    "speech_encoder",
    "mtp",
)
MTP = "mtp"
_DRAFT = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "embed_tokens": "embed_tokens",
    "lm_head": "shared_head_head",
}
_SENSES = ("vision", "mm_", "audio", "image", "video")  # how keys of what is no text model begin


@dataclass(frozen=True)
class Draft:
    """A draft layer that the text model can use.

    Attributes:
        layer: Its number, after the model's own layers.
        others: Its tensors beside the layer's own, to their names in GGUF.
    """

    layer: int
    others: dict[str, str]


@dataclass
class Sorted:
    """The tensors of a model, sorted; each in the order of the source.

    Attributes:
        text: Plain name (`model.layers.0. ...`) and tensor.
        towers: Name of the tower to its tensors.
        buffers: What is computed from the configuration anyway.
    """

    text: list[tuple[str, StoredTensor]] = field(default_factory=list)
    towers: dict[str, list[StoredTensor]] = field(default_factory=dict)
    buffers: list[StoredTensor] = field(default_factory=list)


def sort_tensors(
    tensors: Sequence[StoredTensor], config: HfConfig, *, known: bool, draft: Draft | None = None
) -> Sorted:
    """Sorts the tensors of a model.

    Args:
        known: Its architecture is known.
        draft: Its draft layer, if the text model can use it.
    """
    made = Sorted()
    prefix = TextPrefix.of(tensors, config)
    senses = any(key.startswith(_SENSES) for key in config.outer)

    def own(name: str) -> bool:
        """What lies among the text model's tensors is a part of it, unless the model sees or hears."""
        return prefix.holds(name) and not senses and tower_of(plain_name(name)) not in _TOWERS

    for tensor in tensors:
        name = prefix.plain(tensor.name)
        tower = tower_of(plain_name(tensor.name))
        if known and name.endswith(_BUFFERS):
            made.buffers.append(tensor)
        elif draft and name.startswith(f"{MTP}.layers.0."):
            made.text.append((name.replace(f"{MTP}.layers.0.", f"model.layers.{draft.layer}.", 1), tensor))
        elif (draft and name in draft.others) or (known and (TEXT.match(name) or own(tensor.name))):
            made.text.append((name, tensor))
        elif known or tower in _TOWERS:
            made.towers.setdefault(tower, []).append(tensor)
        else:
            made.text.append((tensor.name, tensor))
    return made


def tower_of(name: str) -> str:
    """The part of a model that a tensor's name says."""
    parts = name.split(".")
    return parts[1] if parts[0] == "model" and len(parts) > 1 else parts[0]


def find_draft(tensors: Sequence[StoredTensor], config: HfConfig, *, has_streams: bool) -> Draft | None:
    """The draft layer of a model, where it has exactly one and the configuration says so."""
    if config.count("mtp_num_hidden_layers") != 1:
        return None
    if not any(tensor.name.startswith(f"{MTP}.layers.0.") for tensor in tensors):
        return None
    layer = config.need("num_hidden_layers")
    names = _DRAFT | (DRAFT_OF_STREAMS if has_streams else {"norm": "shared_head_norm"})
    return Draft(layer, {f"{MTP}.{own}.weight": f"blk.{layer}.nextn.{theirs}.weight" for own, theirs in names.items()})
