"""A GGUF together with what other files say of its tensors, or add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..container.payload import Range
from ..generated.constants import MetadataType
from ..sections.dense import DenseColumns
from ..sections.values import Value
from .files import SourceFile
from .gguf import GgufSource, TensorInfo


@dataclass(frozen=True)
class AddedTensor:
    """A tensor whose bytes are in another file than the GGUF's.

    Attributes:
        source: Its bytes.
        file: Name of the file, for a report.
        offset: Where they begin there.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    byte_size: int
    position: int
    source: Range
    file: str
    offset: int


@dataclass
class CompositeSource:
    """A GGUF with tensors replaced and added; closes all files with itself.

    Attributes:
        base: The GGUF.
        metadata: Its metadata, with what added layers change.
        dense_columns: What a pack directory says of dense tensors, by name.
        assets: Files that lie beside the weights, by name.
        notes: What was found and left out, for a report.
    """

    base: GgufSource
    metadata: dict[str, Value] = field(init=False)
    dense_columns: dict[str, DenseColumns] = field(default_factory=dict)
    assets: dict[str, bytes] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _opened: list[SourceFile] = field(default_factory=list)
    _also: list[GgufSource] = field(default_factory=list)
    _replaced: dict[str, AddedTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begins as the GGUF alone."""
        self.metadata = dict(self.base.metadata)
        self._positions = {tensor.name: tensor.position for tensor in self.base.tensors}

    @property
    def version(self) -> int:
        """GGUF version."""
        return self.base.version

    @property
    def alignment(self) -> int:
        """The GGUF's alignment."""
        return self.base.alignment

    @property
    def tensors(self) -> list[TensorInfo | AddedTensor]:
        """The GGUF's tensors in their order, replaced where something else is said of them; then those added."""
        named: dict[str, TensorInfo | AddedTensor] = {tensor.name: tensor for tensor in self.base.tensors}
        return list((named | self._replaced).values())

    @property
    def files(self) -> Sequence[SourceFile]:
        """Every file that is read."""
        return (*self.base.files, *self._opened, *(file for other in self._also for file in other.files))

    def open(self, path: Path) -> SourceFile:
        """Opens a file that is closed with the source; links are followed to regular files.

        Raises:
            PathError: It is missing, no regular file, or unreadable.
        """
        file = SourceFile(path)
        self._opened.append(file)
        return file

    def open_gguf(self, path: Path) -> GgufSource:
        """Opens another GGUF that is closed with the source."""
        other = GgufSource.open(path)
        self._also.append(other)
        return other

    def put(self, name: str, ggml_type: int, dims: tuple[int, ...], source: Range, file: Path, offset: int) -> None:
        """Replaces a tensor, or adds one."""
        position = self._positions.setdefault(name, len(self._positions))
        self._replaced[name] = AddedTensor(name, ggml_type, dims, source.size, position, source, file.name, offset)

    def set_count(self, key: str, count: int) -> None:
        """Sets a number of the metadata, in its own type where it has one."""
        before = self.metadata.get(key)
        value_type = before.value_type if before is not None else MetadataType.UINT32
        raw = count.to_bytes(MetadataType.BYTES[value_type], "little")
        self.metadata[key] = Value(key, value_type, value_type, 1, raw)

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def range_of(self, tensor: TensorInfo | AddedTensor) -> Range:
        """The tensor's bytes."""
        return tensor.source if isinstance(tensor, AddedTensor) else self.base.range_of(tensor)

    def describe_files(self) -> list[dict[str, Any]]:
        """The files, for a report."""
        others = [{"file": file.path.name, "size": file.size} for file in self._opened]
        drafts = [info for other in self._also for info in other.describe_files()]
        return [*self.base.describe_files(), *others, *drafts]

    def origin(self, tensor: TensorInfo | AddedTensor) -> dict[str, Any]:
        """Where a tensor comes from, for a report."""
        if isinstance(tensor, AddedTensor):
            return {"source": tensor.file, "source_offset": tensor.offset}
        return self.base.origin(tensor)

    def close(self) -> None:
        """Closes all files."""
        for file in self._opened:
            file.close()
        for other in (*self._also, self.base):
            other.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def columns_of(source: object) -> Mapping[str, DenseColumns]:
    """What a pack directory says of dense tensors; nothing where there is none."""
    return source.dense_columns if isinstance(source, CompositeSource) else {}
