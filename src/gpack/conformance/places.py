"""Where a violation stands: its schema path, and the bytes of the file that are at fault."""

from __future__ import annotations

import re

from ..container.report import Violation
from ..container.structure import MANIFEST, Structure, section_name
from ..generated.sections import SECTIONS, Section
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1, Record
from .walk import columns_of

_RECORDS: dict[str, type[Record]] = {"header": GPackHeaderV1, "footer": GPackFooterV1}
_BY_NAME: dict[str, Section] = {section.name: section for section in SECTIONS.values()}
_ROW = re.compile(r"(\w+)\[\d+\]\.(\w+)")
_ELEMENT = re.compile(r"(\w+)(\[\d+\])?")
_LOOSE = ("padding", "heap")  # bytes that are no field


def record_of(section: str, field: str) -> tuple[type[Record], str] | None:
    """The record and the field of it that a violation names; None where it names none."""
    row = _ROW.fullmatch(field)
    if section == "directory" and row is not None:
        return GPackSectionEntryV1, row[2]
    found: type[Record] | None = None
    if section in _RECORDS:
        found = _RECORDS[section]
    elif section in _BY_NAME:
        body = _BY_NAME[section]
        found = body.header if row is None else {table.id: table.record for table in body.tables}.get(row[1])
    name = field if row is None else row[2]
    if found is None or name not in found.OFFSETS:
        return None
    return found, name


def path_of(violation: Violation) -> str | None:
    """The schema path, such as `$.header.magic` or `$.TensorIndexBin.rows[2].ggml_type`; None where there is none."""
    section, field = violation.section, violation.field
    if section == "gap":
        return None
    if section == "directory":
        return f"$.{field}"
    if field in ("", "$", *_LOOSE):
        return f"$.{section}"
    return f"$.{section}.{field.removeprefix('$.')}"


def range_of(violation: Violation, structure: Structure) -> tuple[int, int] | None:
    """Offset and length in bytes of what is at fault; None where it is nowhere in the file."""
    section, field = violation.section, violation.field
    known = record_of(section, field)
    if known is not None and violation.offset is not None:
        size = next(column.size for column in columns_of(known[0]) if column.name == known[1])
        return violation.offset, size
    element = _ELEMENT.fullmatch(field)
    parts = _BY_NAME[section].parts if section in _BY_NAME else {}
    if element is not None and element[1] in parts and violation.offset is not None:
        return violation.offset, parts[element[1]] if element[2] else 1
    if section == "ManifestJson":
        return _manifest(structure)
    if field in _LOOSE and violation.offset is not None:
        return violation.offset, 1
    for entry in structure.entries:
        if section_name(entry) == section:
            return entry.offset, entry.size
    return None if violation.offset is None else (violation.offset, 0)


def _manifest(structure: Structure) -> tuple[int, int] | None:
    entry = structure.find(MANIFEST)
    return None if entry is None else (entry.offset, entry.size)
