"""Mending: every damaged run gets its right bytes, checked before they are used, and a full verify ends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..container.atomic import AtomicFile
from ..container.streaming import CHUNK
from ..container.structure import section_name
from ..convert.export import refuse_overwriting
from ..errors import FormatError, PathError, UsageError
from ..generated.constants import SectionKind
from ..sections.verify import Verification, verify
from .donors import DigestsDonor, Donor, PackDonor, ParityDonor, SourceDonor, open_donor
from .journal import Patch, finish, write_journal
from .survey import Survey, survey
from .target import FRAME, Damage, Target


@dataclass(frozen=True)
class Repair:
    """What was done.

    Attributes:
        path: The mended file; None where nothing was damaged.
        damages: What was damaged.
        taken: Bytes by where they came from: the other copy's path, `parity`, or `zeros`.
        bytes_read: Bytes of sections that were read of the other copy.
        verification: Of the result.
    """

    path: str | None
    damages: list[Damage]
    taken: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    verification: Verification | None = None


def find_damage(
    path: str | os.PathLike[str],
    other: str | os.PathLike[str] | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Damage]:
    """Where a pack is damaged.

    Args:
        other: Another copy of the pack, or the model that it was made from; None where its digests of chunks shall do.
        progress: Called with (bytes read since the last call, bytes in all).

    Raises:
        PathError, FormatError, UnsupportedError: As `repair`.
    """
    with _Mender(path, other, progress) as mender:
        return mender.found.damages


def repair(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    other: str | os.PathLike[str] | None = None,
    in_place: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Mends a pack.

    Args:
        output: The file to write, which appears whole or not at all.
        other: Another copy of the pack, or a GGUF or safetensors that it was made from; without, or where its bytes
            are wrong too, parity is used.
        in_place: Change the pack itself: the new bytes are synced beside it before.
        progress: Called with (bytes read since the last call, bytes in all).

    Raises:
        UsageError: Neither, or both, of output and in_place; or the output is an input.
        PathError: A file cannot be read or written.
        FormatError: `repair.place`: nothing shows where the damage is; `repair.parity`, `repair.donor`: nobody
            has the right bytes; `repair.failed`: the result is not sound. Nothing is changed.
        UnsupportedError: A package is not installed.
    """
    if in_place == (output is not None):
        raise UsageError("a repair needs an output, or is made in place", code="usage")
    if in_place:
        finish(path)
    with _Mender(path, other, progress) as mender:
        if output is not None:
            refuse_overwriting(output, [path, *([other] if other is not None else [])])
        if not mender.found.damages:
            return Repair(None, [], verification=verify(path))
        result = mender.write_in_place() if output is None else mender.write(output)
        return Repair(
            os.fspath(path if output is None else output), mender.found.damages, mender.taken, mender.bytes_read, result
        )


