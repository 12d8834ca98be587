"""Draft layers from other files: a directory with `dense.txt`, `dense.bin`, `experts.bin`, or an `mtp-*.gguf`."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

from ..errors import FormatError, PathError
from ..generated.constants import ExpertRole, GgmlType
from ..sections.placement import ARCHITECTURE, draft_start, is_count, layer_of
from .composite import CompositeSource
from .files import SourceFile
from .pack_dir import DENSE, EXPERT_TABLE, EXPERTS, dense_tensor, expert_ranges
from .pack_index import CODE, ExpertRow, IndexRow, Line, PlainRow, check_end, read_dense_table, read_experts

TABLE, RUNTIME = "dense.txt", "rt"


def add_mtp(source: CompositeSource, path: Path) -> None:
    """Adds the draft layers of a directory or a GGUF to a model, and counts them in its metadata.

    Args:
        path: The directory, one that holds it as `rt`, an `mtp-*.gguf`, or the directory of one.

    Raises:
        FormatError: The model has draft layers of its own, or those here are not numbered after its layers
            (`mtp.layers`); a table contradicts itself or its files (`packdir.table`, with line and column).
        PathError: Nothing of the kind is there.
    """
    first = _first_draft(source, path)
    before = {tensor.name for tensor in source.tensors}
    folder = path / RUNTIME if (path / RUNTIME / TABLE).exists() else path
    if (folder / TABLE).exists():
        _add_directory(source, folder, first)
    else:
        _add_gguf(source, _gguf_in(path), first)
    layers = {layer_of(tensor.name) for tensor in source.tensors if tensor.name not in before}
    numbers = sorted(layer for layer in layers if layer is not None)
    if not numbers or numbers != list(range(first, first + len(numbers))):
        raise FormatError(
            f"the draft layers have the numbers {numbers}, the next of the model is {first}",
            code="mtp.layers",
            path=path,
        )
    architecture = source.get(ARCHITECTURE)
    source.set_count(f"{architecture}.block_count", first + len(numbers))
    source.set_count(f"{architecture}.nextn_predict_layers", len(numbers))


def _first_draft(source: CompositeSource, path: Path) -> int:
    """Number of the first draft layer: after the model's own."""
    layers = source.get(f"{source.get(ARCHITECTURE)}.block_count")
    if not is_count(layers):
        raise FormatError(
            "the GGUF does not say how many layers it has", code="mtp.layers", path=source.base.files[0].path
        )
    drafts = draft_start(source.get)
    first = int(layers) if drafts is None else drafts
    own = [tensor.name for tensor in source.base.tensors if (layer_of(tensor.name) or 0) >= first > 0]
    if own:
        raise FormatError(
            f"the GGUF has draft layers of its own, for instance {own[0]!r}",
            code="mtp.layers",
            path=path,
            hint="convert without --mtp-dir",
        )
    return first


def _gguf_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("mtp-*.gguf"))
    if len(found) != 1:
        raise PathError(
            f"the directory has no {TABLE} and {len(found)} files mtp-*.gguf",
            code="io.not_found",
            path=path,
            hint="--mtp-dir names a directory of draft layers, or an mtp-*.gguf",
        )
    return found[0]


def _add_gguf(source: CompositeSource, path: Path, first: int) -> None:
    """The draft layers of a GGUF; tensors that the model has itself are left out."""
    other = source.open_gguf(path)
    known = {tensor.name for tensor in source.base.tensors}
    for tensor in other.tensors:
        if tensor.name in known:
            source.notes.append(f"{path.name}: {tensor.name} is the model's own")
            continue
        layer = layer_of(tensor.name)
        if layer is None or layer < first:
            raise FormatError(
                f"{tensor.name!r} belongs to no draft layer: the model's layers end with {first - 1}",
                code="mtp.layers",
                path=path,
                field=tensor.name,
            )
        source.put(tensor.name, tensor.ggml_type, tensor.dims, other.range_of(tensor), path, tensor.offset)


def _add_directory(source: CompositeSource, folder: Path, first: int) -> None:
    dense = source.open(folder / DENSE)
    rows = read_dense_table(source.open(folder / TABLE), dense.size)
    for row in rows:
        layer = layer_of(row.name)
        numbered = layer is not None and layer >= first
        row.line.check("name", holds=numbered, message=f"{row.name!r} is not of layer {first} or later")
        _add_tensor(source, row, dense)
    check_end(dense, rows)
    if (folder / EXPERTS).exists():
        _add_experts(source, folder, first)


