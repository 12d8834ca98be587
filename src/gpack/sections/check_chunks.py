"""Checks of ChunkDigests and Parity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..container.report import Report
from ..container.streaming import CHUNK, read_into
from ..container.structure import read_at, section_name
from ..container.workers import Workers
from ..errors import FormatError, UnsupportedError
from ..generated.constants import CACHE_LINE, MAX_CHUNK_LOG2, MIN_CHUNK_LOG2
from ..generated.rules import align_up, check_chunk_digests_header_v1, check_parity_header_v1
from ..generated.structs import ChunkDigestsHeaderV1, GPackSectionEntryV1, ParityHeaderV1, chunk_digests_v1_size
from . import chunks, parity
from .chunks import Chunk, ChunkDigests, ChunkHasher, Chunks
from .context import Context

_JOBS_PER_THREAD = 8  # so that no thread waits long for the last


def check_chunk_digests(context: Context) -> None:
    """ChunkDigests fills its section and has a digest for every chunk; what can be read stays in the context."""
    entry, report = context.entry(chunks.DIGESTS), context.report
    if entry is None:
        return
    report.check("chunks.header")
    if entry.size < ChunkDigestsHeaderV1.SIZE:
        message = f"It has {entry.size} bytes, the header {ChunkDigestsHeaderV1.SIZE}."
        report.add("chunks.header", chunks.SECTION, "", entry.offset, message)
        return
    data = read_at(context.descriptor, entry.offset, entry.size, context.path)
    header = ChunkDigestsHeaderV1.decode(data)
    report.check_record(ChunkDigestsHeaderV1)
    broken = check_chunk_digests_header_v1(header, section_size=entry.size)
    report.add_broken(broken, header, chunks.SECTION, base=entry.offset, section_size=entry.size)
    if not MIN_CHUNK_LOG2 <= header.chunk_log2 <= MAX_CHUNK_LOG2 or chunk_digests_v1_size(header) != entry.size:
        return
    context.check_items(chunks.DIGESTS, header.num_digests)
    report.check("chunks.count")
    there = len(Chunks(chunks.digested(context.structure.entries), 1 << header.chunk_log2))
    if header.num_digests != there:
        place = entry.offset + header.OFFSETS["num_digests"]
        message = f"Found {header.num_digests}, and there are {there} chunks."
        report.add("chunks.count", chunks.SECTION, "num_digests", place, message)
        return
    try:
        context.chunks = ChunkDigests(data, context.structure.entries)
    except UnsupportedError as error:
        context.notes.append(f"chunk digests were not checked: {error.message} ({error.hint})")
    except FormatError:
        return  # reported above


def check_parity(context: Context) -> None:
    """Parity fills its section, and covers the chunks that there are."""
    entry, report = context.entry(chunks.PARITY), context.report
    if entry is None or not context.thorough:  # nothing that is read at run time depends on it
        return
    report.check("parity.header")
    if entry.size < ParityHeaderV1.SIZE:
        message = f"It has {entry.size} bytes, the header {ParityHeaderV1.SIZE}."
        report.add("parity.header", parity.SECTION, "", entry.offset, message)
        return
    header = ParityHeaderV1.decode(read_at(context.descriptor, entry.offset, ParityHeaderV1.SIZE, context.path))
    report.check_record(ParityHeaderV1)
    broken = check_parity_header_v1(header, section_size=entry.size)
    report.add_broken(broken, header, parity.SECTION, base=entry.offset, section_size=entry.size)
    if not broken:
        context.check_items(chunks.PARITY, header.num_stripes * header.num_parity)
    report.check("parity.chunks")
    if context.structure.find(chunks.DIGESTS) is None:
        report.add("parity.chunks", parity.SECTION, "", entry.offset, "There is no ChunkDigests.")
    if context.chunks is None:
        return
    there = Chunks(chunks.covered(context.structure.entries), context.chunks.chunks.size)
    longest = max((min(entry.size, there.size) for entry in there.entries), default=0)
    for field, expected in (("num_chunks", len(there)), ("block_size", align_up(longest, CACHE_LINE))):
        found = getattr(header, field)
        if found != expected:
            place = entry.offset + header.OFFSETS[field]
            report.add("parity.chunks", parity.SECTION, field, place, f"Found {found}, expected {expected}.")


class ChunkWatch:
    """Compares the chunks of sections that somebody else reads anyway, and reports those that differ."""

    def __init__(self, found: ChunkDigests, report: Report) -> None:
        self._found, self._report = found, report
        report.check("chunks.digest")

    def watch(self, entry: GPackSectionEntryV1) -> Callable[[memoryview], None] | None:
        """What takes the section's bytes, in order; None where its chunks have no digests."""
        expected = list(self._found.chunks.of(entry.kind))
        if not expected:
            return None
        hasher = ChunkHasher(self._found.begin, self._found.chunks.size)
        left = entry.size

        def feed(data: memoryview) -> None:
            nonlocal left
            before = len(hasher.done)
            hasher.feed(data)
            left -= len(data)
            done = hasher.end() if not left else hasher.done
            for chunk, digest in zip(expected[before:], done[before:], strict=False):
                if digest != self._found[chunk.number]:
                    report_chunk(self._report, chunk, digest, self._found[chunk.number])

        return feed


