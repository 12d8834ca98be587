"""Broken headers, directories and footers."""

from __future__ import annotations

from hashlib import sha256

from ...generated import structs as s
from ...generated.constants import CACHE_LINE, PAGE, SECTION_NAMES
from ..parts import MANIFEST, Parts
from .bases import external, plain, small, vocabulary
from .case import ARENA, ASSETS, BLOBS, EMBED_BLOB, HEAD_BLOB, INDEX, KV, MTP, PACK, PLE_BLOB, case, steps, u64
from .changes import (
    PRIVATE,
    bound_header,
    entry,
    final,
    flip,
    footer,
    header,
    manifest,
    one_more_item,
    private,
    toggled,
)

# ---------------------------------------------------------------- header

case("header.magic", "header", "magic", header("magic", 0x4B435048))
case(
    "header.min_reader_version", "header", "min_reader_version", bound_header("min_reader_version", 2, format_version=2)
)
case(
    "header.format_version",
    "header",
    "format_version",
    header("format_version", 0, min_reader_version=0),
    variant="zero",
)
case(
    "header.format_version",
    "header",
    "format_version",
    header("format_version", 1, min_reader_version=0),
    variant="reader-zero",
)
case("header.endian", "header", "flags", lambda p: bound_header("flags", p.flags() & ~1)(p))
case(
    "header.complete",
    "header",
    "",
    final(lambda data: data.__delitem__(slice(127, None))),
    placed=False,
    variant="127-bytes",
)
case("header.complete", "header", "", final(lambda data: data.clear()), placed=False, variant="empty")
case(
    "header.total_file_size",
    "header",
    "total_file_size",
    final(lambda data: data.extend(bytes(64))),
    placed=False,
    variant="64-more",
)
case(
    "header.total_file_size",
    "header",
    "total_file_size",
    final(lambda data: data.extend(b"x")),
    placed=False,
    variant="one-more",
)
case(
    "header.total_file_size",
    "header",
    "total_file_size",
    final(lambda data: data.pop()),
    placed=False,
    variant="one-less",
)
case("header.section_count", "header", "section_count", lambda p: p.remove(INDEX), base=plain, placed=False)
case(
    "header.section_count",
    "header",
    "section_count",
    steps(*(private(b"", kind=PRIVATE + i, name=f"p{i}") for i in range(4094))),
    base=plain,
    placed=False,
    published=False,
)
case(
    "header.section_table_offset", "header", "section_table_offset", lambda p: setattr(p, "table_gap", 32), placed=False
)
case(
    "header.section_table_bounds",
    "header",
    "section_table_offset",
    steps(header("section_table_offset", 1 << 30), footer("section_table_offset", 1 << 30)),
)
case("header.manifest_bounds", "header", "manifest_offset", header("manifest_size", 1 << 30), placed=False)


def _footer_late(data: bytearray) -> None:
    data[-s.GPackFooterV1.SIZE : -s.GPackFooterV1.SIZE] = bytes(CACHE_LINE)
    at = s.GPackHeaderV1.OFFSETS["total_file_size"]
    data[at : at + 8] = u64(len(data))


case("header.layout", "header", "total_file_size", final(_footer_late), placed=False)


def _other_manifest(pack: Parts) -> None:
    pack.seal()
    first = pack.section(KV)
    place = {"manifest_offset": first.entry.offset}
    header("manifest_offset", first.entry.offset, manifest_size=first.entry.size)(pack)
    pack.footer |= place | {"manifest_sha256": sha256(first.data).digest()}


case("header.manifest", "header", "manifest_offset", _other_manifest)
for bit in (1, 2, 3, 4, 5, 6, 7):
    case("header.flags_match", "header", "flags", toggled(bit), variant=f"bit-{bit}")
    case("header.flags_match", "header", "flags", toggled(bit), base=plain, variant=f"bit-{bit}-plain")
case("header.flags_match", "header", "flags", bound_header("flags", 1), base=external, variant="external")

# ---------------------------------------------------------------- footer

case("footer.magic", "footer", "footer_magic", footer("footer_magic", 0x4B435047))
case("footer.manifest_offset", "footer", "manifest_offset", footer("manifest_offset", 64))
case("footer.section_table_offset", "footer", "section_table_offset", footer("section_table_offset", 64))
case("footer.total_payload_bytes", "footer", "total_payload_bytes", footer("total_payload_bytes", 1))

# ---------------------------------------------------------------- directory

case(
    "section.bounds",
    "directory",
    "sections[2].offset",
    steps(private(), entry(PRIVATE, "size", 1 << 40)),
    base=plain,
    placed=False,
    variant="size",
)


def _beyond(pack: Parts) -> None:
    section = pack.add(PRIVATE, b"", 0, name="private")
    section.bound["offset"] = 1 << 40