def _add_tensor(source: CompositeSource, row: IndexRow | PlainRow, dense: SourceFile) -> None:
    line = row.line
    if isinstance(row, PlainRow):
        elements = prod(row.dims)
        # Two bytes could be F16 or BF16, and nothing says which.
        holds = row.src_bytes == 4 * elements
        line.check("bytes", holds=holds, message=f"{row.src_bytes} bytes for {elements} F32 values")
        plain = IndexRow(
            line,
            row.name,
            2,
            row.src_off,
            row.src_bytes,
            0,
            row.src_bytes,
            row.dims,
            0,
            0,
            0,
            0,
            False,
            0,
            0,
            0,
            False,
            0,
        )
        ggml_type, held, _ = dense_tensor(plain, dense)
        source.put(row.name, ggml_type, row.dims, held, dense.path, row.src_off)
        return
    line.check("src_bytes", holds=not row.skipped, message="a draft layer's tensor has its bytes here")
    line.check("code_bits", holds=not row.code_bits, message="a draft layer cannot be stored as code planes")
    ggml_type, held, _ = dense_tensor(row, dense)
    dims = row.dims if row.dims[1] > 1 else row.dims[:1]
    source.put(row.name, ggml_type, dims, held, dense.path, row.src_off)


def _add_experts(source: CompositeSource, folder: Path, first: int) -> None:
    """The draft layer's experts, shaped as the model's own."""
    blobs = source.open(folder / EXPERTS)
    dims = _expert_dims(source, folder)
    if (folder / EXPERT_TABLE).exists():
        rows = read_experts(source.open(folder / EXPERT_TABLE))
        for row in rows:
            row.line.check("layer", holds=row.layer >= first, message=f"the draft layers begin with {first}")
    else:
        rows = [_infer_types(source, blobs, dims, first)]
    for row in rows:
        for role, held, ggml_type, place in expert_ranges(row, dims, blobs):
            part = ExpertRole.NAMES[role].lower()
            source.put(f"blk.{row.layer}.ffn_{part}_exps.weight", ggml_type, dims[role], held, blobs.path, place)


def _expert_dims(source: CompositeSource, folder: Path) -> dict[int, tuple[int, int, int]]:
    prefix = source.get(ARCHITECTURE)
    keys = [f"{prefix}.{key}" for key in ("embedding_length", "expert_feed_forward_length", "expert_count")]
    values = [source.get(key) for key in keys]
    if not all(is_count(value) and value for value in values):
        raise FormatError(
            f"the GGUF lacks one of {', '.join(keys)}, which shape the experts",
            code="mtp.layers",
            path=folder / EXPERTS,
        )
    width, hidden, count = values
    return {
        ExpertRole.GATE: (width, hidden, count),
        ExpertRole.UP: (width, hidden, count),
        ExpertRole.DOWN: (hidden, width, count),
    }


def _infer_types(
    source: CompositeSource, blobs: SourceFile, dims: dict[int, tuple[int, int, int]], layer: int
) -> ExpertRow:
    """The types of experts without a table: those of the model's own layers that give the file's exact size.

    Raises:
        FormatError: None does, or several do.
    """
    line = Line(blobs.path, 0, (), ("layer", "gu_type", "d_type", "offset", "blob_bytes", "gate_off"))
    types = {tensor.name: tensor.ggml_type for tensor in source.base.tensors}
    pairs = {
        (types[name], types[name.replace("ffn_gate_exps", "ffn_down_exps")])
        for name in types
        if name.endswith(".ffn_gate_exps.weight") and name.replace("ffn_gate_exps", "ffn_down_exps") in types
    }
    count = dims[ExpertRole.GATE][2]
    fitting = []
    for gate, down in sorted(pairs):
        row = ExpertRow(line, layer, gate, down, 0, 0, None, None)
        if any(
            dims[role][0] % GgmlType.BLOCK[kind] for role, kind in ((ExpertRole.GATE, gate), (ExpertRole.DOWN, down))
        ):
            continue
        sizes = [_bytes(kind, dims[role]) for role, kind in zip(dims, (gate, gate, down), strict=True)]
        if count * sum(sizes) == blobs.size:
            fitting.append(replace(row, blob_bytes=sum(sizes)))
    if len(fitting) != 1:
        raise FormatError(
            f"nothing tells the types of the experts: {len(fitting)} of the model's own fit its {blobs.size} bytes",
            code=CODE,
            path=blobs.path,
            hint=f"add a {EXPERT_TABLE}",
        )
    return fitting[0]


def _bytes(ggml_type: int, dims: tuple[int, int, int]) -> int:
    return dims[0] // GgmlType.BLOCK[ggml_type] * GgmlType.BYTES[ggml_type] * dims[1]
