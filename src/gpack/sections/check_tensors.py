"""Checks of TensorIndexBin, of the single tensors, and of the dense tables and blobs."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from ..generated.constants import (
    ARENA_ALIGNMENT,
    CACHE_LINE,
    SECTION_NAMES,
    DenseFlags,
    GgmlType,
    SectionKind,
    TensorFlags,
)
from ..generated.rules import align_up, check_gpack_single_tensor_header_v1
from ..generated.structs import GPackSingleTensorHeaderV1, TensorIndexRowV1
from . import tensors
from .check_metadata import check_positions
from .check_table import CheckedTable, check_table
from .context import Context
from .placement import Shape, assign_placements, draft_start

SINGLES = (SectionKind.EMBED_BLOB, SectionKind.HEAD_BLOB, SectionKind.PLE_BLOB)
DENSE, NATIVE = SectionKind.DENSE_PACK_BLOB, SectionKind.NATIVE_DENSE_BLOB
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


# ---------------------------------------------------------------- single tensors


def check_singles(context: Context) -> None:
    """EmbedBlob, HeadBlob and PleBlob."""
    for kind in SINGLES:
        _check_single(context, kind)


def _check_single(context: Context, kind: int) -> None:
    entry = context.entry(kind)
    if entry is None:
        return
    name = SECTION_NAMES[kind]
    context.check_items(kind, 1)
    context.report.check("single.header")
    if entry.size < GPackSingleTensorHeaderV1.SIZE:
        message = f"It has {entry.size} bytes, the header {GPackSingleTensorHeaderV1.SIZE}."
        context.report.add("single.header", name, "", entry.offset, message)
        return
    from ..container.structure import read_at

    data = read_at(context.descriptor, entry.offset, GPackSingleTensorHeaderV1.SIZE, context.path)
    header = GPackSingleTensorHeaderV1.decode(data)
    context.report.check_record(GPackSingleTensorHeaderV1)
    broken = check_gpack_single_tensor_header_v1(header, section_size=entry.size)
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


# ---------------------------------------------------------------- dense tables


def check_dense(context: Context) -> None:
    """DenseIndexBin with its blob, NativeDenseIndexBin with its arena."""
    native = _load_table(context, SectionKind.NATIVE_DENSE_INDEX_BIN)
    dense = _load_table(context, SectionKind.DENSE_INDEX_BIN)
    if native is not None:
        _check_arena(context, native)
    if dense is not None:
        _check_pools(dense)
        _check_pack(context, dense)
        _check_dense_rows(context, dense, native)
    if SectionKind.TENSOR_INDEX_BIN in context.tables:
        for kind, table in ((NATIVE, native), (DENSE, dense)):
            if table is None:
                continue  # absent, so that the home is too, or reported as not sound
            known = set(map(table.label, range(len(table.rows))))
            for name in held_by(context, kind).keys() - known:
                missing_row(context, name)


def _load_table(context: Context, kind: int) -> CheckedTable | None:
    loaded = context.load(kind)
    if loaded is None:
        return None
    data, base = loaded
    checked = check_table(kind, data, base=base, report=context.report)
    if not checked.sound:
        return None
    context.tables[kind] = checked
    context.check_items(kind, len(checked.rows))
    return checked


def _check_arena(context: Context, native: CheckedTable) -> None:
    end, gaps = 0, []
    context.report.check("native.placement")
    for index, row in enumerate(native.rows):
        start = align_up(end, ARENA_ALIGNMENT)
        if row.offset != start:
            native.fault("native.placement", index, "offset", f"Found {row.offset}, expected {start}.")
        gaps.append((end, start))
        end = start + row.byte_size
        name = native.label(index)
        if name in context.tensors:
            expect_row(
                context,
                name,
                {
                    "home": NATIVE,
                    "ggml_type": row.ggml_type,
                    "n_dims": 2,
                    "offset": row.offset,
                    "byte_size": row.byte_size,
                    "dims": tensors.padded_dims((row.ne0, row.ne1)),
                    "home_row": index,
                },
            )
        elif SectionKind.TENSOR_INDEX_BIN in context.tables:
            native.fault("native.placement", index, "name_offset", f"TensorIndexBin has no {name!r}.")
    total = align_up(end, ARENA_ALIGNMENT)
    entry = context.entry(NATIVE)
    size = entry.size if entry else total
    if (native.header.native_dense_arena_bytes, size) != (total, total):
        message = (
            f"Found {native.header.native_dense_arena_bytes} and a blob of {size}, the last matrix ends at {total}."
        )
        native.header_fault("native.placement", "native_dense_arena_bytes", message)
    context.check_items(NATIVE, len(native.rows))
    _check_gaps(context, NATIVE, [*gaps, (end, total)])


def _check_pack(context: Context, dense: CheckedTable) -> None:
    end, gaps, count = 0, [], 0
    context.report.check("dense.placement")
    for index, row in enumerate(dense.rows):
        if row.flags & DenseFlags.SKIP_IN_NATIVE:
            continue
        count += 1
        start = align_up(end, CACHE_LINE)
        if row.offset != start:
            dense.fault("dense.placement", index, "offset", f"Found {row.offset}, expected {start}.")
        gaps.append((end, start))
        end = start + row.byte_size
    entry = context.entry(DENSE)
    if entry is not None and entry.size != end:
        message = f"DensePackBlob has {entry.size} bytes, the last tensor ends at {end}."
        context.report.add("dense.placement", SECTION_NAMES[DENSE], "", entry.offset, message)
    context.check_items(DENSE, count)
    _check_gaps(context, DENSE, gaps)


def _check_pools(dense: CheckedTable) -> None:
    dense.report.check("dense.pool_layout")
    whole = compacted = 0
    for index, row in enumerate(dense.rows):
        start = align_up(whole, ARENA_ALIGNMENT)
        if row.pool_offset != start:
            dense.fault("dense.pool_layout", index, "pool_offset", f"Found {row.pool_offset}, expected {start}.")
        whole = start + row.pool_bytes
        if row.flags & DenseFlags.SKIP_IN_NATIVE:
            continue
        start = align_up(compacted, ARENA_ALIGNMENT)
        if row.compacted_offset != start:
            message = f"Found {row.compacted_offset}, expected {start}."
            dense.fault("dense.pool_layout", index, "compacted_offset", message)
        compacted = start + row.pool_bytes
    totals = (align_up(whole, ARENA_ALIGNMENT), align_up(compacted, ARENA_ALIGNMENT))
    header = dense.header
    if (header.dense_pool_bytes, header.dense_compacted_pool_bytes) != totals:
        found = f"{header.dense_pool_bytes} and {header.dense_compacted_pool_bytes}"
        message = f"Found {found}, expected {totals[0]} and {totals[1]}."
        dense.header_fault("dense.pool_layout", "dense_pool_bytes", message)


def _check_dense_rows(context: Context, dense: CheckedTable, native: CheckedTable | None) -> None:
    """The rows are the dense tensors, and those that are skipped are the ones of the arena."""
    context.report.check("dense.rows")
    arena = set(map(native.label, range(len(native.rows)))) if native else set()
    readable = native is not None or context.entry(SectionKind.NATIVE_DENSE_INDEX_BIN) is None
    for index, row in enumerate(dense.rows):
        name = dense.label(index)
        skipped = bool(row.flags & DenseFlags.SKIP_IN_NATIVE)
        if readable and skipped != (name in arena):
            where = "is" if name in arena else "is not"
            dense.fault(
                "dense.rows", index, "flags", f"{name} {where} in the native arena, SKIP_IN_NATIVE is {skipped}."
            )
        tensor = context.tensors.get(name)
        if tensor is None:
            if SectionKind.TENSOR_INDEX_BIN in context.tables:
                dense.fault("dense.rows", index, "name_offset", f"TensorIndexBin has no {name!r}.")
            continue
        same = (tensor.ggml_type, tensor.n_dims, tensor.dims) == (row.ggml_type, row.n_dims, row.dims)
        if tensor.home not in (DENSE, NATIVE) or not same:
            dense.fault("dense.rows", index, "dims", f"{name} has another type, shape or home in TensorIndexBin.")
        elif bool(tensor.flags & TensorFlags.CODE_PLANES) != bool(row.flags & DenseFlags.CODE_PLANES):
            dense.fault("dense.rows", index, "flags", f"{name} is made of code planes in one of both tables only.")
        elif not skipped:
            expect_row(context, name, {"offset": row.offset, "byte_size": row.byte_size, "home_row": index})
    listed = set(map(dense.label, range(len(dense.rows))))
    for name in sorted(held_by(context, NATIVE).keys() - listed):
        message = f"{name} is in the native arena and has no row."
        context.report.add("dense.rows", SECTION_NAMES[SectionKind.DENSE_INDEX_BIN], "", dense.base, message)


def _check_gaps(context: Context, kind: int, gaps: Iterable[tuple[int, int]]) -> None:
    """Gaps of a blob, as (start, end) from the section's start, are zero."""
    entry = context.entry(kind)
    if entry is None:
        return
    context.report.check("blob.padding")
    for start, end in gaps:
        if start < end <= entry.size:
            context.check_zero("blob.padding", SECTION_NAMES[kind], entry.offset + start, entry.offset + end)
