"""A pack cut into parts for hosts that limit the size of files, and put together again: plain ranges of its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..container.atomic import AtomicFile
from ..container.copying import copy_range
from ..container.foreign import PART_OF_PACK
from ..container.place import Place
from ..container.reader import Container
from ..container.structure import close_read, open_file
from ..errors import BoundsError, PathError, UsageError

MOST = 99_999

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class PartName:
    """What the name of a part says.

    Attributes:
        whole: Name of the file that was cut.
        number, count: Which part it is, from 1, of how many.
    """

    whole: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.whole}.part-{self.number:05}-of-{self.count:05}"

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> PartName | None:
        """Of a file; None where it has another name."""
        found = PART_OF_PACK.fullmatch(os.path.basename(os.fspath(path)))
        if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
            return None
        return cls(found["name"], int(found["number"]), int(found["count"]))


@dataclass(frozen=True)
class Part:
    """A part that was written.

    Attributes:
        path: Where it is.
        size: Bytes.
    """

    path: Path
    size: int


@dataclass(frozen=True)
class Joined:
    """A pack that was put together.

    Attributes:
        path: Where it is.
        size: Bytes.
        manifest_sha256: What identifies it, as hex digits.
    """

    path: Path
    size: int
    manifest_sha256: str


def split(
    source: str | os.PathLike[str],
    size: int,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Tell | None = None,
) -> list[Part]:
    """Cuts a pack into parts `NAME.part-00001-of-00003`, each written whole or not at all.

    Args:
        size: Most bytes of a part.
        folder: Where the parts go; default the pack's folder.
        progress: Called with (bytes written since the last call, bytes in all).

    Returns:
        The parts in their order.

    Raises:
        UsageError: The pack is no larger than a part, or there would be more than 99,999.
        GpackError: As `gpack.open`; a part cannot be written.
    """
    if size < 1:
        raise UsageError(f"parts of {size} bytes make no sense", code="usage", field="size")
    with Container.open(source) as container:
        total = container.file_size
        count = -(-total // size)
        if count < 2:
            raise UsageError(f"the pack has {total} bytes: it is no larger than a part", code="usage", path=source)
        if count > MOST:
            raise UsageError(f"there would be {count} parts, more than {MOST}", code="usage", field="size")
        place = Path(os.path.dirname(os.path.abspath(source)) if folder is None else folder)
        made = []
        for number in range(1, count + 1):
            path = place / str(PartName(Path(source).name, number, count))
            at = (number - 1) * size
            length = min(size, total - at)
            with AtomicFile(path, length) as output:
                copy_range(
                    Place(source, container.descriptor, at, length), output, 0, lambda n: _tell(progress, n, total)
                )
                output.sync()
                output.commit()
            made.append(Part(path, length))
        return made


def join(
    part: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, progress: Tell | None = None
) -> Joined:
    """Puts the parts of a pack together, whole or not at all; what comes of it passes a quick open.

    Args:
        part: Any of the parts; the others lie beside it.
        output: The pack; default the name that was cut, in the parts' folder.
        progress: As `split` has it.

    Raises:
        UsageError: The file has no name of a part.
        PathError: `split.missing`: a part is missing; the output cannot be written.
        BoundsError: `split.size`: parts have sizes that do not go together.
        FormatError: What they make is no pack.
    """
    named = PartName.of(part)
    if named is None:
        raise UsageError(
            "the file has no name of a part, such as model.gpack.part-00001-of-00003", code="usage", path=part
        )
    folder = Path(os.path.dirname(os.path.abspath(part)))
    paths = [folder / str(PartName(named.whole, number, named.count)) for number in range(1, named.count + 1)]
    target = folder / named.whole if output is None else Path(output)
    places: list[Place] = []
    try:
        places.extend(_opened(path, paths) for path in paths)
        _check_sizes(places)
        total = sum(place.length for place in places)
        with AtomicFile(target, total) as made:
            at = 0
            for place in places:
                copy_range(place, made, at, lambda n: _tell(progress, n, total))
                at += place.length
            made.sync()
            # All that is told of it is read now: once it has its name, nothing may fail.
            with Container.open(made.path) as container:
                identity = container.footer.manifest_sha256.hex()
            made.commit()
    finally:
        for place in places:
            close_read(place.descriptor)
    return Joined(target, total, identity)


def _opened(path: Path, paths: Sequence[Path]) -> Place:
    try:
        descriptor, size = open_file(path)
    except PathError as error:
        if error.code != "io.not_found":
            raise
        absent = [each.name for each in paths if not each.exists()]
        raise PathError(
            f"{len(absent)} of {len(paths)} parts are missing, the first is {absent[0]}",
            code="split.missing",
            path=path,
            hint="all parts have to lie in one folder",
        ) from error
    return Place(path, descriptor, 0, size)


def _check_sizes(places: Sequence[Place]) -> None:
    """All parts but the last are of one size, and that is no larger."""
    first, last = places[0], places[-1]
    odd = [place for place in places[:-1] if place.length != first.length]
    if last.length > first.length or not last.length:
        odd.append(last)
    if odd:
        raise BoundsError(
            f"the part has {odd[0].length} bytes, the first one {first.length}",
            code="split.size",
            path=odd[0].path,
            hint="its download was cut off, or it is of another file: get it again",
        )


def _tell(progress: Tell | None, count: int, total: int) -> None:
    if progress is not None:
        progress(count, total)
