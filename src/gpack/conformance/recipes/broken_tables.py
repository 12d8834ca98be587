"""Broken tables: rules of all of them."""

from __future__ import annotations

from ..parts import ROWS, Parts
from .bases import plain, vocabulary
from .case import ASSETS, DENSE, EMBED_BLOB, GBT, INDEX, KV, LAYOUT, MTP, NATIVE, PACK, Change, case, steps
from .edits import INDEXES, add, append, archive_header, at_row, cut, edit_entry, names, set_header, set_row

# ---------------------------------------------------------------- sweeping rules

for kind, section in names(KV, INDEX, DENSE, NATIVE, LAYOUT, ASSETS, MTP):
    case("field.reserved", section, "reserved", set_header(kind, reserved=1))
case("field.reserved", "TensorIndexBin", "rows[2].reserved", set_row(INDEX, 2, reserved=1))
case("field.reserved", "TokenizerAssets", "rows[0].flags", set_row(ASSETS, 0, flags=1))
case("field.reserved", "EmbedBlob", "reserved2", set_header(EMBED_BLOB, reserved2=bytes(23) + b"\1"))
case("field.reserved", "TokenizerBin", "reserved", set_header(GBT, reserved=b"\1" + bytes(35)))
case("field.reserved", "header", "reserved", lambda p: p.header.update(reserved=bytes(15) + b"\1"), placed=False)
case("field.reserved", "footer", "reserved", lambda p: p.footer.update(reserved=1), placed=False)
case(
    "field.reserved",
    "directory",
    "sections[3].reserved",
    lambda p: p.section(PACK).bound.update(reserved=1),
    placed=False,
)
case("field.flags", "header", "flags", lambda p: p.bound_header.update(flags=p.flags() | 1 << 31), placed=False)
case("field.flags", "directory", "sections[1].flags", lambda p: p.section(INDEX).bound.update(flags=1), placed=False)
case("field.flags", "MetadataKvBin", "rows[0].flags", set_row(KV, 0, flags=2))
case(
    "field.flags",
    "TensorIndexBin",
    at_row(INDEX, "rope_freqs.weight", "flags"),
    set_row(INDEX, "rope_freqs.weight", flags=4),
)
case(
    "field.flags",
    "DenseIndexBin",
    at_row(DENSE, "rope_freqs.weight", "flags"),
    set_row(DENSE, "rope_freqs.weight", flags=1 << 9),
)
case("field.flags", "ExpertLayoutBin", "rows[0].flags", set_row(LAYOUT, 0, flags=8))
case("field.flags", "TokenizerBin", "flags", set_header(GBT, flags=0b11111))

# ---------------------------------------------------------------- all tables


def odd_rows(kind: int) -> Change:
    """Rows that are longer by half a word."""
    return lambda pack: pack.rebuild(kind, pack.entries(kind), row_size=ROWS[kind].SIZE + 4)


for kind, section in names(KV, INDEX, DENSE, NATIVE, LAYOUT, ASSETS):
    case("index.header", section, "", cut(kind, 63), placed=False)
case(
    "index.header",
    "MtpBlob",
    "",
    lambda p: p.add(MTP, bytes(63), 1) and p.manifest.update(mtp={"tensor_count": 0, "bytes": 0}),
    base=vocabulary,
    placed=False,
)
for kind, section in names(*INDEXES):
    case("index.magic", section, "magic", set_header(kind, magic=0))
    case("index.version", section, "version", set_header(kind, version=2))
    size = ROWS[kind].SIZE
    case("index.row_size", section, "row_size", set_header(kind, row_size=size - 8), variant="short")
for kind, section in names(KV, INDEX, DENSE, NATIVE, LAYOUT):
    case("index.row_size", section, "row_size", odd_rows(kind), placed=False, variant="odd")


def too_many_rows(pack: Parts) -> None:
    """An archive of one row more than a table may have."""
    count = (1 << 20) + 1
    header = archive_header(count, 0)
    pack.add(ASSETS, header.encode() + bytes(header.ofs_data - header.SIZE), 0)


