"""Whether GBT1's precomputed arrays say what the arrays that they repeat say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..generated.constants import GbtFlags
from ..generated.dtypes import GBT_V1_PARTS
from ..generated.structs import gbt_v1_layout
from .context import Context
from .gbt_index import byte_tokens, merge_index, special_tokens, token_order
from .tokenizer import SECTION, TokenizerTable


def check_index(context: Context, table: TokenizerTable, data: memoryview, base: int) -> None:
    """Builds every announced array anew and reports where the stored one differs.

    Args:
        table: A table whose offsets are sound.
        base: Where the section begins in the file.
    """
    flags, places = table.header.flags, gbt_v1_layout(table.header)
    offsets = table.offsets.astype(np.int64)

    def compare(rule: str, name: str, expected: npt.NDArray[np.generic]) -> None:
        context.report.check(rule)
        start, length = places[name]
        stored = np.frombuffer(data[start : start + length], GBT_V1_PARTS[name])
        if len(stored) != len(expected):
            context.report.add(rule, SECTION, name, base + start, f"Found {len(stored)} entries, not {len(expected)}.")
            return
        for index in np.flatnonzero(stored != expected):
            message = f"Found {stored[index]}, expected {expected[index]}."
            context.report.add(rule, SECTION, f"{name}[{index}]", base + start + int(index) * stored.itemsize, message)

    if flags & GbtFlags.MERGE_INDEX:
        keys, ranks = merge_index(table.triples)
        compare("tokenizer.merge_index", "merge_keys", keys)
        compare("tokenizer.merge_index", "merge_ranks", ranks)
    if flags & GbtFlags.TOKEN_ORDER:
        compare("tokenizer.token_order", "token_order", token_order(table.vocab_blob, offsets))
    if flags & GbtFlags.BYTE_TOKENS:
        compare("tokenizer.byte_tokens", "byte_tokens", byte_tokens(table.vocab_blob, offsets))
    if flags & GbtFlags.SPECIAL_TOKENS:
        compare("tokenizer.special_tokens", "special_tokens", special_tokens(table.token_types, offsets))
