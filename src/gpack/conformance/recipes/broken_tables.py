"""Broken tables, metadata, tokenizers and assets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...generated.constants import CACHE_LINE, SECTION_NAMES
from ...generated.rules import align_up
from ...generated.structs import MetadataKvRowV1, TokenizerAssetRowV1, TokenizerAssetsHeaderV1, gbt_v1_layout
from ..parts import ROWS, Parts
from .bases import everything, plain, repeated_merges, small, vocabulary
from .case import ASSETS, DENSE, EMBED_BLOB, GBT, INDEX, KV, LAYOUT, MTP, NATIVE, PACK, Change, case, steps, u32, u64

INDEXES = (KV, INDEX, DENSE, NATIVE, LAYOUT, ASSETS, MTP)


def names(*kinds: int) -> list[tuple[int, str]]:
    """Kinds with their names."""
    return [(kind, SECTION_NAMES[kind]) for kind in kinds]


def set_header(kind: int, /, **fields: Any) -> Change:
    """Sets fields of a section's header record."""
    return lambda pack: pack.set(kind, **fields)


def set_row(kind: int, row: int | str, /, **fields: Any) -> Change:
    """Sets fields of a row, named by number or by its name."""
    return lambda pack: pack.set_row(kind, row, **fields)


def at_row(kind: int, name: str, field: str, base: Callable[[], bytes] = everything) -> str:
    """The path of a row's field."""
    return f"rows[{Parts.parse(base()).find(kind, name)}].{field}"


def poke(kind: int, at: int, data: bytes) -> Change:
    """Overwrites bytes of a section."""
    return lambda pack: pack.poke(kind, at, data)


def add(kind: int, name: str, amount: int) -> Change:
    """Adds to a field of a section's header record."""
    return lambda pack: pack.set(kind, **{name: getattr(pack.get(kind), name) + amount})


def append(kind: int, data: bytes) -> Change:
    """Puts bytes after a section's own."""
    return lambda pack: pack.section(kind).data.extend(data)


def cut(kind: int, length: int) -> Change:
    """Keeps the first bytes of a section."""
    return lambda pack: pack.section(kind).data.__delitem__(slice(length, None))


def edit_entry(
    kind: int, name: str, /, *, new: bytes | None = None, value: bytes | None = None, **fields: Any
) -> Change:
    """Renames a row, changes what it points to, or its fields; the table is sorted and laid out anew."""

    def change(pack: Parts) -> None:
        entries = pack.entries(kind)
        row, refs = entries[pack.find(kind, name)]
        refs[0] = refs[0] if new is None else new
        if value is not None:
            refs[1] = value
        for field, item in fields.items():
            setattr(row, field, item)
        pack.rebuild(kind, sorted(entries, key=lambda item: item[1][0]))

    return change


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


def archive_header(count: int, heap: int) -> TokenizerAssetsHeaderV1:
    """The header of an archive of so many files, with so many bytes of names."""
    row, size = TokenizerAssetRowV1.SIZE, TokenizerAssetsHeaderV1.SIZE
    header = TokenizerAssetsHeaderV1(version=1, row_size=row, num_rows=count, ofs_rows=size)
    header.ofs_heap, header.len_heap = size + row * count, heap
    header.ofs_data = align_up(header.ofs_heap + heap, CACHE_LINE)
    return header


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

# ---------------------------------------------------------------- metadata

case("metadata.key", "MetadataKvBin", "rows[0].key_length", edit_entry(KV, "a.u8", new=b""), placed=False)
case(
    "metadata.key",
    "MetadataKvBin",
    "rows[0].key_length",
    edit_entry(KV, "a.u8", new=b"!" * 65536),
    placed=False,
    published=False,
)
for kind in (13, 0xFFFFFFFF):
    case(
        "metadata.type",
        "MetadataKvBin",
        at_row(KV, "a.u8", "value_type"),
        set_row(KV, "a.u8", value_type=kind, element_type=kind),
        variant=f"{kind:#x}",
    )
