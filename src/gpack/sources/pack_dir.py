"""A pack directory beside a GGUF: `index.txt` and `dense.bin`, `native_experts.txt` and `experts.bin`, `tokenizer/`.

The directory decides how dense tensors are stored; names and shapes are the GGUF's, and what contradicts it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

import numpy as np

from ..container.payload import Computed, Range
from ..container.place import Place
from ..container.strict_json import shorten
from ..errors import FormatError, PathError
from ..generated.constants import DenseKind, ExpertRole, GgmlType, SectionKind
from ..sections.dense import CodePlanes, DenseColumns, is_native
from ..sections.placement import Placement, Shape, assign_placements, draft_start
from .composite import CompositeSource
from .files import SourceFile
from .gguf import TensorInfo
from .pack_index import CODE, ExpertRow, IndexRow, check_end, read_experts, read_index
from .pack_tokenizer import read_assets

INDEX, DENSE, EXPERTS, EXPERT_TABLE, TOKENIZER = (
    "index.txt",
    "dense.bin",
    "experts.bin",
    "native_experts.txt",
    "tokenizer",
)
_ROLES = {ExpertRole.GATE: "gate", ExpertRole.UP: "up", ExpertRole.DOWN: "down"}


def add_pack_dir(source: CompositeSource, folder: Path, *, external_experts: bool) -> None:
    """Adds what a pack directory says to a GGUF.

    Args:
        external_experts: The experts stay in the GGUF, so `experts.bin` is only compared with it.

    Raises:
        FormatError: `packdir.table`: a table contradicts itself, its files or the GGUF, with line and column.
        PathError: The directory or a file of it is missing or unreadable.
    """
    if not folder.is_dir():
        raise PathError(
            "there is no such directory", code="io.not_found", path=folder, hint="--pack-dir names a folder"
        )
    index = source.open(folder / INDEX)
    placements = assign_placements(
        (Shape(tensor.name, tensor.ggml_type, tensor.dims) for tensor in source.base.tensors), draft_start(source.get)
    )
    dense: SourceFile | None = source.open(folder / DENSE) if _exists(folder / DENSE) else None
    known = {tensor.name: tensor for tensor in source.base.tensors}
    rows = read_index(index, dense.size if dense else None)
    for row in rows:
        tensor = known.get(row.name)
        row.line.check("name", holds=tensor is not None, message=f"the GGUF has no tensor {shorten(row.name)}")
        if tensor is not None:
            _add_row(source, row, tensor, placements[row.name], dense, folder)
    if dense is not None:
        check_end(dense, rows)
    if _exists(folder / EXPERT_TABLE):
        _add_experts(source, folder, known, external_experts=external_experts)
    elif _exists(folder / EXPERTS):
        raise FormatError(f"there is no {EXPERT_TABLE}, which tells the types in it", code=CODE, path=folder / EXPERTS)
    source.assets |= read_assets(source.open, folder / TOKENIZER)


# ---------------------------------------------------------------- dense tensors


def _add_row(
    source: CompositeSource,
    row: IndexRow,
    tensor: TensorInfo,
    placement: Placement,
    dense: SourceFile | None,
    folder: Path,
) -> None:
    line = row.line
    ne0, ne1 = row.dims
    own = tensor.dims or (1,)
    line.check("ne0", holds=ne0 == own[0], message=f"{ne0}, the GGUF's {row.name} has rows of {own[0]}")
    line.check("ne1", holds=ne1 == prod(own[1:]), message=f"{ne1}, the GGUF's {row.name} has {prod(own[1:])} rows")
    if row.skipped:
        named = GgmlType.NAMES[tensor.ggml_type]
        holds = is_native(tensor.ggml_type, len(tensor.dims)) or GgmlType.BLOCK[tensor.ggml_type] > 1
        line.check("src_bytes", holds=holds, message=f"it is served natively, and the GGUF holds it as {named}")
        if placement.section == SectionKind.NATIVE_DENSE_BLOB and row.act_kind:
            source.dense_columns[row.name] = DenseColumns(DenseKind.VERBATIM, tensor.ggml_type, row.act_kind)
        return
    line.check("name", holds=not placement.role, message="routed experts are not dense tensors")
    if dense is None:
        raise PathError(f"line {line.number} of {INDEX} needs it", code="io.not_found", path=folder / DENSE)
    ggml_type, held, columns = dense_tensor(row, dense)
    if columns.planes is not None:
        movable = placement.section in (SectionKind.DENSE_PACK_BLOB, SectionKind.NATIVE_DENSE_BLOB)
        line.check("code_bits", holds=movable, message=f"{row.name} cannot be stored as code planes")
    source.put(row.name, ggml_type, tensor.dims, held, dense.path, row.src_off)
    # A tensor whose section has a table of its own keeps the columns of that.
    stays_dense = placement.section in (SectionKind.DENSE_PACK_BLOB, SectionKind.NATIVE_DENSE_BLOB)
    if stays_dense:
        source.dense_columns[row.name] = columns


def dense_tensor(row: IndexRow, dense: SourceFile) -> tuple[int, Range, DenseColumns]:
    """Type, bytes and columns of a row that has bytes in `dense.bin`.

    Raises:
        FormatError: Kind, shape and sizes contradict one another.
    """
    line, elements = row.line, row.elements
    whole = Place(dense.path, dense.fileno(), row.src_off, row.src_bytes)
    if row.code_bits:
        scale = 2 if row.scales_fp16 else 1
        least = row.codes_bytes + scale * (row.scales_bytes + row.offset_bytes)
        line.check("dst_bytes", holds=row.dst_bytes >= least, message=f"{row.dst_bytes}, the planes take {least}")
        planes = CodePlanes(
            row.dst_bytes,
            row.code_bits,
            row.code_bias,
            row.group_elems,
            row.codebook,
            row.codes_bytes,
            row.scales_bytes,
            row.offset_bytes,
            row.scales_fp16,
        )
        return GgmlType.F32, whole, DenseColumns(DenseKind.VERBATIM, GgmlType.F32, row.act_kind, planes)
    narrow = {
        DenseKind.BF16_TO_F32: GgmlType.BF16,
        DenseKind.BF16: GgmlType.BF16,
        DenseKind.F16_TO_F32: GgmlType.F16,
        DenseKind.F16: GgmlType.F16,
    }
    widened = row.kind in (DenseKind.BF16_TO_F32, DenseKind.F16_TO_F32)
    ggml_type = narrow.get(row.kind, GgmlType.F32)
    if row.kind == DenseKind.VERBATIM and row.src_bytes == 2 * elements:
        ggml_type = GgmlType.F16
    sizes = {elements * GgmlType.BYTES[ggml_type]} | ({4 * elements} if widened else set())
    wanted = " or ".join(map(str, sorted(sizes)))
    line.check("src_bytes", holds=row.src_bytes in sizes, message=f"{row.src_bytes} for a shape that takes {wanted}")
    pool = {4 * elements} if widened else {row.src_bytes}
    line.check("dst_bytes", holds=row.dst_bytes in pool, message=f"{row.dst_bytes}, not {pool.pop() if pool else 0}")
    held: Range = whole
    if widened and row.src_bytes == 4 * elements:
        held = _narrowed(row, dense, ggml_type)
    pool_type = GgmlType.F32 if widened else ggml_type
    return ggml_type, held, DenseColumns(row.kind, pool_type, row.act_kind)


def _narrowed(row: IndexRow, dense: SourceFile, ggml_type: int) -> Computed:
    """F32 values as the type that they were widened from: BF16 exactly, F16 rounded to the nearest even."""

    def make(first: int, count: int) -> bytes:
        words = np.frombuffer(dense.read_at(row.src_off + 4 * first, 4 * count), "<u4")
        if ggml_type == GgmlType.F16:
            values = words.view("<f4")
            with np.errstate(over="ignore"):
                rounded = values.astype("<f2")
            lost = np.flatnonzero(np.isinf(rounded) & np.isfinite(values))
            if len(lost):
                raise FormatError(
                    f"element {first + int(lost[0])} is {float(values[lost[0]]):g}, which F16 cannot hold",
                    code="quantize.value",
                    path=dense.path,
                    field=row.name,
                )
            return rounded.tobytes()
        if np.any(words & 0xFFFF):
            raise row.line.fault("kind", f"{row.name} holds values that are no BF16")
        high: bytes = (words >> 16).astype("<u2").tobytes()
        return high

    return Computed(row.elements, 2, make)


# ---------------------------------------------------------------- experts


def _add_experts(
    source: CompositeSource, folder: Path, known: dict[str, TensorInfo], *, external_experts: bool
) -> None:
    blobs = source.open(folder / EXPERTS) if _exists(folder / EXPERTS) else None
    for row in read_experts(source.open(folder / EXPERT_TABLE)):
        names = {role: f"blk.{row.layer}.ffn_{part}_exps.weight" for role, part in _ROLES.items()}
        tensors = [known.get(name) for name in names.values()]
        if blobs is None or external_experts:
            _compare(source, row, tensors, in_gguf=blobs is None)
            continue
        found = [tensor for tensor in tensors if tensor is not None]
        row.line.check("layer", holds=len(found) == 3, message="the GGUF has no gate, up and down experts of the layer")
        shapes = [tensor.dims for tensor in found]
        row.line.check(
            "layer",
            holds=all(len(shape) == 3 for shape in shapes),
            message="the GGUF's experts have no three dimensions",
        )
        dims = {role: (ne0, ne1, count) for role, (ne0, ne1, count) in zip(_ROLES, shapes, strict=True)}
        for role, held, ggml_type, place in expert_ranges(row, dims, blobs):
            source.put(names[role], ggml_type, dims[role], held, blobs.path, place)


def expert_ranges(
    row: ExpertRow, dims: dict[int, tuple[int, int, int]], blobs: SourceFile
) -> list[tuple[int, Place, int, int]]:
    """Role, bytes, type and place of the matrices of a layer in `experts.bin`.

    Args:
        dims: ne0, ne1 and number of experts, by role: gate, up, down.

    Raises:
        FormatError: Types, sizes and places contradict one another or the file.
    """
    line = row.line
    n_expert = dims[ExpertRole.GATE][2]
    types = _types(row)
    lengths = {role: slice_bytes(row, types[role], dims[role]) for role in _ROLES}
    total = sum(lengths.values())
    line.check("blob_bytes", holds=row.blob_bytes == total, message=f"{row.blob_bytes}, the slices take {total}")
    end = row.offset + n_expert * total
    line.check("offset", holds=end <= blobs.size, message=f"the layer ends at {end}, the file has {blobs.size}")
    made, at = [], 0
    for index, (role, part) in enumerate(_ROLES.items()):
        if row.places is not None:
            holds = row.places[index] in (at, row.offset + at)
            line.check(f"{part}_off", holds=holds, message=f"{row.places[index]}, the {part} slice begins at {at}")
        place = row.offset + at
        held = Place(blobs.path, blobs.fileno(), place, lengths[role], runs=n_expert, stride=total)
        made.append((role, held, types[role], place))
        at += lengths[role]
    return made


def slice_bytes(row: ExpertRow, ggml_type: int, dims: tuple[int, int, int]) -> int:
    """Bytes of one expert's matrix."""
    column = "d_type" if ggml_type == row.d_type and ggml_type != row.gu_type else "gu_type"
    block = GgmlType.BLOCK[ggml_type]
    row.line.check(column, holds=dims[0] % block == 0, message=f"rows of {dims[0]} are no whole blocks of {block}")
    return dims[0] // block * GgmlType.BYTES[ggml_type] * dims[1]


