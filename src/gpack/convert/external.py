"""External experts: which of the source's files keep them, and what the pack records of those files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..container.pieces import Copy
from ..container.reader import hash_range
from ..errors import FormatError, UsageError
from ..sections.assets import is_file_name
from ..sections.experts import ExpertLayer, ExpertMatrix, ExpertShard, build_external_layout
from ..sources.composite import CompositeSource
from ..sources.gguf import GgufSource


@dataclass
class ExternalFiles:
    """The files of a GGUF that experts can stay in; those that are used become the pack's table of shards.

    Attributes:
        source: The model.
        hash_files: Record a digest of every byte of the files, which reads them whole.
        shards: The table, in the order of first use.
    """

    source: GgufSource
    hash_files: bool = False
    shards: list[ExpertShard] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    def build(self, layers: Sequence[ExpertLayer]) -> bytes:
        """ExpertLayoutBin; of the files only the headers are read, unless all bytes are to be hashed.

        Raises:
            UsageError: The experts do not lie in one piece in a file.
            FormatError: A file's name cannot stand in a pack (`expert.shard_path`).
            PathError: A file cannot be read.
        """
        for layer in layers:
            for matrix in layer.matrices:
                self._use(_copy_of(matrix))
        return build_external_layout(layers, self.shards, self.place)

    def place(self, matrix: ExpertMatrix) -> tuple[int, int]:
        """Number of the shard, and the offset in it."""
        copy = _copy_of(matrix)
        return self._numbers[copy.descriptor], copy.offset

    def summary(self) -> list[dict[str, Any]]:
        """What the manifest says of the shards."""
        return [shard.summary() for shard in self.shards]

    def _use(self, copy: Copy) -> None:
        if copy.descriptor in self._numbers:
            return
        index = next(
            (index for index, file in enumerate(self.source.files) if file.fileno() == copy.descriptor), None
        )  # fmt: skip
        if index is None:
            raise UsageError("the experts are not in the GGUF's own files", code="convert.external", path=copy.path)
        shard, file = self.source.shards[index], self.source.files[index]
        name = shard.path.name
        if not is_file_name(name) or not _is_utf8(name):
            raise FormatError(
                f"a pack cannot name the shard {name!r}", code="expert.shard_path", path=shard.path,
                hint="rename the file",
            )  # fmt: skip
        descriptor = file.fileno()
        digest = hash_range(descriptor, 0, shard.header_size, shard.path)
        full = hash_range(descriptor, 0, file.size, shard.path) if self.hash_files else None
        self._numbers[copy.descriptor] = len(self.shards)
        self.shards.append(ExpertShard(name, file.size, shard.header_size, digest, full))


def external_files(source: object, *, hash_shards: bool) -> ExternalFiles:
    """The files of a source in which experts can stay: those of its GGUF.

    Raises:
        UsageError: There is no GGUF.
    """
    base = source.base if isinstance(source, CompositeSource) else source
    if not isinstance(base, GgufSource):
        raise UsageError("only the experts of a GGUF can stay outside", code="convert.external")
    return ExternalFiles(base, hash_shards)


def _copy_of(matrix: ExpertMatrix) -> Copy:
    if not isinstance(matrix.source, Copy):
        raise UsageError(
            f"{matrix.name} does not lie in one piece in a file, so it cannot stay outside",
            code="convert.external", field=matrix.name, hint="convert without --external-experts",
        )  # fmt: skip
    return matrix.source


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)
