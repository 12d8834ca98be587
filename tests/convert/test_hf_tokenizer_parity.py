"""A pack of a Hugging Face folder tokenizes as the folder itself does, and as the golden files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hf_maker import ORACLE, qwen3_folder, tiny_tokenizer_json, write_tokenizer
from tokenizer.vocabularies import rows

from gpack.convert.anything import convert
from gpack.sources.hf_pretokenizer import _GPT2, _GPT4O, _LLAMA3, _QWEN35, _TEKKEN
from gpack.tokenizer import Tokenizer

needs_oracle = pytest.mark.skipif(not (ORACLE / "hf").exists(), reason="converted models: no ../shared/oracle/hf here")
MODELS = [
    *("llama", "qwen2", "qwen3", "qwen3-bf16", "qwen3moe", "qwen35", "qwen35moe", "qwen35moe-wrapped"),
    *("qwen4exp", "qwen4exp-wrapped"),
]
TEXTS = [
    "",
    " ",
    "in the theatre",
    "<|fim|>x<|im_end|></s><think>\n\n<|endoftext|>",
    "zq the zq",
    "e\u0301 \u00e9 \u4f60\u597d",
    "don't WE'LL 12345  \r\n\t",
    "\U0001f642" * 3,
    "\x00\x1f\u3000\u200b",
]


def same(folder: Path, pack: Path, texts: list[str]) -> None:
    """Settings, ids and texts of the pack are those of the folder."""
    expected = Tokenizer.from_dir(folder)
    with Tokenizer.open(pack) as found:
        assert len(found.view) == len(expected.view)
        for name in expected.settings.__slots__:
            assert getattr(found.settings, name) == getattr(expected.settings, name), name
        for text in texts:
            for parse in (False, True):
                ids = expected.encode(text, parse_special=parse)
                assert found.encode(text, parse_special=parse) == ids, text
                assert found.decode(ids, skip_special=parse) == expected.decode(ids, skip_special=parse)
        assert found.chat_template == expected.chat_template


@needs_oracle
@pytest.mark.parametrize("model", MODELS)
def test_converted_folders(tmp_path: Path, model: str) -> None:
    folder = ORACLE / "hf" / model
    convert(folder, tmp_path / "m.gpack", text_only=True)
    golden = rows(folder / "tokens.json")
    same(folder, tmp_path / "m.gpack", [*TEXTS, *(row["text"] for row in golden)])
    with Tokenizer.open(tmp_path / "m.gpack") as tokenizer:
        for row in golden:
            assert tokenizer.encode(row["text"], add_special=False, parse_special=True) == row["ids"]
            assert tokenizer.encode(row["text"], parse_special=True) == row["ids_with_special"]


def tokenizer_json(pattern: str, *, ignore: bool, normalizer: Any, first: str | None) -> dict[str, Any]:
    made = tiny_tokenizer_json(ignore_merges=ignore)
    vocabulary, added = made["model"]["vocab"], made["added_tokens"]
    # A token that no merges make; special ones by the file, by name only, and by neither.
    vocabulary["zq"] = 272
    for number, text in enumerate(("<|fim|>", "</s>", "<think>", "<|eot_id|>"), start=273):
        added.append({"id": number, "content": text, "special": text == "<|eot_id|>", "normalized": False})
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    if first:
        parts = [{"SpecialToken": {"id": first}}, {"Sequence": {"id": "A"}}]
        made["post_processor"] = {"type": "TemplateProcessing", "single": parts}
    return {**made, "normalizer": normalizer}


@pytest.mark.parametrize("pattern", [_LLAMA3, _QWEN35, _GPT4O, _TEKKEN, _GPT2])
@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize(
    ("normalizer", "first", "settings"),
    [
        (None, None, {"bos_token": "<|im_start|>"}),
        ({"type": "NFC"}, "<|im_start|>", {"bos_token": "<|im_start|>"}),
        (None, "<|im_start|>", {"bos_token": "<|endoftext|>", "chat_template": "{{ messages }}"}),
        (None, None, {"bos_token": "<|im_start|>", "add_bos_token": True, "add_eos_token": True}),
    ],
)
def test_a_folder_of_ours(
    tmp_path: Path, pattern: str, ignore: bool, normalizer: Any, first: str | None, settings: dict[str, Any]
) -> None:
    folder = qwen3_folder(tmp_path / "m")
    write_tokenizer(folder, tokenizer_json(pattern, ignore=ignore, normalizer=normalizer, first=first), **settings)
    convert(folder, tmp_path / "m.gpack")
    same(folder, tmp_path / "m.gpack", TEXTS)
    tokenizer = Tokenizer.from_dir(folder)
    begins = [270] if first or settings.get("add_bos_token") else []
    ends = [271] if settings.get("add_eos_token") else []
    assert tokenizer.encode("") == [*begins, *ends]
    # Tokens that the file does not call special are found in every text, whatever their name.
    assert tokenizer.encode("<|fim|></s><think>", add_special=False) == [273, 274, 275]
    assert 276 not in tokenizer.encode("<|eot_id|>")
    assert (tokenizer.encode("zq", add_special=False) == [272]) == ignore
