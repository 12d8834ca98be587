"""Tables and the tokenizer of large sections, read piece by piece while they are checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ..container.pieces import Pieces
from ..generated.dtypes import GBT_V1_PARTS
from ..generated.sections import SECTIONS
from ..generated.structs import GbtHeaderV1, gbt_v1_layout
from .lanes import Lane
from .table import Table
from .tokenizer import TokenizerTable

_T = TypeVar("_T")


class PiecedTable(Table[Any, Any]):
    """A table whose rows and heap are read when they are asked for."""

    def __init__(self, kind: int, data: Pieces) -> None:
        """Decodes the header.

        Raises:
            FormatError: As `Table`.
        """
        known = SECTIONS[kind]
        header_class: Any = known.header
        self.data: Any = data
        self.section, self.row_class, self._checked = known.name, known.tables[0].record, False
        self.header = header_class.decode(data[: header_class.SIZE])
        self._check_header(header_class.MAGIC)

    def row(self, index: int) -> Any:
        """The row of that number."""
        start = self.header.ofs_rows + index * self.header.row_size
        return self.row_class.decode(self.data[start : start + self.row_class.SIZE])


class Made(Sequence[_T], Generic[_T]):
    """So many things, each made when it is asked for."""

    def __init__(self, count: int, make: Any) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)

    def __iter__(self) -> Iterator[_T]:
        return map(self._make, range(self._count))


class PiecedTokenizer(TokenizerTable):
    """The section of a vocabulary of which only offsets and types are in memory, five bytes a token."""

    def __init__(self, data: Pieces) -> None:
        """Finds the arrays of a section whose header holds."""
        self.header = GbtHeaderV1.decode(data[: GbtHeaderV1.SIZE])
        parts = {name: data.part(at, length) for name, (at, length) in gbt_v1_layout(self.header).items()}
        self.offsets = np.frombuffer(parts["offsets"][:], GBT_V1_PARTS["offsets"])
        self.token_types = np.frombuffer(parts["token_types"][:], GBT_V1_PARTS["token_types"])
        self.vocab_blob: Any = parts["vocab_blob"]
        self.triples: Any = Lane(parts["triples"], GBT_V1_PARTS["triples"])
        self.chat_template: Any = parts["chat_template"]
