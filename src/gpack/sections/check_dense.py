"""Checks of DenseIndexBin with its blob, and of NativeDenseIndexBin with its arena."""

from __future__ import annotations

from collections.abc import Iterable

from ..generated.constants import ARENA_ALIGNMENT, CACHE_LINE, SECTION_NAMES, DenseFlags, SectionKind, TensorFlags
from ..generated.rules import align_up
from . import tensors
from .check_table import CheckedTable, check_table
from .check_tensors import expect_row, held_by, missing_row
from .context import Context

DENSE, NATIVE = SectionKind.DENSE_PACK_BLOB, SectionKind.NATIVE_DENSE_BLOB


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