case(
    "metadata.type",
    "MetadataKvBin",
    at_row(KV, "b.u8", "value_type"),
    set_row(KV, "b.u8", element_type=14),
    placed=False,
    variant="of-elements",
)
case("metadata.element_type", "MetadataKvBin", at_row(KV, "a.u8", "element_type"), set_row(KV, "a.u8", element_type=1))
case("metadata.count", "MetadataKvBin", at_row(KV, "a.str", "count"), set_row(KV, "a.str", count=2), variant="two")
case("metadata.count", "MetadataKvBin", at_row(KV, "a.empty", "count"), set_row(KV, "a.empty", count=0), variant="zero")
case(
    "metadata.stub_bytes",
    "MetadataKvBin",
    at_row(KV, "tokenizer.chat_template", "value_length"),
    edit_entry(KV, "tokenizer.chat_template", value=b"x"),
    placed=False,
)
case(
    "metadata.size",
    "MetadataKvBin",
    at_row(KV, "a.u32", "value_length"),
    edit_entry(KV, "a.u32", value=b"abc"),
    placed=False,
    variant="scalar",
)
case(
    "metadata.size",
    "MetadataKvBin",
    at_row(KV, "b.u8", "value_length"),
    set_row(KV, "b.u8", count=4),
    placed=False,
    variant="array",
)
STRING, ARRAY, BOOL = u32(8), u32(9), u32(7)
for name, what, value in (
    ("a.true", "two", b"\2"),
    ("b.bool", "element", b"\0\1\xff"),
    ("b.nostr", "bytes-of-none", b"x"),
    ("b.str", "too-long", u64(0) * 3 + u64(1)),
    ("b.str", "too-short", u64(0) * 3),
    ("b.str", "too-many", u64(0) * 5),
    ("b.str", "overrun", u64(1 << 63) * 4),
    ("c.nested", "overrun", u32(5) + u64(1) + b"abcd"),
    ("c.nested", "endless", (u32(5) + u64(1 << 62)) * 3),
    ("c.nested", "unknown-type", (u32(13) + u64(0)) * 3),
    ("c.deep", "bool", (BOOL + u64(1) + b"\2") * 2),
    ("c.nested", "too-deep", (ARRAY + u64(1)) * 9 + u32(5) + u64(0) + (u32(5) + u64(0)) * 2),
):
    case(
        "metadata.value",
        "MetadataKvBin",
        at_row(KV, name, "value_offset"),
        edit_entry(KV, name, value=value),
        placed=False,
        variant=f"{name}-{what}",
    )
case(
    "metadata.position",
    "MetadataKvBin",
    "rows[1].position",
    lambda p: p.set_row(KV, 1, position=p.rows(KV)[0].position),
    variant="doubled",
)
case(
    "metadata.position",
    "MetadataKvBin",
    "rows[1].position",
    lambda p: p.set_row(KV, 1, position=1000),
    variant="beyond",
)
case(
    "metadata.stub",
    "MetadataKvBin",
    at_row(KV, "b.nostr", "flags"),
    set_row(KV, "b.nostr", flags=1),
    variant="other-key",
)
case(
    "metadata.stub",
    "MetadataKvBin",
    at_row(KV, "tokenizer.ggml.tokens", "count"),
    set_row(KV, "tokenizer.ggml.tokens", count=5),
    variant="tokens",
)
case(
    "metadata.stub",
    "MetadataKvBin",
    at_row(KV, "tokenizer.ggml.merges", "count"),
    set_row(KV, "tokenizer.ggml.merges", element_type=9),
    placed=False,
    variant="merges",
)
case(
    "metadata.stub",
    "MetadataKvBin",
    at_row(KV, "tokenizer.ggml.tokens", "flags", vocabulary),
    steps(lambda p: p.remove(GBT), lambda p: p.manifest.pop("tokenizer")),
    base=vocabulary,
    placed=False,
    variant="no-tokenizer",
)
case(
    "metadata.stub",
    "MetadataKvBin",
    "",
    edit_entry(KV, "tokenizer.ggml.merges", value=b"", flags=1),
    base=repeated_merges,
    placed=False,
    variant="merges-too-long",
)
for alignment in (48, 1 << 21, 64):
    change = set_header(KV, source_alignment=alignment)
    case("metadata.source_alignment", "MetadataKvBin", "source_alignment", change, variant=f"{alignment}")
