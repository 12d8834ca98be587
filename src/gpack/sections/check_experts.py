"""Checks of ExpertLayoutBin, with its table of shards, and of ExpertBlobs."""

from __future__ import annotations

from typing import Any

from ..container.pieces import Pieces
from ..generated.constants import (
    MAX_ROWS,
    PAGE,
    SECTION_NAMES,
    ExpertFlags,
    ExpertRole,
    SectionKind,
    ShardFlags,
    TensorFlags,
)
from ..generated.sections import SECTIONS
from ..generated.structs import ExpertLayoutRowV1, ExpertShardRowV1
from . import experts
from .assets import is_file_name
from .check_table import CheckedTable, bytes_inside, check_heap, check_table
from .check_tensors import expect_row, held_by, missing_row
from .context import Context

LAYOUT, BLOBS = SectionKind.EXPERT_LAYOUT_BIN, SectionKind.EXPERT_BLOBS
_SHARDS = SECTIONS[LAYOUT].tables[1]
COLUMNS = ("gate", "up", "down")


def check_experts(context: Context) -> None:
    """ExpertLayoutBin: its layers, its shards, and the blobs or ranges that they describe."""
    loaded = context.load(LAYOUT)
    if loaded is None:
        if context.structure.find(LAYOUT) is None:
            for name in held_by(context, BLOBS):
                missing_row(context, name)
        return
    data, base = loaded
    checked = check_table(LAYOUT, data, base=base, report=context.report)
    if not checked.sound:
        return
    context.tables[LAYOUT] = checked
    context.check_items(LAYOUT, len(checked.rows))
    shards = checked.shards = _check_shards(context, checked, data)
    for index in range(1, len(checked.rows)):
        if checked.rows[index].layer <= checked.rows[index - 1].layer:
            message = f"Layer {checked.rows[index].layer} stands after layer {checked.rows[index - 1].layer}."
            checked.fault("index.sorted", index, "layer", message)
    context.report.check("expert.total", *(("index.sorted",) if checked.rows else ()))
    total = sum(row.n_expert * _expert_bytes(row) for row in checked.rows)
    if checked.header.expert_bytes != total:
        checked.header_fault("expert.total", "expert_bytes", f"Found {checked.header.expert_bytes}, expected {total}.")
    _check_mode(context, checked)
    _check_blobs(context, checked)
    _check_ranges(checked, shards)
    _check_rows(context, checked)


def _expert_bytes(row: ExpertLayoutRowV1) -> int:
    return row.gate_bytes + row.up_bytes + row.down_bytes


def _external(row: ExpertLayoutRowV1) -> bool:
    return bool(row.flags & ExpertFlags.EXTERNAL)


def _check_shards(context: Context, checked: CheckedTable, data: memoryview | Pieces) -> list[ExpertShardRowV1]:
    header = checked.header
    size, count = header.shard_row_size, header.num_shards
    end = header.ofs_shards + count * size
    if count > MAX_ROWS or size < ExpertShardRowV1.SIZE or end > min(header.ofs_heap, len(data)):
        return []  # reported as expert.shard_table
    rows = data[header.ofs_shards : end]
    shards = [ExpertShardRowV1.decode(rows, index * size) for index in range(count)]
    check_heap(checked, shards, "shards", header.ofs_shards, size, end=True)
    if bytes_inside(shards, header.len_heap) > header.len_heap:
        return []  # reported as index.heap_order; copying what is shared could take any memory
    if shards:
        context.report.check("expert.shard_path", "expert.uncovered")
        context.report.check_record(ExpertShardRowV1)
    for index, shard in enumerate(shards):
        base = checked.base + header.ofs_shards + index * size
        prefix = f"shards[{index}]."
        context.report.add_broken(_SHARDS.check(shard), shard, experts.SECTION, base=base, prefix=prefix)
        name = checked.bytes_of(shard, "name").decode("utf-8", "backslashreplace")
        if name and not is_file_name(name):
            context.report.add("expert.shard_path", experts.SECTION, f"{prefix}name_offset", base, f"Found {name!r}.")
        if not shard.flags & ShardFlags.HAS_SHA256:
            message = f"{name}: {shard.file_size - shard.header_size} bytes."
            context.report.add("expert.uncovered", experts.SECTION, f"{prefix}sha256", base, message)
    return shards


def _check_mode(context: Context, checked: CheckedTable) -> None:
    embedded = context.structure.find(BLOBS) is not None
    if checked.rows:
        context.report.check("expert.mode")
    for index, row in enumerate(checked.rows):
        if _external(row) == embedded:
            blobs, layer = ("present", "external") if embedded else ("absent", "embedded")
            message = f"ExpertBlobs is {blobs}, and the layer is {layer}."
            checked.fault("expert.mode", index, "flags", message)


