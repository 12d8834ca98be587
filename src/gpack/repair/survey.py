"""What is damaged: every chunk is compared with its digest, or, where there is none, with another copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from ..container.streaming import CHUNK
from ..container.structure import section_name
from ..errors import FormatError
from ..generated.constants import SectionKind
from ..generated.structs import GPackSectionEntryV1
from ..sections.chunks import Chunk, ChunkDigests
from .donors import DigestsDonor, Donor, PackDonor
from .target import FRAME, Damage, Target

Progress = Callable[[int], None]


@dataclass
class Survey:
    """What was found.

    Attributes:
        damages: Runs of damaged bytes, by offset.
        digests: The pack's own digests of chunks, where they are there and right.
        lent: Digests of chunks of another copy, for sections that the pack's own do not know.
        unplaced: Sections of which only this is known, that something in them is damaged.
    """

    damages: list[Damage] = field(default_factory=list)
    digests: ChunkDigests | None = None
    lent: ChunkDigests | None = None
    unplaced: list[GPackSectionEntryV1] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all runs."""
        return sum(damage.length for damage in self.damages)


def survey(target: Target, donor: Donor | None, progress: Progress | None = None) -> Survey:
    """Reads the whole pack, and of the donor what is needed to know where damage is.

    Args:
        progress: Called with the number of bytes read of the pack since the last call.

    Raises:
        PathError: A file cannot be read.
        FormatError: `repair.donor`: the other copy does not have the bytes that the pack records.
        UnsupportedError: Digests of chunks need a package that is not installed.
    """
    found = Survey(digests=target.digests())
    if isinstance(donor, PackDonor):
        found.lent = donor.digests()
    found.damages += _frame(target, donor)
    for entry in sorted(target.entries, key=lambda entry: entry.offset):
        if entry.kind == SectionKind.MANIFEST_JSON and not target.sound:
            continue  # part of the frame
        known = _chunks_of(found, entry, donor)
        if known is not None:
            digests, chunks, own = known
            found.damages += _by_digest(target, entry, digests, chunks, own=own)
        elif not target.whole(entry):
            compared = _by_comparing(target, entry, donor)
            if compared is None:
                found.unplaced.append(entry)
            else:
                found.damages += compared
        if progress:
            progress(entry.size)
    found.damages.sort(key=lambda damage: damage.offset)
    return found


def _frame(target: Target, donor: Donor | None) -> Iterator[Damage]:
    """What is outside of the sections: another copy's where the pack's own is damaged; zeros between sections."""
    if target.sound:
        for offset, length in target.gaps():
            if any(target.read(offset, length)):
                yield Damage(FRAME, offset, length)
    elif isinstance(donor, PackDonor):
        for offset, length in target.frame():
            if offset + length > target.size or target.read(offset, length) != donor.frame(offset, length):
                yield Damage(FRAME, offset, length)


def _chunks_of(
    found: Survey, entry: GPackSectionEntryV1, donor: Donor | None
) -> tuple[ChunkDigests, list[Chunk], bool] | None:
    """The digests that know a section's chunks, those chunks, and whether the digests are the pack's own."""
    if entry.kind in (SectionKind.CHUNK_DIGESTS, SectionKind.MANIFEST_JSON):
        return None
    if found.digests is not None:
        return found.digests, list(found.digests.chunks.of(entry.kind)), True
    if found.lent is not None and isinstance(donor, PackDonor) and donor.find(entry):
        return found.lent, list(found.lent.chunks.of(entry.kind)), False
    return None


def _by_digest(
    target: Target, entry: GPackSectionEntryV1, digests: ChunkDigests, chunks: list[Chunk], *, own: bool
) -> Iterator[Damage]:
    for chunk in chunks:
        offset = entry.offset + chunk.start
        if offset + chunk.length > target.size or not digests.fits(chunk, target.read(offset, chunk.length)):
            yield Damage(section_name(entry), offset, chunk.length, entry, chunk.number if own else None)


def _by_comparing(target: Target, entry: GPackSectionEntryV1, donor: Donor | None) -> list[Damage] | None:
    """Compares a section with the donor's; None where the donor has none.

    Raises:
        FormatError: `repair.donor`: the donor's is damaged too, or another.
    """
    made, digest, made_again = [], sha256(), DigestsDonor(target)
    for start in range(0, entry.size, CHUNK):
        length = min(CHUNK, entry.size - start)
        right = donor.read(entry, start, length) if donor else None
        if right is None:
            right = made_again.read(entry, start, length)
        if right is None:
            return None
        digest.update(right)
        offset = entry.offset + start
        if offset + length > target.size or target.read(offset, length) != right:
            made.append(Damage(section_name(entry), offset, length, entry))
    if donor is not None and digest.digest() != entry.sha256:
        raise FormatError(
            f"{section_name(entry)} of it has {digest.hexdigest()}, the pack records {entry.sha256.hex()}",
            code="repair.donor",
            path=donor.name,
            section=section_name(entry),
            hint="it is another model, was converted with other options, or is damaged too",
        )
    return made
