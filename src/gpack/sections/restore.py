"""Metadata values as the source had them: those that TokenizerBin holds are rebuilt from it, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

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
        FormatError: The row is a stub of a key that TokenizerBin does not hold so, or TokenizerBin is damaged.
    """
    if not is_stub(row):
        return table.value(row)
    key = table.table.text(row, "key")
    stub = _STUBS.get(key)
    if stub is None:
        raise FormatError(f"{key} is a stub", code="metadata.stub", section=SECTION, field=key)
    tokens = held()
    found, expected = (row.value_type, row.element_type, row.count), stub.holds(tokens)
    if found[0] != expected[0] or found[1] not in expected[1] or found[2] != expected[2]:
        message = f"type {found[0]}, elements of type {found[1]}, {found[2]} of them; TokenizerBin has {expected[2]}"
        raise FormatError(f"{key}: {message}", code="metadata.stub", section=SECTION, field=key)
    return Value(key, *found, stub.rebuild(tokens, row.element_type))


class _Stub(NamedTuple):
    """What TokenizerBin holds of a key.

    Attributes:
        holds: Value type, possible element types and count.
        rebuild: Gives the value's bytes, for elements of that type.
    """

    holds: Callable[[TokenizerTable], tuple[int, tuple[int, ...], int]]
    rebuild: Callable[[TokenizerTable, int], bytes]


def _tokens(held: TokenizerTable, _: int) -> bytes:
    return _packed(held.tokens())


def _types(held: TokenizerTable, element_type: int) -> bytes:
    signed = element_type == MetadataType.INT32
    types: bytes = held.token_types.astype("<i4" if signed else "<u4").tobytes()
    return types


def _merges(held: TokenizerTable, _: int) -> bytes:
    tokens = held.tokens()
    if (size := held.merges_size()) > held.merges_limit:
        raise FormatError(
            f"the merges would take {size} bytes, of a section that allows {held.merges_limit}",
            code="metadata.stub",
            section=tokenizer.SECTION,
            field="triples",
        )
    # -1 is a merge that did not resolve, and then the metadata would hold the strings.
    if ((held.triples < 0) | (held.triples >= len(tokens))).any():
        raise FormatError(
            "a merge names no token", code="tokenizer.triples", section=tokenizer.SECTION, field="triples"
        )
    return _packed(tokens[left] + b" " + tokens[right] for left, right, _ in held.triples.tolist())


def _template(held: TokenizerTable, _: int) -> bytes:
    return bytes(held.chat_template)


_ARRAY, _STRING = MetadataType.ARRAY, MetadataType.STRING
_STUBS = {
    tokenizer.TOKENS: _Stub(lambda held: (_ARRAY, (_STRING,), len(held)), _tokens),
    tokenizer.TYPES: _Stub(lambda held: (_ARRAY, (MetadataType.INT32, MetadataType.UINT32), len(held)), _types),
    tokenizer.MERGES: _Stub(lambda held: (_ARRAY, (_STRING,), len(held.triples)), _merges),
    tokenizer.TEMPLATE: _Stub(lambda _: (_STRING, (_STRING,), 1), _template),
}


def _packed(strings: Iterable[bytes]) -> bytes:
    """Strings as GGUF packs them, each after its length."""
    size = GgufStringLength.SIZE
    return b"".join(part for text in strings for part in (len(text).to_bytes(size, "little"), text))
