"""Small tokenisers for tests, and the places of the golden files."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import Entry, byte_alphabet, make_gguf, tiny_tokenizer

from gpack.sections.values import Value
from gpack.sources.gguf import GgufSource
from gpack.tokenizer import Tokenizer

ORACLE = Path(__file__).parents[3] / "shared" / "oracle"


def oracle(name: str) -> Path:
    """A golden file; the test is skipped where it is absent."""
    path = ORACLE / name
    if not path.exists():
        pytest.skip(f"golden file {name} is absent")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a golden file."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def metadata(entries: list[Entry], folder: Path) -> dict[str, Value]:
    """Entries as a GGUF reader gives them."""
    path = folder / "entries.gguf"
    path.write_bytes(make_gguf(entries))
    with GgufSource.open(path) as source:
        return dict(source.metadata)


def changed(entries: list[Entry], **values: Any) -> list[Entry]:
    """Entries with some `tokenizer.ggml.*` values changed; None takes one out."""
    made: list[Entry] = []
    for key, kind, value in entries:
        name = key.removeprefix("tokenizer.ggml.")
        if name not in values:
            made.append((key, kind, value))
        elif values[name] is not None:
            made.append((key, kind, values[name]))
    return made


def tiny(folder: Path, **values: Any) -> Tokenizer:
    """The tokeniser of 272 tokens, some settings changed."""
    return Tokenizer.from_metadata(metadata(changed(tiny_tokenizer(), **values), folder))


@cache
def real_merges() -> tuple[dict[str, int], list[str]]:
    """A vocabulary with enough merges for words, numbers, spaces and emoji: made from a sentence, as training would."""
    alphabet = byte_alphabet()
    text = "the theatre there then 2024 2025    \n\n hello hello 你好你好 🙂🙂🙂 aaaa aaaaaaaa don't we'll é è " * 3
    words = [[alphabet[byte] for byte in word.encode()] for word in text.replace(" ", " \0 ").split("\0")]
    vocab = {character: index for index, character in enumerate(alphabet)}
    merges: list[str] = []
    for _ in range(60):
        counts: dict[tuple[str, str], int] = {}
        for word in words:
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        left, right = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(f"{left} {right}")
        vocab.setdefault(left + right, len(vocab))
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == (left, right):
                    word[at : at + 2] = [left + right]
                at += 1
    return vocab, merges


def tokenizer_json(pattern: str, *, normalizer: Any = None, **more: Any) -> dict[str, Any]:
    """A `tokenizer.json` with one splitting pattern, a control token and a user-defined one."""
    vocab, merges = real_merges()
    size = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": size, "content": "<|end|>", "special": True, **flags},
            {"id": size + 2, "content": "<think>", "special": False, **flags},
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": False},
        **more,
    }


def write_json(folder: Path, root: Any) -> Path:
    """Writes a `tokenizer.json` and gives its folder."""
    (folder / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    return folder


__all__ = ["changed", "metadata", "oracle", "real_merges", "rows", "tiny", "tokenizer_json", "write_json"]
