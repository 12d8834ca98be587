"""Vocabularies that are no tokenizer.json: ids equal to those of the libraries that made the files.

`tests/data/vocabularies` has small ones with the ids of 51 texts by mistral-common (`tekken.json`, the first ranks of a
public one), sentencepiece (`tokenizer.model`, trained on this project's documents) and transformers' GPT2Tokenizer and
Qwen2Tokenizer (`vocab.json`, `merges.txt`).
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hf_maker import qwen3_folder, write_json

import gpack
from gpack.convert.anything import convert
from gpack.errors import FormatError
from gpack.sources.hf_tekken import ranked_merges
from gpack.sources.hf_tokenizer import read_directory
from gpack.sources.sentencepiece import read_sentencepiece
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.settings import Settings

DATA = Path(__file__).parents[1] / "data" / "vocabularies"
KNOWN = json.loads((DATA / "ids.json").read_text())


def ids(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special=False) for text in KNOWN["texts"]]


def folder(path: Path, *names: str, **settings: Any) -> Path:
    path.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(DATA / name, path)
    if settings:
        write_json(path / "tokenizer_config.json", settings)
    return path


@pytest.mark.parametrize(("name", "library"), [("tekken.json", "tekken"), ("tokenizer.model", "sentencepiece")])
def test_equal_to_the_library(tmp_path: Path, name: str, library: str) -> None:
    """Of the folder, of a pack of it, and of the GGUF that the pack becomes."""
    made = folder(tmp_path / "m", name)
    size = len(read_directory(made).metadata["tokenizer.ggml.tokens"].strings().lengths)
    assert ids(Tokenizer.from_dir(made)) == KNOWN["ids"][library]
    qwen3_folder(made)
    for other in ("tokenizer.json", "tokenizer_config.json"):
        (made / other).unlink()
    write_json(made / "config.json", {"model_type": "odd", "vocab_size": size + 3})
    convert(made, tmp_path / "m.gpack")
    gpack.export_gguf(tmp_path / "m.gpack", tmp_path / "m.gguf")
    with gpack.open(tmp_path / "m.gpack") as pack:
        assert pack.manifest["tokenizer"]["vocab_size"] == size + 3
        assert pack.manifest["extensions"]["import"]["reasons"] == ["the architecture 'odd' is none that is translated"]
    for tokenizer in (Tokenizer.open(tmp_path / "m.gpack"), Tokenizer.from_gguf(tmp_path / "m.gguf")):
        assert ids(tokenizer) == KNOWN["ids"][library]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_lists_whose_class_tells_the_split(tmp_path: Path, name: str) -> None:
    made = read_directory(folder(tmp_path, "vocab.json", "merges.txt", tokenizer_class=name))
    assert made.faults == []
    assert ids(Tokenizer.from_metadata(made.metadata)) == KNOWN["ids"][name.removesuffix("Fast")]


def test_lists_of_a_class_that_tells_nothing(tmp_path: Path) -> None:
    made = read_directory(folder(tmp_path, "vocab.json", "merges.txt", tokenizer_class="OddTokenizer"))
    assert made.faults == ["vocab.json and merges.txt do not tell how texts are split"]
    assert not made.metadata


def test_tokens_that_only_the_settings_name(tmp_path: Path) -> None:
    added = {"450": {"content": "<|im_end|>", "special": True}, "452": {"content": "<tool>", "special": False}}
    made = folder(
        tmp_path,
        "vocab.json",
        "merges.txt",
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder=added,
        eos_token="<|im_end|>",
    )
    write_json(tmp_path / "added_tokens.json", {"<|more|>": 453})
    tokenizer = Tokenizer.from_metadata(read_directory(made).metadata)
    assert tokenizer.eos_id == 450
    assert tokenizer.encode("<|im_end|><tool><|more|>", parse_special=True) == [450, 452, 453]


# --- tekken.json ---


def test_merges_of_ranks() -> None:
    """By hand: `abc` ends with `ab` and `c`, for `ab` ranks before `bc`; `abcbc` with `abc` and `bc`."""
    ranked = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b"abcbc", b"xyz"]
    assert ranked_merges(ranked) == [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"abc", b"bc")]


def test_special_tokens_of_a_tekken(tmp_path: Path) -> None:
    made = read_directory(folder(tmp_path, "tekken.json"))
    tokenizer = Tokenizer.from_metadata(made.metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    # Of the file's 24 control tokens the first 20 have the names of the format, the others none.
    assert tokenizer.encode("a[INST]</s><SPECIAL_23>", parse_special=True)[2:] == [3, 2, 23]
    assert tokenizer.encode("a")[:1] == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab": []}, "no list of tokens"),
        ({"config": {"pattern": "x"}}, "special tokens of"),
        ({"vocab": [{"rank": 1, "token_bytes": "AA=="}]}, "vocab[0]"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "no base64"),
        ({"vocab": [{"rank": 0, "token_bytes": "AA=="}]}, "none for a byte"),
        ({"special_tokens": [{"rank": 99, "token_str": "x"}]}, "special_tokens"),
    ],
)
def test_damaged_tekkens_cost_the_tokenizer(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    made = folder(tmp_path / "m", "tekken.json")
    write_json(made / "tekken.json", {**json.loads((DATA / "tekken.json").read_text()), **change})
    with pytest.raises(FormatError, match=r"tekken\.json") as caught:
        read_directory(made)
    assert words in str(caught.value)


# --- SentencePiece ---


def message(*fields: tuple[int, int | bytes | float | str]) -> bytes:
    """A protocol buffer: varints for integers, four bytes for floats, a length and bytes for all else."""
    made = b""
    for number, value in fields:
        if isinstance(value, float):
            made += bytes([number << 3 | 5]) + struct.pack("<f", value)
        elif isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(data)) + data
    return made


def varint(value: int) -> bytes:
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def test_a_model_by_hand() -> None:
    pieces = [(1, message((1, "<unk>"), (2, 0.0), (3, 2))), (1, message((1, "▁a"), (2, -1.5)))]
    spec = message((3, 2), (40, 0), (41, (1 << 64) - 1), (42, 7))
    model = read_sentencepiece(message(*pieces, (2, spec), (3, message((2, b"\1"), (3, 0), (4, 0)))), "m")
    assert model.pieces == [("<unk>", 0.0, 2), ("▁a", -1.5, 1)]
    assert (model.model_type, model.unk_id, model.bos_id, model.eos_id, model.pad_id) == (2, 0, -1, 7, -1)
    assert (model.charsmap, model.add_dummy_prefix, model.remove_extra_whitespaces) == (b"\1", False, False)


@pytest.mark.parametrize("data", [b"", b"\xff" * 20, b"\x0a\x50abc", b"\x0b", message((1, message((3, 9))))])
def test_damaged_models(data: bytes) -> None:
    with pytest.raises(FormatError, match="no SentencePiece model"):
        read_sentencepiece(data, "m")


def test_a_model_that_cannot_be_translated(tmp_path: Path) -> None:
    """Unigram, and with spaces removed, as the format's defaults are; it costs the tokenizer."""
    (tmp_path / "spiece.model").write_bytes(message((1, message((1, "▁a"), (2, -1.5)))))
    (reason,) = read_directory(tmp_path).faults
    assert "Unigram, not BPE" in reason
    assert "normalises texts" in reason
    assert "no tokens for bytes" in reason


