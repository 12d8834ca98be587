"""Where the right bytes come from: another copy of the pack, the model that it was made from, or parity."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Protocol

from ..container.payload import read_payload
from ..container.reader import Container
from ..container.structure import close_read, open_file, read_at
from ..convert.anything import GGUF, kind_of
from ..convert.external import external_files
from ..convert.plan import Plan
from ..errors import FormatError
from ..generated.constants import MIN_CHUNK_LOG2, SectionKind
from ..generated.structs import ChunkDigestsHeaderV1, GPackHeaderV1, GPackSectionEntryV1, ParityHeaderV1
from ..sections.chunks import ALGORITHMS, ChunkDigests, Chunks, covered, digest_of, digested
from ..sections.parity import Shape, read_header, recover
from ..sources.hf_import import HfSource
from ..sources.open import open_gguf
from .target import Target

_SLICE = 1 << 16


class Donor(Protocol):
    """Gives the right bytes of sections, as far as it has them.

    Attributes:
        name: For messages.
        bytes_read: Bytes of sections that were read of it, digests not counted.
    """

    name: str
    bytes_read: int

    def read(self, entry: GPackSectionEntryV1, start: int, length: int) -> bytes | None:
        """Bytes of a section; None where the donor has no such section."""


class PackDonor:
    """Another pack that holds some of the same sections; where they lie does not matter."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.name = container.path
        self.bytes_read = 0

    def find(self, entry: GPackSectionEntryV1) -> GPackSectionEntryV1 | None:
        """Its section of the same kind, size and digest."""
        found = self.container.find(entry.kind)
        same = found is not None and (found.size, found.sha256) == (entry.size, entry.sha256)
        return found if same else None

    def read(self, entry: GPackSectionEntryV1, start: int, length: int) -> bytes | None:
        """Bytes of a section; None where it has no such section."""
        if self.find(entry) is None:
            return None
        self.bytes_read += length
        return self.container.read(entry.kind, start, length)

    def frame(self, offset: int, length: int) -> bytes:
        """Bytes of the file outside of all sections, and of the manifest."""
        return read_at(self.container.descriptor, offset, length, self.container.path)

    def digests(self) -> ChunkDigests | None:
        """Its digests of chunks, where they are what was written; else None."""
        entry = self.container.find(SectionKind.CHUNK_DIGESTS)
        if entry is None:
            return None
        data = self.container.read(entry.kind)
        return ChunkDigests(data, self.container.entries) if sha256(data).digest() == entry.sha256 else None


