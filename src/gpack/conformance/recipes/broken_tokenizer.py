"""Broken tokenizers."""

from __future__ import annotations

from ...generated.structs import MetadataKvRowV1, gbt_v1_layout
from ..parts import Parts
from .bases import everything, plain, small
from .case import GBT, KV, Change, case, steps, u32, u64
from .edits import END, MERGES, TEMPLATE, TOKENS, TYPES, append, at_row, cut, edit_entry, one_key, set_header


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