def _types(row: ExpertRow) -> dict[int, int]:
    for column, value in (("gu_type", row.gu_type), ("d_type", row.d_type)):
        row.line.check(column, holds=value in GgmlType.NAMES, message=f"type {value} is not known")
    return {ExpertRole.GATE: row.gu_type, ExpertRole.UP: row.gu_type, ExpertRole.DOWN: row.d_type}


def _compare(source: CompositeSource, row: ExpertRow, tensors: Iterable[TensorInfo | None], *, in_gguf: bool) -> None:
    """The GGUF's experts serve: the table has to say the same of them."""
    line, types, total = row.line, _types(row), 0
    for index, ((role, part), tensor) in enumerate(zip(_ROLES.items(), tensors, strict=True)):
        if tensor is None:
            raise line.fault("layer", f"the GGUF has no {part} experts of layer {row.layer}")
        column = "d_type" if role == ExpertRole.DOWN else "gu_type"
        named = GgmlType.NAMES[tensor.ggml_type]
        holds = types[role] == tensor.ggml_type
        line.check(column, holds=holds, message=f"{types[role]}, the GGUF's {part} experts are {named}")
        total += tensor.byte_size // tensor.dims[2]
        if not in_gguf:
            continue
        if row.places is not None:
            holds = row.places[index] == tensor.offset
            line.check(f"{part}_off", holds=holds, message=f"{row.places[index]}, the GGUF has them at {tensor.offset}")
        if row.shards is not None:
            name = source.base.shards[tensor.shard].path.name
            holds = row.shards[index] == name
            line.check(
                "shard", holds=holds, message=f"{row.shards[index]!r}, the GGUF has the {part} experts in {name!r}"
            )
    line.check("blob_bytes", holds=row.blob_bytes == total, message=f"{row.blob_bytes}, the slices take {total}")


def _exists(path: Path) -> bool:
    """Whether something of that name is there; a link to nowhere is, and fails when it is opened."""
    return path.exists() or path.is_symlink()