case("metadata.forbidden", "MetadataKvBin", "", edit_entry(KV, "a.u8", new=b"gexec.sm"), placed=False)


ARCHITECTURE, TOKENS, TYPES = "general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
MERGES, TEMPLATE, END = "tokenizer.ggml.merges", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"


def one_key(key: str, value_type: int, element_type: int, value: bytes) -> Change:
    """The only key of a pack that had none."""
    row = MetadataKvRowV1(value_type=value_type, element_type=element_type, count=1)
    return lambda pack: pack.rebuild(KV, [(row, [key.encode(), value])])


case(
    "metadata.architecture",
    "MetadataKvBin",
    at_row(KV, ARCHITECTURE, "value_offset", vocabulary),
    edit_entry(KV, ARCHITECTURE, value=b"\xff"),
    base=vocabulary,
    placed=False,
)
case(
    "metadata.architecture",
    "MetadataKvBin",
    at_row(KV, ARCHITECTURE, "value_type", vocabulary),
    edit_entry(KV, ARCHITECTURE, value=b"abcd", value_type=4, element_type=4),
    base=vocabulary,
    placed=False,
)
case(
    "metadata.limit",
    "MetadataKvBin",
    "rows[0].value_offset",
    one_key("unknown.block_count", 4, 4, u32((1 << 20) + 1)),
    base=plain,
    placed=False,
    variant="layers",
)
case(
    "metadata.limit",
    "MetadataKvBin",
    "rows[0].value_offset",
    one_key("unknown.context_length", 10, 10, u64(1 << 53)),
    base=plain,
    placed=False,
    variant="context",
)

# ---------------------------------------------------------------- tokenizer


def gbt(part: str, at: int, data: bytes) -> Change:
    """Overwrites bytes of one of the tokenizer's arrays."""
    return lambda pack: pack.poke(GBT, gbt_v1_layout(pack.get(GBT))[part][0] + at, data)


case("tokenizer.header", "TokenizerBin", "", cut(GBT, 63), placed=False)
case("tokenizer.magic", "TokenizerBin", "magic", set_header(GBT, magic=0x32544247))
case("tokenizer.layout", "TokenizerBin", "vocab_size", append(GBT, b"x"), placed=False, variant="byte-more")
case(
    "tokenizer.layout",
    "TokenizerBin",
    "vocab_size",
    set_header(GBT, vocab_size=0xFFFFFFFF),
    base=everything,
    variant="endless",
)
case(
    "tokenizer.eos",
    "TokenizerBin",
    "eos_token_id",
    steps(set_header(GBT, eos_token_id=-2), lambda p: p.manifest["tokenizer"].pop("eos_token_id")),
    variant="below-none",
)
case(
    "tokenizer.eos",
    "TokenizerBin",
    "eos_token_id",
    steps(set_header(GBT, eos_token_id=272), lambda p: p.manifest["tokenizer"].update(eos_token_id=272)),
    variant="beyond",
)
case("tokenizer.offsets", "TokenizerBin", "offsets[0]", gbt("offsets", 0, u32(1)), variant="first")
case(
    "tokenizer.offsets",
    "TokenizerBin",
    "offsets[3]",
    gbt("offsets", 8, u32(0xFFFF)),
    base=small,
    placed=False,
    variant="falling",
)
case("tokenizer.offsets", "TokenizerBin", "offsets[3]", gbt("offsets", 12, u32(3)), base=small, variant="last")
for what, ids in {
    "beyond": (3, 1, 2),
    "one-is-none": (0, -1, 2),
    "below-none": (-2, -2, -2),
    "largest": (0, 1, 2**31 - 1),
}.items():
    packed = b"".join((x & 0xFFFFFFFF).to_bytes(4, "little") for x in ids)
    case("tokenizer.triples", "TokenizerBin", "triples[0]", gbt("triples", 0, packed), base=small, variant=what)
