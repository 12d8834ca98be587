"""Digests of chunks, and parity: added while a pack is written, or to one that exists."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..container.place import Place
from ..container.reader import Container
from ..container.structure import section_name
from ..container.writer import BuildResult, GPackBuilder
from ..errors import DigestError
from ..generated.constants import SECTION_NAMES, SectionKind
from ..sections.blob import Blob
from ..sections.chunks import ALGORITHMS, DEFAULT_ALGORITHM, ChunkDigestsBuilder
from ..sections.parity import ParityBuilder, read_header
from .export import refuse_overwriting

# The manifest's parts that the builder fills in itself.
REBUILT = ("schema", "format_version", "min_reader_version", "flags", "producer", "sections")
SEALS = (SectionKind.CHUNK_DIGESTS, SectionKind.PARITY)


def add_seals(builder: GPackBuilder, chunk_digests: str | None, parity: int | None) -> None:
    """Has a pack written with digests of chunks, and parity.

    Args:
        chunk_digests: Name of an algorithm; None for none, unless there is parity.
        parity: Percent of the data; None for none.

    Raises:
        UsageError: There is no such algorithm, or the percentage makes no sense.
        UnsupportedError: A package is not installed.
    """
    if parity is not None:
        builder.derive(ParityBuilder(parity))
    if parity is not None or chunk_digests is not None:
        builder.derive(ChunkDigestsBuilder(chunk_digests or DEFAULT_ALGORITHM))


def seals_of(container: Container) -> tuple[str | None, int | None]:
    """Algorithm and percent of parity that a pack has, as `add_seals` takes them.

    Raises:
        FormatError: The sections cannot be read.
    """
    digests, parity = (container.find(kind) for kind in SEALS)
    if digests is None:
        return None, None
    from ..sections.chunks import ChunkDigests

    algorithm = ChunkDigests(container.view(digests.kind), container.entries).header.algorithm
    name = next(name for name, number in ALGORITHMS.items() if number == algorithm)
    if parity is None:
        return name, None
    header = read_header(container.read(parity.kind, 0, min(parity.size, 1 << 10)), parity.size)
    return name, max(min(100 * header.num_parity // header.num_data, 100), 1)


def copy_sections(
    builder: GPackBuilder, container: Container, leave_out: tuple[int, ...], *, unhashed: bool = False
) -> None:
    """Adds the sections of an open pack as they are.

    Args:
        unhashed: Their digests are taken over, whatever the bytes are, where no sections are made of them.
    """
    for entry in container.entries:
        if entry.kind not in (*leave_out, SectionKind.MANIFEST_JSON):
            name = None if entry.kind in SECTION_NAMES else section_name(entry)
            place = Place(container.path, container.descriptor, entry.offset, entry.size)
            blob = Blob([(0, place)], entry.size)
            builder.add(
                entry.kind,
                blob,
                entry.item_count,
                name=name,
                alignment=entry.alignment,
                sha256=entry.sha256,
                kept=place if unhashed else None,
            )


def seal(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    chunk_digests: str = DEFAULT_ALGORITHM,
    parity: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BuildResult:
    """Writes a pack again with digests of its chunks, those that it has being replaced, and with parity.

    It is a new file with a manifest of its own; a signature of the old one says nothing of it. The bytes are those of a
    conversion with `--chunk-digests`.

    Args:
        chunk_digests: `blake3` or `sha256`.
        parity: Percent of the data that parity shall have; None for none.
        progress: Called with (bytes written since the last call, bytes in all).

    Raises:
        DigestError: The pack is damaged: digests of damaged bytes would hide it. Nothing is written.
        UsageError: An option makes no sense, or the output is the input.
        UnsupportedError: A package is not installed.
        PathError: A file cannot be read or written.
    """
    with Container.open(source) as container:
        refuse_overwriting(output, [source])
        manifest = {key: value for key, value in container.manifest.items() if key not in REBUILT}
        builder = GPackBuilder(
            manifest,
            producer=container.manifest["producer"],
            format_version=container.header.format_version,
            min_reader_version=container.header.min_reader_version,
        )
        copy_sections(builder, container, SEALS)
        add_seals(builder, chunk_digests, parity)
        total = builder.layout().total_file_size
        try:
            return builder.build(output, progress=None if progress is None else lambda count: progress(count, total))
        except DigestError as error:
            error.path = container.path
            raise
