"""The precomputed arrays of GBT1: as worked out by hand, and their rules."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_maker import TINY_TOKENS, make_gguf, tiny_tokenizer

from gpack.container.writer import GPackBuilder
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import GbtFlags, SectionKind
from gpack.generated.structs import GbtHeaderV1, gbt_v1_layout, gbt_v1_size
from gpack.pack import open as open_pack
from gpack.sections.gbt import GbtView, byte_alphabet
from gpack.sections.gbt_index import byte_tokens, merge_index, special_tokens, token_order
from gpack.sections.lanes import Blob
from gpack.sections.verify import verify


def pack(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(make_gguf([("general.architecture", "str", "llama"), *tiny_tokenizer()]))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def test_merge_index_by_hand() -> None:
    triples = np.array([[5, 1, 9], [-1, -1, -1], [2, 7, 8], [5, 1, 3]], np.int32)
    keys, ranks = merge_index(triples)
    assert keys.tolist() == [2 << 32 | 7, 5 << 32 | 1, 5 << 32 | 1, 2**64 - 1]
    assert ranks.tolist() == [2, 0, 3, 1]


def test_token_order_by_hand() -> None:
    offsets = np.array([0, 1, 1, 3, 4], np.int64)  # b, nothing, ba, b
    assert token_order(b"bbab", offsets).tolist() == [1, 0, 3, 2]


def test_byte_tokens_by_hand() -> None:
    tokens = ["a", "Ġ", "ĠĠ", "a", "é"]
    blob = "".join(tokens).encode()
    offsets = np.concatenate([[0], np.cumsum([len(token.encode()) for token in tokens])]).astype(np.int64)
    found = byte_tokens(Blob(memoryview(blob)), offsets)
    assert {byte: int(found[byte]) for byte in np.flatnonzero(found >= 0)} == {0x20: 1, 0x61: 3, 0xE9: 4}


def test_special_tokens_by_hand() -> None:
    offsets = np.array([0, 2, 5, 5, 8, 9], np.int64)
    types = np.array([3, 4, 3, 2, 1], np.uint8)
    assert special_tokens(types, offsets).tolist() == [1, 3, 0]


def test_alphabet() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert (alphabet[0x20], alphabet[0x41], alphabet[0], alphabet[0xAD]) == ("Ġ", "A", "Ā", "Ń")


def test_absent_arrays_take_no_bytes() -> None:
    header = GbtHeaderV1(vocab_size=4, n_merges=1, vocab_blob_bytes=5, chat_template_bytes=2)
    assert gbt_v1_size(header) == 122
    header.flags = GbtFlags.TOKEN_ORDER
    assert gbt_v1_layout(header)["token_order"] == (128, 16)
    assert gbt_v1_size(header) == 144


def test_searches_in_the_mapped_bytes(tmp_path: Path) -> None:
    with open_pack(pack(tmp_path)) as found:
        view = GbtView(found.section("TokenizerBin"))
        assert [view.find(token.encode()) for token in TINY_TOKENS] == list(range(len(TINY_TOKENS)))
        assert view.find(b"absent") == -1
        index = TINY_TOKENS.index
        assert view.merge(index("t"), index("h")) == (0, index("th"))
        assert view.merge(index("h"), index("t")) is None
        view.release()


@pytest.mark.parametrize(
    ("part", "form", "rule"),
    [
        ("merge_keys", "<Q", "tokenizer.merge_index"),
        ("merge_ranks", "<I", "tokenizer.merge_index"),
        ("token_order", "<I", "tokenizer.token_order"),
        ("byte_tokens", "<i", "tokenizer.byte_tokens"),
        ("special_tokens", "<I", "tokenizer.special_tokens"),
    ],
)
def test_verify_finds_a_wrong_entry(part: str, form: str, rule: str, tmp_path: Path) -> None:
    source = pack(tmp_path)
    assert verify(source).report.ok
    with open_pack(source) as found:
        builder = GPackBuilder({key: value for key, value in found.manifest.items() if key in ("model", "tokenizer")})
        for entry in found.container.entries:
            if entry.kind == SectionKind.MANIFEST_JSON:
                continue
            data = bytearray(found.section(entry.kind))
            if entry.kind == SectionKind.TOKENIZER_BIN:
                at = gbt_v1_layout(GbtHeaderV1.decode(data))[part][0]
                (value,) = struct.unpack_from(form, data, at)
                struct.pack_into(form, data, at, value + 1)
            builder.add(entry.kind, bytes(data), entry.item_count)
        builder.build(tmp_path / "broken.gpack")
    assert {violation.rule for violation in verify(tmp_path / "broken.gpack").report.violations} == {rule}
