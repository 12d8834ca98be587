"""What every byte of a pack says: digests of sections and of chunks, and the zeros between the sections."""

from __future__ import annotations

from collections.abc import Callable

from ..container.reader import check_digests, check_manifest_digest
from ..container.structure import Structure
from ..errors import MissingError
from ..generated.constants import ChunkAlgorithm, SectionKind
from ..generated.structs import GPackFooterV1, GPackHeaderV1
from .check_chunks import ChunkWatch, check_all_chunks
from .chunks import digest_of
from .context import Context


def check_bytes(
    context: Context, header: GPackHeaderV1, footer: GPackFooterV1, progress: Callable[[int, int], None] | None
) -> int:
    """Checks the digests of all sections, and of all chunks that have one; returns the bytes that were hashed.

    Raises:
        PathError: The read failed.
    """
    report, structure = context.report, context.structure
    _check_frame(context, header, footer)
    total = sum(entry.size for entry in structure.entries)
    if total > structure.file_size:
        return 0  # overlapping sections, reported as such: hashing the same bytes over and over proves nothing
    report.check("section.sha256")
    report_progress = None if progress is None else lambda count: progress(count, total)
    watch = ChunkWatch(context.chunks, report).watch if context.chunks else None
    check_digests(context.descriptor, structure, context.path, report, report_progress, watch)
    return total


def _check_frame(context: Context, header: GPackHeaderV1, footer: GPackFooterV1) -> None:
    """The manifest's digest, and the bytes between the sections."""
    # A sum is safe here: these numbers do not wrap around.
    if header.manifest_offset + header.manifest_size <= context.structure.file_size:
        context.report.check("manifest.sha256")
        check_manifest_digest(context.descriptor, header, footer, context.path, context.report)
    _check_gaps(context, header)


def check_chunks(
    context: Context,
    header: GPackHeaderV1,
    footer: GPackFooterV1,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Checks the digests of all chunks, and that the digests are those that were written; returns the bytes hashed.

    Raises:
        MissingError: `chunks.none`: there are none.
        PathError: The read failed.
        UnsupportedError: `chunks.library`: the package blake3 is not installed.
    """
    _check_frame(context, header, footer)
    entry = context.entry(SectionKind.CHUNK_DIGESTS)
    if context.structure.find(SectionKind.CHUNK_DIGESTS) is None:
        raise MissingError(
            "the pack has no digests of chunks",
            code="chunks.none",
            path=context.path,
            hint="`guild seal` makes a pack that has",
        )
    if context.notes:
        digest_of(ChunkAlgorithm.BLAKE3)  # tells what is not installed
    total = sum(chunked.size for chunked in context.structure.entries)
    if entry is None or context.chunks is None or total > context.structure.file_size:
        return 0  # reported
    only = Structure(context.structure.file_size)
    only.entries = [entry]
    check_digests(context.descriptor, only, context.path, context.report)
    report_progress = None if progress is None else lambda count: progress(count, total)
    return entry.size + check_all_chunks(context, context.chunks, threads, report_progress)


def _check_gaps(context: Context, header: GPackHeaderV1) -> None:
    """Bytes between sections, before the directory and before the footer are zero."""
    context.report.check("section.gap_zero")
    footer = context.structure.footer_offset
    spans = sorted((entry.offset, entry.offset + entry.size) for entry in context.structure.entries)
    table = header.section_table_offset
    spans += [(table, table + len(context.structure.entries) * context.structure.entries[0].SIZE)]
    spans += [(footer, footer + GPackFooterV1.SIZE)]
    end = GPackHeaderV1.SIZE
    for start, stop in spans:
        if end < start <= footer:
            context.check_zero("section.gap_zero", "gap", end, start)
        end = max(end, stop)
