"""A pack back into one GGUF: the same keys, tensors, types, order and bytes as the source had."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..container.atomic import AtomicFile
from ..container.payload import Segment, Zeros, gather_chunks, whole
from ..container.place import Place
from ..container.streaming import CHUNK
from ..errors import UnsupportedError, UsageError
from ..generated.constants import FOREIGN_TYPES, GgmlType, TensorFlags
from ..generated.gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUF_MAX_DIMS
from ..generated.structs import TensorIndexRowV1
from ..pack import Pack
from ..pack import open as open_pack
from ..sections.restore import restore_value
from ..sources.gguf_write import build_header

DEFAULT_VERSION = 3  # of packs whose source was no GGUF


@dataclass(frozen=True)
class Export:
    """What was written."""

    output: str
    size: int
    tensor_count: int
    metadata_count: int


def export_gguf(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    expert_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Export:
    """Writes the GGUF that the pack was made from.

    Keys (order, types, values), tensors (order, names, types, dims, bytes), version and alignment equal the source's;
    of a split source, the whole. Converting the result gives the same pack, byte for byte, given the same name.

    Args:
        expert_dir: Folder of the shards of external experts; default the pack's own.
        progress: Called with (bytes written since the last call, bytes in all).

    Raises:
        UnsupportedError: The pack holds what GGUF cannot (`export.incomplete`).
        FormatError: The pack or one of its shards is damaged.
        PathError: The output cannot be written; the destination is as it was.
    """
    with open_pack(source, expert_dir=expert_dir) as pack:
        rows = sorted(pack.tensors, key=lambda row: row.position)
        names = [pack.tensors.text(row, "name") for row in rows]
        for name, row in zip(names, rows, strict=True):
            _check_exportable(pack, name, row)
        # Before the header is made, for a damaged row has sizes that do not even fit into one; and all shards are
        # opened and checked before a byte is written.
        places = {name: pack.place(name) for name in names}
        refuse_overwriting(output, {pack.container.path, *(place.path for place in places.values())})
        header, offsets, size = _header(pack, names, rows)
        with AtomicFile(output, size) as target:
            _write(target, _segments(header, [places[name] for name in names], offsets, size), size, progress)
            target.sync()
            target.commit()
        return Export(os.fspath(output), size, len(rows), len(pack.metadata))


def _header(pack: Pack, names: list[str], rows: list[TensorIndexRowV1]) -> tuple[bytes, list[int], int]:
    table = pack.metadata.table
    specs = [
        (name, row.ggml_type, row.dims[: row.n_dims], row.byte_size) for name, row in zip(names, rows, strict=True)
    ]
    return build_header(
        version=table.source_version or DEFAULT_VERSION,
        alignment=table.source_alignment or GGUF_DEFAULT_ALIGNMENT,
        metadata=[restore_value(table, row, lambda: pack.tokenizer_table) for row in table.rows()],
        tensors=specs,
    )


def _check_exportable(pack: Pack, name: str, row: TensorIndexRowV1) -> None:
    if row.flags & TensorFlags.CODE_PLANES:
        raise UnsupportedError(
            "GGUF has no code planes", code="export.incomplete", path=pack.container.path, field=name
        )
    if row.ggml_type >= FOREIGN_TYPES or row.n_dims > GGUF_MAX_DIMS:
        raise UnsupportedError(
            f"GGUF has no {GgmlType.NAMES.get(row.ggml_type, row.ggml_type)} tensors of rank {row.n_dims}",
            code="export.incomplete",
            path=pack.container.path,
            field=name,
        )


def refuse_overwriting(output: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Makes sure that the output replaces none of the files that it is made from.

    Raises:
        UsageError: `convert.same_file`.
    """
    for path in inputs:
        if Path(output).exists() and Path(output).samefile(path):
            raise UsageError(f"the output is the input {path}", code="convert.same_file", path=output)


def _segments(header: bytes, places: Sequence[Place], offsets: Sequence[int], size: int) -> Iterator[Segment]:
    yield header
    at = len(header)
    for place, offset in zip(places, offsets, strict=True):
        if offset > at:
            yield Zeros(offset - at)
        yield from whole(place)
        at = offset + place.size
    if size > at:
        yield Zeros(size - at)


def _write(
    target: AtomicFile, segments: Iterator[Segment], size: int, progress: Callable[[int, int], None] | None
) -> None:
    buffer = memoryview(bytearray(CHUNK))
    at = 0
    for chunk, length in gather_chunks(segments, lambda: buffer):
        target.write_at(chunk[:length], at)
        at += length
        if progress:
            progress(length, size)
