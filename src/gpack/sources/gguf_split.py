"""Split GGUF models: one model in several files, `NAME-00001-of-00003.gguf` and so on.

Each file is a GGUF of its own and says in its metadata which one it is: `split.no` (from 0; the name counts
from 1), `split.count`, and `split.tensors.count`, the number of tensors in all files together.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpack.errors import FormatError
from gpack.sections.values import INTEGERS
from gpack.sources.gguf_header import ALIGNMENT_KEY, Header

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS_COUNT = "split.tensors.count"
SPLIT_KEYS = frozenset({SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS_COUNT})

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.ASCII)
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ShardName:
    """A shard's file name: `stem`, its `number` from 1, and the `count` of shards."""

    stem: str
    number: int
    count: int

    @classmethod
    def parse(cls, file_name: str) -> ShardName | None:
        """The parts of a file name, or None if it is not a shard's."""
        match = _NAME.fullmatch(file_name)
        return match and cls(match["stem"], int(match["number"]), int(match["count"]))

    def sibling(self, number: int) -> str:
        """The file name of the set's shard `number`, from 1."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


def _split_error(message: str, path: Path, *, field: str | None = None, hint: str | None = None) -> FormatError:
    return FormatError(message, code="gguf.split", path=path, section="metadata", field=field, hint=hint)


def shard_paths(path: Path, header: Header) -> list[Path]:
    """The files of the model that `path` belongs to, in order; for a model in one file, that file.

    The siblings lie in the same directory as `path`, under the same name; a link is not resolved first.

    Args:
        path: Any file of the model.
        header: Its header.

    Raises:
        FormatError: `gguf.split` if name and metadata contradict each other or siblings are missing.
    """
    count = _integer(header, SPLIT_COUNT, path) or 1
    name = ShardName.parse(path.name)
    if name is None:
        if count == 1:
            return [path]
        raise _renamed_error(path, _integer(header, SPLIT_NO, path) or 0, count)
    if name.count != count:
        said = f"{SPLIT_COUNT} is {count}" if SPLIT_COUNT in header.metadata else f"there is no {SPLIT_COUNT}"
        raise _split_error(
            f"the name says that there are {name.count} shards, but {said}",
            path,
            field=SPLIT_COUNT,
            hint="if the file is a whole model, rename it",
        )
    if not 1 <= name.number <= count:
        raise _split_error(f"the name says shard {name.number} of {count}", path)
    paths = [path.with_name(name.sibling(number)) for number in range(1, count + 1)]
    _require_all(paths)
    return paths


def _renamed_error(path: Path, number: int, count: int) -> FormatError:
    expected = ShardName(path.stem, number + 1, count).sibling(number + 1)
    return _split_error(
        f"this is shard {number + 1} of {count}, but its name {path.name!r} does not say so, "
        f"and the others cannot be found by it",
        path,
        hint=f"expected a name like {expected}, with the others beside it",
    )


def _require_all(paths: Sequence[Path]) -> None:
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        shown = ", ".join(missing[:_NAMES_SHOWN])
        more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
        raise _split_error(
            f"{len(missing)} of {len(paths)} shards are missing: {shown}{more}",
            paths[0].parent,
            hint="put all shards into one directory, under their own names",
        )


def check_shards(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    """Checks that the files are the shards of one model, each once and in order.

    Only the first shard's metadata is the model's. The others may repeat entries of it and have an alignment
    of their own; anything else there would be lost, so it is refused.

    Raises:
        FormatError: `gguf.split`, naming the file and the key.
    """
    if len(paths) > 1:
        for path, header in zip(paths, headers, strict=True):
            _check_count(path, header, len(paths))
        _check_numbers(paths, headers)
    _check_total(paths, headers)
    for path, header in zip(paths[1:], headers[1:], strict=True):
        _check_metadata(path, header, headers[0])


def _check_count(path: Path, header: Header, expected: int) -> None:
    count = _integer(header, SPLIT_COUNT, path)
    if count != expected:
        says = f"has no {SPLIT_COUNT}" if count is None else f"says that there are {count}"
        raise _split_error(
            f"a foreign shard: the others say {expected} shards, but {path.name} {says}", path, field=SPLIT_COUNT
        )


def _check_numbers(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    numbers = [_integer(header, SPLIT_NO, path) for path, header in zip(paths, headers, strict=True)]
    for index, (path, number) in enumerate(zip(paths, numbers, strict=True)):
        if number == index:
            continue
        twins = [other.name for other, held in zip(paths, numbers, strict=True) if held == number]
        if number is not None and len(twins) > 1:
            raise _split_error(f"a doubled shard: {' and '.join(twins)} all hold number {number}", path, field=SPLIT_NO)
        raise _split_error(
            f"a foreign shard: {path.name} should be number {index}, counted from 0, but has {number}",
            path,
            field=SPLIT_NO,
        )


def _check_total(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    _check_foreign(paths, headers)
    total = sum(len(header.tensors) for header in headers)
    for path, header in zip(paths, headers, strict=True):
        expected = _integer(header, SPLIT_TENSORS_COUNT, path)
        if expected not in (None, total):
            raise _split_error(
                f"{path.name} says that the model has {expected} tensors, but its files hold {total}",
                path,
                field=SPLIT_TENSORS_COUNT,
            )


def _check_foreign(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    """A shard that speaks of another total than the others is another model's: fewest agree with it."""
    said = [_integer(header, SPLIT_TENSORS_COUNT, path) for path, header in zip(paths, headers, strict=True)]
    counts = Counter(count for count in said if count is not None)
    if len(counts) < 2:
        return
    common, rare = counts.most_common()[0][0], counts.most_common()[-1][0]
    index = len(said) - 1 - said[::-1].index(rare)
    raise _split_error(
        f"a foreign shard: {paths[index].name} says that its model has {rare} tensors, the others say {common}",
        paths[index],
        field=SPLIT_TENSORS_COUNT,
    )


def _check_metadata(path: Path, header: Header, first: Header) -> None:
    for key, value in header.metadata.items():
        if key in SPLIT_KEYS or key == ALIGNMENT_KEY:
            continue
        if key not in first.metadata:
            raise _split_error(
                f"{path.name} holds the key {key!r}, which the first shard lacks: it would be lost", path, field=key
            )
        if value != first.metadata[key]:
            raise _split_error(f"{path.name} and the first shard differ in the key {key!r}", path, field=key)


def _integer(header: Header, key: str, path: Path) -> int | None:
    """The value of one of the split keys, or None if there is none."""
    value = header.metadata.get(key)
    if value is None:
        return None
    number = value.python()
    if value.value_type not in INTEGERS or not isinstance(number, int) or number < 0:
        raise _split_error(f"{key} is {number!r}, which is no count", path, field=key)
    return number
