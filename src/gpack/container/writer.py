"""Writing a container: one streaming pass into `<output>.tmp.<pid>`, re-checked, then renamed into place.

A crash or an error at any moment leaves the destination as it was. Every offset is known from the plan and every
digest has a fixed length, so the manifest's size is known before its content; header and digests go in last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import errors
from ..generated import constants as c
from ..generated.rules import align_up
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from .atomic import AtomicFile
from .manifest import canonical, schema_faults, section_record
from .payload import Block, Payload, gather_chunks
from .reader import check_manifest_digest
from .report import Report
from .streaming import Hasher
from .structure import MANIFEST, read_structure

MANIFEST_SCHEMA = "guild.gpack.v1"


@dataclass(frozen=True)
class PlannedSection:
    """A section that is to be written.

    Attributes:
        item_count: Number of logical items; its meaning depends on the kind.
        name: Only for private kinds; the others have fixed names.
    """

    kind: int
    payload: Payload
    item_count: int
    name: str | None = None
    alignment: int | None = None

    def entry(self) -> GPackSectionEntryV1:
        """The directory entry, without its place and digest."""
        known = c.SECTION_NAMES.get(self.kind)
        name = known or self.name
        alignment = c.SECTION_ALIGNMENTS.get(self.kind) or self.alignment or c.CACHE_LINE
        if name is None or (known and self.name not in (None, known)):
            raise errors.UsageError(f"section kind {self.kind} is called {known}, not {self.name}", code="usage")
        return GPackSectionEntryV1(
            kind=self.kind,
            size=self.payload.size,
            alignment=alignment,
            item_count=self.item_count,
            name=name.encode().ljust(24, b"\0"),
        )


@dataclass(frozen=True)
class BuildResult:
    """What was written.

    Attributes:
        manifest_sha256: The identity of the file, hex.
        write_seconds: Copying and hashing.
        sync_seconds: Waiting for the disk.
    """

    path: str
    size: int
    manifest_sha256: str
    sections: list[GPackSectionEntryV1]
    write_seconds: float
    sync_seconds: float


@dataclass
class GPackBuilder:
    """Collects sections, then writes the container.

    Attributes:
        manifest: The manifest's `model` object and the summaries (`tokenizer`, `experts`, `mtp`, `extensions`);
            versions, flags and sections are filled in.
        producer: Name of the writing program, without a version.
        format_version, min_reader_version: As the header has them.
    """

    manifest: Mapping[str, Any]
    producer: str = "gpack"
    format_version: int = c.FORMAT_VERSION
    min_reader_version: int = 1
    _sections: dict[int, PlannedSection] = field(default_factory=dict)

    def add(
        self,
        kind: int,
        payload: Payload | bytes,
        item_count: int,
        *,
        name: str | None = None,
        alignment: int | None = None,
    ) -> None:
        """Adds a section; the order of the calls does not matter.

        Raises:
            UsageError: The kind was added before, or is the manifest, which the builder makes itself.
        """
        if kind == MANIFEST or kind in self._sections:
            raise errors.UsageError(f"section kind {kind} cannot be added (again)", code="usage")
        made = Block(payload) if isinstance(payload, bytes | memoryview) else payload
        self._sections[kind] = PlannedSection(kind, made, item_count, name, alignment)

    def layout(self) -> Layout:
        """Where everything will lie; nothing is read or written.

        Raises:
            FormatError: The manifest cannot be written, or does not follow its schema.
        """
        made = Layout.plan(self)
        for field_path, message in schema_faults(made.manifest(self)):
            raise errors.FormatError(message, code="manifest.schema", section="ManifestJson", field=field_path)
        return made

    def build(
        self,
        path: str | os.PathLike[str],
        *,
        progress: Callable[[int], None] | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> BuildResult:
        """Writes the container and renames it to `path`.

        Args:
            progress: Called with the number of bytes written since the last call.
            before_commit: Called when all is written and checked; what it raises leaves the destination as it was.

        Raises:
            PathError: A source cannot be read, or the output cannot be written (`io.no_space` where the disk is full).
            FormatError: What was written does not pass the quick open: the sections contradict one another.
        """
        layout = self.layout()
        with AtomicFile(path, layout.total_file_size) as output:
            started = time.perf_counter()
            self._write_sections(output, layout, progress)
            digest = self._write_records(output, layout)
            written = time.perf_counter()
            output.sync()
            self._recheck(output)
            if before_commit:
                before_commit()
            output.commit()
            done = time.perf_counter()
        return BuildResult(
            os.fspath(path), layout.total_file_size, digest.hex(), layout.entries, written - started, done - written
        )

    def _write_sections(self, output: AtomicFile, layout: Layout, progress: Callable[[int], None] | None) -> None:
        """Copies payloads; while one chunk is hashed, the next is read and written."""
        with Hasher() as hasher:
            sections = [entry for entry in layout.entries if entry.kind != MANIFEST]
            for entry in sections:
                self._write_section(output, entry, hasher, progress)
                hasher.end()
            for entry in sections:
                entry.sha256 = hasher.take()

    def _write_section(
        self, output: AtomicFile, entry: GPackSectionEntryV1, hasher: Hasher, progress: Callable[[int], None] | None
    ) -> None:
        at = entry.offset
        for buffer, length in gather_chunks(self._sections[entry.kind].payload.segments(), hasher.buffer):
            output.write_at(buffer[:length], at)
            hasher.feed(buffer, length)
            at += length
            if progress:
                progress(length)
        if at != entry.offset + entry.size:
            raise errors.InternalError(
                f"section kind {entry.kind} has {at - entry.offset} bytes, {entry.size} were planned", code="internal"
            )

    def _write_records(self, output: AtomicFile, layout: Layout) -> bytes:
        """Writes manifest, directory, footer and header; returns the manifest's digest."""
        from hashlib import sha256

        manifest = canonical(layout.manifest(self))
        own = layout.entries[-1]
        own.sha256 = sha256(manifest).digest()
        output.write_at(manifest, own.offset)
        directory = b"".join(entry.encode() for entry in layout.entries)
        output.write_at(directory, layout.section_table_offset)
        footer = GPackFooterV1(
            manifest_offset=own.offset,
            section_table_offset=layout.section_table_offset,
            total_payload_bytes=sum(entry.size for entry in layout.entries),
            manifest_sha256=own.sha256,
        )
        output.write_at(footer.encode(), layout.total_file_size - footer.SIZE)
        header = GPackHeaderV1(
            format_version=self.format_version,
            min_reader_version=self.min_reader_version,
            flags=layout.flags,
            section_count=len(layout.entries),
            section_table_offset=layout.section_table_offset,
            manifest_offset=own.offset,
            manifest_size=own.size,
            total_file_size=layout.total_file_size,
        )
        output.write_at(header.encode(), 0)
        return own.sha256

    def _recheck(self, output: AtomicFile) -> None:
        """Reads the records back from the file, as a quick open would."""
        report = Report()
        found = read_structure(output.descriptor, os.fstat(output.descriptor).st_size, output.path, report)
        if found.header and found.footer:
            check_manifest_digest(output.descriptor, found.header, found.footer, output.path, report)
        fault = report.first_error()
        if fault is not None and fault.rule != "header.min_reader_version":
            raise fault.error(output.path)