class _Mender:
    """An open pack, what is damaged in it, and who has the right bytes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        other: str | os.PathLike[str] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._stack = ExitStack()
        self.taken: dict[str, int] = {}
        try:
            self._open(path, other, progress)
        except BaseException:
            self._stack.close()
            raise

    def _open(
        self,
        path: str | os.PathLike[str],
        other: str | os.PathLike[str] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._other = None if other is None else self._stack.enter_context(open_donor(other))
        container = self._other.container if isinstance(self._other, PackDonor) else None
        self.target = target = self._stack.enter_context(Target(path, container))
        if isinstance(self._other, SourceDonor) and _has_external_experts(target):
            self._other = self._stack.enter_context(open_donor(os.fspath(other or ""), external=True))
        total = sum(entry.size for entry in target.entries)
        self.found = survey(target, self._other, None if progress is None else lambda count: progress(count, total))
        self._refuse_another_model()
        self._donors: list[Donor] = [] if self._other is None else [self._other]
        self._add_parity()
        self._donors.append(DigestsDonor(target))
        if self.found.unplaced:
            raise self._unplaced()

    def _refuse_another_model(self) -> None:
        """Where the pack's own directory is damaged nothing else says that the other copy is the same pack.

        Raises:
            FormatError: `repair.donor`: more than half of the bytes that are there are others.
        """
        target, other = self.target, self._other
        if target.sound or other is None:
            return
        there = sum(max(0, min(entry.size, target.size - entry.offset)) for entry in target.entries)
        differ = sum(  # what was cut off says nothing
            damage.length
            for damage in self.found.damages
            if damage.entry is not None and damage.offset + damage.length <= target.size
        )
        if 2 * differ > there:
            raise FormatError(
                f"its own directory is damaged, and {differ} of {there} bytes are not those of {other.name}",
                code="repair.donor",
                path=target.path,
                section=FRAME,
                hint="give a copy of the same pack; that one holds another model",
            )

    def _add_parity(self) -> None:
        digests, target = self.found.digests, self.target
        if digests is None or target.find(SectionKind.PARITY) is None:
            return
        damaged = {damage.number for damage in self.found.damages if damage.number is not None}
        try:
            self._donors.append(ParityDonor(target, digests, damaged))
        except FormatError:
            return  # its header is damaged as well

    def _unplaced(self) -> FormatError:
        names = ", ".join(section_name(entry) for entry in self.found.unplaced)
        if self._other is None:
            return FormatError(
                f"{names}: something is damaged, and the pack cannot tell where",
                code="repair.place",
                path=self.target.path,
                hint="give another copy of the pack, or what it was made from (--from)",
            )
        return FormatError(
            f"it has no {names} as the pack should have",
            code="repair.donor",
            path=self._other.name,
            hint="it is another model, or was converted with other options",
        )

    @property
    def bytes_read(self) -> int:
        """Bytes of sections that were read of the other copy."""
        return 0 if self._other is None else self._other.bytes_read

    def patches(self) -> Iterator[Patch]:
        """The right bytes of all damaged runs.

        Raises:
            FormatError: Nobody has them.
        """
        for damage in self.found.damages:
            yield Patch(damage.offset, self._right(damage))

    def _right(self, damage: Damage) -> bytes:
        if damage.entry is None:
            if self.target.sound:
                return self._take("zeros", bytes(damage.length))
            if isinstance(self._other, PackDonor):
                return self._take(self._other.name, self._other.frame(damage.offset, damage.length))
        else:
            for donor in self._donors:
                data = donor.read(damage.entry, damage.start, damage.length)
                if data is not None and self._fits(damage, data):
                    return self._take(donor.name, data)
        code = "repair.donor" if self._other is not None else "repair.parity"
        names = " nor ".join(donor.name for donor in self._donors)
        raise FormatError(
            f"bytes {damage.offset} to {damage.offset + damage.length} are damaged, and {names} cannot mend them",
            code=code,
            path=self.target.path,
            section=damage.section,
            offset=damage.offset,
            hint="another copy of the pack is needed (--from)",
        )

    def _take(self, name: str, data: bytes) -> bytes:
        self.taken[name] = self.taken.get(name, 0) + len(data)
        return data

    def _fits(self, damage: Damage, data: bytes) -> bool:
        """Whether the bytes have the digest that is known; where none is, the whole section was compared."""
        entry, found = damage.entry, self.found
        if entry is None:
            return False
        if damage.number is not None and found.digests is not None:
            return found.digests.fits(found.digests.chunks[damage.number], data)
        if found.lent is not None:
            for chunk in found.lent.chunks.of(entry.kind):
                if chunk.start == damage.start:
                    return found.lent.fits(chunk, data)
        return True

    # ------------------------------------------------------------ writing

    def write(self, output: str | os.PathLike[str]) -> Verification:
        """Writes a mended copy."""
        target = self.target
        with AtomicFile(output, target.total_size) as file:
            for start in range(0, target.total_size, CHUNK):
                file.write_at(target.read(start, min(CHUNK, target.total_size - start)), start)
            for patch in self.patches():
                file.write_at(patch.data, patch.offset)
            file.sync()
            result = verify(file.path)
            _check(result, output)
            file.commit()
        return result

    def write_in_place(self) -> Verification:
        """Mends the pack itself."""
        target = self.target
        places = [(damage.offset, damage.length) for damage in self.found.damages]
        write_journal(target.path, places, self.patches(), target.footer_digest, target.total_size)
        finish(target.path)
        try:
            result = verify(target.path)
        except PathError as error:
            raise PathError(
                f"the mended pack is in place, and could not be verified: {error.message}",
                code=error.code,
                path=target.path,
                hint="`guild verify` does it",
            ) from error
        _check(result, target.path)
        return result

    def __enter__(self) -> _Mender:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _check(result: Verification, path: str | os.PathLike[str]) -> None:
    """The result is sound.

    Raises:
        FormatError: `repair.failed`.
    """
    fault = result.report.first_error()
    if fault is not None:
        raise FormatError(
            f"what was mended is not sound: {fault.rule}: {fault.message}",
            code="repair.failed",
            path=path,
            section=fault.section,
            field=fault.field,
            offset=fault.offset,
        )


def _has_external_experts(target: Target) -> bool:
    return target.find(SectionKind.EXPERT_LAYOUT_BIN) is not None and target.find(SectionKind.EXPERT_BLOBS) is None


__all__ = ["FRAME", "Damage", "Repair", "Survey", "find_damage", "repair"]
