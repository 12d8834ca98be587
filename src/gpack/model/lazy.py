"""Checking a pack's bytes when they are first asked for, by its digests of chunks."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

from ..container.held import HoldsFile
from ..container.reader import Container
from ..container.structure import close_read, read_at, section_name
from ..errors import DigestError, MissingError
from ..generated.constants import SectionKind
from ..sections.chunks import Chunk, ChunkDigests


class LazyCheck(HoldsFile):
    """Compares chunks with their digests, each once. Threads may ask at the same time."""

    def __init__(self, container: Container) -> None:
        """Checks the digests themselves.

        Raises:
            MissingError: `chunks.none`: the pack has no digests of chunks.
            DigestError, FormatError: They are damaged.
            UnsupportedError: The package that they need is not installed.
        """
        kind = SectionKind.CHUNK_DIGESTS
        if container.find(kind) is None:
            raise MissingError(
                "the pack has no digests of chunks, which a lazy check needs",
                code="chunks.none",
                path=container.path,
                hint="`guild seal` makes a pack that has",
            )
        container.check_sections((kind,))
        self._digests = ChunkDigests(container.read(kind), container.entries)
        self._path = container.path
        self._done = bytearray(len(self._digests.chunks))
        chunks = self._digests.chunks
        filled = sorted((entry for entry in chunks.entries if entry.size), key=lambda entry: entry.offset)
        self._starts = [entry.offset for entry in filled]
        self._first = [next(chunks.of(entry.kind)) for entry in filled]
        status = os.fstat(container.descriptor)
        self._file = status.st_dev, status.st_ino
        self.descriptor = os.dup(container.descriptor)

    @property
    def n_checked(self) -> int:
        """Chunks that were checked so far."""
        return sum(self._done)

    def covers(self, descriptor: int) -> bool:
        """Whether a descriptor is one of the pack's own file."""
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == self._file

    def look(self, offset: int, length: int) -> None:
        """Checks the chunks that hold some bytes of the file; what lies outside of all sections has none.

        Raises:
            DigestError: `chunks.digest`: a chunk is damaged.
            PathError: The file was cut, or the disk failed.
        """
        for chunk in self._touched(offset, offset + length):
            if not self._done[chunk.number]:
                data = read_at(self.descriptor, chunk.offset, chunk.length, self._path)
                if not self._digests.fits(chunk, data):
                    raise DigestError(
                        f"bytes {chunk.offset} to {chunk.offset + chunk.length} have not the digest that ChunkDigests "
                        "records for them",
                        code="chunks.digest",
                        path=self._path,
                        section=section_name(chunk.entry),
                        offset=chunk.offset,
                        hint="`guild repair` mends it from another copy",
                    )
                self._done[chunk.number] = 1

    def _touched(self, start: int, end: int) -> Iterator[Chunk]:
        chunks = self._digests.chunks
        index = max(bisect_right(self._starts, start) - 1, 0)
        while index < len(self._starts) and self._starts[index] < end:
            first = self._first[index]
            entry = first.entry
            low, high = max(start, entry.offset), min(end, entry.offset + entry.size)
            if low < high:
                numbers = range((low - entry.offset) // chunks.size, -(-(high - entry.offset) // chunks.size))
                yield from (chunks[first.number + number] for number in numbers)
            index += 1

    def close(self) -> None:
        """Closes the file."""
        close_read(self.descriptor)
