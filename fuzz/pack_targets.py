"""Targets: whole packs, each kind of section by itself, the manifest, signatures."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import gpack
from gpack import errors
from gpack.conformance import vectors
from gpack.container.manifest import canonical, parse_json, parse_manifest, schema_faults
from gpack.container.report import Report
from gpack.container.structure import Structure
from gpack.errors import GpackError
from gpack.generated.constants import SectionKind
from gpack.generated.sections import SECTIONS
from gpack.generated.structs import GPackHeaderV1, GPackSectionEntryV1
from gpack.sections.assets import AssetTable
from gpack.sections.check_chunks import check_chunk_digests
from gpack.sections.context import Context
from gpack.sections.gbt import GbtView
from gpack.sections.metadata import MetadataTable
from gpack.sections.shards import shard_rows
from gpack.sections.table import Table
from gpack.sections.tokenizer import TokenizerTable
from gpack.sections.verify import check_sections, verify

from . import mutate
from .corpus import CORPUS_LIMIT, small_packs
from .target import FindingError, Scratch, Target

_SECTION_LIMIT = 1 << 13  # bytes of a seed, where there are any so small
_LARGE_LIMIT = 1 << 17
_FEW, _MOST_SEEDS = 3, 100
_INTERNAL = "internal"
# What a sound pack may be refused for by who opens it: it is for another program, or files beside it are missing.
_ALLOWED = (errors.UnsupportedError, errors.MissingError, errors.PathError)


def targets() -> list[Target]:
    """All of them."""
    kinds = [kind for kind, section in SECTIONS.items() if section.header is not None]
    return [_pack(), *map(section_target, kinds), _manifest()]


# ---------------------------------------------------------------- whole packs


def _pack() -> Target:
    scratch = Scratch()

    def run(data: bytes) -> bool:
        path = scratch.write("m.gpack", data)
        found = verify(path)
        if _INTERNAL in found.report.counts:
            told = [str(violation) for violation in found.report.violations if violation.rule == _INTERNAL]
            raise FindingError(f"verify: {told[0]}")
        try:
            with gpack.open(path, io="read") as opened:
                _use(opened)
        except _ALLOWED:
            pass
        except GpackError as error:
            if found.ok:
                raise FindingError(f"verified, and refused with {error.code}: {error}") from error
        return found.ok

    return Target("pack", lambda: list(small_packs().values()), run, _pack_header, mutate.pack)


def _pack_header(data: bytes) -> bool:
    size = GPackHeaderV1.SIZE
    if len(data) < size or data[:4] != GPackHeaderV1.MAGIC.to_bytes(4, "little"):
        return False
    header = GPackHeaderV1.decode(data)
    return header.total_file_size == len(data) and header.format_version >= 1


def _use(pack: gpack.Pack) -> None:
    """All that a program may ask of a pack."""
    for name in pack:
        pack.info(name)
        try:
            pack[name].tobytes()
        except errors.UnsupportedError:
            continue
    dict(pack.metadata)
    for asset in pack.assets():
        bytes(pack.asset(asset))
    json.dumps(pack.manifest)
    if pack.container.find(SectionKind.TOKENIZER_BIN) is not None:
        pack.tokenizer_table.tokens()


# ---------------------------------------------------------------- sections


@cache
def _payloads() -> dict[int, list[bytes]]:
    """Sections of the published vectors, each once, by kind."""
    made: dict[int, dict[bytes, None]] = {kind: {} for kind in SECTIONS}
    large: dict[int, dict[bytes, None]] = {kind: {} for kind in SECTIONS}
    # Valid ones first, whose sections all others repeat.
    for vector in sorted(vectors.load(), key=lambda vector: vector.expect):
        if vector.large:
            continue
        data = vector.data()
        if not _pack_header(data):
            continue
        header = GPackHeaderV1.decode(data)
        for index in range(min(header.section_count, 32)):
            try:
                entry = GPackSectionEntryV1.decode(data, header.section_table_offset + index * GPackSectionEntryV1.SIZE)
            except (struct.error, ValueError, OverflowError):
                break
            if entry.kind in made and entry.size <= _LARGE_LIMIT and entry.offset <= len(data):
                found = made if entry.size <= _SECTION_LIMIT else large
                if len(found[entry.kind]) < _MOST_SEEDS:
                    found[entry.kind].setdefault(data[entry.offset : entry.offset + entry.size])
    return {kind: list(found) + (list(large[kind])[:_FEW] if len(found) < _FEW else []) for kind, found in made.items()}


def section_target(kind: int) -> Target:
    """A kind of section by itself: the checks, and who reads it without them."""
    known = SECTIONS[kind]
    scratch = Scratch()
    path = scratch.write("section", b"")
    descriptor = os.open(path, os.O_RDWR)
    read = _READERS.get(known.shape, _nothing)

    def run(data: bytes) -> bool:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)
        structure = Structure(len(data))
        structure.entries = [GPackSectionEntryV1(kind=kind, offset=0, size=len(data), alignment=64)]
        report = Report()
        context = Context(descriptor, path, structure, report)
        check_chunk_digests(context)
        check_sections(context)
        if _INTERNAL in report.counts:
            raise FindingError(str(report.violations))
        read(kind, data)
        return report.ok

    def header(data: bytes) -> bool:
        record: Any = known.header
        if len(data) < record.SIZE or known.check is None:
            return False
        try:
            return not known.check(record.decode(data), section_size=len(data))
        except TypeError:  # the record has no rule that asks for the size
            return not known.check(record.decode(data))

    @cache
    def sound() -> list[bytes]:
        return [data for data in _payloads()[kind] if header(data)]

    def seeds() -> list[bytes]:
        return _payloads()[kind]

    return Target(f"section-{known.name}", seeds, run, header, mutate.section_of(kind, sound), _LARGE_LIMIT)


def _read_table(kind: int, data: bytes) -> None:
    table: Table[Any, Any] = Table(kind, data)
    first = table.row_class.REFS[0][0] if table.row_class.REFS else None
    for row in table:
        for ref, _ in row.REFS:
            bytes(table.bytes_of(row, ref))
        if first is not None:
            _find(table, bytes(table.bytes_of(row, first)), first)
    if kind == SectionKind.METADATA_KV_BIN:
        _read_values(MetadataTable(data))
    elif kind == SectionKind.TOKENIZER_ASSETS:
        assets = AssetTable(data)
        for name_of in assets.names():
            bytes(assets.read(name_of))
    elif kind == SectionKind.EXPERT_LAYOUT_BIN:
        list(shard_rows(table))


def _find(table: Table[Any, Any], name: bytes, ref: str) -> None:
    index = table.find(name, ref=ref)
    if index is None or bytes(table.bytes_of(table.row(index), ref)) != name:
        raise FindingError(f"{name!r} is listed and not found")


def _read_values(read: MetadataTable) -> None:
    for row in read.rows():
        try:
            read.value(row).python()
        except GpackError:
            continue


def _read_sequence(kind: int, data: bytes) -> None:
    if kind != SectionKind.TOKENIZER_BIN:
        return
    view = GbtView(data)
    tokens = [token for token, _ in view.tokens(range(min(len(view), 1000)))]
    if view.token_order:
        for token in tokens[:50]:
            view.find(token)
    if view.merge_keys:
        for at in range(0, min(len(view.triples), 150), 3):
            left, right = view.triples[at], view.triples[at + 1]
            if left >= 0 and right >= 0:
                view.merge(left, right)
    table = TokenizerTable(data)
    if len(table) <= 1000 and table.tokens() != tokens:
        raise FindingError("the two readers of the vocabulary disagree")


def _nothing(kind: int, data: bytes) -> None:
    """For kinds that are read by nothing but the checks."""


_READERS: dict[str, Callable[[int, bytes], None]] = {"table": _read_table, "sequence": _read_sequence}


# ---------------------------------------------------------------- the manifest


def _manifest() -> Target:
    return Target("manifest", _manifests, _run_manifest, _is_object, mutate.document, CORPUS_LIMIT)


def _run_manifest(data: bytes) -> bool:
    try:
        value = parse_json(data)
    except (ValueError, RecursionError) as error:  # what its callers expect
        if isinstance(error, GpackError):
            raise
        return False
    list(schema_faults(value))
    again = canonical(value)
    if canonical(parse_json(again)) != again:
        raise FindingError("the canonical form is not its own canonical form")
    parse_manifest(data)
    return True


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _manifests() -> list[bytes]:
    found = []
    for data in small_packs().values():
        if _pack_header(data):
            header = GPackHeaderV1.decode(data)
            found.append(data[header.manifest_offset : header.manifest_offset + header.manifest_size])
    return [data for data in dict.fromkeys(found) if data]
