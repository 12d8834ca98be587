"""A pack as JSON-ready values: what a reader in any language says of the same file, to be compared with theirs.

Numbers of up to 32 bits are numbers, larger ones decimal strings, bytes are hex, ASCII is text up to the first NUL,
a reference is the bytes that it points at. Reserved fields are left out. spec/conformance.md has the whole form.
"""

from __future__ import annotations

import os
from typing import Any

from ..container.report import Report
from ..container.structure import open_file, read_structure
from ..errors import FormatError
from ..generated.layout import Column
from ..generated.structs import Record
from .walk import SectionRecords, columns_of, walk_section


def dump(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Header, footer, directory and the records of every section.

    Raises:
        GpackError: The first rule of a quick open that the file breaks, a table that leaves its section, or why the
            file cannot be read.
    """
    descriptor, size = open_file(path)
    try:
        report = Report()
        structure = read_structure(descriptor, size, path, report)
        if (found := report.first_error()) is not None:
            raise found.error(path, report.hint)
        if structure.header is None or structure.footer is None:
            raise FormatError("header or footer could not be read", code="header.complete", path=path)
        sections = [_section(walk_section(descriptor, structure, entry, path)) for entry in structure.entries]
        return {"header": _record(structure.header), "footer": _record(structure.footer), "sections": sections}
    finally:
        os.close(descriptor)


def _section(section: SectionRecords) -> dict[str, Any]:
    made: dict[str, Any] = {"entry": _record(section.entry)}
    if section.header is None:
        return made
    made["header"] = _record(section.header)
    for name, rows in section.tables.items():
        made[name] = [_row(section, row) for row in rows]
    return made


def _record(record: Record) -> dict[str, Any]:
    return {c.name: _value(c, getattr(record, c.name)) for c in columns_of(record) if not c.reserved}


def _row(section: SectionRecords, row: Record) -> dict[str, Any]:
    made = _record(row)
    for ref, _ in row.REFS:
        del made[f"{ref}_offset"], made[f"{ref}_length"]
        made[ref] = {"hex": section.bytes_of(row, ref).hex()}
    return made


def _value(column: Column, value: Any) -> Any:
    kind = column.type.partition("[")[0]
    if kind == "ascii":
        return bytes(value).partition(b"\0")[0].decode("ascii", "backslashreplace")
    if kind == "bytes":
        return bytes(value).hex()
    if isinstance(value, tuple):
        return [_number(kind, item) for item in value]
    return _number(kind, value)


def _number(kind: str, value: float) -> float | str:
    return str(value) if kind in ("u64", "i64") else value
