"""Ids and text are those of llama.cpp and of Hugging Face, row by row of the golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizer.vocabularies import oracle, rows

from gpack.convert.gguf import convert_gguf
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.decode import clean_spaces

VOCABULARIES = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35", "starcoder")
MODELS = {
    "llama": "llama",
    "qwen2": "qwen3",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3",
    "gemma3": "qwen3",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen4exp": "qwen35",
}
DIRECTORIES = ("llama", "qwen2", "qwen3", "qwen3-bf16", "qwen3moe", "qwen35", "qwen35moe", "qwen35moe-wrapped")


def expected_text(row: dict[str, Any], key: str) -> bytes:
    """The text that a row means; what is absent equals the text before it."""
    if f"{key}_hex" in row:
        return bytes.fromhex(row[f"{key}_hex"])
    if key in row:
        return str(row[key]).encode()
    return str(row["text"]).encode() if key == "detok" else expected_text(row, "detok")


def check(tokenizer: Tokenizer, found: list[dict[str, Any]]) -> None:
    """Compares ids and both texts of every row."""
    for row in found:
        flags = {"add_special": row["add_special"], "parse_special": row["parse_special"]}
        assert tokenizer.encode(row["text"], **flags) == row["ids"], row
        for key, skip in (("detok", False), ("detok_no_special", True)):
            data = tokenizer.decode_bytes(row["ids"], skip_special=skip)
            if tokenizer.settings.clean_spaces:
                data = clean_spaces(data)
            assert data == expected_text(row, key), row
        stream = tokenizer.stream()
        streamed = "".join(map(stream.push, row["ids"])) + stream.flush()
        assert streamed == tokenizer.decode(row["ids"])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabulary_of_a_pack(name: str, tmp_path: Path) -> None:
    convert_gguf(oracle(f"vocab/ggml-vocab-{name}.gguf"), tmp_path / "v.gpack")
    with Tokenizer.open(tmp_path / "v.gpack") as tokenizer:
        check(tokenizer, rows(oracle(f"vocab/ggml-vocab-{name}.tokens.json")))


@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name != "llama-spm"])
def test_compiled_code_gives_the_same(name: str) -> None:
    pytest.importorskip("numba", reason="compiled code needs numba")
    tokenizer = Tokenizer.from_gguf(oracle(f"vocab/ggml-vocab-{name}.gguf"))
    for row in rows(oracle(f"vocab/ggml-vocab-{name}.tokens.json")):
        flags = {"add_special": row["add_special"], "parse_special": row["parse_special"]}
        assert tokenizer.encode_compiled(row["text"], **flags) == row["ids"], row


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str) -> None:
    found = rows(oracle(f"models/{MODELS[name]}.tokens.json"))
    check(Tokenizer.from_gguf(oracle(f"models/{name}.gguf")), found)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directory(name: str) -> None:
    tokenizer = Tokenizer.from_dir(oracle(f"hf/{name}"))
    for row in rows(oracle(f"hf/{name}/tokens.json")):
        assert tokenizer.encode(row["text"], add_special=False, parse_special=True) == row["ids"]
        assert tokenizer.encode(row["text"], parse_special=True) == row["ids_with_special"]
        assert tokenizer.decode(row["ids"]) == row["decoded"]