def report_chunk(report: Report, chunk: Chunk, digest: bytes, recorded: bytes) -> None:
    """Records a chunk that has another digest."""
    place = f"Bytes {chunk.offset} to {chunk.offset + chunk.length}"
    message = f"{place} have {digest.hex()}, ChunkDigests records {recorded.hex()}."
    report.add("chunks.digest", section_name(chunk.entry), "", chunk.offset, message)


def check_all_chunks(
    context: Context, found: ChunkDigests, threads: int, progress: Callable[[int], None] | None = None
) -> int:
    """Compares all chunks, several at a time; returns the bytes that were hashed.

    Raises:
        PathError: The read failed.
    """
    context.report.check("chunks.digest")
    all_chunks = found.chunks
    step = max(-(-len(all_chunks) // (threads * _JOBS_PER_THREAD)), 1)
    parts = [range(start, min(start + step, len(all_chunks))) for start in range(0, len(all_chunks), step)]
    jobs = [_Job(context, found, [all_chunks[number] for number in part], progress) for part in parts]
    workers = Workers(threads)
    for start in range(0, len(jobs), threads):
        for faults in workers.run(jobs[start : start + threads]):
            for chunk, digest in faults:
                report_chunk(context.report, chunk, digest, found[chunk.number])
    return sum(chunk.length for chunk in all_chunks)


class _Job:
    """Compares some chunks, with a buffer of its own."""

    def __init__(
        self, context: Context, found: ChunkDigests, part: Sequence[Chunk], progress: Callable[[int], None] | None
    ) -> None:
        self._context, self._found, self._part, self._progress = context, found, part, progress

    def __call__(self) -> list[tuple[Chunk, bytes]]:
        """The chunks that differ, each with the digest that it has."""
        return list(differing(self._context.descriptor, self._context.path, self._found, self._part, self._progress))


def differing(
    descriptor: int,
    path: object,
    found: ChunkDigests,
    part: Iterable[Chunk],
    progress: Callable[[int], None] | None = None,
) -> Iterable[tuple[Chunk, bytes]]:
    """Those of some chunks whose bytes in a file have another digest, each with the one that it has.

    Raises:
        PathError: The read failed.
    """
    buffer = memoryview(bytearray(CHUNK))
    for chunk in part:
        digest = found.begin()
        for start in range(0, chunk.length, CHUNK):
            view = buffer[: min(CHUNK, chunk.length - start)]
            read_into(descriptor, chunk.offset + start, view, path)
            digest.update(view)
            if progress:
                progress(len(view))
        if (actual := digest.digest()) != found[chunk.number]:
            yield chunk, actual
