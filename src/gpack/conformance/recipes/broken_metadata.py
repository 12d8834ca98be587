"""Broken metadata."""

from __future__ import annotations

from .bases import plain, repeated_merges, vocabulary
from .case import GBT, KV, case, steps, u32, u64
from .edits import ARCHITECTURE, at_row, edit_entry, one_key, set_header, set_row

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
