"""The pack that is to be mended, as far as it can be read, and what it should be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from ..container.reader import Container, check_manifest_digest, hash_range
from ..container.report import Report
from ..container.structure import MANIFEST, close_read, open_file, path_error, read_structure
from ..errors import FormatError
from ..generated.constants import SectionKind
from ..generated.structs import GPackHeaderV1, GPackSectionEntryV1
from ..sections.chunks import ChunkDigests

FRAME = "frame"  # header, directory, footer, and the bytes between sections


@dataclass(frozen=True)
class Damage:
    """A run of bytes that are not what they should be.

    Attributes:
        section: Name of the section; `frame` outside of all.
        offset: First byte in the file.
        length: Bytes; a whole chunk where the section has digests of chunks.
        entry: The section's entry; None for the frame.
        number: Of the chunk, where the pack's own ChunkDigests knows it.
    """

    section: str
    offset: int
    length: int
    entry: GPackSectionEntryV1 | None = None
    number: int | None = None

    @property
    def start(self) -> int:
        """First byte, from the start of the section."""
        return self.offset - (self.entry.offset if self.entry else 0)

    def to_dict(self) -> dict[str, object]:
        """The run as JSON-ready values."""
        return {"section": self.section, "offset": self.offset, "length": self.length}


class Target:
    """An open pack that may be damaged anywhere.

    Attributes:
        path, descriptor: The file.
        size: Bytes that it has.
        total_size: Bytes that it should have.
        entries: The directory that it should have.
        sound: Header, directory, footer and manifest are its own; else they are another copy's.
        footer_digest: Digest of the manifest that it should have: its identity.
    """

    def __init__(self, path: str | os.PathLike[str], other: Container | None = None) -> None:
        """Opens the file.

        Args:
            other: Another copy of the pack, for its directory where this one's is damaged.

        Raises:
            PathError: The file cannot be read.
            FormatError: Its directory is damaged, and there is no other copy.
        """
        self.path = os.fspath(path)
        self.descriptor, self.size = open_file(path)
        try:
            self._read(other)
        except BaseException:
            self.close()
            raise

    def _read(self, other: Container | None) -> None:
        report = Report()
        found = read_structure(self.descriptor, self.size, self.path, report)
        if found.header and found.footer and report.ok:
            check_manifest_digest(self.descriptor, found.header, found.footer, self.path, report)
        self.sound = report.ok
        if found.header and found.footer and report.ok:
            self.entries, self.total_size = found.entries, found.file_size
            self.footer_digest = found.footer.manifest_sha256
            return
        fault = report.first_error()
        if other is None or fault is None:
            error = fault.error(self.path) if fault else FormatError("it cannot be read", code="header.complete")
            error.hint = "the pack's directory is damaged: another copy of the pack is needed (--from)"
            raise error
        self.entries, self.total_size = other.entries, other.file_size
        self.footer_digest = other.footer.manifest_sha256

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file; zeros after its end.

        Raises:
            PathError: The read failed.
        """
        parts, end = [], offset + length
        while offset < end:
            try:
                part = os.pread(self.descriptor, end - offset, offset)
            except OSError as error:
                raise path_error(error, self.path) from error
            if not part:
                parts.append(bytes(end - offset))
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def find(self, kind: int) -> GPackSectionEntryV1 | None:
        """The entry of a kind; None where there is none."""
        return next((entry for entry in self.entries if entry.kind == kind), None)

    def frame(self) -> Iterator[tuple[int, int]]:
        """(offset, length) of all that is in no section, with the manifest where it is another copy's."""
        end = 0
        spans = sorted((entry.offset, entry.size) for entry in self.entries if self.sound or entry.kind != MANIFEST)
        for offset, size in (*spans, (self.total_size, 0)):
            if offset > end:
                yield end, offset - end
            end = max(end, offset + size)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """(offset, length) of what lies between sections."""
        end = GPackHeaderV1.SIZE
        for entry in sorted(self.entries, key=lambda entry: entry.offset):
            if entry.offset > end:
                yield end, entry.offset - end
            end = max(end, entry.offset + entry.size)

    def digests(self) -> ChunkDigests | None:
        """The digests of chunks, where they are what was written; else None.

        Raises:
            UnsupportedError: The package that they need is not installed.
        """
        entry = self.find(SectionKind.CHUNK_DIGESTS)
        if entry is None:
            return None
        data = self.read(entry.offset, entry.size)
        return ChunkDigests(data, self.entries) if sha256(data).digest() == entry.sha256 else None

    def whole(self, entry: GPackSectionEntryV1) -> bool:
        """Whether a section has the SHA-256 that the directory records."""
        if entry.offset + entry.size > self.size:
            return False
        return hash_range(self.descriptor, entry.offset, entry.size, self.path) == entry.sha256

    def close(self) -> None:
        """Closes the file."""
        close_read(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
