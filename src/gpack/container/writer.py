"""Writing a container: one streaming pass into `<output>.tmp.<pid>`, re-checked, then renamed into place.

A crash or an error at any moment leaves the destination as it was. Every offset is known from the plan and every
digest has a fixed length, so the manifest's size is known before its content; header and digests go in last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .. import errors
from ..generated import constants as c
from ..generated.rules import align_up
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from .atomic import AtomicFile
from .copying import copy_range
from .manifest import canonical, schema_faults, section_record
from .payload import Block, Payload, Unmade, gather_chunks
from .place import Place
from .reader import check_manifest_digest
from .report import Report
from .streaming import Hasher
from .structure import MANIFEST, read_structure, section_name

MANIFEST_SCHEMA = "guild.gpack.v1"


@dataclass(frozen=True)
class PlannedSection:
    """A section that is to be written.

    Attributes:
        item_count: Number of logical items; its meaning depends on the kind.
        name: Only for private kinds; the others have fixed names.
        sha256: Digest that the payload must have; None where it is not known.
        kept: Where the payload is one run of bytes of another pack whose digest is taken over, unhashed.
    """

    kind: int
    payload: Payload
    item_count: int
    name: str | None = None
    alignment: int | None = None
    sha256: bytes | None = None
    kept: Place | None = None

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


class Derived(Protocol):
    """A section that is made of the others: its size follows from their sizes, its bytes from their bytes."""

    kind: int

    def plan(self, entries: Sequence[GPackSectionEntryV1]) -> tuple[int, int]:
        """Bytes and items of the section, where those are all sections that come before it in the making."""

    def watch(self, entry: GPackSectionEntryV1, data: memoryview) -> None:
        """Sees the bytes of another section, run by run, as they are written."""

    def payload(self, descriptor: int, path: object, entries: Sequence[GPackSectionEntryV1]) -> Payload:
        """The section, when the others are written to a file."""


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
    _derived: list[Derived] = field(default_factory=list)

    def add(
        self,
        kind: int,
        payload: Payload | bytes,
        item_count: int,
        *,
        name: str | None = None,
        alignment: int | None = None,
        sha256: bytes | None = None,
        kept: Place | None = None,
    ) -> None:
        """Adds a section; the order of the calls does not matter.

        Args:
            sha256: Of a section that is copied, its digest: damaged bytes get no digest of their own.
            kept: The same bytes in another pack. They are copied by the kernel and keep that digest, unhashed, unless
                other sections are made of them.

        Raises:
            UsageError: The kind was added before, or is the manifest, which the builder makes itself.
        """
        if kind == MANIFEST or kind in self._sections:
            raise errors.UsageError(f"section kind {kind} cannot be added (again)", code="usage")
        made = Block(payload) if isinstance(payload, bytes | memoryview) else payload
        self._sections[kind] = PlannedSection(kind, made, item_count, name, alignment, sha256, kept)

    def derive(self, section: Derived) -> None:
        """Adds a section that is made of the others, those that were derived before it too.

        Raises:
            UsageError: The kind was added before.
        """
        if section.kind in self._sections or any(section.kind == other.kind for other in self._derived):
            raise errors.UsageError(f"section kind {section.kind} cannot be added again", code="usage")
        self._derived.append(section)

    def payload(self, kind: int) -> Payload | None:
        """What a section is made of; None where it was not added."""
        found = self._sections.get(kind)
        return None if found is None else found.payload

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
        check: Callable[[AtomicFile], None] | None = None,
    ) -> BuildResult:
        """Writes the container and renames it to `path`.

        Args:
            progress: Called with the number of bytes written since the last call.
            before_commit: Called when all is written and checked; what it raises leaves the destination as it was.
            check: Called before that with what was written, to be checked further.

        Raises:
            PathError: A source cannot be read, or the output cannot be written (`io.no_space` where the disk is full).
            FormatError: What was written does not pass the quick open: the sections contradict one another.
            DigestError: `section.sha256`: a section has another digest than it must have.
        """
        layout = self.layout()
        with AtomicFile(path, layout.total_file_size) as output:
            started = time.perf_counter()
            self._write_sections(output, layout, progress)
            digest = self._write_records(output, layout)
            written = time.perf_counter()
            output.sync()
            self._recheck(output)
            if check:
                check(output)
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
            written = [entry for entry in layout.entries if entry.kind in self._sections]
            hashed = []
            for entry in written:
                planned = self._sections[entry.kind]
                if planned.kept is not None and planned.sha256 is not None and not self._derived:
                    copy_range(planned.kept, output, entry.offset, progress or (lambda _: None))
                    entry.sha256 = planned.sha256
                else:
                    self._write_section(output, entry, planned.payload, hasher, progress)
                    hashed.append(entry)
            for section in self._derived:
                entry = next(entry for entry in layout.entries if entry.kind == section.kind)
                payload = section.payload(output.descriptor, output.destination, layout.entries)
                self._write_section(output, entry, payload, hasher, progress)
                hashed.append(entry)
            for entry in hashed:
                entry.sha256 = hasher.take()
                self._check_copied(entry)

    def _check_copied(self, entry: GPackSectionEntryV1) -> None:
        planned = self._sections.get(entry.kind)
        if planned is not None and planned.sha256 not in (None, entry.sha256):
            raise errors.DigestError(
                f"the bytes that were copied have {entry.sha256.hex()}, {planned.sha256.hex()} is recorded",
                code="section.sha256",
                section=section_name(entry),
                field="sha256",
                hint="`guild verify` tells what is damaged, `guild repair` mends it from another copy",
            )

    def _write_section(
        self,
        output: AtomicFile,
        entry: GPackSectionEntryV1,
        payload: Payload,
        hasher: Hasher,
        progress: Callable[[int], None] | None,
    ) -> None:
        at = entry.offset
        for buffer, length in gather_chunks(payload.segments(), hasher.buffer):
            output.write_at(buffer[:length], at)
            for section in self._derived:
                section.watch(entry, buffer[:length])
            hasher.feed(buffer, length)
            at += length
            if progress:
                progress(length)
        if at != entry.offset + entry.size:
            raise errors.InternalError(
                f"section kind {entry.kind} has {at - entry.offset} bytes, {entry.size} were planned", code="internal"
            )
        hasher.end()

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
        for section in builder._derived:
            size, items = section.plan(entries)
            planned = PlannedSection(section.kind, Unmade(size), items).entry()
            entries = sorted([*entries, planned], key=lambda entry: entry.kind)
        end = GPackHeaderV1.SIZE
        for entry in entries:
            entry.offset = align_up(end, entry.alignment)
            end = entry.offset + entry.size
        made = cls(entries, _flags(builder._sections), 0, 0)
        # Digests are 64 hex digits whatever they say, so zeros give the right size.
        size = len(canonical(made.manifest(builder)))
        own = PlannedSection(MANIFEST, Unmade(size), 1).entry()
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