for what, ids in {"swapped": (1, 0, 2), "left-twice": (0, 0, 2), "too-short": (0, 1, 1), "too-long": (2, 1, 0)}.items():
    packed = b"".join(x.to_bytes(4, "little") for x in ids)
    case("tokenizer.merge_bytes", "TokenizerBin", "triples[0]", gbt("triples", 0, packed), base=small, variant=what)
case("tokenizer.padding", "TokenizerBin", "vocab_blob", gbt("vocab_blob", -1, b"\1"), base=small, placed=False)
case("tokenizer.padding", "TokenizerBin", "triples", gbt("triples", -1, b"\1"), base=small, placed=False)
case("tokenizer.special_count", "TokenizerBin", "n_special", set_header(GBT, n_special=273), placed=False)
case("tokenizer.merge_index", "TokenizerBin", "merge_keys[0]", gbt("merge_keys", 0, b"\0"))
case("tokenizer.merge_index", "TokenizerBin", "merge_ranks[1]", gbt("merge_ranks", 4, u32(13)))
case("tokenizer.token_order", "TokenizerBin", "token_order[2]", gbt("token_order", 8, u32(272)))
case("tokenizer.byte_tokens", "TokenizerBin", "byte_tokens[65]", gbt("byte_tokens", 4 * 65, u32(0)))
case("tokenizer.special_tokens", "TokenizerBin", "special_tokens[0]", gbt("special_tokens", 0, u32(1)))
case(
    "tokenizer.template",
    "TokenizerBin",
    "chat_template",
    gbt("chat_template", 5, b"\xff"),
    base=small,
    variant="byte-ff",
)
case("tokenizer.template", "TokenizerBin", "chat_template", gbt("chat_template", 0, b"\0"), base=small, variant="nul")
case(
    "tokenizer.template",
    "TokenizerBin",
    "chat_template",
    gbt("chat_template", 6, b"\xc3"),
    base=small,
    variant="cut-short",
)


def without_key(key: str) -> Change:
    """Drops a key; those after it move up."""

    def change(pack: Parts) -> None:
        gone = pack.rows(KV)[pack.find(KV, key)].position
        rows = [(row, refs) for row, refs in pack.entries(KV) if row.position != gone]
        for row, _ in rows:
            row.position -= row.position > gone
        pack.rebuild(KV, rows)

    return change


def more_types(pack: Parts) -> None:
    """Types in the metadata, one more than there are tokens."""
    entries = pack.entries(KV)
    row = MetadataKvRowV1(value_type=9, element_type=5, count=4, position=len(entries))
    entries.append((row, [TYPES.encode(), u32(1) * 4]))
    pack.rebuild(KV, sorted(entries, key=lambda entry: entry[1][0]))


case(
    "tokenizer.metadata",
    "MetadataKvBin",
    "rows[0].flags",
    one_key(TOKENS, 9, 8, u64(1) + b"a"),
    base=plain,
    placed=False,
    variant="no-tokenizer",
)
case("tokenizer.metadata", "MetadataKvBin", "num_rows", without_key(TOKENS), base=small, placed=False)
case(
    "tokenizer.metadata",
    "MetadataKvBin",
    at_row(KV, TEMPLATE, "flags", small),
    edit_entry(KV, TEMPLATE, value=b"{{ x }}", flags=0),
    base=small,
    placed=False,
    variant="template-twice",
)
case(
    "tokenizer.metadata",
    "MetadataKvBin",
    at_row(KV, TOKENS, "flags", small),
    edit_entry(KV, TOKENS, value=u64(1) + b"a" + u64(1) + b"b" + u64(2) + b"ab", flags=0),
    base=small,
    placed=False,
    variant="tokens-twice",
)
case("tokenizer.metadata", "MetadataKvBin", "", more_types, base=small, placed=False, variant="more-types")
case("tokenizer.metadata", "TokenizerBin", "eos_token_id", edit_entry(KV, END, value=u32(0)), placed=False)
case("tokenizer.metadata", "TokenizerBin", "token_types[0]", gbt("token_types", 0, b"\5"), base=small)
case("tokenizer.metadata", "TokenizerBin", "n_merges", without_key(MERGES), base=small, placed=False)
case("tokenizer.metadata", "TokenizerBin", "chat_template_bytes", without_key(TEMPLATE), base=small, placed=False)