@dataclass
class Layout:
    """Where everything lies: sections by kind, the manifest after them, directory, footer.

    Attributes:
        entries: Directory entries in file order; digests are filled in while writing.
    """

    entries: list[GPackSectionEntryV1]
    flags: int
    section_table_offset: int
    total_file_size: int

    @classmethod
    def plan(cls, builder: GPackBuilder) -> Layout:
        """Places all sections with the least gaps."""
        entries = [builder._sections[kind].entry() for kind in sorted(builder._sections)]
        end = GPackHeaderV1.SIZE
        for entry in entries:
            entry.offset = align_up(end, entry.alignment)
            end = entry.offset + entry.size
        made = cls(entries, _flags(builder._sections), 0, 0)
        # Digests are 64 hex digits whatever they say, so zeros give the right size.
        size = len(canonical(made.manifest(builder)))
        own = PlannedSection(MANIFEST, Block(bytes(size)), 1).entry()
        own.offset = align_up(end, own.alignment)
        entries.append(own)
        made.section_table_offset = align_up(own.offset + size, c.CACHE_LINE)
        table_end = made.section_table_offset + len(entries) * GPackSectionEntryV1.SIZE
        made.total_file_size = align_up(table_end, c.CACHE_LINE) + GPackFooterV1.SIZE
        return made

    def manifest(self, builder: GPackBuilder) -> dict[str, Any]:
        """The manifest with the digests that are known so far."""
        return {
            **builder.manifest,
            "schema": MANIFEST_SCHEMA,
            "format_version": builder.format_version,
            "min_reader_version": builder.min_reader_version,
            "flags": self.flags,
            "producer": builder.producer,
            "sections": [section_record(entry) for entry in self.entries if entry.kind != MANIFEST],
        }


def _flags(kinds: Mapping[int, object]) -> int:
    flags = c.GPackFlags.LITTLE_ENDIAN
    for kind, mask in c.SECTION_FLAGS.items():
        flags |= mask if kind in kinds else 0
    if c.SectionKind.EXPERT_LAYOUT_BIN in kinds and c.SectionKind.EXPERT_BLOBS not in kinds:
        flags |= c.GPackFlags.EXTERNAL_EXPERTS
    return flags
