"""Which of GGUF's split rules (`tokenizer.ggml.pre`) a `tokenizer.json` has, told by the rule itself.

The GGUF converter hashes what the tokenizer makes of a text, which needs the tokenizer to be run and to be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
_TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The regular expression of a `Split` to the name of the rule.
_SPLITS = {
    _HEAD + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _TAIL: "llama-bpe",
    _HEAD + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _TAIL: "qwen2",
    _HEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _TAIL: "qwen35",
}
_MAX_STEPS = 100


def detect_pre(tokenizer: Mapping[str, Any]) -> str | None:
    """The name of the split rule of a byte-level BPE; None where it is none that is known."""
    steps = list(_steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    kinds = [step.get("type") for step in steps]
    if kinds == ["Split", "ByteLevel"]:
        split, level = steps
        pattern = split.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        plain = split.get("behavior") == "Isolated" and not split.get("invert") and level.get("use_regex") is False
        return _SPLITS.get(regex) if plain and isinstance(regex, str) and not level.get("add_prefix_space") else None
    level = steps[-1] if kinds and kinds[-1] == "ByteLevel" else {}
    if level.get("use_regex", True) is not True or level.get("add_prefix_space"):
        return None
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") is True:
        return "smollm"
    return None


def is_character_bpe(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the BPE works on characters with `▁` for spaces, as SentencePiece's does, not on bytes."""
    model = tokenizer.get("model")
    falls_back = isinstance(model, dict) and model.get("byte_fallback") is True
    steps = list(_steps(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    return falls_back and not any(step.get("type") == "ByteLevel" for step in steps)


def add_prefix_space(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a character BPE puts a space before the text."""
    if any(step.get("type") == "Prepend" for step in _steps(tokenizer.get("normalizer"), "normalizers")):
        return True
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            return bool(step.get("add_prefix_space", True)) and step.get("prepend_scheme") != "never"
    return False


def normalizers(tokenizer: Mapping[str, Any]) -> list[str]:
    """The kinds of steps that normalise a text."""
    return [str(step.get("type")) for step in _steps(tokenizer.get("normalizer"), "normalizers")]


def _steps(value: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a pipeline, those of sequences in sequences too."""
    pending = [value]
    for _ in range(_MAX_STEPS):
        if not pending:
            return
        step = pending.pop(0)
        if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get(name), list):
            pending[:0] = step[name]
        elif isinstance(step, dict):
            yield step
