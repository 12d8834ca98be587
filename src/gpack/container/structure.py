"""Header, directory and footer: read and checked with a few small reads, whatever the file's size.

Both the quick open and the full verify start here, so they cannot disagree. Standard library only, and light.
"""

from __future__ import annotations

import os
import stat

from .. import errors
from ..generated import constants as c
from ..generated.gguf.constants import GGUF_MAGIC
from ..generated.rules import (
    align_up,
    check_gpack_footer_v1,
    check_gpack_header_v1,
    check_gpack_section_entry_v1,
    quick_gpack_footer_v1,
    quick_gpack_header_v1,
    quick_gpack_section_entry_v1,
)
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from .report import Report

MANIFEST = c.SectionKind.MANIFEST_JSON
_MAX_DIRECTORY = c.MAX_SECTIONS * GPackSectionEntryV1.SIZE


class Structure:
    """The fixed records of a file, as far as they could be read.

    Attributes:
        file_size: Bytes of the file.
        header, footer: The records; None where the file is too short or the place unknown.
        footer_offset: Where the footer is.
        entries: The directory in file order; empty where it could not be read.
    """

    __slots__ = ("entries", "file_size", "footer", "footer_offset", "header")

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.header: GPackHeaderV1 | None = None
        self.footer: GPackFooterV1 | None = None
        self.footer_offset = file_size - GPackFooterV1.SIZE
        self.entries: list[GPackSectionEntryV1] = []

    def find(self, kind: int) -> GPackSectionEntryV1 | None:
        """The entry of that kind, or None."""
        for entry in self.entries:
            if entry.kind == kind:
                return entry
        return None


