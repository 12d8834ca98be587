"""Weights in float64, and products with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from ....generated.constants import GgmlType
from ...graph.weights import Experts, Matrix, PagedExperts
from .arrays import Array
from .rounding import as_8_bits


class DenseWeights:
    """The weights of a program; each matrix is dequantised once, experts each time that they are chosen.

    Attributes:
        rounded_types: Names of the types whose products see activations as 8 bits leave them.
    """

    def __init__(self, rounded_types: Collection[str] = ()) -> None:
        self.rounded_types = frozenset(rounded_types)
        self._kept: dict[str, Array] = {}

    def rows(self, matrix: Matrix, numbers: npt.NDArray[np.int32]) -> Array:
        """Some rows of a matrix, [len(numbers), n_in]."""
        tensor: Any = matrix.tensor[numbers]
        return np.asarray(tensor.dequantize(), np.float64)

    def matrix(self, matrix: Matrix) -> Array:
        """All rows, [n_out, n_in]."""
        if matrix.name not in self._kept:
            self._kept[matrix.name] = np.asarray(matrix.tensor.dequantize(), np.float64).reshape(
                matrix.n_out, matrix.n_in
            )
        return self._kept[matrix.name]

    def expert(self, experts: Experts, number: int) -> Array:
        """One expert's rows, [n_out, n_in]."""
        stored = experts.stored
        if isinstance(stored, PagedExperts):
            tensor = stored.source.get(stored.layer, number)[stored.part]
        else:
            tensor = stored[number]
        rows = tensor[experts.first_row : experts.first_row + experts.n_out]
        return np.asarray(rows.dequantize(), np.float64).reshape(experts.n_out, experts.n_in)

    def seen(self, x: Array, weights: Matrix | Experts) -> Array:
        """Activations as products with these weights see them."""
        return as_8_bits(x) if GgmlType.NAMES[weights.ggml_type] in self.rounded_types else x

    def close(self) -> None:
        """Frees all matrices."""
        self._kept.clear()
