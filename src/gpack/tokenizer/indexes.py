"""The indexes of a GBT1 whose writer left them out, built in memory."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError
from ..sections.gbt import SECTION
from ..sections.gbt_index import build_index
from ..sections.tokenizer import TokenizerTable, assemble


def with_indexes(data: memoryview | bytes, *, byte_level: bool) -> bytes:
    """The section, with every index after it.

    Raises:
        FormatError: `tokenizer.offsets` where the offsets fall or do not span the blob.
    """
    table = TokenizerTable(data)
    offsets = table.offsets.astype(np.int64)
    if offsets[0] or offsets[-1] != len(table.vocab_blob) or (np.diff(offsets) < 0).any():
        raise FormatError("the offsets do not rise over the blob", code="tokenizer.offsets", section=SECTION)
    flags, index = build_index(table.vocab_blob, offsets, table.token_types, table.triples, byte_level=byte_level)
    header = table.header
    header.flags, header.n_special = flags, len(index["special_tokens"])
    return assemble(header, {**table.arrays(), **index})
