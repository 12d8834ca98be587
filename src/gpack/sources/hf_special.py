"""Special tokens and chat templates of a Hugging Face folder, as GGUF metadata.

An id comes from `tokenizer_config.json`, else from `config.json`, else from `special_tokens_map.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..container.strict_json import shorten
from ..errors import FormatError
from ..sections.tokenizer import TEMPLATE
from ..tokenizer.settings import NAMED_TOKENS
from . import hf_files
from .hf_config import HfConfig
from .hf_files import HfFiles
from .metadata_build import MetadataBuilder

# The kind of a special token in the files, and GGUF's key.
_KINDS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "cls": "tokenizer.ggml.cls_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
}
_TEMPLATES = "tokenizer.chat_templates"


def add_special_ids(
    metadata: MetadataBuilder,
    tokenizer: Mapping[str, Any],
    files: HfFiles,
    config: HfConfig,
    size: int,
    names: Mapping[str, Any] | None = None,
) -> str | None:
    """Adds the ids of special tokens, and which of them the tokenizer adds to a text by itself.

    Args:
        names: What special tokens (`eos_token`, ...) are called where no file says it.

    Returns:
        What the tokenizer adds to a text that no metadata can say; None where they say it all.
    """
    settings = files.json(hf_files.TOKENIZER_CONFIG, code="hf.tokenizer")
    named = files.json(hf_files.SPECIAL_TOKENS, code="hf.tokenizer")
    added = tokenizer.get("added_tokens")
    ids = {entry["content"]: entry["id"] for entry in reversed(added if isinstance(added, list) else [])}
    found: dict[str, int] = {}
    for source in (settings, None, named, names or {}):
        for kind in _KINDS:
            number = _configured(config, kind) if source is None else ids.get(_content(source.get(f"{kind}_token")))
            if number is not None and 0 <= number < size:
                found.setdefault(kind, number)
    strange = _untold(tokenizer)
    first, last, separates = _template_ends(tokenizer)
    adds: dict[str, bool | None] = {"bos": None, "eos": False} | ({"sep": separates} if separates is not None else {})
    for kind, token in (("bos", first), ("eos", last)):
        if token is None:
            continue
        adds[kind] = token == _content(settings.get(f"{kind}_token"))
        number = ids.get(token, -1)
        # A token that is added under another name is the one that a text gets.
        if not (strange or adds[kind] or isinstance(settings.get(f"add_{kind}_token"), bool)) and 0 <= number < size:
            found[kind], adds[kind] = number, True
    for kind, number in found.items():
        metadata.u32(_KINDS[kind], number)
    for kind in ("bos", "eos", "sep"):
        said = settings.get(f"add_{kind}_token")
        flag = said if isinstance(said, bool) else adds.get(kind)
        if flag is not None:
            metadata.flag(f"tokenizer.ggml.add_{kind}_token", flag)
    return strange


def add_named_tokens(metadata: MetadataBuilder, settings: Mapping[str, Any]) -> None:
    """Adds the special tokens that templates know by name and that GGUF has no keys for."""
    found: dict[str, str | list[str]] = {}
    for key, value in settings.items():
        if key.endswith("_token") and key.removesuffix("_token") not in _KINDS and (token := _content(value)):
            found[key] = token
    more = settings.get("additional_special_tokens")
    if texts := [token for token in map(_content, more if isinstance(more, list) else ()) if token]:
        found["additional_special_tokens"] = texts
    if found:
        metadata.text(NAMED_TOKENS, json.dumps(found))


def _untold(tokenizer: Mapping[str, Any]) -> str | None:
    """What the post-processor does beside adding one token on each side of a text."""
    for step in _processors(tokenizer):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            parts = step.get("single")
            tokens = (
                ["Sequence" not in part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
            )
            text = tokens.index(False) if False in tokens else len(tokens)
            if text > 1 or len(tokens) - text > 2:
                return "several tokens on one side of a text"
            return None
        if kind not in (None, "ByteLevel"):
            return f"what {shorten(kind)} adds to a text"
    return None


def _processors(tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    processor = tokenizer.get("post_processor")
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _template_ends(tokenizer: Mapping[str, Any]) -> tuple[str | None, str | None, bool | None]:
    """Of the post-processor's template: the tokens before and after a text, and whether it separates two texts."""
    for step in _processors(tokenizer):
        if step.get("type") == "TemplateProcessing":
            single, pair = _parts(step.get("single")), _parts(step.get("pair"))
            if len(single) < 2:
                return None, None, None
            first, last = single[0], single[-1]
            between = pair[1 if first else 0 : -1 if last else None][1:-1]
            # A token between two texts is a separator only where none ends the first.
            return first, last, (bool(between) and between[0] == last) if pair and between else None
    return None, None, None


def _parts(template: Any) -> list[str | None]:
    """The special tokens of a template by place; None where a text stands."""
    parts: list[str | None] = []
    for part in template if isinstance(template, list) else []:
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        name = special.get("id") if isinstance(special, dict) else None
        parts.append(name if isinstance(name, str) else None)
    return parts


def _content(entry: Any) -> str | None:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _configured(config: HfConfig, kind: str) -> int | None:
    for values in (config.outer, config.values):
        said = values.get(f"{kind}_token_id")
        said = said[0] if isinstance(said, list) and said else said
        if isinstance(said, int) and not isinstance(said, bool):
            return said
    return None


def add_templates(metadata: MetadataBuilder, files: HfFiles) -> None:
    """Adds the chat templates: a file of its own goes before the one in `tokenizer_config.json`.

    Raises:
        FormatError: `hf.tokenizer`: a template is no text.
    """
    said: Any = files.text(hf_files.TEMPLATE)
    place = hf_files.TEMPLATE
    for name in (hf_files.TEMPLATE_JSON, hf_files.TOKENIZER_CONFIG):
        if said is None:
            place = name
            said = files.json(name, code="hf.tokenizer").get("chat_template")
    if said is None:
        return
    templates = {"default": said} if isinstance(said, str) else _named(said)
    for text in templates.values():
        if any("\ud800" <= char <= "\udfff" for char in text):
            templates = {}
    if not templates:
        raise FormatError("a chat template is no text", code="hf.tokenizer", path=files.folder / place)
    if others := sorted(set(templates) - {"default"}):
        metadata.texts(_TEMPLATES, others)
    for name, text in templates.items():
        metadata.text(TEMPLATE if name == "default" else f"{TEMPLATE}.{name}", text)


def _named(said: Any) -> dict[str, str]:
    """Templates of several names; empty where one is not what it should be."""
    entries = (
        said
        if isinstance(said, list)
        else [{"name": k, "template": v} for k, v in said.items()]
        if isinstance(said, dict)
        else []
    )
    made: dict[str, str] = {}
    for entry in entries:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            return {}
        made["".join(char if char.isascii() and char.isalnum() else "_" for char in name)] = text
    return made
