"""What a conversion needs of a model, whatever files it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..container.payload import Range
from ..sections.values import Value
from .files import SourceFile

IMPORT_EXTENSION = "import"  # of the manifest: what an import has to tell, and whether the model can be run


class ModelTensor(Protocol):
    """A tensor of the model."""

    @property
    def name(self) -> str:
        """Its name, unique in the model."""

    @property
    def ggml_type(self) -> int:
        """Number of its type, of GgmlType."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Extents, contiguous axis first."""

    @property
    def byte_size(self) -> int:
        """Bytes of its data."""

    @property
    def position(self) -> int:
        """Its place among the model's tensors, from 0."""


class ModelSource(Protocol):
    """A model, open for reading; a context manager that closes its files."""

    @property
    def version(self) -> int:
        """GGUF version; 0 where the source is no GGUF."""

    @property
    def alignment(self) -> int:
        """Alignment of the GGUF; 0 where the source is no GGUF."""

    @property
    def metadata(self) -> dict[str, Value]:
        """The metadata in its order."""

    @property
    def tensors(self) -> Sequence[ModelTensor]:
        """The tensors in their order."""

    @property
    def files(self) -> Sequence[SourceFile]:
        """Every file that is read."""

    @property
    def assets(self) -> Mapping[str, bytes]:
        """Files that lie beside the weights, by name."""

    @property
    def extensions(self) -> Mapping[str, Any]:
        """What the manifest's `extensions` shall say."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know and a pack does not say, one sentence each, for the output and the report."""

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key."""

    def range_of(self, tensor: Any) -> Range:
        """The tensor's bytes; `tensor` is one of `tensors`."""

    def describe_files(self) -> list[dict[str, Any]]:
        """The files, for a report: name, size and what else is known, JSON-ready."""

    def origin(self, tensor: Any) -> dict[str, Any]:
        """Where a tensor comes from, for a report, JSON-ready."""

    def __enter__(self) -> Any:
        """Itself."""

    def __exit__(self, *exception: object) -> None:
        """Closes the files."""
