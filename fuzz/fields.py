"""The fields of all records, from the schema, as a mutator needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpack.generated.layout import COLUMNS
from gpack.generated.sections import SECTIONS
from gpack.generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1

HEADER, ENTRY, FOOTER, SECTION, ROW = "HEADER", "ENTRY", "FOOTER", "SECTION", "ROW"
_NUMBERS = (1, 2, 4, 8)  # bytes


@dataclass(frozen=True)
class Field:
    """A number in a record.

    Attributes:
        record, name: Of the schema.
        place: Which record: of the file (HEADER, ENTRY, FOOTER), at a section's begin (SECTION), or a row (ROW).
        kind: Of the section, where it is in one.
        base: Where the first row stands in the section.
        stride: Bytes of a row.
        offset, width: Bytes, in the record.
    """

    record: str
    name: str
    place: str
    kind: int
    base: int
    stride: int
    offset: int
    width: int


def fields() -> Iterator[Field]:
    """Every number of every record that a file may hold; of arrays of numbers the first."""
    for place, record in ((HEADER, GPackHeaderV1), (ENTRY, GPackSectionEntryV1), (FOOTER, GPackFooterV1)):
        yield from _of(record.__name__, place)
    for kind, section in SECTIONS.items():
        if section.header is not None:
            yield from _of(section.header.__name__, SECTION, kind)
            for rows in section.tables:
                yield from _of(rows.record.__name__, ROW, kind, section.header.SIZE, rows.record.SIZE)


def _of(record: str, place: str, kind: int = 0, base: int = 0, stride: int = 0) -> Iterator[Field]:
    for column in COLUMNS[record]:
        if column.size in _NUMBERS:
            yield Field(record, column.name, place, kind, base, stride, column.offset, column.size)
        elif column.type[0] in "ui":  # an array of numbers
            width = int(column.type[1:].partition("[")[0]) // 8
            yield Field(record, column.name, place, kind, base, stride, column.offset, width)


def as_c() -> str:
    """The same as a table in C, `fields.h`."""
    lines = [
        "/* Made by fuzz/fields.py from the schema. */",
        "#include <stdint.h>",
        f"enum fuzz_place {{ {', '.join(f'FUZZ_{place}' for place in (HEADER, ENTRY, FOOTER, SECTION, ROW))} }};",
        "typedef struct { enum fuzz_place place; uint32_t kind, base, stride, offset, width; } fuzz_field;",
        "static const fuzz_field fuzz_fields[] = {",
    ]
    for field in fields():
        numbers = f"{field.kind}, {field.base}, {field.stride}, {field.offset}, {field.width}"
        lines.append(f"    {{FUZZ_{field.place}, {numbers}}}, /* {field.record}.{field.name} */")
    return "\n".join([*lines, "};", ""])
