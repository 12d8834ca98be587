"""TokenizerBin (GBT1): token bytes, types, merges as id triples, chat template: nothing to parse at load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BoundsError, FormatError
from ..generated.constants import MAX_MERGE_GROWTH, MetadataType
from ..generated.dtypes import GBT_V1_PARTS
from ..generated.structs import GbtHeaderV1, gbt_v1_layout, gbt_v1_size
from .gbt_index import build_index
from .merges import resolve_merges
from .strings import StringTable
from .values import DTYPES, INTEGERS, Value

SECTION = "TokenizerBin"
TOKENS, TYPES, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"
TEMPLATE, EOS = "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"
# Element types that a stub of the token types may have.
TYPE_STUBS = (MetadataType.INT32, MetadataType.UINT32)
MODEL, PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
BYTE_LEVEL_MODEL = "gpt2"  # vocabularies of this model are spelled in bytes
NORMAL = 1  # GGUF's token type of an ordinary token
NO_ID = -1
_BATCH = 1 << 16  # merges that are measured at a time

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int32]


class TokenizerTable:
    """The section, read; arrays are views of the section's bytes.

    Attributes:
        offsets: uint32 [vocab_size + 1], bytes.
        token_types: uint8 [vocab_size].
        vocab_blob: The tokens' bytes.
        triples: int32 [n_merges, 3]: left, right and merged token, by rank.
        chat_template: UTF-8 bytes.
    """

    def __init__(self, data: memoryview | bytes) -> None:
        """Finds the arrays.

        Raises:
            FormatError: The section is no GBT1, or its arrays do not fill it.
        """
        if len(data) < GbtHeaderV1.SIZE:
            raise BoundsError("the section is shorter than its header", code="tokenizer.header", section=SECTION)
        self.header = GbtHeaderV1.decode(data)
        if self.header.magic != GbtHeaderV1.MAGIC:
            raise FormatError("the magic is not GBT1", code="tokenizer.magic", section=SECTION)
        if gbt_v1_size(self.header) != len(data):
            raise BoundsError("the arrays do not fill the section", code="tokenizer.layout", section=SECTION)
        view = memoryview(data)
        parts = {name: view[at : at + length] for name, (at, length) in gbt_v1_layout(self.header).items()}
        self.offsets: npt.NDArray[np.uint32] = np.frombuffer(parts["offsets"], GBT_V1_PARTS["offsets"])
        self.token_types: Bytes = np.frombuffer(parts["token_types"], GBT_V1_PARTS["token_types"])
        self.vocab_blob = parts["vocab_blob"]
        self.triples: Ids = np.frombuffer(parts["triples"], GBT_V1_PARTS["triples"])
        self.chat_template = parts["chat_template"]

    def __len__(self) -> int:
        return self.header.vocab_size

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that every section has, by their names in the schema."""
        return {
            "offsets": self.offsets,
            "token_types": self.token_types,
            "vocab_blob": np.frombuffer(self.vocab_blob, np.uint8),
            "triples": self.triples,
            "chat_template": np.frombuffer(self.chat_template, np.uint8),
        }

    def token(self, token_id: int) -> bytes:
        """The bytes of a token.

        Raises:
            IndexError: There is no such token.
        """
        if not 0 <= token_id < len(self):
            raise IndexError(f"there are {len(self)} tokens, there is no token {token_id}")
        return bytes(self.vocab_blob[self.offsets[token_id] : self.offsets[token_id + 1]])

    @property
    def merges_limit(self) -> int:
        """Most bytes that the merges, spelled out, may take."""
        return MAX_MERGE_GROWTH * gbt_v1_size(self.header)

    def merges_size(self) -> int:
        """Bytes of the merges, spelled out with a space between left and right, where their ids are in the vocabulary.

        The offsets must rise.
        """
        size = len(self.triples)
        for first in range(0, len(self.triples), _BATCH):
            sides = self.triples[first : first + _BATCH][:, :2].astype(np.int64)
            sides = sides[((sides >= 0) & (sides < len(self))).all(axis=1)]
            size += int((self.offsets[sides + 1].astype(np.int64) - self.offsets[sides]).sum())
        return size

    def tokens(self) -> list[bytes]:
        """The bytes of every token, by id; together they are the blob.

        Raises:
            FormatError: The offsets do not cut the blob into tokens (`tokenizer.offsets`).
        """
        blob, offsets = bytes(self.vocab_blob), self.offsets
        if offsets[0] != 0 or offsets[-1] != len(blob) or (offsets[1:] < offsets[:-1]).any():
            raise FormatError(
                f"offsets do not rise from 0 to {len(blob)}", code="tokenizer.offsets", section=SECTION, field="offsets"
            )
        return [blob[start:end] for start, end in pairwise(offsets.tolist())]


