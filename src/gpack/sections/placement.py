"""Where each tensor belongs: the placement rules of the format, shared by the converter and the verifier.

By the first rule that fits: token embedding, output head, PLE table, a draft layer's tensors, routed experts, the
native arena (2-D, quantised in blocks), the dense pack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..generated.constants import ExpertRole, SectionKind
from .dense import is_native

EMBEDDING, HEAD, PLE = "token_embd.weight", "output.weight", "per_layer_token_embd.weight"
ARCHITECTURE, UNKNOWN = "general.architecture", "unknown"  # the key, and what stands for it where it is absent or empty
_SINGLE = {EMBEDDING: SectionKind.EMBED_BLOB, HEAD: SectionKind.HEAD_BLOB, PLE: SectionKind.PLE_BLOB}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(.+)")
_EXPERT_ROLES = {
    "ffn_gate_exps.weight": ExpertRole.GATE,
    "ffn_up_exps.weight": ExpertRole.UP,
    "ffn_down_exps.weight": ExpertRole.DOWN,
    "ffn_gate_up_exps.weight": ExpertRole.GATE_UP,
}
# What a layer of routed experts may consist of, in the order of a blob.
ROLE_SETS = (
    (ExpertRole.GATE, ExpertRole.UP, ExpertRole.DOWN),
    (ExpertRole.GATE_UP, ExpertRole.DOWN),
    (ExpertRole.UP, ExpertRole.DOWN),
)


class Shape(NamedTuple):
    """What placement depends on."""

    name: str
    ggml_type: int
    dims: tuple[int, ...]


class Placement(NamedTuple):
    """Where a tensor belongs.

    Attributes:
        section: Kind of the section.
        role: Of ExpertRole; not NONE only for routed experts, a draft layer's too.
        layer: Number of the layer of routed experts.
    """

    section: int
    role: int = ExpertRole.NONE
    layer: int = -1


def assign_placements(shapes: Iterable[Shape], draft_from: int | None) -> dict[str, Placement]:
    """Where every tensor belongs.

    Args:
        draft_from: Number of the first draft layer; None where the model has none.
    """
    shapes = list(shapes)
    experts = _expert_layers(shapes)
    placements = {}
    for shape in shapes:
        layer = layer_of(shape.name)
        role = experts.get(shape.name, ExpertRole.NONE)
        if shape.name in _SINGLE and len(shape.dims) == 2:
            placements[shape.name] = Placement(_SINGLE[shape.name])
        elif draft_from is not None and layer is not None and layer >= draft_from:
            placements[shape.name] = Placement(SectionKind.MTP_BLOB, role, layer)
        elif role and layer is not None:
            placements[shape.name] = Placement(SectionKind.EXPERT_BLOBS, role, layer)
        elif is_native(shape.ggml_type, len(shape.dims)):
            placements[shape.name] = Placement(SectionKind.NATIVE_DENSE_BLOB)
        else:
            placements[shape.name] = Placement(SectionKind.DENSE_PACK_BLOB)
    return placements


def layer_of(name: str) -> int | None:
    """Number of the layer that a tensor's name says; None where it says none."""
    match = _LAYER.fullmatch(name)
    return int(match[1]) if match else None


def draft_start(get: Callable[[str], Any]) -> int | None:
    """Number of the first draft layer, from the metadata; None where the model has none.

    Args:
        get: Decoded metadata value of a key, or None.
    """
    architecture = get(ARCHITECTURE) or UNKNOWN
    drafts = get(f"{architecture}.nextn_predict_layers")
    layers = get(f"{architecture}.block_count")
    if not (is_count(drafts) and is_count(layers)) or not 0 < drafts <= layers:
        return None
    return int(layers - drafts)


def is_count(value: object) -> bool:
    """Whether a metadata value is a number that can count something."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _expert_layers(shapes: Iterable[Shape]) -> dict[str, int]:
    """Names of routed experts and their roles, of the layers whose matrices belong together."""
    layers: dict[int, dict[int, Shape]] = {}
    for shape in shapes:
        match = _LAYER.fullmatch(shape.name)
        if match and match[2] in _EXPERT_ROLES:
            layers.setdefault(int(match[1]), {})[_EXPERT_ROLES[match[2]]] = shape
    return {
        shape.name: role
        for matrices in layers.values()
        if _belong_together(matrices)
        for role, shape in matrices.items()
    }


def _belong_together(matrices: Mapping[int, Shape]) -> bool:
    if not any(set(roles) == set(matrices) for roles in ROLE_SETS):
        return False
    if any(len(shape.dims) != 3 or 0 in shape.dims for shape in matrices.values()):
        return False
    fused = matrices.get(ExpertRole.GATE_UP)
    same_count = len({shape.dims[2] for shape in matrices.values()}) == 1
    return same_count and (fused is None or fused.dims[1] % 2 == 0)