def _check_blobs(context: Context, checked: CheckedTable) -> None:
    entry = context.entry(BLOBS)
    if entry is None:
        return
    context.report.check("expert.blob_layout")
    end, sound = 0, True
    for index, row in enumerate(checked.rows):
        if row.offset != end:
            checked.fault("expert.blob_layout", index, "offset", f"Found {row.offset}, expected {end}.")
            sound = False
        end += row.n_expert * row.stride
    if end != entry.size:
        message = f"The last layer ends at {end}, the blob has {entry.size}."
        context.report.add("expert.blob_layout", SECTION_NAMES[BLOBS], "", entry.offset, message)
        sound = False
    context.check_items(BLOBS, sum(row.n_expert for row in checked.rows))
    if sound:
        for row in checked.rows:
            check_padding(
                context,
                "expert.padding",
                BLOBS,
                entry.offset + row.offset,
                row.n_expert,
                _expert_bytes(row),
                row.stride,
            )


def check_padding(context: Context, rule: str, kind: int, start: int, count: int, used: int, stride: int) -> None:
    """Zeros between the used bytes and the stride of each expert; one report per layer is enough."""
    context.report.check(rule)
    before = context.report.counts.get(rule, 0)
    # Odd strides are reported by themselves; by page, a hostile count costs no more than the bytes it spans.
    looked_at = context.thorough and stride > used and stride % PAGE == 0
    for expert in range(count if looked_at else 0):
        at = start + expert * stride
        context.check_zero(rule, SECTION_NAMES[kind], at + used, at + stride)
        if context.report.counts.get(rule, 0) > before:
            return


def _check_ranges(checked: CheckedTable, shards: list[ExpertShardRowV1]) -> None:
    for index, row in enumerate(checked.rows):
        for name in COLUMNS if _external(row) else ():
            shard, offset, stride = (getattr(row, f"{name}_{field}") for field in ("shard", "offset", "stride"))
            length = getattr(row, f"{name}_bytes")
            if length == 0:
                continue
            checked.report.check("expert.shard_ref")
            if shard >= len(shards):
                checked.fault("expert.shard_ref", index, f"{name}_shard", f"Found {shard} of {len(shards)} shards.")
                continue
            end = offset + (row.n_expert - 1) * stride + length
            if offset < shards[shard].header_size or end > shards[shard].file_size:
                message = f"Bytes {offset} to {end}, the shard has {shards[shard].file_size}."
                checked.fault("expert.shard_ref", index, f"{name}_offset", message)


def _check_rows(context: Context, checked: CheckedTable) -> None:
    """Every matrix of a layer is a tensor of TensorIndexBin, and the other way round."""
    if SectionKind.TENSOR_INDEX_BIN not in context.tables:
        return
    if checked.rows:
        context.report.check("expert.rows")
    expected: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(checked.rows):
        for suffix, fields in _matrices(row):
            expected[f"blk.{row.layer}.{suffix}"] = {"home": BLOBS, "home_row": index, **fields}
    owned = held_by(context, BLOBS)
    for name in sorted(owned.keys() - expected.keys()):
        missing_row(context, name)
    for name, fields in expected.items():
        if name in context.tensors:
            expect_row(context, name, fields)
        else:
            checked.fault("expert.rows", fields["home_row"], "layer", f"TensorIndexBin has no {name!r}.")
    for index, row in enumerate(checked.rows):
        if row.flags & ExpertFlags.FUSED_GATE_UP:
            _check_halves(checked, index, row)


def _check_halves(checked: CheckedTable, index: int, row: ExpertLayoutRowV1) -> None:
    """Gate and up of a fused tensor are the first and the second half of each of its slices."""
    expected = {"type": row.gate_type, "ne0": row.gate_ne0, "ne1": row.gate_ne1}
    if _external(row):
        both = row.gate_bytes + row.up_bytes
        expected |= {"shard": row.gate_shard, "offset": row.gate_offset + row.gate_bytes, "stride": row.gate_stride}
        if row.gate_stride != both:
            checked.fault("expert.rows", index, "gate_stride", f"Found {row.gate_stride}, expected {both}.")
    for column, value in expected.items():
        found = getattr(row, f"up_{column}")
        if found != value:
            checked.fault("expert.rows", index, f"up_{column}", f"Found {found}, the other half has {value}.")


def _matrices(row: ExpertLayoutRowV1) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a layer: the end of their names, and what TensorIndexBin should say of them."""
    made = []
    at = row.offset
    names = ["up", "down"] if row.flags & ExpertFlags.NO_GATE else list(COLUMNS)
    if row.flags & ExpertFlags.FUSED_GATE_UP:
        names = ["gate_up", "down"]
    for name in names:
        first = "gate" if name == "gate_up" else name
        ne0, ne1 = getattr(row, f"{first}_ne0"), getattr(row, f"{first}_ne1")
        length = getattr(row, f"{first}_bytes")
        if name == "gate_up":
            ne1, length = ne1 + row.up_ne1, length + row.up_bytes
        role = getattr(ExpertRole, name.upper())
        fields: dict[str, Any] = {
            "role": role,
            "ggml_type": getattr(row, f"{first}_type"),
            "n_dims": 3,
            "dims": (ne0, ne1, row.n_expert, 1, 1, 1, 1, 1),
            "byte_size": length * row.n_expert,
            "offset": getattr(row, f"{first}_offset") if _external(row) else at,
            "flags": TensorFlags.EXTERNAL if _external(row) else 0,
        }
        made.append((f"ffn_{name}_exps.weight", fields))
        at += length
    return made
