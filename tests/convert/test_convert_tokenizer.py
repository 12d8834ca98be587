"""TokenizerBin as a conversion writes it: every place worked out by hand from FORMAT.md."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from convert import packs
from convert.packs import Parts, convert
from gguf_maker import TINY_CHAT_TEMPLATE, TINY_MERGES, TINY_TOKENS, pack_string, tiny_llama, write_gguf

import gpack
from gpack.cli import main
from gpack.convert.gguf import convert_gguf
from gpack.sources.gguf import GgufSource


def test_a_kind_of_tokenizer_that_is_none_of_ours_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata, tensors = tiny_llama(layers=1)
    odd = [(key, kind, "bert" if key == "tokenizer.ggml.model" else value) for key, kind, value in metadata]
    source = write_gguf(tmp_path / "m.gguf", odd, tensors)
    assert main(["convert", str(source), "-o", str(tmp_path / "m.gpack")]) == 0
    assert "cannot be run: the tokenizer's model is 'bert'" in capsys.readouterr().out
    assert main(["convert", str(source), "-o", str(tmp_path / "m.gpack"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["import"]["reasons"]) == 1
    for file in (source, tmp_path / "m.gpack"):
        assert main(["inspect", str(file)]) == 0
        assert "the tokenizer's model is 'bert'" in capsys.readouterr().out


def test_the_tokenizer_section(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    parts = convert(tmp_path, metadata, tensors)
    data = parts.section(packs.TOKENIZER)
    magic, vocab, merges, eos, flags, blob_bytes, template_bytes = struct.unpack_from("<IIIiIII", data)
    tokens = [token.encode() for token in TINY_TOKENS]
    assert (magic, vocab, merges, eos, flags) == (0x31544247, 272, 13, 271, 0b1111)
    assert blob_bytes == sum(map(len, tokens))
    assert template_bytes == len(TINY_CHAT_TEMPLATE)
    offsets = struct.unpack_from("<273I", data, 64)
    types_at = 64 + 273 * 4 + 4  # the next multiple of 8
    blob_at = types_at + 272
    triples_at = -(-(blob_at + blob_bytes) // 8) * 8
    blob = data[blob_at : blob_at + blob_bytes]
    assert [blob[offsets[i] : offsets[i + 1]] for i in range(272)] == tokens
    assert data[types_at:blob_at] == bytes([1] * 269 + [3] * 3)
    triples = list(struct.iter_unpack("<3i", data[triples_at : triples_at + 13 * 12]))
    for merge, (left, right, merged) in zip(TINY_MERGES, triples, strict=True):
        assert f"{TINY_TOKENS[left]} {TINY_TOKENS[right]}" == merge
        assert TINY_TOKENS[merged] == merge.replace(" ", "")
    template_at = triples_at + 13 * 12 + 4
    assert data[template_at : template_at + template_bytes].decode() == TINY_CHAT_TEMPLATE
    keys = parts.keys()
    stubs = [key for key, row in keys.items() if row.flags == 1]
    assert stubs == [
        "tokenizer.chat_template",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.tokens",
    ]
    assert all(keys[key].value == b"" for key in stubs)


def tokenizer(*extra: Any, tokens: Any = ("a", "b", "ab")) -> list[Any]:
    return [("tokenizer.ggml.tokens", "[str]", list(tokens)), *extra]


def triples_of(parts: Parts) -> list[tuple[int, ...]]:
    """Of vocabularies of 3 tokens with less than 8 bytes."""
    count = struct.unpack_from("<I", parts.section(packs.TOKENIZER), 8)[0]
    return list(struct.iter_unpack("<3i", parts.section(packs.TOKENIZER)[64 + 16 + 8 + 8 :][: 12 * count]))


@pytest.mark.parametrize(
    ("merges", "triples", "held"),
    [
        (["a b"], [(0, 1, 2)], True),
        (["a b", "b a"], [(0, 1, 2), (-1, -1, -1)], False),  # "ba" is no token
        (["ab"], [(-1, -1, -1)], False),  # no space
        (["a  b"], [(-1, -1, -1)], False),
        ([], [], True),
    ],
)
def test_merges_that_do_not_resolve_stay_in_the_metadata(
    tmp_path: Path, merges: list[str], triples: list[tuple[int, ...]], *, held: bool
) -> None:
    parts = convert(tmp_path, tokenizer(("tokenizer.ggml.merges", "[str]", merges)))
    assert triples_of(parts) == triples
    row = parts.keys()["tokenizer.ggml.merges"]
    assert row.flags == held
    assert row.value == (b"" if held else b"".join(map(pack_string, merges)))


@pytest.mark.parametrize("merges", [[""], ["", "a b"], ["a b", ""]])
def test_empty_merges_stay_in_the_metadata(tmp_path: Path, merges: list[str]) -> None:
    parts = convert(tmp_path, tokenizer(("tokenizer.ggml.merges", "[str]", merges)))
    assert triples_of(parts) == [(0, 1, 2) if merge else (-1, -1, -1) for merge in merges]
    assert parts.keys()["tokenizer.ggml.merges"].value == b"".join(map(pack_string, merges))


@pytest.mark.parametrize(
    ("kind", "types", "stored"),
    [("i32", [1, 3, 255], b"\1\3\xff"), ("i32", [1, 256, -1], b"\1\0\0"), ("u32", [1, 2, 2**31], b"\1\2\0")],
)
def test_token_types_beyond_a_byte_stay_in_the_metadata(
    tmp_path: Path, kind: str, types: list[int], stored: bytes
) -> None:
    parts = convert(tmp_path, tokenizer(("tokenizer.ggml.token_type", f"[{kind}]", types)))
    assert parts.section(packs.TOKENIZER)[80:83] == stored
    row = parts.keys()["tokenizer.ggml.token_type"]
    letter = "i" if kind == "i32" else "I"
    assert row.value == (b"" if row.flags else struct.pack(f"<3{letter}", *types))
    assert row.flags == (max(types) == 255)


@pytest.mark.parametrize(("kind", "letter"), [("u8", "B"), ("i16", "h"), ("i64", "q")])
def test_token_types_of_other_integers_stay_in_the_metadata(tmp_path: Path, kind: str, letter: str) -> None:
    parts = convert(tmp_path, tokenizer(("tokenizer.ggml.token_type", f"[{kind}]", [1, 3, 6])))
    assert parts.section(packs.TOKENIZER)[80:83] == b"\1\3\6"
    row = parts.keys()["tokenizer.ggml.token_type"]
    assert (row.flags, row.value) == (0, struct.pack(f"<3{letter}", 1, 3, 6))


def test_a_template_that_is_not_utf8_stays_in_the_metadata(tmp_path: Path) -> None:
    parts = convert(tmp_path, tokenizer(("tokenizer.chat_template", "str", b"{{ \xff }}")))
    row = parts.keys()["tokenizer.chat_template"]
    assert (row.flags, row.value) == (0, b"{{ \xff }}")
    assert parts.manifest["tokenizer"]["has_chat_template"] is False


def test_tokens_that_are_not_utf8_or_doubled_or_empty(tmp_path: Path) -> None:
    parts = convert(tmp_path, tokenizer(tokens=[b"\xff\xfe", "", "\udc80", "twin", "twin"]))
    data = parts.section(packs.TOKENIZER)
    assert struct.unpack_from("<6I", data, 64) == (0, 2, 2, 3, 7, 11)
    blob_at = 64 + 24 + 8  # six offsets; five types and three zeros
    assert data[blob_at : blob_at + 11] == b"\xff\xfe\x80twintwin"
    assert data[blob_at + 11 : blob_at + 16] == bytes(5)  # zeros to a multiple of 8
    assert parts.keys()["tokenizer.ggml.tokens"].flags == 1


def test_no_tokens_no_tokenizer(tmp_path: Path) -> None:
    parts = convert(tmp_path, {"tokenizer.chat_template": "{{ x }}", "tokenizer.ggml.model": "gpt2"})
    assert sorted(parts.entries) == [0, 1, 14]
    assert parts.keys()["tokenizer.chat_template"].value == b"{{ x }}"
    assert "tokenizer" not in parts.manifest


@pytest.mark.parametrize(
    "extra",
    [
        ("tokenizer.ggml.token_type", "[i32]", [1, 1]),
        ("tokenizer.ggml.token_type", "[f32]", [1.0, 1.0, 1.0]),
        ("tokenizer.ggml.merges", "[u32]", [1]),
        ("tokenizer.ggml.merges", "str", "a b"),
        ("tokenizer.chat_template", "u32", 1),
        ("tokenizer.ggml.eos_token_id", "str", "x"),
    ],
)
def test_tokenizers_that_make_no_sense_cost_the_tokenizer(tmp_path: Path, extra: Any) -> None:
    """The model is whole: it is packed, its metadata as they are, and the reason is told."""
    source = write_gguf(tmp_path / "m.gguf", tokenizer(extra))
    convert_gguf(source, tmp_path / "m.gpack")
    assert gpack.verify(tmp_path / "m.gpack").report.ok
    with gpack.open(tmp_path / "m.gpack") as pack, GgufSource.open(source) as wanted:
        (reason,) = pack.manifest["extensions"]["import"]["reasons"]
        assert reason.startswith(f"the tokenizer cannot be read: {extra[0]}: ")
        assert "tokenizer" not in pack.manifest
        assert dict(pack.metadata) == {key: value.python() for key, value in wanted.metadata.items()}
