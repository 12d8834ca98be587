"""Takes a valid pack apart, changes one thing, and seals it again, so that only the intended rule is broken.

The sealer lays the file out by the format's arithmetic alone and shares no code with the writer: of the schema it
uses the generated records and tables, to name fields. `Parts.parse(data).seal() == data` for every canonical pack.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ..generated import constants as c
from ..generated import structs as s
from ..generated.layout import COLUMNS
from ..generated.rules import align_up
from ..generated.sections import SECTIONS

MANIFEST = c.SectionKind.MANIFEST_JSON
MTP, BLOBS, LAYOUT = c.SectionKind.MTP_BLOB, c.SectionKind.EXPERT_BLOBS, c.SectionKind.EXPERT_LAYOUT_BIN
HEADER, ENTRY, FOOTER = s.GPackHeaderV1.SIZE, s.GPackSectionEntryV1.SIZE, s.GPackFooterV1.SIZE
NAME = next(column.size for column in COLUMNS["GPackSectionEntryV1"] if column.name == "name")
# kind: header record of the sections that begin with one; kind: row record of the tables.
HEADERS: dict[int, type[Any]] = {kind: body.header for kind, body in SECTIONS.items() if body.header}
ROWS: dict[int, type[Any]] = {kind: body.tables[0].record for kind, body in SECTIONS.items() if body.tables}

Row = tuple[Any, list[bytes]]


def canonical(value: Any) -> bytes:
    """RFC 8785 of what a manifest may hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Section:
    """A section's bytes and directory entry; offset, size and digest are filled in by the sealer.

    Attributes:
        bound: Fields of the entry that are changed before the manifest repeats it.
        late: Fields of the entry that are changed without the manifest's knowledge.
        zeros: Further bytes after `data`, which no memory holds.
        digest: Digest of data and zeros, where it is not to be worked out here.
        gap: Further bytes in front, beyond the alignment.
        at: Offset, where it is not the least one.
        place: Where the bytes were put, whatever the entry says.
    """

    entry: s.GPackSectionEntryV1
    data: bytearray
    bound: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)
    zeros: int = 0
    digest: bytes | None = None
    gap: int = 0
    at: int | None = None
    place: int = 0


