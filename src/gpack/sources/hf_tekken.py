"""Vocabularies that are no `tokenizer.json`, as what one of the same tokenizer says: `tekken.json`, `vocab.json`.

A `tekken.json` ranks tokens, and the lowest rank merges first (tiktoken's way); the merges that a BPE by lists needs
are those that each token's own bytes end with.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from ..container.strict_json import shorten
from ..errors import FormatError
from ..sections.gbt import byte_alphabet
from .hf_pretokenizer import SPLITS

_MAX_TOKENS = 1 << 22
# Control tokens of files that do not list them, by id.
_SPECIALS = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
# The split rules of classes whose files do not say them.
_CLASSES = {"GPT2": "gpt-2", "CodeGen": "gpt-2", "Qwen2": "qwen2"}


def tekken_tokenizer(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A `tekken.json` as a `tokenizer.json` of the same tokenizer; a text begins with `<s>`.

    Raises:
        FormatError: `hf.tokenizer`: the file is damaged.
    """
    config, entries = document.get("config"), document.get("vocab")

    def fault(place: str, message: str) -> FormatError:
        return FormatError(message, code="hf.tokenizer", path=path, field=place)

    if not isinstance(config, dict) or not isinstance(entries, list) or not entries:
        raise fault("vocab", "the file has no list of tokens, or no configuration")
    size, count = config.get("default_vocab_size"), config.get("default_num_special_tokens")
    if not _is_count(size) or not _is_count(count) or not 0 <= count < size <= _MAX_TOKENS:
        raise fault("config", f"it has {shorten(count)} special tokens of {shorten(size)} in all")
    ranked: list[bytes] = []
    for rank, entry in enumerate(entries[: size - count]):
        if not isinstance(entry, dict) or entry.get("rank") != rank:
            raise fault(f"vocab[{rank}]", "it is not the token of that rank")
        try:
            ranked.append(base64.b64decode(entry.get("token_bytes", ""), validate=True))
        except (TypeError, ValueError, binascii.Error) as error:
            raise fault(f"vocab[{rank}]", f"its bytes are no base64: {error}") from error
    if len(set(ranked)) != len(ranked) or not {bytes((byte,)) for byte in range(256)} <= set(ranked):
        raise fault("vocab", "a token stands twice, or there is none for a byte")
    spelled = [_spell(token) for token in ranked]
    specials = _specials(document.get("special_tokens"), count)
    if specials is None:
        raise fault("special_tokens", f"it is no list of {count} tokens at most, each with rank and text")
    split = {"type": "Split", "pattern": {"Regex": config.get("pattern")}, "behavior": "Isolated", "invert": False}
    return {
        "added_tokens": specials,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "pair": [],
        },
        "model": {
            "type": "BPE",
            "vocab": {token: count + rank for rank, token in enumerate(spelled)},
            "merges": [[_spell(left), _spell(right)] for left, right in ranked_merges(ranked)],
            "ignore_merges": True,
        },
    }


def ranked_merges(ranked: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """The merges of a BPE by ranks, in their order: of each token the two parts that its own bytes end with."""
    ranks = {token: rank for rank, token in enumerate(ranked)}
    merges = []
    for rank, token in enumerate(ranked):
        parts = [token[at : at + 1] for at in range(len(token))]
        while len(parts) > 2:
            lowest = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            least = min(lowest)
            if least >= rank:
                break
            at = lowest.index(least)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def listed_tokenizer(
    vocabulary: Mapping[str, Any], merges: str, settings: Mapping[str, Any], added: Mapping[str, Any]
) -> dict[str, Any] | None:
    """`vocab.json` and `merges.txt` as a `tokenizer.json` of the same tokenizer; None where nothing tells the split.

    Args:
        settings: `tokenizer_config.json`, whose class tells how texts are split, and which has added tokens.
        added: `added_tokens.json`: more tokens and their ids.
    """
    said = settings.get("tokenizer_class")
    name = said.removesuffix("Fast").removesuffix("Tokenizer") if isinstance(said, str) else ""
    rule = _CLASSES.get(name)
    if rule is None:
        return None
    lines = merges.split("\n")
    split = {"type": "Split", "pattern": {"Regex": SPLITS[rule]}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": settings.get("add_prefix_space") is True, "use_regex": False}
    return {
        "added_tokens": added_tokens(settings, added, vocabulary),
        "normalizer": {"type": "NFC"} if name == "Qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {
            "type": "BPE",
            "vocab": dict(vocabulary),
            "merges": [
                line.removesuffix("\r")
                for number, line in enumerate(lines)
                if line and not (number == 0 and line.startswith("#version"))
            ],
        },
    }


def added_tokens(
    settings: Mapping[str, Any], added: Mapping[str, Any], vocabulary: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Added tokens by what `tokenizer_config.json` and `added_tokens.json` say of them, and the ones that are named."""
    found: dict[int, dict[str, Any]] = {}
    listed = settings.get("added_tokens_decoder")
    for number, entry in listed.items() if isinstance(listed, dict) else ():
        if isinstance(entry, dict) and isinstance(number, str) and number.isascii() and number.isdigit():
            found[int(number[:9])] = {**entry, "id": int(number[:9])}
    named = {_text(value) for key, value in settings.items() if key.endswith("_token")}
    extra = settings.get("additional_special_tokens")
    named |= {_text(value) for value in extra} if isinstance(extra, list) else set()
    for token, number in added.items():
        if _is_count(number):
            found.setdefault(number, {"id": number, "content": token, "special": token in named})
    for token in sorted(filter(None, named)):
        number = vocabulary.get(token)
        if _is_count(number):
            found.setdefault(number, {"id": number, "content": token, "special": True})
    return [found[number] for number in sorted(found)]


def _specials(listed: Any, count: int) -> list[dict[str, Any]] | None:
    """Control tokens as added ones: those that the file lists, and `<SPECIAL_N>`; None for a damaged list."""
    if listed is None:
        listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(_SPECIALS[:count])]
    if not isinstance(listed, list):
        return None
    found = {rank: {"id": rank, "content": f"<SPECIAL_{rank}>", "special": True} for rank in range(count)}
    for entry in listed:
        rank, text = (entry.get("rank"), entry.get("token_str")) if isinstance(entry, dict) else (None, None)
        if not _is_count(rank) or rank >= count or not isinstance(text, str):
            return None
        found[rank] = {"id": rank, "content": text, "special": entry.get("is_control") is not False}
    return list(found.values())


def _spell(token: bytes) -> str:
    return "".join(map(_CHARACTERS.__getitem__, token))


_CHARACTERS = byte_alphabet()


def _text(value: Any) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
