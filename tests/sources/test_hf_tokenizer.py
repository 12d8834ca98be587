"""Tokenizer files as GGUF metadata: equal to the converter's for real folders, and every odd shape of the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import TINY_CHAT_TEMPLATE, TINY_MERGES, TINY_TOKENS, tiny_tokenizer, write_gguf
from hf_maker import ORACLE, VOCAB, tiny_tokenizer_json, write_json, write_tokenizer

from gpack.errors import FormatError, GpackError, PathError
from gpack.sections.tokenizer import build_tokenizer
from gpack.sections.values import Value
from gpack.sources.gguf import GgufSource
from gpack.sources.hf_tokenizer import read_directory
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.chat import ChatTemplate, special_tokens

needs_oracle = pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
MODELS = ["llama", "qwen2", "qwen3", "qwen3-bf16", "qwen3moe", "qwen35", "qwen35moe"]


def plain(metadata: Mapping[str, Value]) -> dict[str, Any]:
    return {key: value.python() for key, value in metadata.items()}


def read(folder: Path) -> dict[str, Any]:
    return plain(read_directory(folder).metadata)


def refused(folder: Path, code: str, *words: str, kind: type[GpackError] = FormatError) -> None:
    with pytest.raises(GpackError) as caught:
        read_directory(folder)
    assert type(caught.value) is kind
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


@needs_oracle
@pytest.mark.parametrize("model", MODELS)
def test_equal_to_the_converters(model: str) -> None:
    made = read_directory(ORACLE / "hf" / model)
    assert made.faults == []
    with GgufSource.open(ORACLE / "hf" / model / "m.gguf") as source:
        expected = {key: value for key, value in source.metadata.items() if key.startswith("tokenizer.")}
        own = {key: made.metadata.pop(key) for key in list(made.metadata) if key.startswith("tokenizer.gpack.")}
        # llama.cpp does not normalise; the Qwens' own files do.
        assert plain(own) == {
            **({} if model == "llama" else {"tokenizer.gpack.normalizer": "nfc"}),
            "tokenizer.gpack.exact_types": True,
            "tokenizer.gpack.ignore_merges": model == "llama",
        }
        assert list(made.metadata) == list(expected)
        for key, value in expected.items():
            mine = made.metadata[key]
            assert (mine.value_type, mine.element_type, mine.count) == (
                value.value_type,
                value.element_type,
                value.count,
            )
            assert bytes(mine.raw) == bytes(value.raw), key
    built = build_tokenizer(made.metadata)
    assert built is not None
    assert "tokenizer.ggml.merges" in built.stubs


def test_the_tiny_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template=TINY_CHAT_TEMPLATE, add_bos_token=False)
    with GgufSource.open(write_gguf(tmp_path / "t.gguf", tiny_tokenizer())) as source:
        expected = {key: value.python() for key, value in source.metadata.items()}
    del expected["tokenizer.ggml.bos_token_id"]  # the folder names none
    own = {"tokenizer.gpack.exact_types": True, "tokenizer.gpack.ignore_merges": False}
    assert read(tmp_path) == {**expected, "tokenizer.ggml.add_eos_token": False, **own}


def test_no_tokenizer_is_told(tmp_path: Path) -> None:
    assert read_directory(tmp_path).faults == ["there is no tokenizer.json"]
    assert not read_directory(tmp_path).metadata
    (tmp_path / "vocab.json").write_text("{}")
    assert read_directory(tmp_path).faults == ["vocab.json and merges.txt do not tell how texts are split"]


# --- vocabulary ---


def test_padding_fills_up_to_the_models_vocabulary(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"vocab_size": VOCAB})
    info = read(tmp_path)
    assert info["tokenizer.ggml.tokens"] == [*TINY_TOKENS, *(f"[PAD{number}]" for number in range(272, VOCAB))]
    assert info["tokenizer.ggml.token_type"][269:] == [3, 3, 3] + [5] * 16


@pytest.mark.parametrize(("merge", "unknown"), [("q x", "'qx'"), ("odd t", "'odd'"), (["h", "zz"], "'zz'")])
def test_a_merge_of_what_is_no_token(tmp_path: Path, merge: Any, unknown: str) -> None:
    """Left, right and what they become have to be in the vocabulary."""
    write_tokenizer(tmp_path, tiny_tokenizer_json(merges=[*TINY_MERGES, merge]))
    with pytest.raises(FormatError) as caught:
        read(tmp_path)
    assert (caught.value.code, caught.value.field) == ("hf.tokenizer", f"model.merges[{len(TINY_MERGES)}]")
    assert f"{unknown} is no token" in caught.value.message


def test_gaps_between_ids(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer_json()
    tokenizer["added_tokens"].append({"id": 275, "content": "<late>", "special": False})
    write_tokenizer(tmp_path, tokenizer)
    info = read(tmp_path)
    assert info["tokenizer.ggml.tokens"][272:] == ["[PAD272]", "[PAD273]", "[PAD274]", "<late>"]
    assert info["tokenizer.ggml.token_type"][272:] == [5, 5, 5, 4]


@pytest.mark.parametrize(
    ("text", "special", "expected"),
    [
        ("<think>", False, 4),
        ("<think>", True, 3),
        ("<|fim|>", False, 3),
        ("<\uff5cx\uff5c>", False, 3),
        ("<pad>", False, 3),
    ],
)
def test_added_tokens(tmp_path: Path, text: str, special: bool, expected: int) -> None:
    tokenizer = tiny_tokenizer_json()
    tokenizer["added_tokens"].append({"id": 272, "content": text, "special": special})
    write_tokenizer(tmp_path, tokenizer)
    info = read(tmp_path)
    assert info["tokenizer.ggml.token_type"][272] == expected
    # The converter's type, and beside it what the file says.
    hidden = expected == 3 and not special
    assert info.get("tokenizer.gpack.user_defined") == ("272" if hidden else None)


def test_a_vocabulary_larger_than_the_models(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"vocab_size": 271})
    refused(tmp_path, "hf.tokenizer", "271")


@pytest.mark.parametrize("number", [-1, 1.5, "1", None, True, 1 << 40])
def test_impossible_ids(tmp_path: Path, number: Any) -> None:
    tokenizer = tiny_tokenizer_json()
    tokenizer["model"]["vocab"]["odd"] = number
    write_tokenizer(tmp_path, tokenizer)
    refused(tmp_path, "hf.tokenizer", "'odd'", "model.vocab")


def test_two_tokens_of_one_id(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer_json()
    tokenizer["model"]["vocab"]["twin"] = 5
    write_tokenizer(tmp_path, tokenizer)
    refused(tmp_path, "hf.tokenizer", "id 5", "'twin'")


# --- merges ---


def test_merges_as_pairs_or_strings(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tiny_tokenizer_json(merges=[merge.split(" ") for merge in TINY_MERGES]))
    assert read(tmp_path)["tokenizer.ggml.merges"] == TINY_MERGES


@pytest.mark.parametrize("merges", [[], None, "a b", {}])
def test_a_bpe_needs_merges(tmp_path: Path, merges: Any) -> None:
    write_tokenizer(tmp_path, tiny_tokenizer_json(merges=merges))
    refused(tmp_path, "hf.tokenizer", "no merges")


@pytest.mark.parametrize("merge", ["ab", "a b c", "a ", ["a"], ["a", "b", "c"], ["a", 1], ["", "a"], 7, None])
def test_a_merge_that_is_none(tmp_path: Path, merge: Any) -> None:
    write_tokenizer(tmp_path, tiny_tokenizer_json(merges=["t h", merge]))
    refused(tmp_path, "hf.tokenizer", "merges[1]")


# --- which rules ---


def with_pre(pre: Any, **model: Any) -> dict[str, Any]:
    return {**tiny_tokenizer_json(**model), "pre_tokenizer": pre}


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ({"type": "ByteLevel", "add_prefix_space": False}, "gpt-2"),
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "ByteLevel", "add_prefix_space": False},
                ],
            },
            "smollm",
        ),
        ({"type": "ByteLevel", "add_prefix_space": True}, None),
        ({"type": "Whitespace"}, None),
        (None, None),
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"},
                    {"type": "ByteLevel", "use_regex": False},
                ],
            },
            None,
        ),
    ],
)
def test_the_rule_that_splits_text(tmp_path: Path, pre: Any, expected: str | None) -> None:
    write_tokenizer(tmp_path, with_pre(pre))
    made = read_directory(tmp_path)
    assert plain(made.metadata)["tokenizer.ggml.pre"] == (expected or "default")
    assert bool(made.faults) == (expected is None)


def test_sequences_in_sequences_end(tmp_path: Path) -> None:
    text = json.dumps({"type": "ByteLevel"})
    for _ in range(12):
        text = f'{{"type": "Sequence", "pretokenizers": [{text}, {text}]}}'
    tokenizer = json.dumps({**tiny_tokenizer_json(), "pre_tokenizer": None})
    (tmp_path / "tokenizer.json").write_text(tokenizer.replace('"pre_tokenizer": null', f'"pre_tokenizer": {text}'))
    assert read_directory(tmp_path).faults


def test_ignored_merges_are_told_where_the_rule_does_not_imply_them(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tiny_tokenizer_json(ignore_merges=True))
    assert read(tmp_path)["tokenizer.gpack.ignore_merges"] is True


@pytest.mark.parametrize("kind", ["NFC", "NFKC", "Lowercase"])
def test_normalisers(tmp_path: Path, kind: str) -> None:
    normalizer = {"type": "Sequence", "normalizers": [{"type": kind}]}
    write_tokenizer(tmp_path, {**tiny_tokenizer_json(), "normalizer": normalizer})
    made = read_directory(tmp_path)
    assert plain(made.metadata).get("tokenizer.gpack.normalizer") == ("nfc" if kind == "NFC" else None)
    assert bool(made.faults) == (kind != "NFC")


def test_a_bpe_of_characters_with_byte_tokens(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "<0x00>": 2, "\u2581": 3, "a": 4, "b": 5, "ab": 6, "\u2581ab": 7}
    tokenizer = {
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]},
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": vocab,
            "merges": ["a b", "\u2581 ab"],
        },
    }
    write_tokenizer(tmp_path, tokenizer, bos_token="<s>", unk_token="<unk>")
    info = read(tmp_path)
    assert info["tokenizer.ggml.model"] == "llama"
    assert info["tokenizer.ggml.token_type"] == [2, 3, 6, 1, 1, 1, 1, 1]
    assert info["tokenizer.ggml.scores"] == [-2.0, -2.0, -2.0, -2.0, -2.0, -2.0, 0.0, -1.0]
    assert info["tokenizer.ggml.add_space_prefix"] is True
    assert (info["tokenizer.ggml.bos_token_id"], info["tokenizer.ggml.unknown_token_id"]) == (1, 0)


@pytest.mark.parametrize("kind", ["Unigram", "WordPiece", None])
def test_other_models_are_told(tmp_path: Path, kind: Any) -> None:
    write_tokenizer(tmp_path, {"model": {"type": kind, "vocab": [["a", 0.0]]}})
    made = read_directory(tmp_path)
    assert made.metadata == {}
    assert "not BPE" in made.faults[0]


# --- special tokens ---


def test_where_special_tokens_are_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, pad_token=None)
    write_json(tmp_path / "config.json", {"pad_token_id": 270, "bos_token_id": [269, 1], "eos_token_id": 5})
    write_json(tmp_path / "special_tokens_map.json", {"unk_token": {"content": "<|endoftext|>"}, "eos_token": "x"})
    info = read(tmp_path)
    ids = {key.split(".")[-1]: value for key, value in info.items() if key.endswith("_id")}
    assert ids == {"bos_token_id": 269, "eos_token_id": 271, "padding_token_id": 270, "unknown_token_id": 269}


def template(*single: str) -> dict[str, Any]:
    """A post-processor; "A" is the text."""
    parts = [{"Sequence" if name == "A" else "SpecialToken": {"id": name}} for name in single]
    return {**tiny_tokenizer_json(), "post_processor": {"type": "TemplateProcessing", "single": parts}}


def test_what_the_template_adds_is_the_first_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, template("<|im_start|>", "A"), bos_token="<|endoftext|>")
    info = read(tmp_path)
    assert (info["tokenizer.ggml.bos_token_id"], info["tokenizer.ggml.add_bos_token"]) == (270, True)
    assert info["tokenizer.ggml.add_eos_token"] is False
    write_tokenizer(tmp_path, template("<|im_start|>", "A"), bos_token="<|endoftext|>", add_bos_token=False)
    info = read(tmp_path)
    assert (info["tokenizer.ggml.bos_token_id"], info["tokenizer.ggml.add_bos_token"]) == (269, False)


@pytest.mark.parametrize("single", [("<|im_start|>", "<|im_end|>", "A"), ("A", "<|im_start|>", "<|im_end|>")])
def test_several_tokens_on_one_side(tmp_path: Path, single: tuple[str, ...]) -> None:
    write_tokenizer(tmp_path, template(*single))
    made = read_directory(tmp_path)
    assert "several tokens" in made.faults[0]
    assert made.places == ["post_processor"]


# --- chat templates ---


def test_templates_and_their_order(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template="in the settings")
    assert read(tmp_path)["tokenizer.chat_template"] == "in the settings"
    write_json(tmp_path / "chat_template.json", {"chat_template": "in a json"})
    assert read(tmp_path)["tokenizer.chat_template"] == "in a json"
    (tmp_path / "chat_template.jinja").write_text("in a file \u00e9")
    assert read(tmp_path)["tokenizer.chat_template"] == "in a file \u00e9"


def test_templates_with_names(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]
    write_tokenizer(tmp_path, chat_template=listed)
    info = read(tmp_path)
    assert info["tokenizer.chat_templates"] == ["tool_use"]
    assert (info["tokenizer.chat_template"], info["tokenizer.chat_template.tool_use"]) == ("d", "t")


@pytest.mark.parametrize("template", [7, [], [{"name": "default"}], ["x"], "\ud800"])
def test_a_template_that_is_none(tmp_path: Path, template: Any) -> None:
    """It costs the template, not the tokenizer."""
    write_tokenizer(tmp_path, chat_template=template)
    made = read_directory(tmp_path)
    assert made.notes == ["tokenizer_config.json: a chat template is no text: the chat template is left aside"]
    assert "tokenizer.ggml.tokens" in made.metadata
    assert "tokenizer.chat_template" not in made.metadata


def test_special_tokens_that_only_templates_know(tmp_path: Path) -> None:
    """As `transformers` binds them: those with a key in GGUF by their ids, the others by their texts."""
    write_tokenizer(
        tmp_path,
        pad_token="<|endoftext|>",
        mask_token={"content": "<|im_start|>"},
        image_token="<image>",
        additional_special_tokens=["<|im_start|>", {"content": "<|im_end|>"}],
    )
    tokenizer = Tokenizer.from_metadata(read_directory(tmp_path).metadata)
    found = special_tokens(tokenizer)
    assert found == {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|im_start|>",
        "image_token": "<image>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    }
    template = ChatTemplate("{{ pad_token }}{{ additional_special_tokens[1] }}{{ image_token }}{{ sep_token }}")
    prompt = template.render([], special_tokens=found)
    assert prompt.text == "<|endoftext|><|im_end|><image>"
    assert set(prompt.mask) == {1}


# --- damaged files ---


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff", b"[" * 10_000])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"])
def test_damaged_json(tmp_path: Path, name: str, text: bytes) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(text)
    refused(tmp_path, "hf.config" if name == "config.json" else "hf.tokenizer", name)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"model": 1},
        {"model": {"type": "BPE"}},
        {"model": {"type": "BPE", "vocab": {}}},
        {"model": {"vocab": {"a": 0}, "merges": ["a a"]}, "added_tokens": [1]},
        {"model": {"vocab": {"a": 0, "aa": 1}, "merges": ["a a"]}, "added_tokens": {"<s>": 2}},
    ],
)
def test_a_tokenizer_that_is_none(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "tokenizer.json", value)
    refused(tmp_path, "hf.tokenizer", "tokenizer.json")


@pytest.mark.parametrize("way", ["lstrip", "rstrip", "single_word"])
def test_ways_of_finding_added_tokens_are_told(tmp_path: Path, way: str) -> None:
    tokenizer = tiny_tokenizer_json()
    write_tokenizer(tmp_path, tokenizer)
    plain = read_directory(tmp_path)
    tokenizer["added_tokens"][1][way] = True
    write_tokenizer(tmp_path, tokenizer)
    made = read_directory(tmp_path)
    assert (plain.notes, made.faults) == ([], [])
    letter = {"lstrip": "l", "rstrip": "r", "single_word": "w"}[way]
    assert made.metadata.pop("tokenizer.gpack.added_tokens").python() == f"270:{letter}"
    assert made.metadata == plain.metadata
    assert len(made.notes) == 1
    assert way in made.notes[0]
    assert tokenizer["added_tokens"][1]["content"] in made.notes[0]


def test_a_template_that_is_not_utf8(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    (note,) = read_directory(tmp_path).notes
    assert note.startswith("chat_template.jinja: it is not UTF-8")


def test_a_link_to_nowhere_is_told(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").symlink_to("nowhere")
    refused(tmp_path, "io.not_found", "chat_template.jinja", kind=PathError)
