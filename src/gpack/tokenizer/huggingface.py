"""Hugging Face's tokeniser files as GGUF metadata: `tokenizer.json`, or `vocab.json`, `merges.txt`, `token_type.json`.

What comes out is what a GGUF of the same model holds, and three keys of our own for what GGUF cannot say:
`tokenizer.gpack.normalizer`, `tokenizer.gpack.exact_types` and `tokenizer.gpack.ignore_merges`. What these files ask
for and a byte-level BPE tokeniser does not do is an error that names it.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from ..errors import FormatError, PathError, UnsupportedError, UsageError
from ..generated.constants import MetadataType
from ..sections.values import Value
from .huggingface_rules import pretokenizer_name
from .settings import BYTE_LEVEL, EXACT_TYPES, IGNORE_MERGES, NORMALIZER, PREFIX

_FILE_LIMIT = 1 << 30  # bytes
_GAPS = 1 << 20  # ids without a token, at most this many and as many as there are tokens
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_TEMPLATE = "tokenizer.chat_template"

Json = dict[str, Any]


def read_directory(path: str | os.PathLike[str], *, pre: str | None = None) -> dict[str, Value]:
    """The metadata that the files of a directory, or of its folder `tokenizer`, amount to.

    Args:
        pre: Name of the pre-tokeniser; needed where there is no `tokenizer.json` to tell it.

    Raises:
        PathError: The directory has no such files, or one is unreadable.
        FormatError: `tokenizer.json` where a file is not what it should be.
        UnsupportedError: `tokenizer.json` where it asks for what is not known; `tokenizer.pre`.
        UsageError: `pre` is needed and missing.
    """
    folder = Path(path)
    for place in (folder, folder / "tokenizer"):
        if (place / "tokenizer.json").is_file():
            return _from_json(place)
        if (place / "vocab.json").is_file():
            if pre is None:
                raise UsageError(
                    "vocab.json does not tell the pre-tokeniser", code="usage", path=place, hint="name it: pre=..."
                )
            return _from_lists(place, pre)
    raise PathError("there is no tokenizer.json and no vocab.json", code="io.not_found", path=folder)


def _from_json(folder: Path) -> dict[str, Value]:
    file = _Faults(folder / "tokenizer.json")
    root = file.mapping(_load(file.path), "the file")
    model = file.mapping(root.get("model"), "model")
    if model.get("type", "BPE") != "BPE":
        raise file.unsupported(f"models of the type {model.get('type')!r}", "model.type")
    for part in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(part):
            raise file.unsupported(f"a {part}", f"model.{part}")
    tokens = _Tokens(file)
    for text, token_id in file.mapping(model.get("vocab"), "model.vocab").items():
        tokens.add(text, token_id, _NORMAL)
    for item in file.listing(root.get("added_tokens") or [], "added_tokens"):
        added = file.mapping(item, "added_tokens")
        tokens.add(added.get("content"), added.get("id"), _CONTROL if added.get("special") else _USER_DEFINED)
    merges = _merges(file, model.get("merges"))
    if not merges:
        raise file.fault("it has no merges", "model.merges")
    ignore_merges = model.get("ignore_merges") is True
    config = _optional(folder / "tokenizer_config.json")
    tokens.pad(_optional(folder / "config.json"))
    values = _Values()
    values.text(f"{PREFIX}model", BYTE_LEVEL)
    values.text(f"{PREFIX}pre", pretokenizer_name(root.get("pre_tokenizer"), file.unsupported))
    values.lists(tokens, merges)
    _special_ids(values, file, root, config, tokens, folder)
    _template(values, folder, config)
    values.text(NORMALIZER, _normalizer(file, root.get("normalizer")))
    values.flag(EXACT_TYPES, True)
    values.flag(IGNORE_MERGES, ignore_merges)
    return values.made


def _from_lists(folder: Path, pre: str) -> dict[str, Value]:
    file = _Faults(folder / "vocab.json")
    tokens = _Tokens(file)
    for text, token_id in file.mapping(_load(file.path), "the file").items():
        tokens.add(text, token_id, _NORMAL)
    tokens.pad({})
    types_file = _Faults(folder / "token_type.json")
    if types_file.path.is_file():
        types = types_file.listing(_load(types_file.path), "the file")
        if len(types) != len(tokens.types) or not all(isinstance(item, int) and 0 <= item < 256 for item in types):
            raise types_file.fault(f"it is no list of {len(tokens.types)} token types", "")
        tokens.types[:] = types
    lines = _read(folder / "merges.txt").decode("utf-8", "surrogateescape").split("\n")
    merges = [line for number, line in enumerate(lines) if line and not (number == 0 and line.startswith("#version"))]
    values = _Values()
    values.text(f"{PREFIX}model", BYTE_LEVEL)
    values.text(f"{PREFIX}pre", pre)
    values.lists(tokens, [line.removesuffix("\r") for line in merges])
    config = _optional(folder / "tokenizer_config.json")
    _special_ids(values, file, {}, config, tokens, folder)
    _template(values, folder, config)
    return values.made


class _Faults:
    """Errors about one file, and the checks that raise them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fault(self, message: str, field: str) -> FormatError:
        return FormatError(message, code="tokenizer.json", path=self.path, field=field or None)

    def unsupported(self, what: str, field: str) -> UnsupportedError:
        return UnsupportedError(f"{what} are not supported", code="tokenizer.json", path=self.path, field=field)

    def mapping(self, value: Any, field: str) -> Json:
        if not isinstance(value, dict):
            raise self.fault("it is no object", field)
        return value

    def listing(self, value: Any, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.fault("it is no list", field)
        return value


class _Tokens:
    """Texts and types by id."""

    def __init__(self, file: _Faults) -> None:
        self._file = file
        self.ids: dict[str, int] = {}
        self._types: dict[int, int] = {}
        self.texts: list[str] = []
        self.types: list[int] = []

    def add(self, text: Any, token_id: Any, token_type: int) -> None:
        if not isinstance(text, str) or isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise self._file.fault(f"{text!r} with the id {token_id!r} is no token", "vocab")
        self.ids[text] = token_id
        self._types[token_id] = token_type

    def pad(self, config: Json) -> None:
        """Fills ids without a token, up to the size that the model's configuration names."""
        size = max(self._types, default=-1) + 1
        nested = config.get("text_config")
        named = (nested if isinstance(nested, dict) else config).get("vocab_size")
        if isinstance(named, int) and size < named:
            size = named
        if size > 2 * len(self._types) + _GAPS:
            raise self._file.fault(f"{len(self._types)} tokens have ids up to {size - 1}", "vocab")
        by_id = {token_id: text for text, token_id in self.ids.items()}
        self.texts = [by_id.get(token_id, f"[PAD{token_id}]") for token_id in range(size)]
        self.types = [self._types[token_id] if token_id in by_id else _UNUSED for token_id in range(size)]


class _Values:
    """Metadata in the making."""

    def __init__(self) -> None:
        self.made: dict[str, Value] = {}

    def _add(self, key: str, value_type: int, element_type: int, count: int, raw: bytes) -> None:
        self.made[key] = Value(key, value_type, element_type, count, raw)

    def text(self, key: str, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        self._add(key, MetadataType.STRING, MetadataType.STRING, 1, raw)

    def flag(self, key: str, value: bool) -> None:
        self._add(key, MetadataType.BOOL, MetadataType.BOOL, 1, bytes([value]))

    def number(self, key: str, value: int) -> None:
        self._add(key, MetadataType.UINT32, MetadataType.UINT32, 1, struct.pack("<I", value))

    def lists(self, tokens: _Tokens, merges: list[str]) -> None:
        self._strings(f"{PREFIX}tokens", tokens.texts)
        raw = struct.pack(f"<{len(tokens.types)}i", *tokens.types)
        self._add(f"{PREFIX}token_type", MetadataType.ARRAY, MetadataType.INT32, len(tokens.types), raw)
        self._strings(f"{PREFIX}merges", merges)

    def _strings(self, key: str, texts: list[str]) -> None:
        packed = []
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            packed += [len(raw).to_bytes(8, "little"), raw]
        self._add(key, MetadataType.ARRAY, MetadataType.STRING, len(texts), b"".join(packed))


def _merges(file: _Faults, found: Any) -> list[str]:
    """Merges as "left right", whichever way the file has them."""
    merges = []
    for item in file.listing(found, "model.merges"):
        parts = item.split(" ") if isinstance(item, str) else item
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise file.fault(f"{item!r} is no merge", "model.merges")
        merges.append(f"{parts[0]} {parts[1]}")
    return merges


def _normalizer(file: _Faults, found: Any) -> str:
    parts = [found] if found else []
    if isinstance(found, dict) and found.get("type") == "Sequence":
        parts = file.listing(found.get("normalizers"), "normalizer")
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if kinds not in ([], ["NFC"]):
        raise file.unsupported(f"normalisers {kinds}", "normalizer")
    return "nfc" if kinds else "none"


def _special_ids(values: _Values, file: _Faults, root: Json, config: Json, tokens: _Tokens, folder: Path) -> None:
    """First and last token, and whether a text gets them."""
    first, last = _added(file, root.get("post_processor"))
    model_config = _optional(folder / "config.json")
    for name, added in (("bos", first), ("eos", last)):
        text = config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        wanted_text = added or text
        token_id = tokens.ids.get(wanted_text) if isinstance(wanted_text, str) else None
        if token_id is None:
            named = model_config.get(f"{name}_token_id")
            named = named[0] if isinstance(named, list) and named else named
            token_id = named if isinstance(named, int) and 0 <= named < len(tokens.texts) else None
        if token_id is not None:
            values.number(f"{PREFIX}{name}_token_id", token_id)
        wanted = added is not None or (config.get(f"add_{name}_token") is True and not _decides(root))
        values.flag(f"{PREFIX}add_{name}_token", wanted and token_id is not None)


def _decides(root: Json) -> bool:
    """Whether the post-processor is a template, which then has the last word."""
    return any(part.get("type") == "TemplateProcessing" for part in _processors(root.get("post_processor")))


def _processors(found: Any) -> list[Json]:
    if isinstance(found, dict) and found.get("type") == "Sequence":
        found = found.get("processors")
    parts = found if isinstance(found, list) else [found]
    return [part for part in parts if isinstance(part, dict)]


def _added(file: _Faults, processor: Any) -> tuple[str | None, str | None]:
    """Texts of the tokens that the post-processor puts in front of a text and behind it."""
    for part in _processors(processor):
        kind = part.get("type")
        if kind == "ByteLevel":
            continue
        if kind != "TemplateProcessing":
            raise file.unsupported(f"post-processors of the type {kind!r}", "post_processor")
        around: list[list[str]] = [[], []]
        for item in file.listing(part.get("single"), "post_processor.single"):
            if "Sequence" in file.mapping(item, "post_processor.single"):
                around.append([])
            else:
                around[-1 if len(around) > 2 else 0].append(str(item.get("SpecialToken", {}).get("id")))
        before, after = around[0], around[2] if len(around) > 2 else []
        if len(before) > 1 or len(after) > 1:
            raise file.unsupported("post-processors that add several tokens on one side", "post_processor")
        return (before[0] if before else None), (after[0] if after else None)
    return None, None


def _template(values: _Values, folder: Path, config: Json) -> None:
    """The chat template: its own file, or the default one of the configuration."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        values.text(_TEMPLATE, _read(own).decode("utf-8", "replace"))
        return
    found: Any = _optional(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if isinstance(found, str):
        values.text(_TEMPLATE, found)


def _optional(path: Path) -> Json:
    return _Faults(path).mapping(_load(path), "the file") if path.is_file() else {}


def _load(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}", code="tokenizer.json", path=path) from error


def _read(path: Path) -> bytes:
    from ..sources.files import SourceFile

    file = SourceFile(path)
    try:
        if file.size > _FILE_LIMIT:
            raise FormatError(f"it has {file.size} bytes, over 1 GiB", code="tokenizer.json", path=path)
        return file.read_at(0, file.size)
    finally:
        file.close()