def test_more_tokens_than_the_model_knows(tmp_path: Path) -> None:
    made = folder(tmp_path, "tokenizer.model")
    write_json(made / "config.json", {"vocab_size": 599})
    with pytest.raises(FormatError, match="it has 600 tokens, the model knows 599"):
        read_directory(made)


# --- spaces and added tokens as `tokenizers` has them ---

SPACES = json.loads((DATA / "metaspace.json").read_text())


@pytest.mark.parametrize("variant", SPACES["variants"])
def test_spaces_and_added_tokens(tmp_path: Path, variant: str) -> None:
    """Ids by the library `tokenizers`; of the folder, of a pack of it, and of the GGUF that the pack becomes."""
    made = qwen3_folder(tmp_path / "m")
    write_json(made / "tokenizer.json", {**SPACES["tokenizer"], **SPACES["variants"][variant]})
    (made / "tokenizer_config.json").unlink()
    size = 1 + max(entry["id"] for entry in SPACES["tokenizer"]["added_tokens"])
    write_json(made / "config.json", {"model_type": "odd", "vocab_size": size})
    convert(made, tmp_path / "m.gpack")
    gpack.export_gguf(tmp_path / "m.gpack", tmp_path / "m.gguf")
    for tokenizer in (
        Tokenizer.from_dir(made),
        Tokenizer.open(tmp_path / "m.gpack"),
        Tokenizer.from_gguf(tmp_path / "m.gguf"),
    ):
        found = [tokenizer.encode(text, add_special=False, parse_special=True) for text in SPACES["texts"]]
        assert found == SPACES["ids"][variant]


def test_what_a_gguf_cannot_carry_is_told(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", {**SPACES["tokenizer"], **SPACES["variants"]["first split"]})
    made = read_directory(tmp_path)
    assert made.metadata["tokenizer.gpack.metaspace"].python() == "first split"
    assert made.metadata["tokenizer.gpack.added_tokens"].python() == "601:l 602:l 603:r 604:lr 605:w"
    assert any("5 added tokens ask for lstrip, rstrip or single_word" in note for note in made.notes)
    assert any("spaces are written by the rule 'first split'" in note for note in made.notes)


@pytest.mark.parametrize("said", ["1", "1:", "1:x", "x:l", "99999:l", "1:l 2"])
def test_ways_that_are_none(said: str) -> None:
    with pytest.raises(FormatError, match="no token and its ways"):
        Settings({"tokenizer.ggml.model": "llama", "tokenizer.gpack.added_tokens": said}.get, 100)
