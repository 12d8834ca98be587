"""Broken packs that the schema alone gives: in every section's records, each reserved field and each set of flags.

What another table of cases has already is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...generated import constants as c
from ...generated.layout import Column
from ...generated.sections import SECTIONS
from ...generated.structs import ExpertShardRowV1, Record
from ..parts import Parts
from ..walk import columns_of
from . import bases
from .bases import digest_chunks
from .broken_tensors import no_shards
from .case import CASES, Change, case, steps
from .edits import set_header


def _faults(record: type[Record]) -> Iterator[tuple[str, str, object]]:
    """Rule, field and value of each fault."""
    for column in columns_of(record):
        if column.reserved:
            yield "field.reserved", column.name, _not_zero(column)
    for name, flags in record.FLAGS.items():
        yield "field.flags", name, getattr(c, flags).MASK + 1  # the first bit without a meaning


def _not_zero(column: Column) -> object:
    return bytes(column.size - 1) + b"\1" if column.type.startswith("bytes") else 1


def _in_row(kind: int, record: type[Record], name: str, value: object) -> Change:
    """Sets a field of the first row; flags keep what they say."""

    def change(pack: Parts) -> None:
        old = getattr(pack.rows(kind, record)[0], name)
        pack.set_row(kind, 0, record, **{name: old | value if isinstance(value, int) else value})

    return change


def _sweep() -> None:
    known = {item.id for item in CASES}
    for kind, body in SECTIONS.items():
        section = c.SECTION_NAMES[kind]
        for rule, name, value in _faults(body.header) if body.header else ():
            if f"{rule}/{section}.{name}" not in known:
                sealed = kind in (c.SectionKind.CHUNK_DIGESTS, c.SectionKind.PARITY)
                change: Change = set_header(kind, **{name: value})
                change = steps(change, digest_chunks) if kind == c.SectionKind.PARITY else change
                case(rule, section, name, change, base=bases.sealed if sealed else bases.everything)
        for table in body.tables:
            outside = table.record is ExpertShardRowV1
            for rule, name, value in _faults(table.record):
                field = f"{table.id}[0].{name}"
                if f"{rule}/{section}.{table.id}.{name}" not in known:
                    row_change = _in_row(kind, table.record, name, value)
                    base = bases.external if outside else bases.everything
                    case(rule, section, field, steps(row_change, no_shards) if outside else row_change, base=base)


_sweep()
