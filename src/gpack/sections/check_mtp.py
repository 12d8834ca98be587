"""Checks of MtpBlob: the draft layers, which have a table and bytes of their own."""

from __future__ import annotations

from ..generated.constants import CACHE_LINE, PAGE, ExpertRole, SectionKind
from ..generated.rules import align_up
from ..generated.structs import MtpRowV1
from . import mtp
from .check_experts import check_padding
from .check_table import CheckedTable, check_table
from .check_tensors import expect_row, held_by, missing_row
from .context import Context
from .placement import layer_of

MTP = SectionKind.MTP_BLOB


def check_mtp(context: Context) -> None:
    """MtpBlob: rows, the canonical order of its bytes, and agreement with TensorIndexBin."""
    loaded = context.load(MTP)
    if loaded is None:
        return
    data, base = loaded
    checked = check_table(MTP, data, base=base, report=context.report)
    context.check_items(MTP, 1)
    header = checked.header
    if not checked.sound or header.ofs_data + header.len_data > len(data):
        return
    context.tables[MTP] = checked
    context.check_zero("blob.padding", mtp.SECTION, base + header.ofs_heap + header.len_heap, base + header.ofs_data)
    context.report.check("blob.padding", *(("mtp.bounds", "mtp.rows") if checked.rows else ()))
    _check_mtp_bounds(checked)
    if all(row.role in ExpertRole.NAMES for row in checked.rows):
        _check_mtp_layout(context, checked)
    _check_mtp_rows(context, checked)


def _slices(row: MtpRowV1) -> tuple[int, int, int]:
    """Number of runs, bytes of each, and distance between them."""
    count = row.dims[2] if row.role else 1
    return count, row.byte_size // max(count, 1), row.stride


def _check_mtp_bounds(checked: CheckedTable) -> None:
    for index, row in enumerate(checked.rows):
        count, length, stride = _slices(row)
        end = row.offset + max(count - 1, 0) * stride + length
        if end > checked.header.len_data:
            message = f"Bytes {row.offset} to {end}, the tensors have {checked.header.len_data}."
            checked.fault("mtp.bounds", index, "offset", message)


def _check_mtp_layout(context: Context, checked: CheckedTable) -> None:
    header, report = checked.header, context.report
    report.check("mtp.layout")
    data_at = checked.base + header.ofs_data
    end = 0
    expert_rows: dict[int, list[int]] = {}
    before = len(report.counts)
    for index, row in enumerate(checked.rows):
        if row.role:
            expert_rows.setdefault(layer_of(checked.label(index)) or 0, []).append(index)
            continue
        start = align_up(end, CACHE_LINE)
        if row.offset != start:
            checked.fault("mtp.layout", index, "offset", f"Found {row.offset}, expected {start}.")
        elif start <= header.len_data:
            context.check_zero("blob.padding", mtp.SECTION, data_at + end, data_at + start)
        end = start + row.byte_size
    if expert_rows:
        start = align_up(end, PAGE)
        if start <= header.len_data:
            context.check_zero("blob.padding", mtp.SECTION, data_at + end, data_at + start)
        end = start
    for _, indices in sorted(expert_rows.items()):
        end = _check_mtp_layer(context, checked, indices, end, data_at)
    if end != header.len_data and len(report.counts) == before:
        checked.header_fault("mtp.layout", "len_data", f"The last tensor ends at {end} of {header.len_data}.")


def _check_mtp_layer(context: Context, checked: CheckedTable, indices: list[int], end: int, data_at: int) -> int:
    """One layer of draft experts, [gate | up | down] to a stride; returns where it ends."""
    order = {ExpertRole.GATE: 0, ExpertRole.GATE_UP: 0, ExpertRole.UP: 1, ExpertRole.DOWN: 2}
    at, count, used = end, 0, 0
    for index in sorted(indices, key=lambda index: order.get(checked.rows[index].role, 3)):
        row = checked.rows[index]
        count, length, _ = _slices(row)
        if row.offset != at:
            checked.fault("mtp.layout", index, "offset", f"Found {row.offset}, expected {at}.")
        at, used = at + length, used + length
    stride = align_up(used, PAGE)
    for index in indices:
        if checked.rows[index].stride != stride:
            checked.fault("mtp.layout", index, "stride", f"Found {checked.rows[index].stride}, expected {stride}.")
    if end + count * stride <= checked.header.len_data:
        check_padding(context, "blob.padding", MTP, data_at + end, count, used, stride)
    return end + count * stride


def _check_mtp_rows(context: Context, checked: CheckedTable) -> None:
    if SectionKind.TENSOR_INDEX_BIN not in context.tables:
        return
    owned = held_by(context, MTP)
    for index, row in enumerate(checked.rows):
        name = checked.label(index)
        if name not in owned:
            checked.fault("mtp.rows", index, "name_offset", f"TensorIndexBin has no {name!r} in MtpBlob.")
            continue
        expect_row(
            context,
            name,
            {
                "ggml_type": row.ggml_type,
                "n_dims": row.n_dims,
                "dims": row.dims,
                "role": row.role,
                "home_row": index,
                "byte_size": row.byte_size,
                "offset": checked.header.ofs_data + row.offset,
            },
        )
    known = set(map(checked.label, range(len(checked.rows))))
    for name in sorted(owned.keys() - known):
        missing_row(context, name)
