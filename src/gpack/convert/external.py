"""External experts: which of the source's files keep them, and what the pack records of those files.

A pack tells of each matrix where expert 0 lies and how far the next one is. A GGUF's stacks are like that; so are fused
experts of safetensors, and experts of one tensor each where a file happens to have them at equal distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from ..container.payload import Joined, Range
from ..container.place import Place
from ..container.reader import hash_range
from ..errors import FormatError, UsageError
from ..sections.assets import is_file_name
from ..sections.experts import ExpertLayer, ExpertMatrix, ExpertShard, build_external_layout
from ..sources.composite import CompositeSource
from ..sources.files import SourceFile
from ..sources.gguf import GgufSource
from ..sources.hf_import import HfSource
from ..sources.safetensors import header_size

HINT = "convert without --external-experts; experts of a GGUF can always stay outside"


class Candidate(NamedTuple):
    """A file that may keep experts, and the bytes before its tensors."""

    file: SourceFile
    header_size: int


@dataclass
class ExternalFiles:
    """The files of a model that experts can stay in; those that are used become the pack's table of shards.

    Attributes:
        candidates: The files.
        hash_files: Record a digest of every byte of the files, which reads them whole.
        shards: The table, in the order of first use.
    """

    candidates: Sequence[Candidate]
    hash_files: bool = False
    shards: list[ExpertShard] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def build(self, layers: Sequence[ExpertLayer]) -> bytes:
        """ExpertLayoutBin; of the files only the headers are read, unless all bytes are to be hashed.

        Raises:
            UsageError: `convert.external`: the experts do not lie in a file as they are, at equal distances.
            FormatError: A file's name cannot stand in a pack (`expert.shard_path`).
            PathError: A file cannot be read.
        """
        for layer in layers:
            for matrix in layer.matrices:
                self._use(matrix, place_of(matrix))
        return build_external_layout(layers, self.shards, self.place)

    def place(self, matrix: ExpertMatrix) -> tuple[int, int, int]:
        """Number of the shard, the offset of expert 0 in it, and the distance to the next."""
        place = place_of(matrix)
        return self._numbers[place.descriptor], place.offset, place.stride

    def summary(self) -> list[dict[str, Any]]:
        """What the manifest says of the shards."""
        return [shard.summary() for shard in self.shards]

    def _use(self, matrix: ExpertMatrix, place: Place) -> None:
        if place.descriptor in self._numbers:
            return
        found = next((candidate for candidate in self.candidates if candidate.file.fileno() == place.descriptor), None)
        if found is None:
            _refuse(matrix, "it does not lie in the model's own files")
        file, path = found.file, found.file.path
        name = path.name
        if not is_file_name(name) or not _is_utf8(name):
            raise FormatError(
                f"a pack cannot name the shard {name!r}", code="expert.shard_path", path=path, hint="rename the file"
            )
        descriptor = file.fileno()
        digest = hash_range(descriptor, 0, found.header_size, path)
        full = hash_range(descriptor, 0, file.size, path) if self.hash_files else None
        self._numbers[place.descriptor] = len(self.shards)
        self.shards.append(ExpertShard(name, file.size, found.header_size, digest, full))


def external_files(source: object, *, hash_shards: bool) -> ExternalFiles:
    """The files of a source in which experts can stay: those of its GGUF, or its safetensors files.

    Raises:
        UsageError: It has neither.
    """
    base = source.base if isinstance(source, CompositeSource) else source
    if isinstance(base, HfSource):
        return ExternalFiles([Candidate(file, header_size(file)) for file in base.shards], hash_shards)
    if not isinstance(base, GgufSource):
        raise UsageError("only experts of a GGUF or of safetensors can stay outside", code="convert.external")
    shards = zip(base.files, base.shards, strict=True)
    return ExternalFiles([Candidate(file, shard.header_size) for file, shard in shards], hash_shards)


def place_of(matrix: ExpertMatrix) -> Place:
    """Where a matrix lies in a file: one run to an expert.

    Raises:
        UsageError: `convert.external`: its bytes are in no file as they are, in several, or at odd distances.
    """
    source, count, length = matrix.source, matrix.dims[2], matrix.slice_bytes
    if isinstance(source, Place) and (cut := source.cut(count)) is not None:
        return cut
    parts = _slices(source, count)
    if parts is None:
        _refuse(matrix, "its bytes are computed from those in the file")
    other = next((number for number, part in enumerate(parts) if part.descriptor != parts[0].descriptor), None)
    if other is not None:
        _refuse(matrix, f"its expert 0 lies in {parts[0].path}, its expert {other} in {parts[other].path}")
    steps = [after.offset - before.offset for before, after in pairwise(parts)]
    stride = steps[0] if steps else length
    odd = next((number for number, step in enumerate(steps, 1) if step != stride or step < length), None)
    if odd is not None:
        _refuse(
            matrix,
            f"its experts are not at equal distances: expert 1 begins {stride} bytes after expert 0, "
            f"expert {odd} {steps[odd - 1]} bytes after expert {odd - 1}",
        )
    first = parts[0]
    return Place(first.path, first.descriptor, first.offset, length, runs=count, stride=stride)


def _slices(source: Range, count: int) -> list[Place] | None:
    """The experts' ranges; None where they are no ranges of files, one to an expert."""
    if not isinstance(source, Joined):
        return None
    parts = [part for part in source.ranges if isinstance(part, Place) and part.runs == 1]
    return parts if len(parts) == len(source.ranges) == count else None


def _refuse(matrix: ExpertMatrix, reason: str) -> NoReturn:
    raise UsageError(f"{reason}, so it cannot stay outside", code="convert.external", field=matrix.name, hint=HINT)


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)
