"""A pack with external experts into one with everything inside: what converting the GGUF itself would have given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..container.writer import BuildResult, GPackBuilder
from ..errors import FormatError, UsageError
from ..generated.constants import ExpertFlags, ExpertRole, SectionKind, TensorFlags
from ..generated.structs import ExpertLayoutRowV1, TensorIndexRowV1
from ..pack import Pack
from ..pack import open as open_pack
from ..sections.experts import ExpertBlobs, ExpertLayer, ExpertMatrix, build_expert_layout, expert_summary
from ..sections.tensors import build_tensor_index
from .export import refuse_overwriting
from .seal import REBUILT, SEALS, add_seals, copy_sections, seals_of

_REPLACED = (SectionKind.TENSOR_INDEX_BIN, SectionKind.EXPERT_LAYOUT_BIN)


def pack_experts(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    expert_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BuildResult:
    """Writes a pack that holds the experts of `source`'s shards.

    The result is byte for byte the pack that a conversion of the source without `--external-experts` gives.

    Args:
        expert_dir: Folder of the shards; default the pack's own.
        progress: Called with (bytes written since the last call, bytes in all).

    Raises:
        UsageError: The experts are not external, or the output is one of the inputs.
        PathError, BoundsError, DigestError: A shard is missing, of another size, or another file; with a full digest
            recorded, also one with changed bytes. Nothing is written.
        FormatError: The pack is damaged.
    """
    with open_pack(source, expert_dir=expert_dir) as pack:
        if not pack.container.find(SectionKind.EXPERT_LAYOUT_BIN) or not len(pack.shards):
            raise UsageError("the experts are not external", code="convert.external", path=source)
        shards = [pack.shards.file(index) for index in range(len(pack.shards))]
        refuse_overwriting(output, [source, *(shard.path for shard in shards)])
        # Read ahead of the copy: a changed byte must not get a digest of its own.
        for shard in shards:
            if shard.covered:
                shard.check_digest()
        inputs = {path: os.fstat(descriptor) for path, descriptor in _descriptors(pack)}
        builder = _plan(pack)
        total = builder.layout().total_file_size
        return builder.build(
            output,
            progress=None if progress is None else lambda count: progress(count, total),
            before_commit=lambda: _check_unchanged(pack, inputs),
        )


def _descriptors(pack: Pack) -> list[tuple[str, int]]:
    shards = [pack.shards.file(index) for index in range(len(pack.shards))]
    return [(pack.container.path, pack.container.descriptor), *((shard.path, shard.descriptor) for shard in shards)]


def _check_unchanged(pack: Pack, before: dict[str, os.stat_result]) -> None:
    for path, descriptor in _descriptors(pack):
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (before[path].st_size, before[path].st_mtime_ns):
            raise FormatError(
                "the file was changed while it was being read",
                code="convert.source_changed",
                path=path,
                hint="pack again when nothing writes to it",
            )


def _plan(pack: Pack) -> GPackBuilder:
    container = pack.container
    layers = _layers(pack)
    blobs = ExpertBlobs(layers)
    manifest: dict[str, Any] = {key: value for key, value in pack.manifest.items() if key not in (*REBUILT, "experts")}
    manifest["experts"] = expert_summary(layers, "embedded")
    builder = GPackBuilder(
        manifest,
        producer=pack.manifest["producer"],
        format_version=container.header.format_version,
        min_reader_version=container.header.min_reader_version,
    )
    copy_sections(builder, container, (*_REPLACED, *SEALS))
    builder.add(SectionKind.TENSOR_INDEX_BIN, _tensor_index(pack, layers), len(pack.tensors))
    builder.add(SectionKind.EXPERT_LAYOUT_BIN, build_expert_layout(layers), len(layers))
    builder.add(SectionKind.EXPERT_BLOBS, blobs, manifest["experts"]["blob_count"])
    add_seals(builder, *seals_of(container))
    return builder


def _layers(pack: Pack) -> list[ExpertLayer]:
    """The layers, each matrix with its place in a shard."""
    rows = list(pack.expert_layout)
    matrices: dict[int, list[ExpertMatrix]] = {}
    for row in pack.tensors:
        if row.home == SectionKind.EXPERT_BLOBS:
            name = pack.tensors.text(row, "name")
            matrices.setdefault(row.home_row, []).append(_matrix(pack, name, row))
    if sorted(matrices) != list(range(len(rows))):
        raise FormatError(
            "the layers are not those of the tensor index",
            code="expert.rows",
            path=pack.container.path,
            section="ExpertLayoutBin",
        )
    return [_layer(row, matrices[index]) for index, row in enumerate(rows)]


def _matrix(pack: Pack, name: str, row: TensorIndexRowV1) -> ExpertMatrix:
    ne0, ne1, n_expert = row.dims[:3]
    return ExpertMatrix(name, row.role, row.ggml_type, (ne0, ne1, n_expert), pack.place(name))


def _layer(row: ExpertLayoutRowV1, matrices: Sequence[ExpertMatrix]) -> ExpertLayer:
    """The matrices in the order of a blob."""
    if not row.flags & ExpertFlags.EXTERNAL:
        raise FormatError("a layer is not external", code="expert.mode", section="ExpertLayoutBin", field="flags")
    order = (ExpertRole.GATE, ExpertRole.GATE_UP, ExpertRole.UP, ExpertRole.DOWN)
    return ExpertLayer(row.layer, tuple(sorted(matrices, key=lambda matrix: order.index(matrix.role))))


def _tensor_index(pack: Pack, layers: Sequence[ExpertLayer]) -> bytes:
    """TensorIndexBin, with the experts' places in ExpertBlobs."""
    offsets = ExpertBlobs(layers).offsets()
    rows = []
    for row in pack.tensors:
        if row.home == SectionKind.EXPERT_BLOBS:
            layer = layers[row.home_row]
            row.offset = offsets[layer.layer] + layer.offset_of(row.role)
            row.flags &= ~TensorFlags.EXTERNAL
        rows.append((pack.tensors.text(row, "name"), row))
    return build_tensor_index(rows)
