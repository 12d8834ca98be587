"""ChunkDigests: a digest of every chunk of the other sections, so that a part of a file can be checked alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Protocol

from ..container.payload import Block, Payload
from ..container.streaming import CHUNK
from ..errors import BoundsError, FormatError, UnsupportedError, UsageError
from ..generated.constants import MIN_CHUNK_LOG2, ChunkAlgorithm, SectionKind
from ..generated.rules import check_chunk_digests_header_v1
from ..generated.structs import (
    ChunkDigestsHeaderV1,
    GPackSectionEntryV1,
    chunk_digests_v1_layout,
    chunk_digests_v1_size,
)

SECTION = "ChunkDigests"
DIGESTS, PARITY = SectionKind.CHUNK_DIGESTS, SectionKind.PARITY
DIGEST_BYTES = ChunkAlgorithm.BYTES[ChunkAlgorithm.BLAKE3]  # of all algorithms
# As users write them. BLAKE3 was measured to be 3.5 times as fast as SHA-256 on one thread.
ALGORITHMS = {"blake3": ChunkAlgorithm.BLAKE3, "sha256": ChunkAlgorithm.SHA256}
DEFAULT_ALGORITHM = "blake3"
_UNDIGESTED = (DIGESTS, SectionKind.MANIFEST_JSON)
_UNCOVERED = (*_UNDIGESTED, PARITY)


class Digest(Protocol):
    """What hashlib and blake3 have in common."""

    def update(self, data: memoryview, /) -> object:
        """Takes in more bytes."""

    def digest(self) -> bytes:
        """The digest of all of them."""


def digest_of(algorithm: int) -> Callable[[], Digest]:
    """What begins a digest.

    Args:
        algorithm: Of ChunkAlgorithm.

    Raises:
        UnsupportedError: `chunks.library`: the package blake3 is not installed.
        FormatError: `chunks.algorithm`: there is no such algorithm.
    """
    if algorithm == ChunkAlgorithm.SHA256:
        return sha256
    if algorithm != ChunkAlgorithm.BLAKE3:
        raise FormatError(f"there is no algorithm {algorithm}", code="chunks.algorithm", section=SECTION)
    try:
        from blake3 import blake3
    except ImportError as error:
        raise UnsupportedError(
            "digests of chunks by BLAKE3 need the package blake3, which is not installed",
            code="chunks.library",
            section=SECTION,
            hint="pip install blake3",
        ) from error
    return blake3


def algorithm_called(name: str) -> int:
    """The number of an algorithm.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in ALGORITHMS:
        raise UsageError(f"there is no algorithm {name!r}, only {', '.join(ALGORITHMS)}", code="usage")
    return ALGORITHMS[name]


@dataclass(frozen=True)
class Chunk:
    """A chunk of a section.

    Attributes:
        number: Among all chunks.
        entry: Its section.
        start: First byte, from the start of the section.
        length: Bytes.
    """

    number: int
    entry: GPackSectionEntryV1
    start: int
    length: int

    @property
    def offset(self) -> int:
        """First byte in the file."""
        return self.entry.offset + self.start


