"""The full verification of a pack: every rule of the schema, every byte, all violations collected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..container.manifest import binding_faults, canonical, parse_json, schema_faults
from ..container.mapped import check_uncut
from ..container.reader import Container, check_digests, check_manifest_digest
from ..container.report import Report
from ..container.structure import MANIFEST, Structure, close_read, open_file, read_at, read_structure
from ..errors import FormatError, MissingError, PathError
from ..generated.constants import MAX_MANIFEST, ChunkAlgorithm, SectionKind
from ..generated.structs import GPackFooterV1, GPackHeaderV1
from .check_chunks import ChunkWatch, check_all_chunks, check_chunk_digests, check_parity
from .check_dense import check_dense
from .check_experts import check_experts
from .check_metadata import check_assets, check_metadata, check_tokenizer
from .check_mtp import check_mtp
from .check_shards import ShardCheck, check_shards
from .check_single import check_singles
from .check_summary import check_summary
from .check_tensors import check_tensor_index
from .chunks import digest_of
from .context import Context
from .shards import folder_of

# A hostile manifest can break its schema millions of times; so many say enough.
_MAX_FAULTS = 10_000


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        report: All violations.
        structure: The fixed records, as far as they could be read.
        bytes_hashed: Bytes that went through SHA-256.
        seconds: How long it took.
        shards: The files of external experts, where they were to be checked too.
        notes: What was not checked, and why, one sentence each.
    """

    path: str
    report: Report
    structure: Structure
    bytes_hashed: int
    seconds: float
    shards: tuple[ShardCheck, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No rule is broken and no shard at fault; warnings do not count."""
        return self.report.ok and all(shard.error is None for shard in self.shards)

    def __bool__(self) -> bool:
        """`ok`: `if gpack.verify(path):` asks whether the pack is sound."""
        return self.ok


def verify(
    path: str | os.PathLike[str],
    *,
    shards: bool = False,
    expert_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    report: Report | None = None,
    digests: bool = True,
    chunks: bool = False,
    threads: int = 1,
    opened: int | None = None,
) -> Verification:
    """Checks every rule of the schema and the SHA-256 of every section, and the digest of every chunk that has one.

    Memory stays bounded whatever the file's size: blobs pass through small buffers.

    Args:
        shards: Also check the files of external experts: size, header digest and, where it is recorded, full digest.
        expert_dir: Folder of those files; default the pack's own.
        progress: Called with (bytes hashed since the last call, bytes in all).
        report: Collects the violations; default a new one.
        digests: Hash the sections and read the gaps between them; without, their rules are not checked.
        chunks: Check the digests of chunks, which is faster, and of the sections' SHA-256 only that of ChunkDigests.
        threads: So many threads check chunks, where `chunks` is set.
        opened: Descriptor of the file, where it is open already: another one may lie at the path by now.

    Raises:
        PathError: The file is missing or cannot be read.
        MissingError: `chunks.none`: `chunks` is set, and the file has no digests of chunks.
        UnsupportedError: `chunks.library`: `chunks` is set, and the package blake3 is not installed.
    """
    started = time.perf_counter()
    descriptor, size = open_file(path) if opened is None else (os.dup(opened), os.fstat(opened).st_size)
    try:
        report = Report() if report is None else report
        structure = read_structure(descriptor, size, path, report, full=True)
        hashed, found = 0, []
        notes: list[str] = []
        if structure.header and structure.footer and structure.entries:
            context = Context(descriptor, path, structure, report)
            notes = context.notes
            _guarded(context, "ChunkDigests", check_chunk_digests)
            if chunks:
                hashed = _check_chunks(context, structure.header, structure.footer, threads, progress)
            elif digests:
                hashed = _check_bytes(context, structure.header, structure.footer, progress)
            _guarded(context, "ManifestJson", _check_manifest)
            check_sections(context)
            layout = context.tables.get(SectionKind.EXPERT_LAYOUT_BIN)
            if shards and layout is not None and layout.table is not None:
                found = check_shards(layout.table, folder_of(path) if expert_dir is None else os.fspath(expert_dir))
            check_uncut(descriptor, structure.file_size, path)  # of a map that was cut, zeros were judged
    finally:
        close_read(descriptor)
    hashed += sum(shard.bytes_hashed for shard in found)
    seconds = time.perf_counter() - started
    return Verification(os.fspath(path), report, structure, hashed, seconds, tuple(found), tuple(notes))


def check_tables(container: Container) -> None:
    """Checks the rules of manifest, metadata, tokenizer and all tables of an open pack, some milliseconds of work.

    Not looked at: digests, the bytes between tensors, and what is derived from the vocabulary (merged tokens, sorted
    copies). Reserved fields may hold what a later version says there, as in a quick open.

    Raises:
        GpackError: The first rule that is broken; the code is its id.
    """
    structure = Structure(container.file_size)
    structure.header, structure.footer, structure.entries = container.header, container.footer, container.entries
    context = Context(container.descriptor, container.path, structure, Report(), thorough=False)
    _guarded(context, "ManifestJson", _check_manifest)
    check_sections(context)
    fault = next((found for found in context.report.errors() if found.rule != "field.reserved"), None)
    if fault is not None:
        raise fault.error(container.path)


def check_sections(context: Context) -> None:
    """What the sections hold, and whether they agree with one another and with the manifest."""
    if "section.duplicate" in context.report.counts:
        return  # which of the two to believe?
    # The order matters: stubs point into the tokenizer, placement depends on the metadata, rows on the index.
    _guarded(context, "TokenizerBin", check_tokenizer)
    _guarded(context, "MetadataKvBin", check_metadata)
    _guarded(context, "TensorIndexBin", check_tensor_index)
    _guarded(context, "single tensors", check_singles)
    _guarded(context, "dense tensors", check_dense)
    _guarded(context, "ExpertLayoutBin", check_experts)
    _guarded(context, "MtpBlob", check_mtp)
    _guarded(context, "TokenizerAssets", check_assets)
    _guarded(context, "Parity", check_parity)
    _guarded(context, "ManifestJson", _check_contents)


def _check_contents(context: Context) -> None:
    context.check_items(MANIFEST, 1)
    if context.manifest is not None:
        check_summary(context, context.manifest)


def _guarded(context: Context, section: str, check: Callable[[Context], None]) -> None:
    """Runs a check; whatever escapes it, but for what the disk or the memory does, is a violation."""
    try:
        check(context)
    except (PathError, MemoryError):
        raise
    except Exception as error:
        context.report.add_escaped(section, error)


# ---------------------------------------------------------------- bytes


def _check_bytes(
    context: Context, header: GPackHeaderV1, footer: GPackFooterV1, progress: Callable[[int, int], None] | None
) -> int:
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


def _check_chunks(
    context: Context,
    header: GPackHeaderV1,
    footer: GPackFooterV1,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Checks the digests of all chunks, and that the digests are those that were written."""
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


# ---------------------------------------------------------------- manifest


def _check_manifest(context: Context) -> None:
    report, header = context.report, context.structure.header
    entry = context.entry(MANIFEST)
    if entry is None or header is None:
        return
    report.check("manifest.json")
    if entry.size > MAX_MANIFEST:
        report.add("manifest.json", "ManifestJson", "", entry.offset, f"It has {entry.size} bytes.")
        return
    data = read_at(context.descriptor, entry.offset, entry.size, context.path)
    try:
        manifest = parse_json(data)
    except (ValueError, RecursionError) as error:
        report.add("manifest.json", "ManifestJson", "$", entry.offset, f"{error}.")
        return
    report.check("manifest.canonical", "manifest.schema", "manifest.binding")
    _check_canonical(report, manifest, data, entry.offset)
    faults = list(islice(schema_faults(manifest), _MAX_FAULTS))
    for field, message in faults:
        report.add("manifest.schema", "ManifestJson", field, entry.offset, f"It {message}.")
    for field, message in binding_faults(manifest, header, context.structure.entries, MANIFEST):
        report.add("manifest.binding", "ManifestJson", field, entry.offset, f"It {message}.")
    if not faults:
        context.manifest = manifest


def _check_canonical(report: Report, manifest: dict[str, Any], data: bytes, base: int) -> None:
    try:
        expected = canonical(manifest)
    except FormatError as error:
        report.add("manifest.canonical", "ManifestJson", "$", base, f"{error.message}.")
        return
    if data != expected:
        pairs = zip(data, expected, strict=False)
        place = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(data), len(expected)))
        report.add("manifest.canonical", "ManifestJson", "$", base + place, f"It differs from byte {place} on.")
