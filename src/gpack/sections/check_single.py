"""Checks of EmbedBlob, HeadBlob and PleBlob, which hold one tensor each."""

from __future__ import annotations

from typing import Any

from ..container.structure import read_at
from ..generated.constants import SectionKind
from ..generated.sections import SECTIONS
from ..generated.structs import GPackSingleTensorHeaderV1
from . import tensors
from .check_tensors import expect_row, held_by
from .context import Context

SINGLES = tuple(kind for kind, section in SECTIONS.items() if section.shape == "single")


def check_singles(context: Context) -> None:
    """EmbedBlob, HeadBlob and PleBlob."""
    for kind in SINGLES:
        _check_single(context, kind)


def _check_single(context: Context, kind: int) -> None:
    entry = context.entry(kind)
    if entry is None:
        return
    known = SECTIONS[kind]
    name, record = known.name, GPackSingleTensorHeaderV1
    check: Any = known.check
    context.check_items(kind, 1)
    context.report.check("single.header")
    if entry.size < record.SIZE:
        message = f"It has {entry.size} bytes, the header {record.SIZE}."
        context.report.add("single.header", name, "", entry.offset, message)
        return
    data = read_at(context.descriptor, entry.offset, record.SIZE, context.path)
    header = record.decode(data)
    context.report.check_record(record)
    broken = check(header, section_size=entry.size)
    context.report.add_broken(broken, header, name, base=entry.offset, section_size=entry.size)
    if SectionKind.TENSOR_INDEX_BIN not in context.tables:
        return
    context.report.check("single.orphan")
    owners = held_by(context, kind)
    if len(owners) != 1:
        message = f"{len(owners)} tensors of TensorIndexBin have it as their home."
        context.report.add("single.orphan", name, "", entry.offset, message)
    for owner in owners:
        dims = tensors.padded_dims((header.ne0, header.ne1))
        expect_row(
            context,
            owner,
            {
                "ggml_type": header.ggml_type,
                "n_dims": 2,
                "dims": dims,
                "offset": header.data_offset,
                "byte_size": header.byte_size,
                "home_row": 0,
            },
        )
