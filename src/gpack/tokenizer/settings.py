"""What the metadata says of a tokeniser, with llama.cpp's defaults where it says nothing."""

from __future__ import annotations

import struct

from ..errors import FormatError, UnsupportedError
from ..generated.constants import MetadataType
from . import pretokenizers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Lookup = Callable[[str], Any]

PREFIX = "tokenizer.ggml."
NORMALIZER = "tokenizer.gpack.normalizer"  # "nfc": texts are normalised, as the model's tokenizer.json says
EXACT_TYPES = "tokenizer.gpack.exact_types"  # true: types are the model's own, no token is special by name
IGNORE_MERGES = "tokenizer.gpack.ignore_merges"  # bool; without it the pre-tokeniser's name decides
USER_DEFINED_IDS = "tokenizer.gpack.user_defined"  # ids, as text: user-defined tokens whatever GGUF's types say
METASPACE = "tokenizer.gpack.metaspace"  # words: "first", "always" or "never", and "split"; else as SentencePiece does
ADDED_TOKENS = "tokenizer.gpack.added_tokens"  # id:ways of tokens with spaces between; the ways are letters of `WAYS`
WAYS = "lrw"  # spaces before the token belong to it, spaces after it do, it is a word of its own
NAMED_TOKENS = "tokenizer.gpack.special_tokens"  # JSON: names of special tokens to their texts, or to lists of them
# Names that templates know, and GGUF's words for them.
_NAMED = {"pad_token": "padding", "cls_token": "cls", "sep_token": "seperator", "mask_token": "mask"}
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
MODELS = (BYTE_LEVEL, SENTENCE_PIECE)
NONE = -1

_SCALARS = {
    MetadataType.UINT8: "<B",
    MetadataType.INT8: "<b",
    MetadataType.UINT16: "<H",
    MetadataType.INT16: "<h",
    MetadataType.UINT32: "<I",
    MetadataType.INT32: "<i",
    MetadataType.FLOAT32: "<f",
    MetadataType.BOOL: "<?",
    MetadataType.UINT64: "<Q",
    MetadataType.INT64: "<q",
    MetadataType.FLOAT64: "<d",
}


class Settings:
    """A tokeniser's settings.

    Attributes:
        model: `gpt2` (byte-level) or `llama` (SentencePiece-style).
        pre: Name of the pre-tokeniser.
        rules: Its rules; empty for SentencePiece-style vocabularies.
        bos_id, eos_id, unknown_id: Ids, -1 where there is none.
        named_ids: Ids of the other special tokens that templates know by name (`pad_token`, ...), where there are such.
        named_texts: Texts, or lists of texts, of special tokens that GGUF has no keys for, by name.
        add_bos, add_eos: What `add_special` adds.
        add_space_prefix: A text begins with a space that it does not have.
        added_ways: Ids of added tokens to the ways in which they are found, letters of `WAYS`.
        metaspace: When a text gets a space in front that has none: `first`, `always` or `never`; empty: always, and
            where it has one too.
        splits_spaces: No token reaches over the beginning of a word.
        ignore_merges: A piece that is a token is taken whole.
        clean_spaces: llama.cpp's text output drops spaces before some signs.
        nfc: Texts are normalised to NFC.
        exact_types: Token types are the model's own; else llama.cpp's list of names makes control tokens too.
        user_defined: Ids of user-defined tokens that have the type of control tokens.
    """

    __slots__ = (
        "add_bos",
        "add_eos",
        "add_space_prefix",
        "added_ways",
        "bos_id",
        "clean_spaces",
        "eos_id",
        "exact_types",
        "ignore_merges",
        "metaspace",
        "model",
        "named_ids",
        "named_texts",
        "nfc",
        "pre",
        "rules",
        "splits_spaces",
        "unknown_id",
        "user_defined",
    )

    def __init__(self, lookup: Lookup, vocab_size: int) -> None:
        """Reads the settings.

        Args:
            lookup: Gives the value of a metadata key, None where there is none.

        Raises:
            UnsupportedError: `tokenizer.model` or `tokenizer.pre` for a kind that is not known.
            FormatError: `tokenizer.setting` where a value is of another type, or an id not in the vocabulary.
        """
        self.model = _typed(lookup, f"{PREFIX}model", str, "")
        if self.model not in MODELS:
            raise UnsupportedError(
                f"tokenisers of the model {self.model!r} are not supported; those of {' and '.join(MODELS)} are",
                code="tokenizer.model",
                section="metadata",
                field=f"{PREFIX}model",
            )
        byte_level = self.model == BYTE_LEVEL
        self.pre = _typed(lookup, f"{PREFIX}pre", str, "") or pretokenizers.DEFAULT
        self.rules = pretokenizers.rules_of(self.pre) if byte_level else ()
        self.bos_id = _token(lookup, "bos", vocab_size, NONE if byte_level else 1)
        self.eos_id = _token(lookup, "eos", vocab_size, NONE if byte_level else 2)
        self.unknown_id = _token(lookup, "unknown", vocab_size, NONE if byte_level else 0)
        words = _typed(lookup, METASPACE, str, "").split()
        self.metaspace = next((word for word in words if word in ("first", "always", "never")), "")
        self.splits_spaces = "split" in words
        self.added_ways = _ways(_typed(lookup, ADDED_TOKENS, str, ""), vocab_size)
        found = {name: lookup(f"{PREFIX}{key}_token_id") for name, key in _NAMED.items()}
        self.named_ids = {name: i for name, i in found.items() if type(i) is int and 0 <= i < vocab_size}
        self.named_texts = _named(_typed(lookup, NAMED_TOKENS, str, ""))
        wants_bos = self.pre in pretokenizers.ADD_BOS if byte_level else True
        self.add_bos = _typed(lookup, f"{PREFIX}add_bos_token", bool, wants_bos) and self.bos_id != NONE
        self.add_eos = _typed(lookup, f"{PREFIX}add_eos_token", bool, False) and self.eos_id != NONE
        self.add_space_prefix = _typed(lookup, f"{PREFIX}add_space_prefix", bool, not byte_level)
        whole = byte_level and self.pre in pretokenizers.IGNORE_MERGES
        self.ignore_merges = byte_level and _typed(lookup, IGNORE_MERGES, bool, whole)
        self.clean_spaces = byte_level and self.pre not in pretokenizers.KEEP_SPACES
        normalizer = _typed(lookup, NORMALIZER, str, "none")
        if normalizer not in ("none", "nfc"):
            raise UnsupportedError(
                f"the normaliser {normalizer!r} is not known",
                code="tokenizer.setting",
                section="metadata",
                field=NORMALIZER,
            )
        self.nfc = normalizer == "nfc"
        self.exact_types = _typed(lookup, EXACT_TYPES, bool, False)
        self.user_defined = _ids(_typed(lookup, USER_DEFINED_IDS, str, ""), vocab_size)