def open_file(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Opens a regular file for reading; returns the descriptor and the size in bytes.

    Raises:
        PathError: The file is missing, unreadable, or no regular file.
        UsageError: It is no path at all.
    """
    try:
        # O_NONBLOCK, or a named pipe would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise path_error(error, path) from error
    except ValueError as error:
        raise errors.PathError(f"no path: {error}", code="io.not_found", path=repr(path)) from error
    except TypeError as error:
        raise errors.UsageError(f"{type(path).__name__} is no path", code="usage", field="path") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        close_read(descriptor)
        raise errors.PathError("this is no regular file", code="io.not_a_file", path=path)
    return descriptor, status.st_size


def close_read(descriptor: int) -> None:
    """Closes a file that was only read: what its file system complains of now takes nothing back that was read."""
    try:  # noqa: SIM105 - contextlib would have to be imported
        os.close(descriptor)
    except OSError:
        pass


def check_path(path: object, field: str) -> None:
    """Makes sure that an argument is a path.

    Raises:
        UsageError: It is neither text nor a path object.
    """
    if not isinstance(path, str | os.PathLike):
        raise errors.UsageError(f"{type(path).__name__} is no path", code="usage", field=field)


def path_error(error: OSError, path: object) -> errors.PathError:
    """An operating system's error as ours, with what it means for the user."""
    if isinstance(error, FileNotFoundError):
        return errors.PathError("no such file", code="io.not_found", path=path)
    if isinstance(error, IsADirectoryError):
        return errors.PathError("this is a directory", code="io.not_a_file", path=path)
    return errors.PathError(f"cannot be read: {error.strerror}", code="io.read", path=path)


def read_at(descriptor: int, offset: int, length: int, path: object) -> bytes:
    """Exactly `length` bytes at `offset`.

    Raises:
        PathError: The read failed, or the file ends before (it shrank after it was opened).
    """
    chunks: list[bytes] = []
    while length > 0:
        try:
            chunk = os.pread(descriptor, min(length, 1 << 30), offset)
        except OSError as error:
            raise path_error(error, path) from error
        if not chunk:
            raise errors.PathError(
                "the file ended while it was being read", code="io.short_read", path=path, offset=offset
            )
        if len(chunk) == length and not chunks:
            return chunk
        chunks.append(chunk)
        offset += len(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def read_structure(descriptor: int, file_size: int, path: object, report: Report, *, full: bool = False) -> Structure:
    """Reads the fixed records and adds every rule that they break to the report.

    Args:
        full: Check all rules of the records, not only those of a quick open.
    """
    found = Structure(file_size)
    smallest = GPackHeaderV1.SIZE + GPackFooterV1.SIZE
    report.check("header.complete")
    if file_size < smallest:
        if file_size < 4 or read_at(descriptor, 0, 4, path) == GPackHeaderV1.MAGIC.to_bytes(4, "little"):
            report.add("header.complete", "header", "", 0, f"It has {file_size} bytes, and needs {smallest}.")
        else:
            report.add("header.magic", "header", "magic", 0, "")
        return found
    header = found.header = GPackHeaderV1.decode(read_at(descriptor, 0, GPackHeaderV1.SIZE, path))
    check_header = check_gpack_header_v1 if full else quick_gpack_header_v1
    broken = check_header(header, file_size=file_size)
    # In another format, or a version whose records may lie elsewhere, the other fields mean nothing.
    foreign = [fault for fault in broken if fault[0] in ("header.magic", "header.min_reader_version")][:1]
    report.add_broken(foreign or broken, header, "header", base=0, file_size=file_size)
    if header.magic == GGUF_MAGIC:
        report.hint = "this is a GGUF: `guild convert` makes a pack of it"
    if foreign:
        return found
    report.check_record(GPackHeaderV1)
    _read_directory(descriptor, path, found, report, full=full)
    if header.total_file_size > file_size:
        return found  # truncated: the footer is lost
    if header.total_file_size >= smallest:
        found.footer_offset = header.total_file_size - GPackFooterV1.SIZE
    _read_footer(descriptor, path, found, report, full=full)
    _check_directory(found, report, full=full)
    return found


def _read_directory(descriptor: int, path: object, found: Structure, report: Report, *, full: bool) -> None:
    header = found.header
    if header is None:
        return
    room = found.file_size - header.section_table_offset
    length = header.section_count * GPackSectionEntryV1.SIZE
    if not 0 <= length <= min(room, _MAX_DIRECTORY):
        return
    data = read_at(descriptor, header.section_table_offset, length, path)
    report.check_record(GPackSectionEntryV1)
    check = check_gpack_section_entry_v1 if full else quick_gpack_section_entry_v1
    for index in range(header.section_count):
        start = index * GPackSectionEntryV1.SIZE
        entry = GPackSectionEntryV1.decode(data, start)
        found.entries.append(entry)
        broken = check(entry, file_size=found.file_size)
        if broken:
            base = header.section_table_offset + start
            report.add_broken(
                broken, entry, "directory", base=base, prefix=f"sections[{index}].", file_size=found.file_size
            )


def _read_footer(descriptor: int, path: object, found: Structure, report: Report, *, full: bool) -> None:
    offset = found.footer_offset
    footer = found.footer = GPackFooterV1.decode(read_at(descriptor, offset, GPackFooterV1.SIZE, path))
    check = check_gpack_footer_v1 if full else quick_gpack_footer_v1
    report.check_record(GPackFooterV1)
    report.add_broken(check(footer), footer, "footer", base=offset)


def _check_directory(found: Structure, report: Report, *, full: bool) -> None:
    header, footer = found.header, found.footer
    if header is None or footer is None:
        return
    footer_start = found.footer_offset
    report.check("footer.manifest_offset", "footer.section_table_offset")
    for rule, name in (
        ("footer.manifest_offset", "manifest_offset"),
        ("footer.section_table_offset", "section_table_offset"),
    ):
        if getattr(footer, name) != getattr(header, name):
            message = f"Found {getattr(footer, name)}, and {getattr(header, name)} in the header."
            report.add(rule, "footer", name, footer_start + footer.OFFSETS[name], message)
    if not found.entries:
        return
    report.check("footer.total_payload_bytes")
    payload = sum(entry.size for entry in found.entries)
    if footer.total_payload_bytes != payload:
        place = footer_start + footer.OFFSETS["total_payload_bytes"]
        message = f"Found {footer.total_payload_bytes}, and the sections add up to {payload}."
        report.add("footer.total_payload_bytes", "footer", "total_payload_bytes", place, message)
    _check_kinds(found, report)
    _check_flags(found, report)
    _check_places(found, report, full=full)


def entry_fault(found: Structure, report: Report, rule: str, index: int, name: str, message: str) -> None:
    """Records a violation at a field of a directory entry."""
    start = found.header.section_table_offset if found.header else 0
    base = start + index * GPackSectionEntryV1.SIZE
    field = f"sections[{index}].{name}"
    report.add(rule, "directory", field, base + GPackSectionEntryV1.OFFSETS[name], message)


def section_name(entry: GPackSectionEntryV1) -> str:
    """The entry's name as text; the kind's number where it has none."""
    return entry.name.partition(b"\0")[0].decode("ascii", "replace") or f"section of kind {entry.kind}"


def _check_kinds(found: Structure, report: Report) -> None:
    kinds: dict[int, int] = {}
    present = {entry.kind for entry in found.entries}
    report.check("section.duplicate", "section.name", "section.kind_alignment", "section.mandatory")
    for index, entry in enumerate(found.entries):
        kind = entry.kind
        if kind in kinds:
            entry_fault(found, report, "section.duplicate", index, "kind", f"Kind {kind} is entry {kinds[kind]} too.")
        kinds[kind] = index
        name = c.SECTION_NAMES.get(kind)
        if name is None:
            continue
        if section_name(entry) != name:
            message = f"Kind {kind} is {name}, found {section_name(entry)!r}."
            entry_fault(found, report, "section.name", index, "name", message)
        if entry.alignment != c.SECTION_ALIGNMENTS[kind]:
            message = f"{name} has {c.SECTION_ALIGNMENTS[kind]}, found {entry.alignment}."
            entry_fault(found, report, "section.kind_alignment", index, "alignment", message)
        for other in c.SECTION_NEEDS.get(kind, ()):
            report.check("section.pair")
            if other not in present:
                message = f"{name} is present, {c.SECTION_NAMES[other]} is not."
                entry_fault(found, report, "section.pair", index, "kind", message)
    for kind in c.SECTION_MANDATORY:
        if kind not in kinds:
            report.add("section.mandatory", "directory", "sections", None, f"{c.SECTION_NAMES[kind]} is missing.")


def _check_flags(found: Structure, report: Report) -> None:
    header = found.header
    if header is None:
        return
    report.check("header.flags_match")
    known = c.GPackFlags.LITTLE_ENDIAN
    expected = c.GPackFlags.LITTLE_ENDIAN
    for kind, mask in c.SECTION_FLAGS.items():
        known |= mask
        if found.find(kind) is not None:
            expected |= mask
    layout = found.find(c.SectionKind.EXPERT_LAYOUT_BIN) is not None
    known |= c.GPackFlags.EXTERNAL_EXPERTS
    if layout and found.find(c.SectionKind.EXPERT_BLOBS) is None:
        expected |= c.GPackFlags.EXTERNAL_EXPERTS
    wrong = (header.flags & known) ^ expected
    if wrong & ~c.GPackFlags.LITTLE_ENDIAN:  # that flag has a rule of its own
        names = ", ".join(name for mask, name in c.GPackFlags.NAMES.items() if wrong & mask)
        place = header.OFFSETS["flags"]
        report.add("header.flags_match", "header", "flags", place, f"Flags and sections disagree about {names}.")


def _check_places(found: Structure, report: Report, *, full: bool) -> None:
    header = found.header
    if header is None:
        return
    manifest = found.find(MANIFEST)
    report.check("section.overlap", *(("header.manifest",) if manifest else ()))
    if manifest and (manifest.offset, manifest.size) != (header.manifest_offset, header.manifest_size):
        places = f"{header.manifest_offset} and {header.manifest_size}, and {manifest.offset} and {manifest.size}"
        message = f"Found {places} in the directory."
        report.add("header.manifest", "header", "manifest_offset", header.OFFSETS["manifest_offset"], message)
    end = GPackHeaderV1.SIZE
    for index, entry in sorted(enumerate(found.entries), key=lambda item: (item[1].offset, item[1].size)):
        if entry.offset < end and entry.size:
            message = f"{section_name(entry)} starts at {entry.offset}, before {end}, where what stands before it ends."
            entry_fault(found, report, "section.overlap", index, "offset", message)
        end = max(end, entry.offset + entry.size)
    if end > header.section_table_offset:
        message = f"The sections end at {end}, the directory starts at {header.section_table_offset}."
        report.add("section.overlap", "header", "section_table_offset", header.OFFSETS["section_table_offset"], message)
    if full:
        _check_order(found, report)


def _check_order(found: Structure, report: Report) -> None:
    """Canonical order and least gaps; a quick open does without them."""
    header = found.header
    if header is None:
        return
    report.check("section.order", "section.gap")
    end = GPackHeaderV1.SIZE
    previous = -1
    for index, entry in enumerate(found.entries):
        # The manifest closes the file; kinds that are not known stand before it.
        rank = 1 << 32 if entry.kind == MANIFEST else entry.kind
        if rank <= previous:
            message = f"{section_name(entry)} stands after a section that it should come before."
            entry_fault(found, report, "section.order", index, "kind", message)
        previous = rank
        if entry.alignment > 0:
            least = align_up(end, entry.alignment)
            if entry.offset != least:
                message = f"{section_name(entry)} starts at {entry.offset}, and could at {least}."
                entry_fault(found, report, "section.gap", index, "offset", message)
        end = entry.offset + entry.size
    least = align_up(end, c.CACHE_LINE)
    if header.section_table_offset != least:
        message = f"The directory starts at {header.section_table_offset}, and could at {least}."
        report.add("section.gap", "header", "section_table_offset", header.OFFSETS["section_table_offset"], message)