@dataclass(frozen=True)
class BuiltTokenizer:
    """TokenizerBin's bytes, and what it holds of the metadata.

    Attributes:
        stubs: Keys whose values are rebuilt from it exactly.
    """

    data: bytes
    header: GbtHeaderV1
    stubs: frozenset[str]


@dataclass(frozen=True)
class Vocabulary:
    """What TokenizerBin holds of the metadata.

    Attributes:
        types: uint8 [vocab_size].
        triples: int32 [n_merges, 3].
        eos: The end-of-sequence token; -1: none.
        stubs: Keys whose values the section gives back exactly.
    """

    tokens: StringTable
    types: Bytes
    triples: Ids
    template: bytes
    eos: int
    stubs: frozenset[str]


def read_vocabulary(metadata: Mapping[str, Value], resolved: Ids | None = None) -> Vocabulary | None:
    """What a GGUF's metadata says of the tokens; None where it names none.

    Args:
        resolved: The triples of the merges, all of them, where they are known; then the metadata need not have these.

    Raises:
        FormatError: `gguf.value` where tokens, types, merges, template or end are not what they should be.
    """
    tokens = metadata.get(TOKENS)
    if tokens is None:
        return None
    for key in (MODEL, PRE):
        check_text(metadata.get(key))
    table = _strings(tokens)
    stubs = {TOKENS}
    types = _token_types(metadata.get(TYPES), len(table), stubs)
    triples = _triples(metadata.get(MERGES), table, stubs) if resolved is None else resolved
    if resolved is not None:
        stubs.add(MERGES)
    template = _template(metadata.get(TEMPLATE), stubs)
    return Vocabulary(table, types, triples, template, end_of(metadata.get(EOS), len(table)), frozenset(stubs))


