"""Which pre-tokeniser a `tokenizer.json` means: its regular expressions, compared as text with those that are known."""

from __future__ import annotations

from collections.abc import Callable
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

Unsupported = Callable[[str, str], Exception]


def pretokenizer_name(found: Any, unsupported: Unsupported) -> str:
    """The GGUF name of the pre-tokeniser that splits in the same way.

    Raises:
        UnsupportedError: There is none.
    """
    steps: list[str] = []
    byte_level = False
    for part in _parts(found):
        kind = part.get("type")
        if kind == "ByteLevel":
            byte_level = True
            if part.get("add_prefix_space"):
                raise unsupported("prefix spaces", "pre_tokenizer")
            if part.get("use_regex", True):
                steps.append(_GPT2)
        elif kind == "Split":
            steps.append(_split(part, unsupported))
        elif kind == "Digits" and part.get("individual_digits"):
            steps.append("digits")
        elif kind == "Punctuation" and part.get("behavior") == "Contiguous":
            steps.append("punctuation")
        else:
            raise unsupported(f"pre-tokenisers of the type {kind!r}", "pre_tokenizer")
    name = _KNOWN.get(tuple(steps)) if byte_level else None
    if name is None:
        shown = [step if len(step) < 80 else f"{step[:80]}..." for step in steps]
        raise unsupported(f"pre-tokenisers with the steps {shown}", "pre_tokenizer")
    return name


def _parts(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, dict) and found.get("type") == "Sequence":
        found = found.get("pretokenizers")
    parts = found if isinstance(found, list) else [found]
    return [part for part in parts if isinstance(part, dict)]


def _split(part: dict[str, Any], unsupported: Unsupported) -> str:
    pattern = part.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    # Isolated matches, or only the matches kept: the same where every character is part of one.
    ways = (("Isolated", False), ("Removed", True))
    if not isinstance(regex, str) or (part.get("behavior"), bool(part.get("invert"))) not in ways:
        raise unsupported("splits of this kind", "pre_tokenizer")
    if part.get("behavior") == "Removed" and regex not in (_LLAMA3, _QWEN2, _QWEN35, _GPT4O, _TEKKEN, _GPT2):
        raise unsupported("splits that drop text", "pre_tokenizer")
    regex = regex.replace("\r", r"\r").replace("\n", r"\n")
    return "listed" if regex.startswith(_LISTED_START) else regex