def _ways(text: str, vocab_size: int) -> dict[int, str]:
    """Ids and ways of added tokens.

    Raises:
        FormatError: `tokenizer.setting`: the text is no list of them.
    """
    found: dict[int, str] = {}
    for part in text.split():
        number, _, ways = part.partition(":")
        if not (len(number) <= 10 and number.isascii() and number.isdigit() and int(number) < vocab_size):
            ways = ""
        if not ways or set(ways) - set(WAYS):
            raise FormatError(
                f"{part!r} is no token and its ways", code="tokenizer.setting", section="metadata", field=ADDED_TOKENS
            )
        found[int(number)] = ways
    return found


def _named(said: str) -> dict[str, str | list[str]]:
    """Special tokens by name from JSON.

    Raises:
        FormatError: `tokenizer.setting`: it is no object of texts and lists of texts.
    """
    if not said:
        return {}
    import json

    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(item, str) or (isinstance(item, list) and all(isinstance(text, str) for text in item))
        for item in found.values()
    ):
        raise FormatError(
            "it is no JSON object of texts", code="tokenizer.setting", section="metadata", field=NAMED_TOKENS
        )
    return found


def _ids(text: str, vocab_size: int) -> frozenset[int]:
    parts = text.split()
    # Few digits at most: Python refuses very long ones with another error.
    found = frozenset(int(part) for part in parts if len(part) <= 10 and part.isascii() and part.isdigit())
    if len(found) != len(parts) or any(token_id >= vocab_size for token_id in found):
        raise FormatError(
            f"it is no list of different ids of {vocab_size} tokens",
            code="tokenizer.setting",
            section="metadata",
            field=USER_DEFINED_IDS,
        )
    return found


def scalar(value_type: int, raw: bytes | memoryview) -> Any:
    """A metadata value that is no array, decoded without numpy; None for arrays."""
    if value_type == MetadataType.STRING:
        return bytes(raw).decode("utf-8", "surrogateescape")
    form = _SCALARS.get(value_type)
    if form is None or struct.calcsize(form) != len(raw):
        return None
    return struct.unpack(form, raw)[0]


def _typed(lookup: Lookup, key: str, kind: type, default: Any) -> Any:
    value = lookup(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise FormatError(
            f"{value!r} is not of the type {kind.__name__}", code="tokenizer.setting", section="metadata", field=key
        )
    return value


def _token(lookup: Lookup, name: str, vocab_size: int, default: int) -> int:
    key = f"{PREFIX}{name}_token_id"
    value = _typed(lookup, key, int, default)
    if value == NONE or value == 0xFFFFFFFF:  # noqa: PLR1714 - one is the default, the other GGUF's "none"
        return NONE
    if not 0 <= value < vocab_size:
        if lookup(key) is None:
            return NONE
        raise FormatError(
            f"{value} is no token of {vocab_size}", code="tokenizer.setting", section="metadata", field=key
        )
    return int(value)
