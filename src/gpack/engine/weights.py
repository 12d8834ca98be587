"""The weights of a model as steps read them, each checked against what the hyperparameters say."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..generated.constants import GgmlType
from ..machine import half_of_free_memory
from ..tensor import Tensor
from .backends.cpu.buffers import aligned
from .backends.cpu.finite import first_not_finite, suspects
from .backends.cpu.kernels import BLOCK_TYPES, PLAIN_TYPES
from .backends.cpu.matmul import Experts, Matrix

if TYPE_CHECKING:
    from ..model.load import GuildModel
    from .backends.cpu.team import Team

_PLAIN = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.F64)
_POSITIONS = ".attn_rot_embd"  # frequencies that old files hold, and that follow from the metadata
_FEW_EXPERTS = 1 << 30  # bytes; so many are looked through in a tenth of a second


class Weights:
    """The tensors of a model; what was read once is kept, so that sessions share it.

    Attributes:
        used: Names of all tensors that were asked for and found.
    """

    def __init__(self, model: GuildModel) -> None:
        self._tensors: Mapping[str, Tensor] = model.tensors
        self._path = model.path
        self._kept: dict[str, Any] = {}
        self._finite: set[str] = set()  # matrices and experts that were looked through
        self._looking = threading.Lock()
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str, width: int) -> npt.NDArray[np.float32]:
        """A tensor of one axis as float32; its values are checked.

        Raises:
            FormatError: `engine.tensor`: it is missing; `engine.shape`: it has another shape; `engine.nan`: a value
                is not finite.
        """
        if name not in self._kept:
            tensor = self._tensor(name, (width,))
            if tensor.ggml_type not in _PLAIN:
                raise FormatError(
                    f"tensor {name} is of type {tensor.type_name}, not floats",
                    code="engine.shape",
                    path=self._path,
                    field=name,
                )
            values = aligned((width,), np.float32)
            values[:] = tensor.dequantize()
            if not np.isfinite(values).all():
                raise self._not_finite(name, (int(np.isfinite(values).argmin()),))
            self._kept[name] = values
        made: npt.NDArray[np.float32] = self._kept[name]
        if made.shape != (width,):
            raise self._shape(name, made.shape, (width,))
        return made

    def optional_vector(self, name: str, width: int) -> npt.NDArray[np.float32] | None:
        """As `vector`; None where the model has no such tensor."""
        return self.vector(name, width) if name in self._tensors else None

    def matrix(self, name: str, n_in: int, n_out: int) -> Matrix:
        """A tensor of n_out rows of n_in elements, in place.

        Raises:
            FormatError: As `vector`, but values are not looked at.
        """
        made = self._kept.get(name)
        if made is None:
            made = self._kept[name] = Matrix.of(self._tensor(name, (n_in, n_out)))
        if (made.n_in, made.n_out) != (n_in, n_out):
            raise self._shape(name, (made.n_in, made.n_out), (n_in, n_out))
        return made

    def experts(self, name: str, n_in: int, n_out: int, n_expert: int) -> Experts:
        """A tensor of n_expert matrices, in place.

        Raises:
            FormatError: As `matrix`.
        """
        made = self._kept.get(name)
        if made is None:
            made = self._kept[name] = Experts.of(self._tensor(name, (n_in, n_out, n_expert)))
        return made

    def halves(self, name: str, n_in: int, n_out: int, n_expert: int) -> tuple[Experts, Experts]:
        """A tensor of n_expert matrices of 2 n_out rows: the first n_out of each, and the others.

        Raises:
            FormatError: As `matrix`.
        """
        whole = self.experts(name, n_in, 2 * n_out, n_expert)
        return (
            replace(whole, n_out=n_out),
            replace(whole, n_out=n_out, addresses=whole.addresses + n_out * whole.row_bytes),
        )

    def dims(self, name: str) -> tuple[int, ...]:
        """The extents of a tensor.

        Raises:
            FormatError: `engine.tensor`: it is missing.
        """
        return self._find(name).dims

    def note(self, *names: str) -> None:
        """Tensors that are read in another way, as far as they are there."""
        self.used.update(name for name in names if name in self._tensors)

    def refuse_unread(self, drafts: range) -> None:
        """To be called when all that the model reads was asked for: what its layers hold beyond that would be left out.

        Args:
            drafts: Layers that are not run.

        Raises:
            FormatError: `engine.tensor`: a layer has a tensor that the architecture does not know, or there are more
                layers than the metadata says.
        """
        for name in self._tensors:
            number = name.split(".")[1] if name.startswith("blk.") else ""
            if not number.isdecimal() or int(number) in drafts or name in self.used or _POSITIONS in name:
                continue
            raise FormatError(
                f"tensor {name} has no part in what the metadata describes: without it the answers would be wrong",
                code="engine.tensor",
                path=self._path,
                field=name,
            )

    def look_through(self, team: Team, *, everything: bool) -> None:
        """Looks for values that are not finite in the matrices that were asked for, once for all sessions.

        Args:
            team: Does it.
            everything: Of any size, with all experts. Else not where the matrices take more than half of the free
                memory, and experts only where all of them are few bytes; others show in the logits when they are used.

        Raises:
            FormatError: `engine.nan`: a value is not finite.
        """
        with self._looking:
            waiting = {
                name: kept
                for name, kept in self._kept.items()
                if isinstance(kept, Matrix | Experts) and name not in self._finite
            }
            if not everything:
                for kind, most in ((Matrix, half_of_free_memory()), (Experts, _FEW_EXPERTS)):
                    some = {name: kept for name, kept in waiting.items() if isinstance(kept, kind)}
                    if sum(map(_size, some.values())) > most:
                        waiting = {name: kept for name, kept in waiting.items() if name not in some}
            for matrix in suspects(team, list(waiting.values())):
                self._look_at(matrix.name)
            self._finite |= waiting.keys()
            if everything:  # experts that are not mapped
                for name in sorted(self.used - self._kept.keys()):
                    self._look_at(name)

    def _look_at(self, name: str) -> None:
        tensor = self._find(name)
        place = first_not_finite(tensor)
        if place is not None:
            raise self._not_finite(name, place)

    def _tensor(self, name: str, dims: tuple[int, ...]) -> Tensor:
        tensor = self._find(name)
        # Trailing axes of one element say nothing.
        stored = tensor.dims
        while len(stored) > len(dims) and stored[-1] == 1:
            stored = stored[:-1]
        if stored != dims:
            raise self._shape(name, stored, dims)
        if tensor.type_name not in (*PLAIN_TYPES, *BLOCK_TYPES):
            first: Any = tensor[:1]
            first.dequantize()  # shows whether it can be
        self.used.add(name)
        return tensor

    def _find(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise FormatError(
                f"there is no tensor {name}, which the model cannot run without",
                code="engine.tensor",
                path=self._path,
                field=name,
            )
        return self._tensors[name]

    def _shape(self, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]) -> FormatError:
        return FormatError(
            f"tensor {name} has the extents {list(stored)}; by the metadata they should be {list(wanted)}",
            code="engine.shape",
            path=self._path,
            field=name,
        )

    def refuse(self, name: str, what: str) -> FormatError:
        """The error for a tensor whose values make no sense."""
        return FormatError(f"tensor {name} {what}", code="engine.nan", path=self._path, field=name)

    def _not_finite(self, name: str, place: tuple[int, ...]) -> FormatError:
        axes = ("expert", "row", "element")[-len(place) :]
        where = ", ".join(f"{axis} {number}" for axis, number in zip(axes, place, strict=True))
        return FormatError(
            f"tensor {name} holds values that are no finite numbers; the first is {where}",
            code="engine.nan",
            path=self._path,
            field=name,
        )


def _size(matrix: Matrix | Experts) -> int:
    """Bytes."""
    return matrix.n_out * matrix.row_bytes * (matrix.n_expert if isinstance(matrix, Experts) else 1)
