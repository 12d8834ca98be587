"""Experts that are not mapped: the chosen ones are fetched between the router and their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...graph import weights as graph
from .matrices import ExpertsView, row_bytes_of
from .team import Words


@dataclass
class ExpertPager:
    """Fetches experts from their source while a program runs.

    Only one layer's experts are held at a time; what stays in memory beyond that is the source's budget.
    """

    _parts: dict[tuple[int, int], ExpertsView] = field(default_factory=dict)  # by layer and part
    _held: list[Any] = field(default_factory=list)

    def part(self, experts: graph.Experts, paged: graph.PagedExperts) -> ExpertsView:
        """One of the three matrices of a layer's experts, without addresses until they are fetched."""
        key = paged.layer, paged.part
        if key not in self._parts:
            self._parts[key] = ExpertsView(
                np.zeros(experts.n_expert, np.int64),
                experts.ggml_type,
                experts.n_out,
                experts.n_in,
                row_bytes_of(experts.ggml_type, experts.n_in),
                experts.name,
                None,
            )
        return self._parts[key]

    def bring(self, paged: graph.PagedExperts, chosen: npt.NDArray[np.int32], state: Words) -> Callable[[], None]:
        """The host's step that fetches what the rows of a step chose."""

        def fetch() -> None:
            self._held.clear()
            for expert in np.unique(chosen[: int(state[0])]):
                found = paged.source.get(paged.layer, int(expert))
                self._held.append(found)
                for number, tensor in enumerate(found):
                    part = self._parts.get((paged.layer, number))
                    if part is not None and tensor is not None:
                        part.addresses[expert] = tensor.ctypes.data

        return fetch
