"""The table of valid packs, and those at the edges of the container: directory, manifest, versions, longer rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...generated.constants import CACHE_LINE, MAX_NUMBER, PAGE, SECTION_NAMES, ChunkAlgorithm, SectionKind
from ...generated.rules import align_up
from ...generated.structs import ChunkDigestsHeaderV1, ExpertShardRowV1, MtpHeaderV1
from ...sections.assets import build_assets
from ..parts import MANIFEST, ROWS, Parts
from ..recipe import Recipe
from . import bases
from .case import Base, Change
from .changes import PRIVATE, bound_header, entry, manifest, private, raw, replaced

K = SectionKind
FILL = b"\xee"  # in fields that version 1 does not know


@dataclass(frozen=True)
class Valid:
    """A pack that every reader must accept.

    Attributes:
        name: The end of the vector's id.
        make: Its recipe; `base` is the name of the pack that it is a change of.
        shards: Names of files that lie beside it.
    """

    name: str
    doc: str
    make: Callable[[], Recipe]
    shards: tuple[str, ...] = ()


VALID: list[Valid] = []
_NAMES: dict[Base, str] = {}


def valid(name: str, doc: str, data: Base, *, shards: tuple[str, ...] = ()) -> None:
    """Enters a pack into the table."""
    VALID.append(Valid(name, doc, lambda: Recipe.of(data()), shards))


def base(name: str, doc: str, data: Base, *, shards: tuple[str, ...] = ()) -> None:
    """Enters a pack that others are changes of."""
    valid(name, doc, data, shards=shards)
    _NAMES[data] = f"valid/{name}"


def name_of(data: Base) -> str:
    """The id of a base pack's vector."""
    return _NAMES[data]


def variant(name: str, doc: str, data: Base, *changes: Change, shards: tuple[str, ...] = ()) -> None:
    """Enters a base with changes, sealed anew."""

    def make() -> Recipe:
        pack = Parts.parse(data())
        for change in changes:
            change(pack)
        return Recipe.of(pack.seal(), base=name_of(data), below=data())

    VALID.append(Valid(name, doc, make, shards))


def shards() -> dict[str, bytes]:
    """The files that lie beside vectors, by name."""
    return bases.shard_bytes()


# ---------------------------------------------------------------- changes


def longer_rows(kind: int, further: int) -> Change:
    """Rows with fields that version 1 does not know, as a later version would append them."""

    def change(pack: Parts) -> None:
        header, section = pack.get(kind), pack.section(kind)
        payload = bytes(section.data[header.ofs_data :]) if "ofs_data" in header.OFFSETS else None
        del section.data[header.ofs_heap + header.len_heap :]
        pack.rebuild(kind, pack.entries(kind), row_size=ROWS[kind].SIZE + further, fill=FILL)
        if payload is None:
            return
        header = pack.get(kind)
        start = align_up(header.ofs_heap + header.len_heap, PAGE if kind == K.MTP_BLOB else CACHE_LINE)
        section.data += bytes(start - len(section.data)) + payload
        moved = start - header.ofs_data
        if not moved:
            return
        pack.set(kind, ofs_data=start)
        for index, row in enumerate(pack.rows(K.TENSOR_INDEX_BIN)):
            if row.home == kind:
                pack.set_row(K.TENSOR_INDEX_BIN, index, offset=row.offset + moved)

    return change


def longer_shard_rows(pack: Parts) -> None:
    """The same for the table of shards."""
    data, header = pack.section(K.EXPERT_LAYOUT_BIN).data, pack.get(K.EXPERT_LAYOUT_BIN)
    places = range(header.ofs_shards, header.ofs_heap, header.shard_row_size)
    rows = [bytes(data[at : at + ExpertShardRowV1.SIZE]) for at in places]
    data[header.ofs_shards : header.ofs_heap] = b"".join(row + FILL * 16 for row in rows)
    size = ExpertShardRowV1.SIZE + 16
    pack.set(K.EXPERT_LAYOUT_BIN, shard_row_size=size, ofs_heap=header.ofs_shards + size * header.num_shards)


def assets(files: dict[str, bytes]) -> Change:
    """Adds an archive of raw files."""
    return lambda pack: pack.add(K.TOKENIZER_ASSETS, build_assets(files), len(files))


