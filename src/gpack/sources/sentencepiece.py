"""Reads a SentencePiece model (`tokenizer.model`, `spiece.model`): pieces, scores, kinds, and how texts are prepared.

The file is a protocol buffer; the numbers of its fields are those of `sentencepiece_model.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import FormatError

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # GGUF's numbers of kinds are these
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_PIECES = 1 << 22
# Fields of ModelProto, of a piece, of TrainerSpec and of NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _SUFFIX, _UNK, _BOS, _EOS, _PAD = 3, 24, 40, 41, 42, 43
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE = 2, 3, 4, 5


@dataclass
class SentencePieceModel:
    """What the file says, with the format's defaults.

    Attributes:
        pieces: Text, score and kind by id.
        model_type: `UNIGRAM` or `BPE`, or another number.
        unk_id, bos_id, eos_id, pad_id: Ids; -1 where there is no such token.
        charsmap: The compiled table of replacements; empty where texts stay as they are.
        add_dummy_prefix: A text begins with a space that it does not have.
        remove_extra_whitespaces: Spaces at the ends are dropped, runs of them become one.
        escape_whitespaces: Spaces become U+2581.
        whitespace_as_suffix: They stand after words.
    """

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = UNIGRAM
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    whitespace_as_suffix: bool = False


def read_sentencepiece(data: bytes, path: object) -> SentencePieceModel:
    """The model that the bytes are.

    Raises:
        FormatError: `hf.tokenizer`: they are none.
    """
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == _PIECES and isinstance(value, bytes):
                model.pieces.append(_piece(value))
            elif number == _TRAINER and isinstance(value, bytes):
                _read_trainer(model, value)
            elif number == _NORMALIZER and isinstance(value, bytes):
                _read_normalizer(model, value)
            if len(model.pieces) > _MAX_PIECES:
                raise ValueError(f"it has more than {_MAX_PIECES} pieces")
    except (ValueError, struct.error) as error:
        raise FormatError(f"it is no SentencePiece model: {error}", code="hf.tokenizer", path=path) from error
    if not model.pieces:
        raise FormatError("it is no SentencePiece model: it has no pieces", code="hf.tokenizer", path=path)
    return model


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == _TEXT and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif number == _SCORE and isinstance(value, bytes):
            score = struct.unpack("<f", value)[0]
        elif number == _KIND and isinstance(value, int):
            kind = value
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"a piece is of the kind {kind}")
    return text, score, kind


def _read_trainer(model: SentencePieceModel, data: bytes) -> None:
    ids = {_UNK: "unk_id", _BOS: "bos_id", _EOS: "eos_id", _PAD: "pad_id"}
    for number, value in _fields(data):
        if not isinstance(value, int):
            continue
        if number == _MODEL_TYPE:
            model.model_type = value
        elif number == _SUFFIX:
            model.whitespace_as_suffix = bool(value)
        elif number in ids:
            signed = value - (1 << 64) if value >> 63 else value
            setattr(model, ids[number], signed)


def _read_normalizer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        if number == _CHARSMAP and isinstance(value, bytes):
            model.charsmap = value
        elif number == _DUMMY_PREFIX:
            model.add_dummy_prefix = bool(value)
        elif number == _EXTRA_SPACES:
            model.remove_extra_whitespaces = bool(value)
        elif number == _ESCAPE:
            model.escape_whitespaces = bool(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields: integers, or the bytes of what is fixed in size or has a length.

    Raises:
        ValueError: The bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field is of the kind {kind}")
        if length > len(data) - at:
            raise ValueError(f"a field of {length} bytes leaves its message")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number does not end")
