"""What mends a pack in its place: all new bytes lie in a synced journal beside it before the first is written over.

A journal is either whole or not there, and writing its bytes twice does no harm: so a repair that was killed is
finished by whoever comes next, or has changed nothing. It is a line of text with a digest, a line of JSON with the
places, and the bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..container.atomic import AtomicFile, make_durable, write_error
from ..container.structure import close_read, open_file, read_at
from ..errors import DigestError, FormatError, PathError
from ..generated.structs import GPackFooterV1
from . import JOURNAL_SUFFIX

_WORD = b"gpack-repair 1 "
_HEAD = len(_WORD) + 2 * sha256().digest_size + 1
_MAX_PLACES = 1 << 28  # bytes of the line of JSON


@dataclass(frozen=True)
class Patch:
    """New bytes of a file."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class _Place:
    offset: int
    length: int
    digest: str
    at: int  # in the journal


def journal_of(path: str | os.PathLike[str]) -> Path:
    """Where the journal of a pack lies."""
    return Path(os.path.realpath(path) + JOURNAL_SUFFIX)


def write_journal(
    path: str | os.PathLike[str],
    places: Sequence[tuple[int, int]],
    patches: Iterator[Patch],
    identity: bytes,
    size: int,
) -> None:
    """Writes a journal, whole and synced, or not at all.

    Args:
        places: (offset, length) of the patches.
        identity: Digest of the manifest that the file will have.
        size: Bytes that it will have.

    Raises:
        PathError: It cannot be written.
    """
    blank = "0" * (2 * sha256().digest_size)
    status = os.stat(path)
    said = {"inode": status.st_ino, "manifest_sha256": identity.hex(), "size": size}
    empty = _line(said, [(offset, length, blank) for offset, length in places])
    start = _HEAD + len(empty)
    total = start + sum(length for _, length in places)
    with AtomicFile(journal_of(path), total) as output:
        at, made = start, []
        for (offset, length), patch in zip(places, patches, strict=True):
            if (patch.offset, len(patch.data)) != (offset, length):
                raise FormatError(f"{len(patch.data)} bytes for {length}", code="internal", path=path)
            output.write_at(patch.data, at)
            made.append((offset, length, sha256(patch.data).hexdigest()))
            at += length
        line = _line(said, made)
        output.write_at(_WORD + sha256(line).hexdigest().encode() + b"\n" + line, 0)
        output.sync()
        output.commit()


def finish(path: str | os.PathLike[str]) -> bool:
    """Writes the bytes of a journal into its pack, and removes the journal; returns whether there was one.

    Raises:
        DigestError, FormatError: `repair.journal`: it is damaged, or of another file. Nothing is changed.
        PathError: A file cannot be read or written; the journal stays, and the next call goes on.
    """
    journal = journal_of(path)
    if not os.path.exists(journal):
        return False
    descriptor, size = open_file(journal)
    try:
        said, places = _read(descriptor, size, journal)
        _apply(path, descriptor, journal, said, places)
    finally:
        close_read(descriptor)
    try:
        os.unlink(journal)
    except OSError as error:
        raise PathError(
            f"the mended pack is in place, and its journal cannot be removed ({error.strerror})",
            code="io.write",
            path=journal,
            hint="the next command that is given the pack removes it",
        ) from error
    make_durable(Path(os.path.realpath(path)))  # a journal that comes back is written once more, which does no harm
    return True


def _line(said: dict[str, object], places: Sequence[tuple[int, int, str]]) -> bytes:
    return json.dumps({**said, "patches": [list(place) for place in places]}).encode() + b"\n"


def _read(descriptor: int, size: int, journal: Path) -> tuple[dict[str, object], list[_Place]]:
    head = read_at(descriptor, 0, min(size, _HEAD), journal)
    length = 0
    line = b""
    while not line.endswith(b"\n") and _HEAD + length < min(size, _MAX_PLACES):
        step = min(1 << 16, size - _HEAD - length)
        part = read_at(descriptor, _HEAD + length, step, journal).partition(b"\n")
        line += part[0] + part[1]
        length += step
    if head != _WORD + sha256(line).hexdigest().encode() + b"\n":
        raise _fault(journal, "its head is damaged, or it is no journal")
    said = json.loads(line)
    places, at = [], _HEAD + len(line)
    for offset, count, digest in said["patches"]:
        places.append(_Place(offset, count, digest, at))
        at += count
    if at != size:
        raise _fault(journal, f"it has {size} bytes, and says {at}")
    for place in places:
        if sha256(read_at(descriptor, place.at, place.length, journal)).hexdigest() != place.digest:
            raise _fault(journal, f"its bytes for byte {place.offset} of the pack are damaged")
    return said, places


def _fault(journal: Path, message: str) -> DigestError:
    return DigestError(
        message,
        code="repair.journal",
        path=journal,
        hint="remove it, and repair the pack again: what was damaged before may be written over in part",
    )


def _apply(
    path: str | os.PathLike[str], descriptor: int, journal: Path, said: dict[str, object], places: Sequence[_Place]
) -> None:
    try:
        target = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise write_error(error, path, 0) from error
    try:
        _lock(target, path)
        _check_same(target, said, journal, path)
        for place in places:
            view = memoryview(read_at(descriptor, place.at, place.length, journal))
            at = place.offset
            while view:
                count = os.pwrite(target, view, at)
                view, at = view[count:], at + count
        size = said["size"]
        if isinstance(size, int) and os.fstat(target).st_size != size:
            os.ftruncate(target, size)
        os.fsync(target)
    except OSError as error:
        raise write_error(error, path, sum(place.length for place in places)) from error
    finally:
        close_read(target)


def _lock(target: int, path: object) -> None:
    try:
        fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PathError("another program is mending the pack", code="io.write", path=path) from error


def _check_same(target: int, said: dict[str, object], journal: Path, path: object) -> None:
    """The file is the one that was to be mended: where it lay, or what it says it is, tells."""
    status = os.fstat(target)
    start = status.st_size - GPackFooterV1.SIZE
    identity = b""
    if start >= 0:
        identity = GPackFooterV1.decode(read_at(target, start, GPackFooterV1.SIZE, path)).manifest_sha256
    if status.st_ino != said["inode"] and identity.hex() != said["manifest_sha256"]:
        raise _fault(journal, "it was made for another file than the one that lies beside it now")