class Chunks(Sequence[Chunk]):
    """The chunks of some sections, numbered in the order of the directory.

    Attributes:
        entries: Those sections.
        size: Bytes of a chunk; the last of a section may be shorter.
    """

    def __init__(self, entries: Sequence[GPackSectionEntryV1], size: int) -> None:
        self.entries = entries
        self.size = size
        self._ends = list(accumulate(-(-entry.size // size) for entry in entries))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Chunk:  # type: ignore[override]  # no slices
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} chunks, and no {number}")
        index = bisect_right(self._ends, number)
        entry = self.entries[index]
        start = (number - (self._ends[index - 1] if index else 0)) * self.size
        return Chunk(number, entry, start, min(self.size, entry.size - start))

    def of(self, kind: int) -> Iterator[Chunk]:
        """The chunks of a section."""
        for index, entry in enumerate(self.entries):
            if entry.kind == kind:
                first = self._ends[index - 1] if index else 0
                yield from (self[number] for number in range(first, self._ends[index]))


def digested(entries: Sequence[GPackSectionEntryV1]) -> list[GPackSectionEntryV1]:
    """The sections whose chunks have digests."""
    return [entry for entry in entries if entry.kind not in _UNDIGESTED]


def covered(entries: Sequence[GPackSectionEntryV1]) -> list[GPackSectionEntryV1]:
    """The sections whose chunks are covered by Parity."""
    return [entry for entry in entries if entry.kind not in _UNCOVERED]


class ChunkDigests:
    """The section as a reader has it.

    Attributes:
        header: Its header.
        chunks: The chunks that it speaks of.
        begin: Begins a digest of its algorithm.
    """

    def __init__(self, data: memoryview | bytes, entries: Sequence[GPackSectionEntryV1]) -> None:
        """Reads the header.

        Args:
            data: The section.
            entries: The directory.

        Raises:
            BoundsError, FormatError: The section breaks a rule.
            UnsupportedError: The package blake3 is not installed.
        """
        view = memoryview(data)
        if len(view) < ChunkDigestsHeaderV1.SIZE:
            raise BoundsError(f"the section has {len(view)} bytes", code="chunks.header", section=SECTION)
        self.header = header = ChunkDigestsHeaderV1.decode(view)
        for rule, field in check_chunk_digests_header_v1(header, section_size=len(view)):
            if rule != "field.reserved":
                raise FormatError(f"{field} is {getattr(header, field)}", code=rule, section=SECTION, field=field)
        self.begin = digest_of(header.algorithm)
        self.chunks = Chunks(digested(entries), 1 << header.chunk_log2)
        if len(self.chunks) != header.num_digests:
            raise FormatError(
                f"there are {header.num_digests} digests, and {len(self.chunks)} chunks",
                code="chunks.count",
                section=SECTION,
                field="num_digests",
            )
        start, length = chunk_digests_v1_layout(header)["digests"]
        self._digests = view[start : start + length]

    def __getitem__(self, number: int) -> bytes:
        """The digest of a chunk."""
        return bytes(self._digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES])

    def fits(self, chunk: Chunk, data: bytes | memoryview) -> bool:
        """Whether bytes are those of a chunk."""
        digest = self.begin()
        digest.update(memoryview(data))
        return len(data) == chunk.length and digest.digest() == self[chunk.number]


class ChunkHasher:
    """Cuts what it is fed, in runs of any length, into chunks and digests them."""

    def __init__(self, begin: Callable[[], Digest], size: int) -> None:
        self._begin, self._size = begin, size
        self._digest, self._room = begin(), size
        self.done: list[bytes] = []

    def feed(self, data: memoryview) -> None:
        """Takes in more bytes."""
        while len(data):
            part = data[: self._room]
            self._digest.update(part)
            self._room -= len(part)
            data = data[len(part) :]
            if not self._room:
                self._close()

    def end(self) -> list[bytes]:
        """The digests of all chunks; the last may be shorter."""
        if self._room < self._size:
            self._close()
        return self.done

    def _close(self) -> None:
        self.done.append(self._digest.digest())
        self._digest, self._room = self._begin(), self._size


class ChunkDigestsBuilder:
    """Makes the section while the others are written."""

    kind = DIGESTS

    def __init__(self, algorithm: str = DEFAULT_ALGORITHM) -> None:
        """Chunks have 1 MiB.

        Raises:
            UsageError: There is no such algorithm.
            UnsupportedError: The package blake3 is not installed.
        """
        self._algorithm = algorithm_called(algorithm)
        self._begin = digest_of(self._algorithm)
        self._hashers: dict[int, ChunkHasher] = {}

    def plan(self, entries: Sequence[GPackSectionEntryV1]) -> tuple[int, int]:
        """Bytes and items of the section, from the sizes of all others."""
        header = self._header(entries)
        return chunk_digests_v1_size(header), header.num_digests

    def watch(self, entry: GPackSectionEntryV1, data: memoryview) -> None:
        """Sees the bytes of another section, run by run."""
        hasher = self._hashers.get(entry.kind)
        if hasher is None:
            hasher = self._hashers[entry.kind] = ChunkHasher(self._begin, CHUNK)
        hasher.feed(data)

    def payload(self, _descriptor: int, _path: object, entries: Sequence[GPackSectionEntryV1]) -> Payload:
        """The section, when all others were seen."""
        header = self._header(entries)
        digests = [digest for entry in digested(entries) if entry.size for digest in self._hashers[entry.kind].end()]
        return Block(b"".join([header.encode(), *digests]))

    def _header(self, entries: Sequence[GPackSectionEntryV1]) -> ChunkDigestsHeaderV1:
        count = len(Chunks(digested(entries), 1 << MIN_CHUNK_LOG2))
        return ChunkDigestsHeaderV1(algorithm=self._algorithm, chunk_log2=MIN_CHUNK_LOG2, num_digests=count)
