"""Walks any pack by the generated layout: header, directory, footer, and the records of every section.

Nothing here knows a section by name: what stands where is read from `generated.layout`, so that a new field or table
of the schema is walked without a change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..container.structure import Structure, read_at
from ..errors import BoundsError, FormatError
from ..generated.constants import MAX_ROWS, SECTION_NAMES, SectionKind
from ..generated.layout import COLUMNS, Column
from ..generated.sections import SECTIONS, Rows, Section
from ..generated.structs import GPackSectionEntryV1, Record

# Of sections whose shape says nothing: the rule that they have room for their header.
_HEADER_RULES = {
    SectionKind.TOKENIZER_BIN: "tokenizer.header",
    SectionKind.CHUNK_DIGESTS: "chunks.header",
    SectionKind.PARITY: "parity.header",
}


@dataclass
class SectionRecords:
    """The records of one section.

    Attributes:
        entry: Its entry of the directory.
        body: What its kind holds; None for a kind that is not known.
        header: The record that it begins with, where it begins with one.
        tables: The rows by the table's name.
        heap: The bytes that rows point into.
    """

    entry: GPackSectionEntryV1
    body: Section | None = None
    header: Record | None = None
    tables: dict[str, list[Record]] = field(default_factory=dict)
    heap: bytes = b""

    def bytes_of(self, row: Record, ref: str) -> bytes:
        """The heap bytes of a row's reference.

        Raises:
            BoundsError: `index.heap_ref` where it leaves the heap.
        """
        offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
        if offset > len(self.heap) or length > len(self.heap) - offset:
            raise BoundsError(
                f"bytes {offset} to {offset + length} of a heap of {len(self.heap)}",
                code="index.heap_ref",
                section=SECTION_NAMES.get(self.entry.kind),
                field=f"{ref}_offset",
            )
        return self.heap[offset : offset + length]


def walk_section(descriptor: int, structure: Structure, entry: GPackSectionEntryV1, path: object) -> SectionRecords:
    """Reads a section's header and tables; blobs and payloads are left where they are.

    Raises:
        GpackError: A table leaves the section, or the file cannot be read.
    """
    body = SECTIONS.get(entry.kind)
    made = SectionRecords(entry, body)
    if body is None or body.header is None:
        return made
    section = SECTION_NAMES[entry.kind]
    size = structure.file_size
    if entry.offset > size or entry.size > size - entry.offset:
        raise BoundsError("the section leaves the file", code="section.bounds", path=path, section=section)
    if entry.size < body.header.SIZE:
        code = {"table": "index.header", "single": "single.header"}.get(body.shape) or _HEADER_RULES[entry.kind]
        raise BoundsError("the section is shorter than its header", code=code, path=path, section=section)
    made.header = body.header.decode(read_at(descriptor, entry.offset, body.header.SIZE, path))
    for table in body.tables:
        made.tables[table.id] = _rows(descriptor, made, table, path)
    if body.tables:
        start, length = _number(made.header, "ofs_heap"), _number(made.header, "len_heap")
        _inside(entry, start, length, "index.heap_bounds", path)
        made.heap = read_at(descriptor, entry.offset + start, length, path)
    return made


def _rows(descriptor: int, section: SectionRecords, table: Rows, path: object) -> list[Record]:
    names = (table.offset_field, table.count_field, table.stride_field)
    start, count, stride = (_number(section.header, name) for name in names)
    if stride < table.record.SIZE or count > MAX_ROWS:
        raise FormatError(
            f"{count} rows of {stride} bytes",
            code="index.row_size" if count <= MAX_ROWS else "index.num_rows",
            path=path,
            section=SECTION_NAMES[section.entry.kind],
            field=table.stride_field,
        )
    _inside(section.entry, start, count * stride, "index.layout", path)
    data = read_at(descriptor, section.entry.offset + start, count * stride, path)
    return [table.record.decode(data, index * stride) for index in range(count)]


def _inside(entry: GPackSectionEntryV1, start: int, length: int, code: str, path: object) -> None:
    if start > entry.size or length > entry.size - start:
        message = f"bytes {start} to {start + length} of a section of {entry.size}"
        raise BoundsError(message, code=code, path=path, section=SECTION_NAMES[entry.kind])


def _number(record: Record | None, name: str) -> int:
    return int(getattr(record, name))


def columns_of(record: Record | type[Record]) -> tuple[Column, ...]:
    """The fields of a record, in file order."""
    return COLUMNS[record.__name__ if isinstance(record, type) else type(record).__name__]
