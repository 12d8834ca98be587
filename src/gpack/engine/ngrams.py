"""The rows of a model's n-gram table as engines read them: a few at a time, out of a file larger than memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model.ple import PleTable
from ..tensor import Tensor


class NgramSource:
    """Reads rows by their numbers, from any thread, also after the model was closed.

    Attributes:
        not_finite: Number of a row that was read and holds values that are not finite; None while there was none.
    """

    def __init__(self, table: PleTable | None, tensor: Tensor) -> None:
        """Reads through a table of its own, in the mode of the model's; where there is none, from the mapped tensor."""
        self.not_finite: int | None = None
        self._table = None if table is None else table.again()
        self._tensor: Any = tensor
        if self._table is not None:
            weakref.finalize(self, self._table.close)

    def values(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """float32 [..., width]: the values of rows.

        Raises:
            GpackError: As `PleTable.rows`.
        """
        if self._table is not None:
            made = self._table.values(ids)
        else:
            rows = np.asarray(self._tensor[ids.reshape(-1)].dequantize(), np.float32)
            made = rows.reshape(*ids.shape, -1)
        finite = np.isfinite(made).all(axis=-1)
        if not finite.all():
            self.not_finite = int(ids[~finite][0])
        return made