def empty_table(kind: int, *, blob: int | None = None, summary: dict[str, Any] | None = None) -> Change:
    """A table of no rows, and a blob of no bytes."""

    def change(pack: Parts) -> None:
        header = Parts.parse(bases.everything()).get(kind)
        for name in header.FIELDS[4:]:
            setattr(header, name, type(getattr(header, name))())
        record = ROWS[kind]
        header.row_size, header.ofs_rows = record.SIZE, header.SIZE
        header.ofs_heap = header.SIZE
        if kind == K.EXPERT_LAYOUT_BIN:
            header.ofs_shards, header.shard_row_size = header.SIZE, ExpertShardRowV1.SIZE
        header.num_rows = 0
        if "reserved2" in header.OFFSETS:
            header.reserved2 = type(header)().reserved2
        pack.add(kind, header.encode(), 0)
        if blob is not None:
            pack.add(blob, b"", 0)
        pack.manifest |= summary or {}

    return change


def no_drafts(pack: Parts) -> None:
    """An MtpBlob without tensors."""
    header = MtpHeaderV1(version=1, row_size=ROWS[K.MTP_BLOB].SIZE, ofs_rows=MtpHeaderV1.SIZE)
    header.ofs_heap, header.ofs_data = MtpHeaderV1.SIZE, PAGE
    pack.add(K.MTP_BLOB, header.encode().ljust(PAGE, b"\0"), 1)
    pack.manifest["mtp"] = {"tensor_count": 0, "bytes": 0}


def chunks_by_sha256(pack: Parts) -> None:
    """Digests by the other algorithm."""
    pack.remove(K.PARITY)
    bases.digest_chunks(pack)
    others = (K.CHUNK_DIGESTS, MANIFEST)
    data = [section.data for section in pack.sections if section.entry.kind not in others and section.data]
    section = pack.section(K.CHUNK_DIGESTS)
    section.data[ChunkDigestsHeaderV1.SIZE :] = b"".join(sha256(chunk).digest() for chunk in data)
    pack.set(K.CHUNK_DIGESTS, algorithm=ChunkAlgorithm.SHA256)


# ---------------------------------------------------------------- bases

base("plain", "The three mandatory sections, and nothing in the tables.", bases.plain)
base("vocabulary", "A tokenizer and no tensors.", bases.vocabulary)
base("small", "All fifteen kinds of sections in as few bytes as possible.", bases.small)
base("sealed", "The same with digests of chunks, by BLAKE3, and parity in two stripes.", bases.sealed)
base("everything", "All fifteen kinds of sections, all kinds of metadata, fused and plain experts.", bases.everything)
base(
    "repeated-merges",
    "Merges that stand as strings, for of pairs of ids they would be too many.",
    bases.repeated_merges,
)
base("external", "Routed experts in two shards beside the pack.", bases.external, shards=tuple(bases.shard_bytes()))

# ---------------------------------------------------------------- header and directory

variant(
    "newer-format",
    "A version 2 file that version 1 readers understand.",
    bases.small,
    bound_header("format_version", 2),
)
variant(
    "newest-format",
    "The largest format version, which version 1 readers still understand.",
    bases.plain,
    bound_header("format_version", 0xFFFF),
)
variant("private-section", "A section of a private kind, which readers skip.", bases.small, private())
variant("private-empty", "A private section of no bytes.", bases.plain, private(b""))
variant(
    "private-page",
    "A private section that is aligned to a page, after a gap of nearly one.",
    bases.plain,
    private(alignment=PAGE),
)
variant(
    "private-last-kind",
    "The largest kind, with the longest name.",
    bases.plain,
    private(kind=0xFFFFFFFF, name="~" * 23),
)
variant("private-items", "The largest item count.", bases.plain, private(), entry(PRIVATE, "item_count", MAX_NUMBER))
variant(
    "private-many",
    "Private sections of 0 to 23 bytes, with and without gaps.",
    bases.plain,
    *(private(b"x" * size, kind=PRIVATE + size, name=f"private-{size}") for size in range(24)),
)
variant(
    "unknown-kind",
    "A kind that version 1 does not know, below the private ones.",
    bases.small,
    private(kind=len(SECTION_NAMES), name="Unknown"),
)
variant("chunks-sha256", "Digests of chunks by SHA-256, and no parity.", bases.sealed, chunks_by_sha256)
variant(
    "unknown-empty-kinds",
    "Two unknown kinds without bytes, at the same offset.",
    bases.plain,
    private(b"", kind=1000, name="A"),
    private(b"", kind=1001, name="B"),
)

# ---------------------------------------------------------------- manifest