case("section.bounds", "directory", "sections[2].offset", _beyond, base=plain, placed=False, variant="offset")
case(
    "section.alignment",
    "directory",
    "sections[2].alignment",
    private(alignment=128),
    base=plain,
    placed=False,
    variant="128",
)
case(
    "section.alignment",
    "directory",
    "sections[2].alignment",
    steps(private(alignment=128), manifest(lambda m: m["sections"][2].update(alignment=64))),
    base=plain,
    placed=False,
    variant="128-not-in-manifest",
)
case("section.offset_alignment", "directory", "sections[2].offset", private(gap=32), base=plain, placed=False)
case(
    "section.after_header",
    "directory",
    "sections[2].offset",
    steps(private(b""), entry(PRIVATE, "offset", 0)),
    base=plain,
)
for name, text in {
    "empty": b"",
    "not-terminated": b"a" * 24,
    "not-ascii": b"caf\xc3\xa9",
    "after-the-end": b"private\0x",
    "tab": b"a\tb",
    "delete": b"\x7f",
}.items():
    case(
        "section.name_encoding",
        "directory",
        "sections[2].name",
        steps(private(), entry(PRIVATE, "name", text.ljust(24, b"\0"), late=text[:7] != b"private")),
        base=plain,
        variant=name,
    )
case("section.name", "directory", "sections[12].name", entry(ASSETS, "name", b"TokenizerFiles".ljust(24, b"\0")))
case(
    "section.kind_alignment",
    "directory",
    "sections[12].alignment",
    lambda p: setattr(p.section(ASSETS).entry, "alignment", 4096),
    placed=False,
)
case("section.duplicate", "directory", "sections[3].kind", steps(private(), private()), base=plain, placed=False)
case(
    "section.mandatory",
    "directory",
    "sections",
    lambda p: p.remove(INDEX),
    base=vocabulary,
    placed=False,
    variant="no-index",
)
case(
    "section.mandatory",
    "directory",
    "sections",
    steps(private(), lambda p: p.remove(KV)),
    base=plain,
    placed=False,
    variant="no-metadata",
)
case(
    "section.mandatory",
    "directory",
    "sections",
    steps(private(), lambda p: p.remove(MANIFEST)),
    base=plain,
    placed=False,
    variant="no-manifest",
)
case(
    "section.pair",
    "directory",
    "sections[2].kind",
    lambda p: p.add(PACK, b"", 0),
    base=vocabulary,
    placed=False,
    variant="pack-alone",
)
case(
    "section.pair",
    "directory",
    "sections[2].kind",
    lambda p: p.add(ARENA, b"", 0),
    base=vocabulary,
    placed=False,
    variant="arena-alone",
)
case(
    "section.pair",
    "directory",
    "sections[2].kind",
    lambda p: p.add(BLOBS, b"", 0),
    base=vocabulary,
    placed=False,
    variant="experts-alone",
)


def _swap(pack: Parts) -> None:
    private()(pack)
    private(kind=PRIVATE + 1)(pack)
    pack.sections[2:4] = pack.sections[3:1:-1]


case("section.order", "directory", "sections[3].kind", _swap, base=plain, placed=False, variant="private")
case(
    "section.order",
    "directory",
    "sections[1].kind",
    lambda p: p.sections.sort(key=lambda x: (x.entry.kind == MANIFEST, -x.entry.kind)),
    base=vocabulary,
    placed=False,
    variant="backwards",
)


def _overlap(pack: Parts) -> None:
    pack.seal()
    first = pack.section(KV)
    private(bytes(first.data), at=first.entry.offset)(pack)


case("section.overlap", "directory", "sections[2].offset", _overlap, base=plain, placed=False)
case("section.gap", "directory", "sections[2].offset", private(gap=64), base=plain, placed=False)
case("section.gap", "header", "section_table_offset", lambda p: setattr(p, "table_gap", 64), placed=False)
case("section.gap_zero", "gap", "padding", flip(PACK, -1), variant="before-section")
case("section.gap_zero", "gap", "padding", flip("directory", -1), base=small, variant="before-directory")
case("section.gap_zero", "gap", "padding", flip("footer", -1), variant="before-footer")
for index, kind in enumerate(range(15)):
    case(
        "section.item_count",
        "directory",
        f"sections[{index}].item_count",
        one_more_item(kind),
        variant=SECTION_NAMES[kind],
    )
# Bytes that mean nothing to any other rule: tensor data, and the source's version.
VERSION = s.MetadataKvHeaderV1.OFFSETS["source_version"]
for kind, at in {
    KV: VERSION,
    PACK: 0,
    ARENA: 0,
    EMBED_BLOB: 100,
    HEAD_BLOB: 100,
    PLE_BLOB: 100,
    BLOBS: 0,
    MTP: PAGE + 64,
}.items():
    case("section.sha256", SECTION_NAMES[kind], "sha256", flip(kind, at), placed=False)