def build_tokenizer(metadata: Mapping[str, Value]) -> BuiltTokenizer | None:
    """TokenizerBin from a GGUF's metadata; None where it names no tokens.

    Raises:
        FormatError: `gguf.value` where tokens, types or merges are not what they should be.
    """
    held = read_vocabulary(metadata)
    if held is None:
        return None
    table, types, triples, template = held.tokens, held.types, held.triples, held.template
    ends = np.cumsum(table.lengths, dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    _fits(offsets[-1], TOKENS)
    blob = np.frombuffer(gather(table.data, table.starts, table.lengths), np.uint8)
    model = metadata.get(MODEL)
    byte_level = model is not None and bytes(model.raw) == BYTE_LEVEL_MODEL.encode()
    flags, index = build_index(blob.data, offsets, types, triples, byte_level=byte_level)
    header = GbtHeaderV1(
        vocab_size=len(table),
        n_merges=len(triples),
        eos_token_id=held.eos,
        flags=flags,
        vocab_blob_bytes=len(blob),
        chat_template_bytes=len(template),
        n_special=len(index["special_tokens"]),
    )
    stubs = held.stubs
    if MERGES in stubs and int(_strings(metadata[MERGES]).lengths.sum()) > MAX_MERGE_GROWTH * gbt_v1_size(header):
        stubs -= {MERGES}  # they stay in the metadata as they are
    arrays = {
        **index,
        "offsets": offsets,
        "token_types": types,
        "vocab_blob": blob,
        "triples": triples,
        "chat_template": np.frombuffer(template, np.uint8),
    }
    return BuiltTokenizer(assemble(header, arrays), header, stubs)


def assemble(header: GbtHeaderV1, arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """The section's bytes from its arrays: those that the header announces, by their names in the schema."""
    data = bytearray(gbt_v1_size(header))
    data[: header.SIZE] = header.encode()
    for name, (start, length) in gbt_v1_layout(header).items():
        if length:
            data[start : start + length] = arrays[name].astype(GBT_V1_PARTS[name].base).tobytes()
    return bytes(data)


def gather(data: memoryview, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> bytes:
    """The runs of bytes at these places, one after the other."""
    octets = np.frombuffer(data, np.uint8)
    total = int(lengths.sum())
    # Byte k of the result comes from its run's start plus its place in the run.
    ends = np.cumsum(lengths)
    index = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    gathered: bytes = octets[index].tobytes()
    return gathered


def check_text(value: Value | None) -> None:
    """Makes sure that a value, where there is one, is text.

    Raises:
        FormatError: `gguf.value`.
    """
    if value is None:
        return
    if value.value_type != MetadataType.STRING:
        raise _fault(value.key, "it is no string")
    try:
        bytes(value.raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(value.key, "it is not UTF-8") from error


def _strings(value: Value) -> StringTable:
    if value.value_type != MetadataType.ARRAY or value.element_type != MetadataType.STRING:
        raise _fault(value.key, "it is no array of strings")
    return value.strings()


def _token_types(value: Value | None, vocab_size: int, stubs: set[str]) -> Bytes:
    if value is None:
        return np.full(vocab_size, NORMAL, np.uint8)
    if value.value_type != MetadataType.ARRAY or value.element_type not in INTEGERS:
        raise _fault(TYPES, "it is no array of integers")
    if value.count != vocab_size:
        raise _fault(TYPES, f"it has {value.count} entries, the vocabulary has {vocab_size}")
    types = np.frombuffer(value.raw, DTYPES[value.element_type])
    fits = (types >= 0) & (types <= 255)
    # Arrays of other integers stay in the metadata: a stub says no more than that they were 32-bit.
    if fits.all() and value.element_type in TYPE_STUBS:
        stubs.add(TYPES)
    return np.where(fits, types, 0).astype(np.uint8)


def _triples(value: Value | None, tokens: StringTable, stubs: set[str]) -> Ids:
    if value is None:
        return np.empty((0, 3), np.int32)
    merges = _strings(value)
    triples, exact = resolve_merges(tokens, merges)
    if exact:
        stubs.add(MERGES)
    return triples


def _template(value: Value | None, stubs: set[str]) -> bytes:
    if value is None:
        return b""
    if value.value_type != MetadataType.STRING:
        raise _fault(TEMPLATE, "it is no string")
    template = bytes(value.raw)
    try:
        template.decode("utf-8")
    except UnicodeDecodeError:
        return b""  # it cannot be rendered; the bytes stay in the metadata
    if b"\0" in template:
        return b""  # nobody writes such a one; the bytes stay in the metadata
    _fits(len(template), TEMPLATE)
    stubs.add(TEMPLATE)
    return template


def end_of(value: Value | None, vocab_size: int) -> int:
    """The end token that a value names; `NO_ID` where there is none, or it is not in the vocabulary.

    Raises:
        FormatError: `gguf.value`.
    """
    if value is None:
        return NO_ID
    token = value.python()
    if isinstance(token, bool) or not isinstance(token, int):
        raise _fault(EOS, "it is no integer")
    return token if 0 <= token < vocab_size else NO_ID


def _fits(size: int, key: str) -> None:
    if size >= 1 << 32:
        raise _fault(key, f"it takes {size} bytes, over 4 GiB")


def _fault(key: str, message: str) -> FormatError:
    return FormatError(message, code="gguf.value", section="metadata", field=key)