case("index.num_rows", "TokenizerAssets", "num_rows", too_many_rows, base=plain, placed=False)
case("index.num_rows", "MetadataKvBin", "num_rows", set_header(KV, num_rows=0xFFFFFFFF))


def heap_elsewhere(kind: int) -> Change:
    """Eight bytes between rows and heap."""

    def change(pack: Parts) -> None:
        at = pack.get(kind).ofs_heap
        pack.section(kind).data[at:at] = bytes(8)
        pack.set(kind, ofs_heap=at + 8)

    return change


for kind, section in names(KV, INDEX, DENSE, NATIVE):
    case("index.layout", section, "ofs_heap", heap_elsewhere(kind), placed=False)
for kind, section in names(KV, INDEX, DENSE, NATIVE, LAYOUT, ASSETS, MTP):
    case("index.heap_bounds", section, "len_heap", set_header(kind, len_heap=0x100000000), placed=kind != 12)
for kind, section in names(KV, INDEX, DENSE, NATIVE, LAYOUT):
    case("index.end", section, "len_heap", append(kind, b"\0"), placed=False)


def swap(kind: int, first: int) -> Change:
    """Swaps a row with the next; the heap follows."""

    def change(pack: Parts) -> None:
        rows = pack.entries(kind)
        rows[first : first + 2] = rows[first + 1], rows[first]
        pack.rebuild(kind, rows)

    return change


def double_key(pack: Parts) -> None:
    """A key that stands twice."""
    rows = pack.entries(KV)
    index = pack.find(KV, "a.u8")
    row, refs = pack.entries(KV)[index]
    row.position = len(rows)
    pack.rebuild(KV, [*rows[: index + 1], (row, refs), *rows[index + 1 :]])


case("index.sorted", "MetadataKvBin", "rows[4].key_offset", swap(KV, 3), placed=False)
case("index.sorted", "TensorIndexBin", "rows[4].name_offset", swap(INDEX, 3), placed=False)
case("index.sorted", "MetadataKvBin", "", double_key, placed=False)
case(
    "index.heap_ref",
    "MetadataKvBin",
    at_row(KV, "a.u8", "value_offset"),
    set_row(KV, "a.u8", value_offset=0xFFFFFFFF),
    variant="bytes",
)
case(
    "index.heap_ref",
    "MetadataKvBin",
    at_row(KV, "b.nostr", "value_offset"),
    set_row(KV, "b.nostr", value_offset=0xFFFFFFFF),
    variant="empty",
)
case(
    "index.heap_order",
    "MetadataKvBin",
    at_row(KV, "a.empty", "value_offset"),
    set_row(KV, "a.empty", value_offset=1),
    variant="empty-not-0",
)
case("index.heap_order", "TensorIndexBin", "len_heap", steps(append(INDEX, b"x"), add(INDEX, "len_heap", 1)))


def share(pack: Parts) -> None:
    """'a.true' and 'b...' point to the bytes of another value that is the same."""
    rows = pack.rows(KV)
    one = rows[pack.find(KV, "a.true")].value_offset
    pack.poke(KV, pack.get(KV).ofs_heap + rows[pack.find(KV, "a.u8")].value_offset, b"\1")
    pack.set_row(KV, "a.u8", value_offset=one)


case("index.heap_order", "MetadataKvBin", at_row(KV, "a.u8", "value_offset"), share, variant="shared")


def fill_gap(pack: Parts) -> None:
    """Bytes that are not zero between a key and its value."""
    row = pack.rows(KV)[pack.find(KV, "a.u8")]
    gap = row.key_offset + row.key_length
    assert gap < row.value_offset
    pack.poke(KV, pack.get(KV).ofs_heap + gap, b"\1" * (row.value_offset - gap))


case("index.heap_zero", "MetadataKvBin", "heap", fill_gap)
case("index.utf8", "MetadataKvBin", "", edit_entry(KV, "a.u8", new=b"a.u\xff"), placed=False, variant="byte-ff")
case("index.utf8", "MetadataKvBin", "", edit_entry(KV, "a.u8", new=b"\xed\xa0\x80"), placed=False, variant="surrogate")
