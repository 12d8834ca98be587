"""Changes of tables and their rows, of which broken vectors are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...generated.constants import CACHE_LINE, SECTION_NAMES
from ...generated.rules import align_up
from ...generated.structs import MetadataKvRowV1, TokenizerAssetRowV1, TokenizerAssetsHeaderV1
from ..parts import Parts
from .bases import everything
from .case import ASSETS, DENSE, INDEX, KV, LAYOUT, MTP, NATIVE, Change

ARCHITECTURE, TOKENS, TYPES = "general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
MERGES, TEMPLATE, END = "tokenizer.ggml.merges", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"
INDEXES = (KV, INDEX, DENSE, NATIVE, LAYOUT, ASSETS, MTP)


def names(*kinds: int) -> list[tuple[int, str]]:
    """Kinds with their names."""
    return [(kind, SECTION_NAMES[kind]) for kind in kinds]


def set_header(kind: int, /, **fields: Any) -> Change:
    """Sets fields of a section's header record."""
    return lambda pack: pack.set(kind, **fields)


def set_row(kind: int, row: int | str, /, **fields: Any) -> Change:
    """Sets fields of a row, named by number or by its name."""
    return lambda pack: pack.set_row(kind, row, **fields)


def at_row(kind: int, name: str, field: str, base: Callable[[], bytes] = everything) -> str:
    """The path of a row's field."""
    return f"rows[{Parts.parse(base()).find(kind, name)}].{field}"


def poke(kind: int, at: int, data: bytes) -> Change:
    """Overwrites bytes of a section."""
    return lambda pack: pack.poke(kind, at, data)


def add(kind: int, name: str, amount: int) -> Change:
    """Adds to a field of a section's header record."""
    return lambda pack: pack.set(kind, **{name: getattr(pack.get(kind), name) + amount})


def append(kind: int, data: bytes) -> Change:
    """Puts bytes after a section's own."""
    return lambda pack: pack.section(kind).data.extend(data)


def cut(kind: int, length: int) -> Change:
    """Keeps the first bytes of a section."""
    return lambda pack: pack.section(kind).data.__delitem__(slice(length, None))


def edit_entry(
    kind: int, name: str, /, *, new: bytes | None = None, value: bytes | None = None, **fields: Any
) -> Change:
    """Renames a row, changes what it points to, or its fields; the table is sorted and laid out anew."""

    def change(pack: Parts) -> None:
        entries = pack.entries(kind)
        row, refs = entries[pack.find(kind, name)]
        refs[0] = refs[0] if new is None else new
        if value is not None:
            refs[1] = value
        for field, item in fields.items():
            setattr(row, field, item)
        pack.rebuild(kind, sorted(entries, key=lambda item: item[1][0]))

    return change


def archive_header(count: int, heap: int) -> TokenizerAssetsHeaderV1:
    """The header of an archive of so many files, with so many bytes of names."""
    row, size = TokenizerAssetRowV1.SIZE, TokenizerAssetsHeaderV1.SIZE
    header = TokenizerAssetsHeaderV1(version=1, row_size=row, num_rows=count, ofs_rows=size)
    header.ofs_heap, header.len_heap = size + row * count, heap
    header.ofs_data = align_up(header.ofs_heap + heap, CACHE_LINE)
    return header


def one_key(key: str, value_type: int, element_type: int, value: bytes) -> Change:
    """The only key of a pack that had none."""
    row = MetadataKvRowV1(value_type=value_type, element_type=element_type, count=1)
    return lambda pack: pack.rebuild(KV, [(row, [key.encode(), value])])
