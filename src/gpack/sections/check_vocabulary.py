"""Whether TokenizerBin and MetadataKvBin say the same of the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import FormatError
from ..generated.constants import MetadataType, SectionKind
from ..generated.structs import gbt_v1_layout
from . import metadata, tokenizer
from .check_table import CheckedTable
from .context import Context
from .lanes import Blob
from .merges import spell_themselves
from .strings import StringTable
from .tokenizer import TokenizerTable, gather
from .values import Value

_RULE = "tokenizer.metadata"
_BEFORE = {"index.heap_ref", "metadata.value", "metadata.stub", "metadata.size", "metadata.type"}
_TEXTS = (tokenizer.MODEL, tokenizer.PRE)
_KEYS = (tokenizer.TOKENS, tokenizer.TYPES, tokenizer.MERGES, tokenizer.TEMPLATE, tokenizer.EOS)


def check_vocabulary(context: Context, checked: CheckedTable) -> None:
    """Reads the vocabulary out of the metadata anew and compares it with what TokenizerBin holds.

    Args:
        checked: MetadataKvBin, sound, its rows and stubs checked.
    """
    rows = {checked.label(index): index for index in range(len(checked.rows))}
    broken = context.report.counts
    if any(rule.startswith("tokenizer.") or rule in _BEFORE for rule in broken):
        return  # reported where it is wrong
    if any(rows[key] in checked.broken for key in (*_KEYS, *_TEXTS) if key in rows):
        return  # likewise: how to read the row is not known
    held = context.tokenizer
    if held is None and (context.structure.find(SectionKind.TOKENIZER_BIN) or tokenizer.TOKENS not in rows):
        return
    context.report.check(_RULE)
    if tokenizer.TOKENS not in rows:
        checked.header_fault(_RULE, "num_rows", f"TokenizerBin is there, {tokenizer.TOKENS} is not.")
        return
    try:
        said = _said(context, checked, rows, held)
    except FormatError as error:
        if held is not None:
            field = error.field or tokenizer.TOKENS
            checked.fault(_RULE, rows[field], "value_offset", f"{field}: {error.message}, and TokenizerBin is there.")
        return
    if held is None:
        checked.fault(
            _RULE, rows[tokenizer.TOKENS], "flags", "The metadata has a vocabulary, TokenizerBin is not there."
        )
        return
    if said is not None:
        _check_stubs(checked, held, said, rows)
        _compare(context, held, said)


def _said(
    context: Context, checked: CheckedTable, rows: dict[str, int], held: TokenizerTable | None
) -> tokenizer.Vocabulary | None:
    """What the metadata says of the vocabulary.

    Raises:
        FormatError: `gguf.value`.
    """
    stubs = {key for key in _KEYS[:4] if key in rows and metadata.is_stub(checked.rows[rows[key]])}
    resolved = held is not None and tokenizer.MERGES in stubs and _resolves(context, held)
    if held is not None and stubs == rows.keys() & {*_KEYS[:4]} and (resolved or tokenizer.MERGES not in rows):
        return _given_back(checked, rows, held, stubs)
    wanted = [key for key in (*_KEYS, *_TEXTS) if key in rows and not (resolved and key == tokenizer.MERGES)]
    values = {key: _value(checked, rows[key], held) for key in wanted}
    return tokenizer.read_vocabulary(values, held.triples[:] if resolved and held is not None else None)


def _resolves(context: Context, held: TokenizerTable) -> bool:
    """Whether the texts of the section's merges surely resolve to them."""
    return spell_themselves(held.offsets, Blob(held.vocab_blob), held.triples, context.doubled)


def _given_back(
    checked: CheckedTable, rows: dict[str, int], held: TokenizerTable, stubs: set[str]
) -> tokenizer.Vocabulary:
    """The same where the metadata leaves it all to TokenizerBin: nothing of any size is read or worked out.

    Raises:
        FormatError: `gguf.value`, of what the metadata says itself.
    """
    for key in _TEXTS:
        if key in rows:
            tokenizer.check_text(_value(checked, rows[key], held))
    end = tokenizer.end_of(_value(checked, rows[tokenizer.EOS], held) if tokenizer.EOS in rows else None, len(held))
    template: Any = held.chat_template if tokenizer.TEMPLATE in stubs else b""
    types = held.token_types if tokenizer.TYPES in stubs else np.full(len(held), tokenizer.NORMAL, np.uint8)
    triples = held.triples if tokenizer.MERGES in stubs else np.empty((0, 3), np.int32)
    nothing = np.empty(0, np.int64)
    return tokenizer.Vocabulary(
        StringTable(memoryview(b""), nothing, nothing), types, triples, template, end, frozenset(stubs)
    )


