"""The tokeniser as a whole: round trips, streams, special tokens, settings, damaged vocabularies."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import TINY_TOKENS, byte_alphabet, make_gguf, tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer.vocabularies import changed, metadata, real_merges, tiny, tokenizer_json, write_json

import gpack
from gpack.convert.gguf import convert_gguf
from gpack.errors import FormatError, GpackError, MissingError, PathError, UnsupportedError, UsageError
from gpack.generated.structs import GbtHeaderV1, gbt_v1_layout
from gpack.model import GuildModel
from gpack.sections.tokenizer import TokenizerTable, assemble, build_tokenizer
from gpack.sources.hf_pretokenizer import _GPT4O, _LLAMA3, _QWEN2, _QWEN35
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.normalize import nfc
from gpack.tokenizer.pretokenizers import RULES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
THE, END = TINY_TOKENS.index("Ġthe"), TINY_TOKENS.index("<|im_end|>")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def qwen(place: Path) -> Tokenizer:
    return Tokenizer.from_dir(write_json(place, tokenizer_json(_QWEN35, normalizer={"type": "NFC"})))


def lookup(values: dict[str, Any]) -> Any:
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", **values}.get


# ---------------------------------------------------------------- ids


def test_by_hand(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode("in the")
    # `t h` has the lowest rank, and nothing merges Ġ with th: the token Ġthe is never reached.
    assert [tokenizer.token(token_id).decode() for token_id in ids] == ["in", "Ġ", "th", "e"]
    assert tokenizer.decode(ids) == "in the"
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (272, 269, 271)
    assert tokenizer.token_id("Ġthe") == THE
    assert tokenizer.token_id("absent") is None
    assert tokenizer.token_type(END) == 3


def test_first_and_last_token_as_the_metadata_say(tmp_path: Path) -> None:
    entries = [*changed(tiny_tokenizer(), add_bos_token=True), ("tokenizer.ggml.add_eos_token", "bool", True)]
    tokenizer = Tokenizer.from_metadata(metadata(entries, tmp_path))
    assert tokenizer.encode("in") == [269, TINY_TOKENS.index("in"), 271]
    assert tokenizer.encode("in", add_special=False) == [TINY_TOKENS.index("in")]
    assert tokenizer.encode("") == [269, 271]


def test_llama3_adds_its_first_token_where_nothing_is_said(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, pre="llama-bpe", add_bos_token=None)
    assert tokenizer.settings.add_bos
    assert tokenizer.settings.ignore_merges
    assert not tiny(tmp_path, add_bos_token=None).settings.add_bos


def test_control_tokens_only_where_the_caller_parses_them(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    typed = tokenizer.encode("<|im_end|>")
    assert END not in typed
    assert tokenizer.decode(typed) == "<|im_end|>"
    assert tokenizer.encode("in<|im_end|>", parse_special=True) == [TINY_TOKENS.index("in"), END]
    assert tokenizer.decode([END], skip_special=True) == ""
    assert tokenizer.decode([END]) == "<|im_end|>"


def test_user_defined_tokens_are_found_in_every_text(qwen: Tokenizer) -> None:
    think = qwen.token_id("<think>")
    assert qwen.encode("a<think>a") == [qwen.token_id("a"), think, qwen.token_id("a")]
    assert qwen.decode([think or 0], skip_special=True) == "<think>"


def test_longest_special_token_first(tmp_path: Path) -> None:
    tokens = [*byte_alphabet(), "abc", "bcde", "ab"]
    tokenizer = tiny(
        tmp_path,
        tokens=tokens,
        token_type=[1] * 256 + [4] * 3,
        bos_token_id=0,
        eos_token_id=0,
        padding_token_id=0,
        merges=["a b"],
    )
    assert tokenizer.encode("abcde") == [tokens.index("a"), 257]
    assert tokenizer.encode("abc abab") == [256, tokens.index("Ġ"), 258, 258]


def test_ignore_merges_takes_a_piece_that_is_a_token_whole(tmp_path: Path) -> None:
    tokens = [*TINY_TOKENS[:-3], "zq", *TINY_TOKENS[-3:]]
    types = [1] * (len(tokens) - 3) + [3] * 3
    made = {name: tiny(tmp_path, pre=name, tokens=tokens, token_type=types) for name in ("qwen2", "llama-bpe")}
    assert made["llama-bpe"].encode("zq", add_special=False) == [tokens.index("zq")]
    assert made["qwen2"].encode("zq") == [tokens.index("z"), tokens.index("q")]
    assert made["llama-bpe"].encode_compiled("zq", add_special=False) in (None, [tokens.index("zq")])


@pytest.mark.parametrize("name", RULES)
@given(text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_round_trip(name: str, text: str, place: Path) -> None:
    tokenizer = tiny(place, pre=name)
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_compiled(text, add_special=False) in (None, ids)


@given(text=TEXTS)
@settings(max_examples=200, deadline=None)
def test_round_trip_where_the_model_normalises(text: str, qwen: Tokenizer) -> None:
    ids = qwen.encode(text)
    assert qwen.decode(ids) == nfc(text)
    assert qwen.encode_compiled(text) in (None, ids)
    stream = qwen.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == nfc(text)


@given(ids=st.lists(st.integers(0, 271), max_size=40))
@settings(max_examples=200, deadline=None)
def test_streamed_text_is_the_whole_text(ids: list[int], place: Path) -> None:
    tokenizer = tiny(place)
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)


def test_a_character_over_several_tokens_appears_whole(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    stream = tokenizer.stream()
    ids = tokenizer.encode("🙂é")
    assert [stream.push(token_id) for token_id in ids] == ["", "", "", "🙂", "", "é"]
    stream.push(ids[0])
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    text = b"in\xff\xfe the".decode("utf-8", "surrogateescape")
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == b"in\xff\xfe the"
    with pytest.raises(UsageError) as caught:
        tokenizer.encode("\ud800")
    assert caught.value.code == "tokenizer.text"


def test_tokens_that_are_not_utf8(tmp_path: Path) -> None:
    tokens = [*[token.encode() for token in TINY_TOKENS[:-1]], b"\xff\xfe"]
    tokenizer = tiny(tmp_path, tokens=tokens, token_type=[1] * 272)
    assert tokenizer.decode_bytes([271]) == b"\xff\xfe"
    assert tokenizer.encode("in") == [TINY_TOKENS.index("in")]


# ---------------------------------------------------------------- long texts


@pytest.mark.parametrize("pattern", [_QWEN35, _LLAMA3, _GPT4O], ids=["qwen35", "llama-bpe", "gpt-4o"])
@pytest.mark.parametrize("unit", ["a", " ", "7", "🙂", "aé", "he", "你好", " \n", "aaaaaaab"])
def test_one_long_piece(pattern: str, unit: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_dir(write_json(tmp_path, tokenizer_json(pattern)))
    text = unit * 1500
    ids = tokenizer.encode_plain(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_compiled(text) in (None, ids)


@given(text=st.text(st.sampled_from("aeht 🙂你"), min_size=50, max_size=400))
@settings(max_examples=60, deadline=None)
def test_long_pieces_where_merges_come_in_any_order(text: str, place: Path) -> None:
    """Merges shuffled against the order of training: compiled code takes the slow way for those ranks."""
    vocab, merges = real_merges()
    root = tokenizer_json(_QWEN2)
    root["model"] = {"type": "BPE", "vocab": vocab, "merges": merges[::-1]}
    tokenizer = Tokenizer.from_dir(write_json(place, root))
    piece = text.replace(" ", "a")
    assert tokenizer.encode_compiled(piece) in (None, tokenizer.encode_plain(piece))


def test_long_runs_of_marks_normalise_in_time() -> None:
    text = "e" + "\u0300\u0316" * 20_000
    assert nfc(text) == "\u00e8" + "\u0316" * 20_000 + "\u0300" * 19_999 or len(nfc(text)) == 40_000


@given(text=st.text(st.sampled_from("aeo가\u1100\u1161\u0300\u0316\u0345\u0f71éΩK"), max_size=60))
def test_normalisation_is_pythons_for_old_characters(text: str) -> None:
    assert nfc(text) == unicodedata.normalize("NFC", text)


# ---------------------------------------------------------------- sources


def test_pack_and_gguf_and_directory_agree(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf([("general.architecture", "str", "llama"), *tiny_tokenizer()]))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(TINY_TOKENS)}), encoding="utf-8")
    merges = {key: value for key, _, value in tiny_tokenizer()}["tokenizer.ggml.merges"]
    (lists / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    (lists / "token_type.json").write_text(json.dumps([1] * 269 + [3] * 3), encoding="utf-8")
    with Tokenizer.open(tmp_path / "m.gpack") as packed:
        others = [Tokenizer.from_gguf(tmp_path / "m.gguf"), Tokenizer.from_dir(lists, pre="qwen2")]
        for text in ("in the <|im_end|>", "Hello, 世界"):
            ids = packed.encode(text, parse_special=True)
            assert [other.encode(text, parse_special=True) for other in others] == [ids, ids]
        assert packed.chat_template == others[0].chat_template


def test_lists_need_the_name_of_the_pretokeniser(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError):
        Tokenizer.from_dir(tmp_path)
    with pytest.raises(PathError):
        Tokenizer.from_dir(tmp_path / "absent")


@pytest.mark.parametrize("types", ["[1]", "[", "{}", "[" + "1," * 271 + "true]", "[" + "1," * 271 + "256]"])
def test_types_that_do_not_fit(types: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(TINY_TOKENS)}), "utf-8")
    (tmp_path / "merges.txt").write_text("t h\n", "utf-8")
    (tmp_path / "token_type.json").write_text(types, "utf-8")
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_dir(tmp_path, pre="qwen2")
    assert caught.value.code == "hf.tokenizer"
    (tmp_path / "token_type.json").unlink()
    assert Tokenizer.from_dir(tmp_path, pre="qwen2").encode("th") == [TINY_TOKENS.index("th")]


@pytest.mark.parametrize("text", ["x", "1 1", "999", "-1", "9" * 5000])
def test_user_defined_ids_that_make_no_sense(text: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_metadata(metadata([*tiny_tokenizer(), ("tokenizer.gpack.user_defined", "str", text)], tmp_path))
    assert caught.value.code == "tokenizer.setting"


def test_user_defined_whatever_the_type(tmp_path: Path) -> None:
    entries = [*tiny_tokenizer(), ("tokenizer.gpack.user_defined", "str", str(END))]
    tokenizer = Tokenizer.from_metadata(metadata(entries, tmp_path))
    assert tokenizer.encode("<|im_end|>") == [END]
    assert tokenizer.token_type(END) == 4
    assert tokenizer.decode([END], skip_special=True) == "<|im_end|>"
    assert tokenizer.encode("<|im_start|>") != [270]


def test_ids_without_a_token_are_unused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_dir(write_json(tmp_path, tokenizer_json(_QWEN2)))
    gap = len(real_merges()[0]) + 1
    assert tokenizer.token_type(gap) == 5
    assert tokenizer.decode([gap]) == ""


def test_the_choice_of_normalisation_survives_the_pack(tmp_path: Path) -> None:
    from bench.tokenizer import make_pack

    folder = write_json(tmp_path, tokenizer_json(_QWEN35, normalizer={"type": "NFC"}))
    with Tokenizer.open(make_pack(folder, tmp_path)) as tokenizer:
        assert tokenizer.settings.nfc
        assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
        ({"post_processor": {"type": "BertProcessing"}}, "post_processor"),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>"}}] * 2}},
            "post_processor",
        ),
        ({"model": {"type": "WordPiece"}}, "model.type"),
        (
            {
                "model": {
                    "vocab": {"a": 0, "a</w>": 1, "aa</w>": 2},
                    "merges": ["a a</w>"],
                    "end_of_word_suffix": "</w>",
                }
            },
            "model.end_of_word_suffix",
        ),
        (
            {"model": {"vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": ["a ##b"], "continuing_subword_prefix": "##"}},
            "model.continuing_subword_prefix",
        ),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Tokenizer.from_dir(write_json(tmp_path, {**tokenizer_json(_QWEN2), **change}))
    assert caught.value.code == "tokenizer.json"
    assert caught.value.field == field


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": {"vocab": {"a": -1}, "merges": ["a a"]}},
        {"model": {"vocab": {"a": 0}, "merges": []}},
        {"model": {"vocab": {"a": 0}, "merges": ["a"]}},
        {"model": {"vocab": {"a": 1 << 40}, "merges": ["a a"]}},
        {"model": {"vocab": [], "merges": ["a a"]}},
        {"added_tokens": [7]},
    ],
)
def test_damaged_json(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_dir(write_json(tmp_path, {**tokenizer_json(_QWEN2), **change}))
    assert caught.value.code == "hf.tokenizer"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '"x"'])
def test_no_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError):
        Tokenizer.from_dir(tmp_path)


def test_an_unknown_pretokeniser_costs_the_tokeniser(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf(changed(tiny_tokenizer(), pre="novel")))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as pack:
        (reason,) = pack.manifest["extensions"]["import"]["reasons"]
        assert "'novel'" in reason
        assert pack.manifest["tokenizer"]["pre"] == "novel"
    with GuildModel.load(tmp_path / "m.gpack") as model, pytest.raises(UnsupportedError) as caught:
        _ = model.tokenizer
    assert caught.value.code == "tokenizer.pre"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model": "wordpiece"}, "tokenizer.model"),
        ({"model": None}, "tokenizer.model"),
        ({"pre": "novel"}, "tokenizer.pre"),
        ({"eos_token_id": 9999}, "tokenizer.setting"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(GpackError) as caught:
        tiny(tmp_path, **values)
    assert caught.value.code == code


def test_no_tokeniser(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf([("general.architecture", "str", "llama")]))
    with pytest.raises(MissingError):
        Tokenizer.from_gguf(tmp_path / "m.gguf")


# ---------------------------------------------------------------- damaged sections


def section(tmp_path: Path) -> bytearray:
    built = build_tokenizer(metadata(tiny_tokenizer(), tmp_path))
    assert built is not None
    return bytearray(built.data)


def test_a_section_without_indexes_works(tmp_path: Path) -> None:
    full = bytes(section(tmp_path))
    table = TokenizerTable(full)
    table.header.flags = table.header.n_special = 0
    bare = assemble(table.header, table.arrays())
    assert len(bare) < len(full)
    text = "in the <|im_end|> water"
    expected = Tokenizer(full, lookup({})).encode(text, parse_special=True)
    assert Tokenizer(bare, lookup({})).encode(text, parse_special=True) == expected


DAMAGES = [
    ("offsets", 0, "<I", 1),
    ("offsets", 272, "<I", 7),
    ("offsets", TINY_TOKENS.index("h"), "<I", 1 << 31),
    ("merge_ranks", 0, "<I", 1 << 30),
    ("byte_tokens", ord("t"), "<i", 1 << 30),
    ("byte_tokens", ord("t"), "<i", -(1 << 31)),
    ("triples", 2, "<i", 1 << 30),
    ("triples", 2, "<i", -5),
    ("special_tokens", 0, "<I", 1 << 30),
    ("special_tokens", 2, "<I", 1 << 30),
    ("token_order", 100, "<I", 1 << 30),
]


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
@pytest.mark.parametrize(("part", "index", "form", "value"), DAMAGES)
def test_damage_is_a_typed_error_or_harmless(
    part: str, index: int, form: str, value: int, pre: str, tmp_path: Path
) -> None:
    data = section(tmp_path)
    start, _ = gbt_v1_layout(GbtHeaderV1.decode(data))[part]
    struct.pack_into(form, data, start + index * struct.calcsize(form), value)
    codes: list[str] = []
    for way in ("encode_plain", "encode_compiled"):
        try:
            tokenizer = Tokenizer(bytes(data), lookup({"tokenizer.ggml.pre": pre}))
            ids = getattr(tokenizer, way)("in the water <|im_end|>" * 20, parse_special=True)
            tokenizer.decode(ids or [])
        except GpackError as error:
            codes.append(error.code)
    assert all(code.startswith("tokenizer.") for code in codes)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_is_a_typed_error_or_harmless(data: st.DataObject, place: Path) -> None:
    damaged = section(place)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        tokenizer = Tokenizer(bytes(damaged), lookup({}))
        for way in (tokenizer.encode_plain, tokenizer.encode_compiled):
            tokenizer.decode(way("in the water, <|im_end|>\n the end" * 9, parse_special=True) or [])
    except GpackError:
        pass


@pytest.mark.parametrize("size", [0, 63, 64, 100])
def test_a_short_section(size: int, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        Tokenizer(bytes(section(tmp_path)[:size]), lookup({}))


def test_no_such_token(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    for token_id in (-1, 272, 1 << 40):
        with pytest.raises(MissingError) as caught:
            tokenizer.decode([token_id])
        assert caught.value.code == "tokenizer.no_token"


def test_first_word_needs_the_standard_library_alone(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf([("general.architecture", "str", "llama"), *tiny_tokenizer()]))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    program = (
        "import sys; from gpack.tokenizer import Tokenizer; "
        f"t = Tokenizer.open({str(tmp_path / 'm.gpack')!r}); t.encode('Hello'); t.close(); "
        "print([m for m in ('numpy', 'numba', 're', 'typing', 'json', 'collections.abc') if m in sys.modules])"
    )
    # Without site-packages: packages of others import what they like when Python starts.
    environment = {**os.environ, "PYTHONPATH": str(Path(gpack.__file__).parents[1])}
    command = [sys.executable, "-S", "-c", program]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert found.stdout.strip() in ("[]", "['collections.abc']")
