"""The weights of a model as steps read them, each checked against what the hyperparameters say."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import FormatError
from ..generated.constants import GgmlType
from ..machine import half_of_free_memory
from ..model.experts import FileExpertSource
from ..model.load import LoadedModel
from ..model.ngram import NgramHash
from ..sections.placement import PLE as NGRAM_TABLE
from ..tensor import Tensor, array_layout
from .backends.base import Backend
from .finite import first_not_finite, is_zero
from .graph import Experts, Matrix, NgramTable, Vector
from .graph.weights import PagedExperts
from .ngrams import NgramSource

_PLAIN = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.F64)
_POSITIONS = ".attn_rot_embd"  # frequencies that old files hold, and that follow from the metadata
_FEW_EXPERTS = 1 << 30  # bytes; so many are checked in a tenth of a second


class Weights:
    """The tensors of a model; what was read once is kept, so that engines share it.

    Attributes:
        used: Names of all tensors that were asked for and found.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._tensors: Mapping[str, Tensor] = model.tensors
        self._path = model.path
        self._check_bytes = model.check_bytes
        self._seen: set[str] = set()  # matrices that are not all zeros, or rightly are
        self._kept: dict[str, Any] = {}
        self._finite: set[str] = set()  # matrices and experts that were checked
        self._decodable: set[int] = set()  # types
        self._checking = threading.Lock()
        # Experts are used where they are mapped, unless the model was loaded to read them, or with a budget.
        self._source: FileExpertSource | None = model.experts if model.pages_experts else None
        self._ngram_table = model.ple
        self._ngrams: NgramSource | None = None
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str, *dims: int) -> Vector:
        """A tensor of floats as float32 in one row, in the order in which it lies; its values are checked.

        Args:
            dims: Its extents, the fastest first.

        Raises:
            FormatError: `engine.tensor`: it is missing; `engine.shape`: it has another shape; `engine.nan`: a value
                is not finite.
        """
        size = math.prod(dims)
        if name not in self._kept:
            tensor = self._tensor(name, dims)
            if tensor.ggml_type not in _PLAIN:
                raise self._error(name, f"is of type {tensor.type_name}, not floats", "engine.shape")
            values = np.ascontiguousarray(tensor.dequantize(), np.float32).reshape(-1)
            if not np.isfinite(values).all():
                raise self._not_finite(name, (int(np.isfinite(values).argmin()),))
            self._kept[name] = Vector(name, values)
        made: Vector = self._kept[name]
        if made.values.shape != (size,):
            raise self._shape(name, made.values.shape, dims)
        return made

    def optional_vector(self, name: str, width: int) -> Vector | None:
        """As `vector`; None where the model has no such tensor."""
        return self.vector(name, width) if name in self._tensors else None

    def matrix(self, name: str, n_in: int, n_out: int) -> Matrix:
        """A tensor of n_out rows of n_in elements, in place.

        Raises:
            FormatError: As `vector`, but values are not looked at.
        """
        made = self._kept.get(name)
        if made is None:
            tensor = self._tensor(name, (n_in, n_out))
            rows: Any = tensor.reshape(1, -1) if len(tensor.dims) == 1 else tensor
            made = self._kept[name] = Matrix(name, self._type(tensor), n_out, n_in, rows)
        if (made.n_in, made.n_out) != (n_in, n_out):
            raise self._shape(name, (made.n_in, made.n_out), (n_in, n_out))
        return made

    def experts(self, layer: int, n_embd: int, n_ff: int, n_expert: int) -> tuple[Experts, Experts, Experts]:
        """Gate, up and down of the experts of a layer, in place, or as they come from the model's source.

        Gate and up may be one tensor: the first n_ff rows of each expert, and the others.

        Raises:
            FormatError: As `matrix`.
        """
        prefix = f"blk.{layer}.ffn"
        if self._source is not None:
            self.note(*(f"{prefix}_{part}_exps.weight" for part in ("gate", "up", "down", "gate_up")))
            return self._paged(self._source, layer, n_embd, n_ff, n_expert)
        fused = f"{prefix}_gate_up_exps.weight"
        if fused in self:
            whole = self._stacked(fused, n_embd, 2 * n_ff, n_expert)
            gate, up = replace(whole, n_out=n_ff), replace(whole, n_out=n_ff, first_row=n_ff)
        else:
            gate = self._stacked(f"{prefix}_gate_exps.weight", n_embd, n_ff, n_expert)
            up = self._stacked(f"{prefix}_up_exps.weight", n_embd, n_ff, n_expert)
        return gate, up, self._stacked(f"{prefix}_down_exps.weight", n_ff, n_embd, n_expert)

    def _stacked(self, name: str, n_in: int, n_out: int, n_expert: int) -> Experts:
        made: Experts | None = self._kept.get(name)
        if made is None:
            tensor = self._tensor(name, (n_in, n_out, n_expert))
            made = self._kept[name] = Experts(name, self._type(tensor), n_expert, n_out, n_in, tensor)
        return made

    def _paged(
        self, source: FileExpertSource, layer: int, n_embd: int, n_ff: int, n_expert: int
    ) -> tuple[Experts, Experts, Experts]:
        name = f"blk.{layer}.ffn_gate_exps.weight"
        found = source.layers.get(layer)
        if found is None:
            raise self._error(name, "is missing: the layer has no experts", "engine.tensor")
        if found.n_expert != n_expert:
            raise self._error(name, f"has {found.n_expert} experts; by the metadata {n_expert}", "engine.shape")
        first = source.get(layer, 0)
        if first.gate is None:
            raise self._error(name, "is missing", "engine.tensor")
        made = []
        for part, (tensor, dims) in enumerate(
            zip(first, ((n_embd, n_ff), (n_embd, n_ff), (n_ff, n_embd)), strict=True)
        ):
            if tensor is None or tensor.dims != dims:
                extents = [] if tensor is None else list(tensor.dims)
                raise self._shape(name if tensor is None else tensor.name, tuple(extents), dims)
            stored = PagedExperts(source, layer, part)
            made.append(Experts(tensor.name, self._type(tensor), n_expert, dims[1], dims[0], stored))
        return made[0], made[1], made[2]

    def ngram_table(self, hash_: NgramHash, width: int) -> NgramTable:
        """The table of n-gram rows, of which a few are read for each token.

        Raises:
            FormatError: `engine.tensor`: it is missing; `engine.shape`: its rows have another width, or are fewer than
                the hash has.
        """
        tensor = self._find(NGRAM_TABLE)
        if len(tensor.dims) != 2 or tensor.dims[0] != width or tensor.dims[1] < hash_.row_count:
            raise self._shape(NGRAM_TABLE, tensor.dims, (width, hash_.row_count))
        first: Any = tensor[:1]
        first.dequantize()  # shows whether it can be
        self.used.add(NGRAM_TABLE)
        if self._ngrams is None:
            self._ngrams = NgramSource(self._ngram_table, tensor)
        return NgramTable(NGRAM_TABLE, hash_, width, self._ngrams)

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

    def check_zeros(self) -> None:
        """Compares matrices that are all zeros with their digests: a hole in a file reads as zeros.

        Of a stack of experts it is looked at as a whole. Where there is a value that is not zero near the beginning,
        nothing else is read.

        Raises:
            DigestError: `section.sha256`: the zeros are not what was written.
        """
        with self._checking:
            for name, kept in self._kept.items():
                if not isinstance(kept, Matrix | Experts) or name in self._seen:
                    continue
                if is_zero(self._find(name)):
                    self._check_bytes(name)
                self._seen.add(name)

    def check_finite(self, backend: Backend, *, everything: bool) -> None:
        """Looks for values that are not finite in the matrices that were asked for, once for all engines.

        Args:
            backend: Reads them.
            everything: Of any size, with all experts. Else not where the matrices take more than half of the free
                memory, and experts only where all of them are few bytes; others show in the logits when they are used.

        Raises:
            FormatError: `engine.nan`: a value is not finite.
        """
        with self._checking:
            waiting = {
                name: kept
                for name, kept in list(self._kept.items())
                if isinstance(kept, Matrix | Experts) and name not in self._finite
            }
            if not everything:
                for kind, most in ((Matrix, half_of_free_memory()), (Experts, _FEW_EXPERTS)):
                    some = {name: kept for name, kept in waiting.items() if isinstance(kept, kind)}
                    if sum(map(_size, some.values())) > most:
                        waiting = {name: kept for name, kept in waiting.items() if name not in some}
            for matrix in backend.suspects(list(waiting.values())):
                self._check_tensor(matrix.name)
            self._finite |= waiting.keys()
            if everything:  # experts that are not mapped
                for name in sorted(self.used - self._kept.keys() - {NGRAM_TABLE}):
                    self._check_tensor(name)
            # The table of n-grams may be far larger than memory: of it, rows are looked at when they are read.
            if self._ngrams is not None and self._ngrams.not_finite is not None:
                raise self._not_finite(NGRAM_TABLE, (self._ngrams.not_finite,))

    def _check_tensor(self, name: str) -> None:
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
        if stored != dims[: len(stored)] or any(extent != 1 for extent in dims[len(stored) :]):
            raise self._shape(name, stored, dims)
        if len(stored) > 1 and self._type(tensor) not in self._decodable:
            first: Any = tensor[:1]
            first.dequantize()  # shows whether it can be
            self._decodable.add(self._type(tensor))
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

    def _type(self, tensor: Tensor) -> int:
        if tensor.ggml_type is None:
            raise self._error(tensor.name, "has no type", "engine.shape")
        return tensor.ggml_type

    def _error(self, name: str, what: str, code: str) -> FormatError:
        return FormatError(f"tensor {name} {what}", code=code, path=self._path, field=name)

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
        axes = ("row",) if name == NGRAM_TABLE else ("expert", "row", "element")[-len(place) :]
        where = ", ".join(f"{axis} {number}" for axis, number in zip(axes, place, strict=True))
        return FormatError(
            f"tensor {name} holds values that are not finite; the first is {where}",
            code="engine.nan",
            path=self._path,
            field=name,
        )


def _size(matrix: Matrix | Experts) -> int:
    """Bytes."""
    count = matrix.n_expert if isinstance(matrix, Experts) else 1
    shape, dtype = array_layout(matrix.ggml_type, (matrix.n_in,))
    return count * matrix.n_out * shape[-1] * dtype.itemsize
