"""Where the tensors of a model are, whether it comes from a pack or from other files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..container.payload import Range
from ..container.place import Place
from ..generated.constants import ExpertRole, TensorFlags
from ..pack import Pack
from ..sections.placement import Shape, assign_placements, draft_start
from ..sources.composite import columns_of
from ..sources.model import ModelSource


@dataclass(frozen=True)
class Located:
    """A tensor and where its bytes are.

    Attributes:
        dims: Extents, contiguous axis first.
        role: Of ExpertRole.
        code_planes: The bytes are code planes, not values of the type.
        place: In a file; None where the bytes have to be computed.
        source: The bytes, where they have to be computed.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    role: int
    place: Place | None
    source: Range | None = None
    code_planes: bool = False


def locate_in_pack(pack: Pack, *, experts_only: bool = False) -> dict[str, Located]:
    """The tensors of a pack; each row is checked, and the shards of external experts are opened and checked.

    Args:
        experts_only: Leave out what is no routed expert.

    Raises:
        GpackError: As `Pack.place`.
    """
    found = {}
    for row in pack.tensors:
        if experts_only and row.role == ExpertRole.NONE:
            continue
        name = pack.tensors.text(row, "name")
        planes = bool(row.flags & TensorFlags.CODE_PLANES)
        found[name] = Located(
            name, row.ggml_type, row.dims[: row.n_dims], row.role, pack.place_of(name, row), code_planes=planes
        )
    return found


def locate_in_source(source: ModelSource) -> dict[str, Located]:
    """The tensors of a model in other files, sorted as a pack sorts them."""
    shapes = [Shape(tensor.name, tensor.ggml_type, tensor.dims) for tensor in source.tensors]
    columns = columns_of(source)
    placements = assign_placements(shapes, draft_start(source.get))
    found = {}
    for tensor in sorted(source.tensors, key=lambda tensor: tensor.name.encode("utf-8")):
        role, held = placements[tensor.name].role, source.range_of(tensor)
        runs = tensor.dims[2] if role != ExpertRole.NONE else 1  # one to an expert
        place = held.cut(runs) if isinstance(held, Place) else None
        found[tensor.name] = Located(
            tensor.name,
            tensor.ggml_type,
            tensor.dims,
            role,
            place,
            None if place else held,
            code_planes=tensor.name in columns and columns[tensor.name].planes is not None,
        )
    return found


def routed(located: Mapping[str, Located]) -> list[Located]:
    """The routed experts among them, a draft layer's too."""
    return [tensor for tensor in located.values() if tensor.role != ExpertRole.NONE]


def is_number(value: object, *, least: int | None = None) -> bool:
    """Whether an argument is an integer, one of numpy's too, and not less than `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return least is None or int(value) >= least