@dataclass
class Parts:
    """A pack in parts.

    Attributes:
        header, footer: Fields to set after all others are worked out. The manifest repeats `bound_header`'s.
        manifest: The parsed manifest; versions, flags and sections are filled in, then `manifest_edits` are applied.
        manifest_bytes: Changes the manifest's bytes, in place of the canonical form.
        table_gap: Further bytes before the directory.
        final: Changes of the sealed file; digests stay as they were.
    """

    sections: list[Section]
    manifest: dict[str, Any]
    header: dict[str, Any] = field(default_factory=dict)
    bound_header: dict[str, Any] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)
    manifest_edits: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    manifest_bytes: Callable[[bytes], bytes] = field(default=lambda data: data)
    table_gap: int = 0
    final: list[Callable[[bytearray], None]] = field(default_factory=list)
    marks: list[tuple[int | str, int, int]] = field(default_factory=list)
    places: dict[int | str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> Parts:
        """Takes a valid pack apart."""
        head = s.GPackHeaderV1.decode(data)
        sections = []
        for index in range(head.section_count):
            entry = s.GPackSectionEntryV1.decode(data, head.section_table_offset + ENTRY * index)
            sections.append(Section(entry, bytearray(data[entry.offset : entry.offset + entry.size])))
        return cls(sections, json.loads(bytes(sections[-1].data)))

    def copy(self) -> Parts:
        """A copy to change."""
        return copy.deepcopy(self)

    # ------------------------------------------------------------ sections

    def section(self, kind: int) -> Section:
        """The first section of a kind."""
        return next(section for section in self.sections if section.entry.kind == kind)

    def has(self, kind: int) -> bool:
        """Whether a section of that kind is there."""
        return any(section.entry.kind == kind for section in self.sections)

    def add(
        self, kind: int, data: bytes, items: int, *, name: str | None = None, alignment: int | None = None
    ) -> Section:
        """Adds a section where the order of kinds wants it."""
        name = name or c.SECTION_NAMES.get(kind, "")
        alignment = alignment or c.SECTION_ALIGNMENTS.get(kind, c.CACHE_LINE)
        entry = s.GPackSectionEntryV1(
            kind=kind, alignment=alignment, item_count=items, name=name.encode().ljust(NAME, b"\0")
        )
        made = Section(entry, bytearray(data))
        place = next(
            (i for i, other in enumerate(self.sections) if other.entry.kind == MANIFEST or other.entry.kind > kind),
            len(self.sections),
        )
        self.sections.insert(place, made)
        return made

    def remove(self, *kinds: int) -> None:
        """Removes sections."""
        self.sections = [section for section in self.sections if section.entry.kind not in kinds]

    # ------------------------------------------------------------ records

    def mark(self, place: int | str, start: int, length: int) -> None:
        """Notes the bytes that were changed, from the start of a section or of header, directory or footer."""
        self.marks.append((place, start, length))

    def poke(self, kind: int, at: int, data: bytes) -> None:
        """Overwrites bytes of a section."""
        self.section(kind).data[at : at + len(data)] = data
        self.mark(kind, at, len(data))

    def get(self, kind: int) -> Any:
        """The header record of a section."""
        return HEADERS[kind].decode(self.section(kind).data)

    def set(self, kind: int, /, **fields: Any) -> None:
        """Changes fields of a section's header record."""
        self._set_record(kind, HEADERS[kind], 0, fields)

    def rows(self, kind: int, record: type[Any] | None = None) -> list[Any]:
        """The rows of a table, decoded."""
        return [self._row(kind, index, record)[0] for index in range(self._count(kind, record))]

    def set_row(self, kind: int, row: int | str, record: type[Any] | None = None, /, **fields: Any) -> None:
        """Changes fields of a row, named by number or by its name."""
        index = self.find(kind, row) if isinstance(row, str) else row
        _, at, record = self._row(kind, index, record)
        self._set_record(kind, record, at, fields)

    def find(self, kind: int, name: str) -> int:
        """Number of the row of that name."""
        names = [self.ref(kind, row) for row in self.rows(kind)]
        return names.index(name.encode())

    def ref(self, kind: int, row: Any, which: int = 0) -> bytes:
        """The heap bytes of a row's reference."""
        name = row.REFS[which][0]
        start = self.get(kind).ofs_heap + getattr(row, f"{name}_offset")
        return bytes(self.section(kind).data[start : start + getattr(row, f"{name}_length")])

    def _count(self, kind: int, record: type[Any] | None) -> int:
        header = self.get(kind)
        return int(header.num_shards if record is s.ExpertShardRowV1 else header.num_rows)

    def _row(self, kind: int, index: int, record: type[Any] | None) -> tuple[Any, int, type[Any]]:
        header = self.get(kind)
        start, step = header.ofs_rows, header.row_size
        if record is s.ExpertShardRowV1:
            start, step = header.ofs_shards, header.shard_row_size
        record = record or ROWS[kind]
        at = start + index * step
        return record.decode(self.section(kind).data, at), at, record

    def _set_record(self, kind: int, record: type[Any], at: int, fields: dict[str, Any]) -> None:
        data = self.section(kind).data
        made = record.decode(data, at)
        for name, value in fields.items():
            before = made.encode()
            setattr(made, name, value)
            changed = [i for i, (a, b) in enumerate(zip(before, made.encode(), strict=True)) if a != b]
            if not changed:
                raise ValueError(f"{name} was {value} before")
            start = record.OFFSETS[name]
            self.mark(kind, at + start, max(changed) + 1 - start)
        data[at : at + record.SIZE] = made.encode()

    def entries(self, kind: int) -> list[Row]:
        """The rows of a table, each with the bytes of its references."""
        return [(row, [self.ref(kind, row, which) for which in range(len(row.REFS))]) for row in self.rows(kind)]

    def rebuild(self, kind: int, rows: Sequence[Row], *, row_size: int = 0, fill: bytes = b"\0", **fields: Any) -> None:
        """Writes a table anew: header, rows, heap; bytes after the heap are kept. Shards are not.

        Args:
            fill: Byte after version 1's fields of a longer row.
        """
        record, header = ROWS[kind], self.get(kind)
        tail = bytes(self.section(kind).data[header.ofs_heap + header.len_heap :])
        heap = bytearray()
        packed = bytearray()
        header.row_size = row_size or header.row_size
        for row, values in rows:
            for (ref, alignment), value in zip(record.REFS, values, strict=True):
                if value:
                    heap += bytes(-len(heap) % alignment)
                setattr(row, f"{ref}_offset", len(heap) if value else 0)
                setattr(row, f"{ref}_length", len(value))
                heap += value
            packed += row.encode().ljust(header.row_size, fill)
        header.num_rows = len(rows)
        header.ofs_heap = header.SIZE + len(packed)
        header.len_heap = len(heap)
        if kind == LAYOUT:
            header.ofs_shards = header.ofs_heap
        for name, value in fields.items():
            setattr(header, name, value)
        self.section(kind).data[:] = header.encode() + packed + heap + tail
        if kind != MTP:
            self.section(kind).entry.item_count = len(rows)

    # ------------------------------------------------------------ sealing

    def flags(self) -> int:
        """The header's flags, as the sections ask for them."""
        kinds = {section.entry.kind for section in self.sections}
        flags = c.GPackFlags.LITTLE_ENDIAN
        for kind in kinds:
            flags |= c.SECTION_FLAGS.get(kind, 0)
        return flags | (c.GPackFlags.EXTERNAL_EXPERTS if LAYOUT in kinds and BLOBS not in kinds else 0)

    def seal(self) -> bytes:
        """The file."""
        size, runs = self.seal_runs()
        made = bytearray(size)
        for start, data in runs:
            made[start : start + len(data)] = data
        for edit in self.final:
            edit(made)
        return bytes(made)

    def seal_runs(self) -> tuple[int, list[tuple[int, bytes]]]:
        """The file's size, and (offset, bytes) of what is not zero in it, later runs over earlier ones.

        `final` edits are not made: they need the whole file.
        """
        places, end = self.places, HEADER
        for section in self.sections:
            if section.entry.kind == MANIFEST:
                continue
            end = self._place(section, end)
        header = s.GPackHeaderV1(format_version=1, min_reader_version=1, flags=self.flags())
        _assign(header, self.bound_header)
        manifest = self.manifest_bytes(self._manifest(header))
        own = self.section(MANIFEST) if self.has(MANIFEST) else None
        if own:
            own.data[:] = manifest
            end = self._place(own, end)
            header.manifest_offset, header.manifest_size = own.entry.offset, own.entry.size
        places[MANIFEST] = header.manifest_offset
        table = align_up(end, c.CACHE_LINE) + self.table_gap
        header.section_count = len(self.sections)
        header.section_table_offset = table
        header.total_file_size = align_up(table + ENTRY * len(self.sections), c.CACHE_LINE) + FOOTER
        places |= {"header": 0, "directory": table, "footer": header.total_file_size - FOOTER}
        footer = s.GPackFooterV1(
            manifest_offset=header.manifest_offset,
            section_table_offset=table,
            total_payload_bytes=sum(x.late.get("size", x.entry.size) for x in self.sections) % (1 << 64),
            manifest_sha256=sha256(manifest if own else b"").digest(),
        )
        _assign(header, self.header)
        _assign(footer, self.footer)
        runs = [(section.place, bytes(section.data)) for section in self.sections]
        for index, section in enumerate(self.sections):
            entry = copy.copy(section.entry)
            _assign(entry, section.late)
            runs.append((table + ENTRY * index, entry.encode()))
        runs += [(0, header.encode()), (places["footer"], footer.encode())]
        return places["footer"] + FOOTER, runs

    def changed(self) -> list[tuple[int, int]]:
        """The byte ranges of the sealed file that were marked as changed."""
        return [
            (self.places[place] + start, self.places[place] + start + length) for place, start, length in self.marks
        ]

    def _place(self, section: Section, end: int) -> int:
        entry = section.entry
        section.place = (
            align_up(end, entry.alignment or c.CACHE_LINE) + section.gap if section.at is None else section.at
        )
        entry.offset = section.place
        entry.size = len(section.data) + section.zeros
        entry.sha256 = section.digest or sha256(section.data).digest()
        _assign(entry, section.bound)
        self.places.setdefault(entry.kind, section.place)
        return max(end, section.place + len(section.data) + section.zeros)

    def _manifest(self, header: s.GPackHeaderV1) -> bytes:
        manifest = copy.deepcopy(self.manifest)
        for name in ("format_version", "min_reader_version", "flags"):
            manifest[name] = getattr(header, name)
        manifest["sections"] = [bound(x.entry) for x in self.sections if x.entry.kind != MANIFEST]
        for edit in self.manifest_edits:
            edit(manifest)
        return canonical(manifest)


def bound(entry: s.GPackSectionEntryV1) -> dict[str, Any]:
    """A directory entry as the manifest repeats it."""
    record = {name: getattr(entry, name) for name in ("kind", "flags", "offset", "size", "alignment", "item_count")}
    return record | {"name": entry.name.split(b"\0")[0].decode(), "sha256": entry.sha256.hex()}


def _assign(record: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(record, name, value)
