"""Metadata values as the source had them: those that TokenizerBin holds are rebuilt from it, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from ..errors import FormatError
from ..generated.constants import MetadataType
from ..generated.gguf.structs import GgufStringLength
from ..generated.structs import MetadataKvRowV1
from . import tokenizer
from .metadata import SECTION, MetadataTable, is_stub
from .tokenizer import TokenizerTable
from .values import Value


def restore_value(table: MetadataTable, row: MetadataKvRowV1, held: Callable[[], TokenizerTable]) -> Value:
    """The value of any row.

    Args:
        held: Gives TokenizerBin; called for stubs only.

    Raises:
        FormatError: The row is a stub of a key that TokenizerBin does not hold.
    """
    if not is_stub(row):
        return table.value(row)
    key = table.table.text(row, "key")
    rebuild = _REBUILD.get(key)
    if rebuild is None:
        raise FormatError(f"{key} is a stub", code="metadata.stub", section=SECTION, field=key)
    raw = rebuild(held(), row.element_type)
    return Value(key, row.value_type, row.element_type, row.count, raw)


def _tokens(held: TokenizerTable, _: int) -> bytes:
    return _packed(all_tokens(held))


def _types(held: TokenizerTable, element_type: int) -> bytes:
    signed = element_type == MetadataType.INT32
    types: bytes = held.token_types.astype("<i4" if signed else "<u4").tobytes()
    return types


def _merges(held: TokenizerTable, _: int) -> bytes:
    tokens = all_tokens(held)
    return _packed(tokens[left] + b" " + tokens[right] for left, right, _ in held.triples.tolist())


def _template(held: TokenizerTable, _: int) -> bytes:
    return bytes(held.chat_template)


_REBUILD: dict[str, Callable[[TokenizerTable, int], bytes]] = {
    tokenizer.TOKENS: _tokens,
    tokenizer.TYPES: _types,
    tokenizer.MERGES: _merges,
    tokenizer.TEMPLATE: _template,
}


def all_tokens(held: TokenizerTable) -> list[bytes]:
    """The bytes of every token, by id."""
    blob, offsets = bytes(held.vocab_blob), held.offsets.tolist()
    return [blob[start:end] for start, end in pairwise(offsets)]


def _packed(strings: Iterable[bytes]) -> bytes:
    """Strings as GGUF packs them, each behind its length."""
    size = GgufStringLength.SIZE
    return b"".join(part for text in strings for part in (len(text).to_bytes(size, "little"), text))
