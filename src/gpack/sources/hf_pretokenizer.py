"""Which of GGUF's split rules (`tokenizer.ggml.pre`) a `tokenizer.json` has, found from the rule itself.

The regular expressions are compared as text with those that are known. The GGUF converter hashes what the tokenizer
makes of a text, which needs the tokenizer to be run and to be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3 = rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_QWEN35 = rf"{_CONTRACTIONS}|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_TAIL}"
_CASED = rf"{_PREFIX}{_UPPER}*{_LOWER}+%s|{_PREFIX}{_UPPER}+{_LOWER}*%s|\p{{N}}%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
_GPT4O = _CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?", "{1,3}")
_TEKKEN = _CASED % ("", "", "")
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
).replace(r"\"", '"') + _TAIL
_LISTED_START = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳ"

# Split rules of tokenizers whose files name none.
SPLITS = {"gpt-2": _GPT2, "qwen2": _QWEN2}
# Steps that split, by the names they get below.
_KNOWN = {
    (_LLAMA3,): "llama-bpe",
    (_QWEN2,): "qwen2",
    (_QWEN35,): "qwen35",
    (_GPT4O,): "gpt-4o",
    (_TEKKEN,): "tekken",
    (_GPT2,): "gpt-2",
    ("digits", _GPT2): "smollm",
    (r"\p{N}", _GPT2): "smollm",
    (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3): "deepseek-v3",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", "digits"): "deepseek-coder",
    (
        r"[\r\n]",
        "listed",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+",
        "digits",
    ): "deepseek-llm",
    ("punctuation", _GPT2, "[0-9][0-9][0-9]"): "falcon",
}
# Rules that every character of a text is part of a match of: to keep only the matches drops nothing.
_WHOLE = (_LLAMA3, _QWEN2, _QWEN35, _GPT4O, _TEKKEN, _GPT2)
_MAX_STEPS = 100


def detect_pre(tokenizer: Mapping[str, Any]) -> str | None:
    """The name of the split rule of a byte-level BPE; None where it is none that is known."""
    steps: list[str] = []
    byte_level = False
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "ByteLevel":
            byte_level = True
            if step.get("add_prefix_space"):
                return None
            if not step.get("use_regex", True):
                continue
        rule = _rule(step)
        if rule is None:
            return None
        steps.append(rule)
    return _KNOWN.get(tuple(steps)) if byte_level else None


def _rule(step: Mapping[str, Any]) -> str | None:
    """A step that splits, as `_KNOWN` has it."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return _GPT2
    if kind == "Digits" and step.get("individual_digits") is True:
        return "digits"
    if kind == "Punctuation" and step.get("behavior") == "Contiguous":
        return "punctuation"
    if kind != "Split":
        return None
    pattern = step.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    way = (step.get("behavior"), bool(step.get("invert")))
    if not isinstance(regex, str) or not (way == ("Isolated", False) or (way == ("Removed", True) and regex in _WHOLE)):
        return None
    regex = regex.replace("\r", r"\r").replace("\n", r"\n")
    return "listed" if regex.startswith(_LISTED_START) else regex


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


def metaspace(tokenizer: Mapping[str, Any]) -> str:
    """How a character BPE writes spaces, as `settings.METASPACE` says it; empty where a normaliser does it."""
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            words = [scheme if scheme in ("first", "always", "never") else "always"]
            return " ".join([*words, *(["split"] if step.get("split") is not False else [])])
    return ""


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
