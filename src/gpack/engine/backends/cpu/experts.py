"""Experts that are not mapped: the chosen ones are fetched between the router and their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import FormatError
from ....model.experts import Expert, FileExpertSource
from .matmul import Experts
from .team import Words


@dataclass
class ExpertPager:
    """Fetches experts from their source while a program runs.

    Only one layer's experts are held at a time; what stays in memory beyond that is the source's budget.
    """

    source: FileExpertSource
    path: str
    _layers: dict[int, tuple[Experts, Experts, Experts]] = field(default_factory=dict)
    _held: list[Expert] = field(default_factory=list)

    def layer(self, number: int, n_embd: int, n_ff: int, n_expert: int) -> tuple[Experts, Experts, Experts]:
        """Gate, up and down of a layer, without addresses.

        Raises:
            FormatError: `engine.tensor`: the layer has no experts, or no gates; `engine.shape`: of another number or
                shape.
        """
        if number not in self._layers:
            found = self.source.layers.get(number)
            name = f"blk.{number}.ffn_gate_exps.weight"
            if found is None:
                raise self._error(name, "is missing: the layer has no experts", "engine.tensor")
            if found.n_expert != n_expert:
                raise self._error(name, f"has {found.n_expert} experts; by the metadata {n_expert}", "engine.shape")
            first = self.source.get(number, 0)
            if first.gate is None:
                raise self._error(name, "is missing", "engine.tensor")
            parts = zip(first, ((n_embd, n_ff), (n_embd, n_ff), (n_ff, n_embd)), strict=True)
            made = [self._empty(part, dims, n_expert) for part, dims in parts]
            self._layers[number] = made[0], made[1], made[2]
        return self._layers[number]

    def bring(self, number: int, chosen: npt.NDArray[np.int32], state: Words) -> Callable[[], None]:
        """The host's step that fetches what the tokens of the batch chose."""

        def fetch() -> None:
            self._held.clear()
            for expert in np.unique(chosen[: int(state[0])]):
                found = self.source.get(number, int(expert))
                self._held.append(found)
                for part, tensor in zip(self._layers[number], found, strict=True):
                    if tensor is not None:
                        part.addresses[expert] = tensor.ctypes.data

        return fetch

    def _empty(self, tensor: Any, dims: tuple[int, int], n_expert: int) -> Experts:
        if tensor.dims != dims:
            raise self._error(
                tensor.name, f"has the extents {list(tensor.dims)}; by the metadata {list(dims)}", "engine.shape"
            )
        one = Experts.of_slices([tensor])
        return Experts(np.zeros(n_expert, np.int64), one.ggml_type, one.n_out, one.n_in, one.row_bytes, one.name, None)

    def _error(self, name: str, what: str, code: str) -> FormatError:
        return FormatError(f"tensor {name} {what}", code=code, path=self.path, field=name)