variant(
    "manifest-extensions",
    "Another writer's keys, nested, with text that is not ASCII.",
    bases.plain,
    manifest(lambda said: said.update(extensions={"maker": {"a": [1, "\u00e9\u0120", None, True]}})),
)
variant(
    "manifest-unknown-keys",
    "Keys that readers do not know, outside of `extensions`.",
    bases.plain,
    manifest(lambda said: (said.update(later=1), said["model"].update(family="x"))),
)
variant(
    "manifest-producer",
    "Another program wrote it.",
    bases.plain,
    manifest(lambda said: said.update(producer="another writer")),
)
# Canonical text by hand: RFC 8785's own samples of numbers (appendix B) and of the order of keys (3.2.3).
NUMBERS = (
    b"5e-324,-5e-324,1.7976931348623157e+308,9007199254740992,295147905179352830000,9.999999999999997e+22,1e+23,"
    b"1.0000000000000001e+23,999999999999999700000,999999999999999900000,1e+21,9.999999999999997e-7,0.000001,"
    b"333333333.3333332,333333333.33333325,333333333.33333343,-0.0000033333333333333333,1424953923781206.2,0.5,0,-1"
)
KEYS = rb'"\r":1,"1":2,' + '"\x80":3,"\xf6":4,"\u20ac":5,"\U0001f600":6,"\ufb33":7'.encode()
variant(
    "manifest-numbers",
    "Extensions with fractions and exponents, as ECMAScript writes doubles.",
    bases.plain,
    raw(replaced(b"{", b'{"extensions":{"n":[' + NUMBERS + b"]},")),
)
variant(
    "manifest-keys",
    "Extensions whose keys are not ASCII, sorted by UTF-16 code units.",
    bases.plain,
    raw(replaced(b"{", b'{"extensions":{' + KEYS + b"},")),
)
variant(
    "manifest-escapes",
    "Text that JSON has to escape, and a letter beyond the first plane.",
    bases.plain,
    manifest(lambda said: said["model"].update(name='"\\\b\t\n\x1f/\U0001f600')),
)

# ---------------------------------------------------------------- longer rows, empty tables

for kind in (
    K.METADATA_KV_BIN,
    K.TENSOR_INDEX_BIN,
    K.DENSE_INDEX_BIN,
    K.NATIVE_DENSE_INDEX_BIN,
    K.EXPERT_LAYOUT_BIN,
    K.TOKENIZER_ASSETS,
    K.MTP_BLOB,
):
    variant(
        f"longer-rows-{SECTION_NAMES[kind]}",
        "Rows with fields that version 1 does not know.",
        bases.small,
        longer_rows(kind, 8),
    )
variant(
    "longest-rows",
    "Rows of 65528 bytes.",
    bases.plain,
    assets({"a": b"x"}),
    longer_rows(K.TOKENIZER_ASSETS, 65528 - ROWS[K.TOKENIZER_ASSETS].SIZE),
)
variant(
    "longer-rows-shards",
    "Rows of shards with fields that version 1 does not know.",
    bases.external,
    longer_shard_rows,
    shards=tuple(bases.shard_bytes()),
)
variant(
    "empty-dense",
    "A dense index of no rows, and a blob of no bytes.",
    bases.plain,
    empty_table(K.DENSE_INDEX_BIN, blob=K.DENSE_PACK_BLOB),
)
variant(
    "empty-native",
    "A native arena of no bytes.",
    bases.plain,
    empty_table(K.NATIVE_DENSE_INDEX_BIN, blob=K.NATIVE_DENSE_BLOB),
)
NO_EXPERTS = {"experts": {"mode": "embedded", "layer_count": 0, "blob_count": 0, "bytes": 0}}
variant(
    "empty-experts",
    "A layout of no layers, and a blob of no bytes.",
    bases.plain,
    empty_table(K.EXPERT_LAYOUT_BIN, blob=K.EXPERT_BLOBS, summary=NO_EXPERTS),
)
variant("empty-assets", "An archive of no files.", bases.plain, assets({}))
variant("empty-drafts", "Draft layers without tensors.", bases.plain, no_drafts)

# ---------------------------------------------------------------- assets

variant(
    "assets-names",
    "Names of 1 and of 255 bytes, with blanks, dots, and letters that are not ASCII.",
    bases.plain,
    assets({"a": b"1", "b" * 255: b"2", ".hidden": b"3", "two words": b"4", "\u0120\U0001f600": b"5"}),
)
variant(
    "assets-sizes",
    "Files of 0, 1, 63, 64 and 65 bytes.",
    bases.plain,
    assets({f"{size:02d}": b"\xff" * size for size in (0, 1, 63, 64, 65)}),
)
variant(
    "assets-short-gexec", "A file of three bytes that begins like a GEXEC cache.", bases.plain, assets({"a": b"GEX"})
)
