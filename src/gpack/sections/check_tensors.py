"""Checks of TensorIndexBin, and whether every tensor is where the placement rules put it."""

from __future__ import annotations

from math import prod
from typing import Any

from ..generated.constants import SECTION_NAMES, GgmlType, SectionKind, TensorFlags
from ..generated.structs import TensorIndexRowV1
from .check_metadata import check_positions
from .check_table import CheckedTable, check_table
from .context import Context
from .placement import Shape, assign_placements, draft_start

EXPERTS, MTP = SectionKind.EXPERT_BLOBS, SectionKind.MTP_BLOB


def check_tensor_index(context: Context) -> None:
    """TensorIndexBin by itself, and whether every tensor is where the placement rules put it."""
    kind = SectionKind.TENSOR_INDEX_BIN
    loaded = context.load(kind)
    if loaded is None:
        return
    data, base = loaded
    checked = check_table(kind, data, base=base, report=context.report)
    if not checked.sound:
        return
    context.tables[kind] = checked
    context.check_items(kind, len(checked.rows))
    check_positions(checked, "tensor.position")
    context.report.check("tensor.totals")
    for index, row in enumerate(checked.rows):
        context.tensors[checked.label(index)] = row
        context.tensor_rows[checked.label(index)] = index
    header = checked.header
    totals = (sum(prod(row.dims) for row in checked.rows), sum(row.byte_size for row in checked.rows))
    if (header.parameter_count, header.tensor_bytes) != totals:
        message = (
            f"Found {header.parameter_count} and {header.tensor_bytes}, the rows add up to {totals[0]} and {totals[1]}."
        )
        checked.header_fault("tensor.totals", "parameter_count", message)
    _check_placements(context, checked)


def _check_placements(context: Context, checked: CheckedTable) -> None:
    shapes = [
        Shape(checked.label(index), row.ggml_type, row.dims[: row.n_dims])
        for index, row in enumerate(checked.rows)
        if row.ggml_type in GgmlType.NAMES and row.n_dims <= len(row.dims)
    ]
    # Without the metadata nobody knows which layers are drafts.
    readable = SectionKind.METADATA_KV_BIN in context.tables
    placements = assign_placements(shapes, draft_start(context.metadata.get)) if readable else {}
    if placements:
        context.report.check("tensor.home_rule")
    for index, row in enumerate(checked.rows):
        _check_presence(context, checked, index, row)
        placement = placements.get(checked.label(index))
        if placement is not None and (row.home, row.role) != (placement.section, placement.role):
            found, wanted = _described(row.home, row.role), _described(placement.section, placement.role)
            message = f"{checked.label(index)} is in {found}, and belongs into {wanted}."
            checked.fault("tensor.home_rule", index, "home", message)


def _described(section: int, role: int) -> str:
    name = SECTION_NAMES.get(section, f"section kind {section}")
    return f"{name} (role {role})" if role else name


def _check_presence(context: Context, checked: CheckedTable, index: int, row: TensorIndexRowV1) -> None:
    context.report.check("tensor.home_present")
    if row.flags & TensorFlags.EXTERNAL:
        return
    context.report.check("tensor.bounds")
    entry = context.structure.find(row.home)
    name = SECTION_NAMES.get(row.home, str(row.home))
    if entry is None:
        checked.fault("tensor.home_present", index, "home", f"{checked.label(index)}: {name} is absent.")
        return
    if row.offset > entry.size or row.byte_size > entry.size - row.offset:
        message = f"Bytes {row.offset} to {row.offset + row.byte_size}, {name} has {entry.size}."
        checked.fault("tensor.bounds", index, "offset", message)


def held_by(context: Context, *kinds: int) -> dict[str, TensorIndexRowV1]:
    """The tensors whose home is one of these sections, by name."""
    return {name: row for name, row in context.tensors.items() if row.home in kinds}


def expect_row(context: Context, name: str, expected: dict[str, Any]) -> None:
    """Compares a tensor's row in TensorIndexBin with what its home's own table says."""
    checked = context.tables[SectionKind.TENSOR_INDEX_BIN]
    context.report.check("tensor.home_row")
    row = context.tensors[name]
    for field, value in expected.items():
        found = getattr(row, field)
        if found != value:
            message = f"{name}: {field} is {found}, and {value} in the home's own table."
            checked.fault("tensor.home_row", context.tensor_rows[name], field, message)


def missing_row(context: Context, name: str) -> None:
    """Records that a tensor's home has no row for it."""
    checked = context.tables[SectionKind.TENSOR_INDEX_BIN]
    checked.fault("tensor.home_row", context.tensor_rows[name], "home_row", f"{name} is not in the home's own table.")