def _tokens(held: TokenizerTable) -> StringTable:
    starts = held.offsets.astype(np.int64)
    return StringTable(held.vocab_blob[:], starts[:-1], np.diff(starts))


def _check_stubs(checked: CheckedTable, held: TokenizerTable, said: tokenizer.Vocabulary, rows: dict[str, int]) -> None:
    """What TokenizerBin gives back exactly is a stub, and nothing else."""
    stubs = said.stubs
    if held.merges_size() > held.merges_limit:
        stubs -= {tokenizer.MERGES}
    for key in sorted(rows.keys() & {*_KEYS[:4]}):
        stub = metadata.is_stub(checked.rows[rows[key]])
        if stub != (key in stubs):
            word = "is a stub, and TokenizerBin does not give it back" if stub else "is no stub, and could be one"
            checked.fault(_RULE, rows[key], "flags", f"{key} {word}.")


def _compare(context: Context, held: TokenizerTable, said: tokenizer.Vocabulary) -> None:
    fields = {
        "n_merges": (held.header.n_merges, len(said.triples)),
        "eos_token_id": (held.header.eos_token_id, said.eos),
        "chat_template_bytes": (held.header.chat_template_bytes, len(said.template)),
    }
    entry = context.entry(SectionKind.TOKENIZER_BIN)
    base = 0 if entry is None else entry.offset
    for field, (found, expected) in fields.items():
        if found != expected:
            at = base + held.header.OFFSETS[field]
            context.report.add(_RULE, tokenizer.SECTION, field, at, f"Found {found}, the metadata leads to {expected}.")
    places = gbt_v1_layout(held.header)

    def fault(name: str, index: int, size: int, found: object, wanted: object) -> None:
        message = f"Found {found}, the metadata leads to {wanted}."
        at = base + places[name][0] + index * size
        context.report.add(_RULE, tokenizer.SECTION, f"{name}[{index}]", at, message)

    types = held.token_types
    if types is not said.types:
        for index in np.flatnonzero(types != said.types).tolist():
            fault("token_types", index, types.itemsize, types[index], said.types[index])
    if held.triples is not said.triples and held.header.n_merges == len(said.triples):
        triples = held.triples[:]
        for index in np.flatnonzero((triples != said.triples).any(axis=1)).tolist():
            fault("triples", index, triples.strides[0], triples[index].tolist(), said.triples[index].tolist())


def _value(checked: CheckedTable, index: int, held: TokenizerTable | None) -> Value:
    """The value of a row; of a stub as TokenizerBin gives it back, without a copy where there is a way."""
    row, key = checked.rows[index], checked.label(index)
    if held is None or not metadata.is_stub(row):
        return Value(key, row.value_type, row.element_type, row.count, checked.bytes_of(row, "value"))
    kind = (key, row.value_type, row.element_type, row.count)
    if key == tokenizer.TOKENS:
        return Value(*kind, b"", _tokens(held))
    if key == tokenizer.MERGES:
        return Value(*kind, b"", _merges(held))
    if key == tokenizer.TYPES:
        signed = row.element_type == MetadataType.INT32
        return Value(*kind, held.token_types.astype("<i4" if signed else "<u4").tobytes())
    return Value(*kind, held.chat_template[:])


def _merges(held: TokenizerTable) -> StringTable:
    """The merges as text, left, a space and right; empty where a merge names no token."""
    size, triples, blob = len(held), held.triples[:], held.vocab_blob[:]
    inside = np.asarray(((triples >= 0) & (triples < size)).all(axis=1), np.bool_)
    ids = np.where(inside[:, None], triples, 0).astype(np.int64)[:, :2]
    # Three runs to a merge: the left token, a space that stands after the blob, the right token.
    starts = held.offsets.astype(np.int64)
    lengths = np.diff(starts) if size else np.zeros(1, np.int64)
    places = np.stack([starts[ids[:, 0]], np.full(len(ids), len(blob)), starts[ids[:, 1]]], axis=1)
    sizes = np.stack([lengths[ids[:, 0]], np.ones(len(ids), np.int64), lengths[ids[:, 1]]], axis=1)
    sizes[~inside] = 0
    text = gather(memoryview(bytes(blob) + b" "), places.reshape(-1), sizes.reshape(-1))
    whole = sizes.sum(axis=1)
    return StringTable(memoryview(text), np.cumsum(whole) - whole, whole)
