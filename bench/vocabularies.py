"""Vocabularies to measure with: those of a directory that the caller names, else ones made here."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.models import vocabulary
from bench.tokenizer_texts import mixed_text
from gpack.generated.constants import MetadataType
from gpack.sections.values import Value
from gpack.sources.gguf import GgufSource
from gpack.sources.gguf_write import build_header

ENVIRONMENT = "GPACK_VOCABULARIES"
# Qwen3.5's.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPACE = "\u2581"
_SCORED = 32_000
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class Vocabularies:
    """What there is to measure with.

    Attributes:
        byte_level: Directories with a `tokenizer.json`.
        scored: GGUF files of SentencePiece-style vocabularies.
        real: They are of real models.
    """

    byte_level: tuple[Path, ...]
    scored: tuple[Path, ...]
    real: bool


def given(directory: Path) -> Vocabularies:
    """The vocabularies of a directory: it and its subdirectories with a `tokenizer.json`, and GGUF files."""
    folders = [place for place in (directory, *sorted(directory.iterdir())) if (place / "tokenizer.json").is_file()]
    byte_level = tuple(place for place in folders if _model_kind(place) == "BPE")
    return Vocabularies(byte_level, tuple(path for path in sorted(directory.glob("*.gguf")) if _is_scored(path)), True)


def made(folder: Path) -> Vocabularies:
    """Vocabularies made here: 248,320 byte-level tokens with random merges, and 32,000 with scores."""
    byte_level, scored = folder / "made byte-level", folder / "made scored.gguf"
    if not scored.exists():
        byte_level.mkdir(exist_ok=True)
        (byte_level / "tokenizer.json").write_text(json.dumps(_tokenizer_json()), encoding="utf-8")
        header, _, _ = build_header(version=3, alignment=32, metadata=_scored(), tensors=[])
        scored.write_bytes(header)
    return Vocabularies((byte_level,), (scored,), False)


def _model_kind(folder: Path) -> str | None:
    root = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    splits = root.get("pre_tokenizer") is not None
    return root.get("model", {}).get("type") if splits else None


def _is_scored(path: Path) -> bool:
    with GgufSource.open(path, allow_unknown_types=True) as source:
        model = source.metadata.get("tokenizer.ggml.model")
        return model is not None and model.raw == b"llama"


def _tokenizer_json() -> dict[str, Any]:
    tokens, merges = vocabulary()
    words = {token.decode(): token_id for token_id, token in enumerate(tokens)}
    split = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "post_processor": bytes_only,
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": words, "merges": [merge.decode() for merge in merges]},
    }


def _scored() -> list[Value]:
    """Tokens as training would find them: runs, and the beginnings of frequent words, letter by letter."""
    text = mixed_text(2_000_000).replace(" ", _SPACE)
    found: dict[str, None] = dict.fromkeys(unit * (1 << k) for unit in (_SPACE, "a", "=", "7") for k in range(1, 5))
    for word, _ in Counter(text.replace(_SPACE, " " + _SPACE).split()).most_common():
        found.update(dict.fromkeys(word[:length] for length in range(2, min(len(word), 16) + 1)))
    letters = sorted(set(text))
    merged = list(found)[: _SCORED - 259 - len(letters)]
    tokens = [("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)]
    tokens += [(f"<0x{byte:02X}>", _BYTE) for byte in range(256)]
    tokens += [(token, _NORMAL) for token in (*merged, *letters)]
    raw = b"".join(struct.pack("<Q", len(token.encode())) + token.encode() for token, _ in tokens)
    count = len(tokens)
    scores = struct.pack(f"<{count}f", *(float(-token_id) for token_id in range(count)))
    types = struct.pack(f"<{count}i", *(kind for _, kind in tokens))
    array, string = MetadataType.ARRAY, MetadataType.STRING
    return [
        Value("general.architecture", string, string, 1, b"none"),
        Value("tokenizer.ggml.model", string, string, 1, b"llama"),
        Value("tokenizer.ggml.tokens", array, string, count, raw),
        Value("tokenizer.ggml.scores", array, MetadataType.FLOAT32, count, scores),
        Value("tokenizer.ggml.token_type", array, MetadataType.INT32, count, types),
    ]
