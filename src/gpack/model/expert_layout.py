"""Where the matrices of routed experts lie in files, and which of them one read fetches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..container.place import Place
from ..errors import UsageError
from ..generated.constants import ExpertRole
from ..sections.placement import layer_of
from .direct import RangeFile
from .located import Located


@dataclass(frozen=True)
class ExpertMatrix:
    """One matrix of every expert of a layer.

    Attributes:
        role: Of ExpertRole: GATE, UP or DOWN.
        file: Number of the file.
        offset: Expert 0's slice in the file.
        length: Bytes of a slice.
        stride: Distance between slices.
    """

    name: str
    role: int
    ggml_type: int
    dims: tuple[int, int]
    file: int
    offset: int
    length: int
    stride: int


@dataclass(frozen=True)
class Run:
    """Matrices that lie next to each other in every expert: one read fetches them."""

    matrices: tuple[ExpertMatrix, ...]

    @property
    def length(self) -> int:
        """Bytes."""
        return sum(matrix.length for matrix in self.matrices)


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of a layer."""

    n_expert: int
    runs: tuple[Run, ...]

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return sum(run.length for run in self.runs)


def find_layers(located: Sequence[Located], files: list[RangeFile], *, direct: bool) -> dict[int, ExpertLayer]:
    """All layers of routed experts, a draft layer's too; their files are opened and added to `files`."""
    opened: dict[int, int] = {}
    matrices: dict[int, list[ExpertMatrix]] = {}
    counts: dict[int, int] = {}
    for tensor in located:
        layer = layer_of(tensor.name)
        if layer is None or tensor.place is None:
            raise UsageError(f"{tensor.name} does not lie in a file as an expert does", code="usage")
        place = tensor.place
        if place.descriptor not in opened:
            files.append(RangeFile(place.descriptor, place.path, direct=direct))
            opened[place.descriptor] = len(files) - 1
        counts[layer] = tensor.dims[2]
        matrices.setdefault(layer, []).extend(_matrices(tensor, place, opened[place.descriptor]))
    return {layer: ExpertLayer(counts[layer], _runs(matrices[layer])) for layer in sorted(matrices)}


def _matrices(tensor: Located, place: Place, file: int) -> list[ExpertMatrix]:
    """The matrices of a tensor: itself, or the halves of a fused one, gate rows first."""
    ne0, ne1 = tensor.dims[:2]
    parts = (ExpertRole.GATE, ExpertRole.UP) if tensor.role == ExpertRole.GATE_UP else (tensor.role,)
    length = place.length // len(parts)
    return [
        ExpertMatrix(
            tensor.name,
            role,
            tensor.ggml_type,
            (ne0, ne1 // len(parts)),
            file,
            place.offset + part * length,
            length,
            place.stride,
        )
        for part, role in enumerate(parts)
    ]


def _runs(matrices: Sequence[ExpertMatrix]) -> tuple[Run, ...]:
    """Matrices that follow each other at once in every expert, together."""
    runs: list[list[ExpertMatrix]] = []
    for matrix in sorted(matrices, key=lambda matrix: (matrix.file, matrix.offset)):
        last = runs[-1][-1] if runs else None
        follows = (
            last is not None
            and (last.file, last.stride) == (matrix.file, matrix.stride)
            and last.offset + last.length == matrix.offset
            and sum(other.length for other in runs[-1]) + matrix.length <= matrix.stride
        )
        if follows:
            runs[-1].append(matrix)
        else:
            runs.append([matrix])
    return tuple(Run(tuple(run)) for run in runs)
