"""The full verification of a pack: every rule of the schema, every byte, all violations collected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..container.manifest import binding_faults, canonical, parse_json, schema_faults
from ..container.mapped import check_uncut
from ..container.pieces import Handle
from ..container.reader import Container
from ..container.report import Report
from ..container.structure import MANIFEST, Structure, close_read, open_file, read_at, read_structure
from ..container.workers import start
from ..errors import FormatError, PathError
from ..generated.constants import MAX_MANIFEST, SectionKind
from .check_bytes import check_bytes, check_chunks
from .check_chunks import check_chunk_digests, check_parity
from .check_dense import check_dense
from .check_experts import check_experts
from .check_metadata import check_assets, check_metadata, check_tokenizer
from .check_mtp import check_mtp
from .check_shards import ShardCheck, check_shards
from .check_single import check_singles
from .check_summary import check_summary
from .check_tensors import check_tensor_index
from .context import Context
from .shards import folder_of

# A hostile manifest can break its schema millions of times; so many say enough.
_MAX_FAULTS = 10_000
# Of files from this size on, the tables are checked while the bytes are hashed.
BESIDE = 16 << 20


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
            _guarded(context, "ChunkDigests", check_chunk_digests)
            place, of_bytes = len(report.violations), replace(context, report=Report())
            aside = size >= BESIDE and (chunks or digests)
            wait = start(_tables_job(context)) if aside else None
            if chunks:
                hashed = check_chunks(of_bytes, structure.header, structure.footer, threads, progress)
            elif digests:
                hashed = check_bytes(of_bytes, structure.header, structure.footer, progress)
            if wait is None:
                _check_tables(context)
            else:
                wait()
            report.insert(place, of_bytes.report)
            notes = context.notes
            layout = context.tables.get(SectionKind.EXPERT_LAYOUT_BIN)
            if shards and layout is not None and layout.table is not None:
                found = check_shards(layout.table, folder_of(path) if expert_dir is None else os.fspath(expert_dir))
            check_uncut(descriptor, structure.file_size, path)  # of a map that was cut, zeros were judged
    finally:
        close_read(descriptor)
    hashed += sum(shard.bytes_hashed for shard in found)
    seconds = time.perf_counter() - started
    return Verification(os.fspath(path), report, structure, hashed, seconds, tuple(found), tuple(notes))


def _tables_job(context: Context) -> Callable[[], None]:
    """What checks the rules of manifest and sections; it has the file open by itself, for its caller may go away."""
    context.held = Handle(context.descriptor)
    context.descriptor = context.held.descriptor
    return lambda: _check_tables(context)


def _check_tables(context: Context) -> None:
    _guarded(context, "ManifestJson", _check_manifest)
    check_sections(context)


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
    _check_tables(context)
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
