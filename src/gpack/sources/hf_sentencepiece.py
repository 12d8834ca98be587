"""A SentencePiece model as GGUF metadata: pieces, scores and kinds as the file has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import MetadataType
from ..sections.tokenizer import TOKENS, TYPES
from .metadata_build import MetadataBuilder
from .sentencepiece import BPE, BYTE, CONTROL, UNIGRAM, UNUSED, USER_DEFINED, SentencePieceModel

MAX_PADDING = 1 << 20  # ids that nothing names
_PAD_SCORE = -1000.0  # as the GGUF converter has it
_KINDS = {UNIGRAM: "Unigram", BPE: "BPE"}


def sentencepiece_metadata(
    model: SentencePieceModel, added: Sequence[Mapping[str, Any]], vocab_size: int | None, path: object
) -> MetadataBuilder:
    """The vocabulary as `tokenizer.ggml.*` entries.

    Args:
        added: Added tokens: `id`, `content`, `special`.
        vocab_size: Number of tokens that the model knows; those that nothing names are padding.

    Raises:
        FormatError: `hf.tokenizer`: an id lies beyond the vocabulary, or belongs to two tokens.
    """
    pieces = list(model.pieces)
    for entry in added:
        number, text = entry["id"], entry.get("content")
        if not isinstance(text, str) or number > len(pieces) + MAX_PADDING:
            raise FormatError(f"the added token {number} has no text, or no place", code="hf.tokenizer", path=path)
        kind = CONTROL if entry.get("special") is True else USER_DEFINED
        while number >= len(pieces):
            pieces.append((f"[PAD{len(pieces)}]", _PAD_SCORE, UNUSED))
        if pieces[number][2] != UNUSED and pieces[number][0] != text:
            message = f"the id {number} belongs to {shorten(pieces[number][0])} and {shorten(text)}"
            raise FormatError(message, code="hf.tokenizer", path=path)
        if pieces[number][2] in (USER_DEFINED, UNUSED) or number >= len(model.pieces):
            pieces[number] = (text, pieces[number][1], kind)
    if vocab_size is not None and not len(pieces) <= vocab_size <= len(pieces) + MAX_PADDING:
        message = f"it has {len(pieces)} tokens, the model knows {vocab_size}"
        raise FormatError(message, code="hf.tokenizer", path=path)
    pieces += [(f"[PAD{number}]", _PAD_SCORE, UNUSED) for number in range(len(pieces), vocab_size or 0)]
    metadata = MetadataBuilder()
    metadata.text("tokenizer.ggml.model", "llama")
    metadata.text("tokenizer.ggml.pre", "default")
    metadata.texts(TOKENS, [text for text, _, _ in pieces])
    metadata.numbers("tokenizer.ggml.scores", MetadataType.FLOAT32, [score for _, score, _ in pieces])
    metadata.numbers(TYPES, MetadataType.INT32, [kind for _, _, kind in pieces])
    metadata.flag("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix)
    return metadata


def sentencepiece_faults(model: SentencePieceModel) -> Iterator[str]:
    """What the model asks for that has no translation, one sentence each."""
    if model.model_type != BPE:
        yield f"the SentencePiece model is {_KINDS.get(model.model_type, model.model_type)}, not BPE"
    if model.charsmap or model.remove_extra_whitespaces:
        yield "the SentencePiece model normalises texts, which has no translation"
    if not model.escape_whitespaces or model.whitespace_as_suffix:
        yield "the SentencePiece model writes spaces in another way, which has no translation"
    if sum(kind == BYTE for _, _, kind in model.pieces) != 256:
        yield "the SentencePiece model has no tokens for bytes"