class SourceDonor:
    """The model that the pack was made from: what a conversion would write."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan = plan
        self.name = name
        self.bytes_read = 0

    def read(self, entry: GPackSectionEntryV1, start: int, length: int) -> bytes | None:
        """Bytes of a section; None where a conversion would write no such section."""
        payload = self._plan.builder.payload(entry.kind)
        if payload is None or payload.size != entry.size:
            return None
        self.bytes_read += length
        return bytes(read_payload(payload, start, length))


class ParityDonor:
    """The pack's own parity."""

    name = "parity"

    def __init__(self, target: Target, digests: ChunkDigests, damaged: Collection[int]) -> None:
        """Reads the header.

        Args:
            damaged: Numbers of the chunks that are damaged, those of Parity too.

        Raises:
            FormatError: The header is damaged.
        """
        entry = target.find(SectionKind.PARITY)
        if entry is None:
            raise FormatError("the pack has no parity", code="repair.parity", path=target.path)
        self.bytes_read = 0
        self._target, self._entry = target, entry
        header = read_header(target.read(entry.offset, ParityHeaderV1.SIZE), entry.size)
        self._shape = Shape(header.num_data, header.num_parity, header.num_stripes, header.block_size)
        self._chunks = Chunks(covered(target.entries), digests.chunks.size)
        # The same chunks among all that have digests, by their place.
        self._bad = {(digests.chunks[n].entry.kind, digests.chunks[n].start) for n in damaged}
        self._size = digests.chunks.size
        self._trusting = False

    def read(self, entry: GPackSectionEntryV1, start: int, length: int) -> bytes | None:
        """Bytes of a chunk, worked out; None where too much of its stripes is lost.

        Args:
            start: Where a chunk begins.
        """
        # A damaged chunk of Parity may hold the end of one block and most of the next: what is worked out with it is
        # tried last, for digests tell whether it is right.
        for self._trusting in (False, True):
            try:
                if entry.kind == SectionKind.PARITY:
                    return self._parity(start, length)
                chunk = next((chunk for chunk in self._chunks.of(entry.kind) if chunk.start == start), None)
                if chunk is None:
                    return None
                stripe, block = chunk.number % self._shape.stripes, chunk.number // self._shape.stripes
                return self._recover(stripe, block, 0, length)
            except FormatError:  # too much is lost
                continue
        return None

    def _parity(self, start: int, length: int) -> bytes:
        """Bytes of the section itself: its header, and blocks that are made again."""
        of_header = max(min(length, ParityHeaderV1.SIZE - start), 0)
        made = bytearray(self._target.read(self._entry.offset + start, of_header))
        at, end = start + len(made), start + length
        while at < end:
            index, inside = divmod(at - ParityHeaderV1.SIZE, self._shape.block)
            count = min(self._shape.block - inside, end - at)
            stripe, row = divmod(index, self._shape.parity)
            made += self._recover(stripe, self._shape.data + row, inside, count)
            at += count
        return bytes(made)

    def _recover(self, stripe: int, block: int, start: int, length: int) -> bytes:
        read = self._reader(stripe)
        parts = []
        for at in range(start, start + length, _SLICE):
            count = min(_SLICE, start + length - at)
            parts.append(recover(self._shape, {block}, read, count, at)[block].tobytes())
        return b"".join(parts)

    def _reader(self, stripe: int) -> Callable[[int, int, int], bytes | None]:
        shape, target = self._shape, self._target

        def read(block: int, start: int, length: int) -> bytes | None:
            if block >= shape.data:
                row = stripe * shape.parity + block - shape.data
                place = ParityHeaderV1.SIZE + row * shape.block + start
                chunks = range(place // self._size, (place + length - 1) // self._size + 1)
                if not self._trusting and any(
                    (SectionKind.PARITY, number * self._size) in self._bad for number in chunks
                ):
                    return None
                return target.read(self._entry.offset + place, length)
            number = block * shape.stripes + stripe
            if number >= len(self._chunks):
                return bytes(length)
            chunk = self._chunks[number]
            if (chunk.entry.kind, chunk.start) in self._bad:
                return None
            count = max(min(length, chunk.length - start), 0)
            return target.read(chunk.offset + start, count).ljust(length, b"\0")

        return read


class DigestsDonor:
    """ChunkDigests itself, made again from all other sections, where these are what they should be."""

    name = "the chunks themselves"

    def __init__(self, target: Target) -> None:
        self.bytes_read = 0
        self._target = target
        self._made: bytes | None = None
        self._tried = False

    def read(self, entry: GPackSectionEntryV1, start: int, length: int) -> bytes | None:
        """Bytes of ChunkDigests; None where the chunks are not what they should be."""
        if entry.kind != SectionKind.CHUNK_DIGESTS:
            return None
        if not self._tried:
            self._tried = True
            made = map(self._digests, ALGORITHMS.values())
            self._made = next((data for data in made if sha256(data).digest() == entry.sha256), None)
        return None if self._made is None else self._made[start : start + length]

    def _digests(self, algorithm: int) -> bytes:
        begin, chunks = digest_of(algorithm), Chunks(digested(self._target.entries), 1 << MIN_CHUNK_LOG2)
        header = ChunkDigestsHeaderV1(algorithm=algorithm, chunk_log2=MIN_CHUNK_LOG2, num_digests=len(chunks))
        parts = [header.encode()]
        for chunk in chunks:
            digest = begin()
            digest.update(memoryview(self._target.read(chunk.offset, chunk.length)))
            parts.append(digest.digest())
        return b"".join(parts)


@contextmanager
def open_donor(path: str | os.PathLike[str], *, external: bool = False) -> Iterator[PackDonor | SourceDonor]:
    """Opens another copy of a pack, or the model that it was made from.

    Args:
        external: The pack leaves its experts outside.

    Raises:
        GpackError: It cannot be read.
    """
    if not os.path.isdir(path) and _is_pack(path):
        with Container.open(path) as container:
            yield PackDonor(container)
        return
    with open_gguf(path) if kind_of(path) == GGUF else HfSource.open(path) as model:
        outside = external_files(model, hash_shards=False) if external else None
        yield SourceDonor(Plan(model, external=outside), os.fspath(path))


def _is_pack(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a pack does."""
    descriptor, size = open_file(path)
    try:
        magic = GPackHeaderV1.MAGIC.to_bytes(4, "little")
        return read_at(descriptor, 0, min(size, len(magic)), path) == magic
    finally:
        close_read(descriptor)
