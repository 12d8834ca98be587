"""The weights that operations name: where a tensor is, not where a backend keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...generated.constants import GgmlType
from ...tensor import Tensor


@dataclass(frozen=True)
class Vector:
    """A tensor of one axis, float32 [width], whose values were checked for being finite."""

    name: str
    values: npt.NDArray[np.float32] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} [{len(self.values)}]"


@dataclass(frozen=True)
class Matrix:
    """A tensor of n_out rows of n_in elements, as it is stored.

    Attributes:
        tensor: [n_out, n_in], or blocks of it; mapped or in memory, in one piece.
    """

    name: str
    ggml_type: int
    n_out: int
    n_in: int
    tensor: Tensor = field(compare=False, repr=False)

    def first(self, count: int) -> Matrix:
        """Its first rows."""
        rows: Any = self.tensor[:count]
        return Matrix(f"{self.name}[:{count}]", self.ggml_type, count, self.n_in, rows)

    def __str__(self) -> str:
        return f"{self.name} [{self.n_out}, {self.n_in}] {GgmlType.NAMES[self.ggml_type]}"


class ExpertSource(Protocol):
    """Reads the experts of a layer one by one; `gpack.model.experts.FileExpertSource` is one."""

    def get(self, layer: int, expert: int) -> Any:
        """Gate, up and down of one expert."""


@dataclass(frozen=True)
class PagedExperts:
    """Where experts come from that are not mapped.

    Attributes:
        part: Which of an expert's three matrices: 0 gate, 1 up, 2 down.
    """

    source: ExpertSource = field(compare=False, repr=False)
    layer: int
    part: int


@dataclass(frozen=True)
class Experts:
    """The same matrix of all experts of a layer: n_expert times n_out rows of n_in elements.

    Attributes:
        stored: The tensor [n_expert, rows, n_in], whose slices may lie apart; or what reads them when they are chosen.
        first_row: Of each expert's rows in the tensor: gate and up may be stored as one matrix.
    """

    name: str
    ggml_type: int
    n_expert: int
    n_out: int
    n_in: int
    stored: Tensor | PagedExperts = field(compare=False, repr=False)
    first_row: int = 0

    def __str__(self) -> str:
        rows = f", rows from {self.first_row}" if self.first_row else ""
        return f"{self.name} [{self.n_expert}, {self.n_out}, {self.n_in}] {GgmlType.NAMES[self.ggml_type]}{rows}"


class TokenHash(Protocol):
    """Says which rows of a table a token touches; `gpack.model.ngram.NgramHash` is one."""

    @property
    def ngram_size(self) -> int:
        """Tokens that a row depends on at most, the token itself among them."""

    @property
    def n_rows(self) -> int:
        """Rows of each token."""

    def rows(self, tokens: Any, previous: Any = ()) -> npt.NDArray[np.int64]:
        """int64 [tokens, n_rows]: the rows of consecutive tokens of a text; `previous` are those before them."""


class RowSource(Protocol):
    """Reads rows of a table by their numbers; `gpack.model.ple.PleTable` is one."""

    def values(self, ids: Any) -> npt.NDArray[np.float32]:
        """float32 [..., width]: the values of rows."""


@dataclass(frozen=True)
class NgramTable:
    """A table that may be far larger than memory, and which of its rows the newest tokens of a text touch.

    Attributes:
        hash: Gives the numbers of a token's rows.
        width: Elements of a row.
        source: Reads rows when they are needed.
    """

    name: str
    hash: TokenHash
    width: int
    source: RowSource = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} [{self.hash.n_rows} rows of {self.width}]"