# ---------------------------------------------------------------- assets


def archive(files: Sequence[tuple[bytes, bytes]], *, extra: int = 0) -> Change:
    """Adds an archive of files that no builder would take."""

    def change(pack: Parts) -> None:
        rows, heap, data = b"", b"", bytearray()
        for name, octets in files:
            data += bytes(-len(data) % CACHE_LINE)
            row = TokenizerAssetRowV1(offset=len(data), byte_size=len(octets), name_length=len(name))
            row.name_offset = len(heap) if name else 0
            rows, heap = rows + row.encode(), heap + name
            data += octets
        data += bytes(extra)
        header = archive_header(len(files), len(heap))
        header.len_data = len(data)
        head = header.encode() + rows + heap
        pack.add(ASSETS, head.ljust(header.ofs_data, b"\0") + data, len(files))

    return change


case("assets.data", "TokenizerAssets", "ofs_data", add(ASSETS, "len_data", 1), placed=False, variant="len_data")
case("assets.data", "TokenizerAssets", "ofs_data", add(ASSETS, "ofs_data", 64), variant="ofs_data")
case("assets.data", "TokenizerAssets", "ofs_data", append(ASSETS, b"x"), placed=False, variant="byte-more")
case("assets.alignment", "TokenizerAssets", "rows[1].offset", set_row(ASSETS, 1, offset=1))
case(
    "assets.name",
    "TokenizerAssets",
    "rows[0].name_length",
    archive([(b"", b"x")]),
    base=plain,
    placed=False,
    variant="empty",
)
case(
    "assets.name",
    "TokenizerAssets",
    "rows[0].name_length",
    archive([(b"a" * 256, b"x")]),
    base=plain,
    placed=False,
    variant="256-bytes",
)
case("assets.placement", "TokenizerAssets", "rows[2].offset", set_row(ASSETS, 2, offset=0), variant="overlap")
case(
    "assets.placement",
    "TokenizerAssets",
    "rows[0].offset",
    set_row(ASSETS, 0, byte_size=1 << 40),
    placed=False,
    variant="endless",
)
case("assets.placement", "TokenizerAssets", "len_data", archive([(b"a", b"x")], extra=64), base=plain, placed=False)
case(
    "assets.placement",
    "TokenizerAssets",
    "padding",
    lambda p: p.poke(ASSETS, p.get(ASSETS).ofs_data - 1, b"\1"),
    variant="before-data",
)
case(
    "assets.placement",
    "TokenizerAssets",
    "padding",
    lambda p: p.poke(ASSETS, p.get(ASSETS).ofs_data + 63, b"\1"),
    variant="between-files",
)
for what, path in {
    "folder": b"a/b",
    "root": b"/a",
    "parent": b"..",
    "dot": b".",
    "backslash": b"a\\b",
    "drive": b"C:a",
    "line-feed": b"a\n",
    "nul": b"a\x00",
    "delete": b"\x7f",
}.items():
    case(
        "assets.path",
        "TokenizerAssets",
        "rows[0].name_offset",
        archive([(path, b"x")]),
        base=plain,
        placed=False,
        variant=what,
    )
case(
    "assets.gexec",
    "TokenizerAssets",
    "rows[0].offset",
    archive([(b"a", b"GEXC...")]),
    base=plain,
    placed=False,
    variant="first",
)
case(
    "assets.gexec",
    "TokenizerAssets",
    "rows[1].offset",
    archive([(b"a", b"x"), (b"b", b"GEXC")]),
    base=plain,
    placed=False,
    variant="second",
)
