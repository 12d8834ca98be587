"""`gpack.open`: tensors, metadata and sections of a pack.

Opening needs the lighter half of the standard library; numpy is imported when the first tensor is asked for.
"""

from __future__ import annotations

from . import errors
from .container.reader import Container
from .generated.constants import ExpertRole, SectionKind, TensorFlags
from .generated.structs import (
    ExpertLayoutHeaderV1,
    ExpertLayoutRowV1,
    MtpHeaderV1,
    MtpRowV1,
    TensorIndexHeaderV1,
    TensorIndexRowV1,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Any

    from .sections.metadata import MetadataTable
    from .sections.table import Table
    from .sections.tokenizer import TokenizerTable
    from .tensor import Tensor


def open(path: str | os.PathLike[str], *, verify_all_hashes: bool = False) -> Pack:  # noqa: A001 - gpack.open
    """Opens a pack.

    The quick open takes well under a millisecond: it checks the fixed records and the manifest's SHA-256. With
    `verify_all_hashes` every section's SHA-256 is checked too, which reads the whole file.

    Raises:
        PathError: The file is missing or unreadable.
        UnsupportedError: The file needs a newer reader.
        FormatError: The first rule that the file breaks; the code is the rule's id.
    """
    return Pack(Container.open(path, verify_all_hashes=verify_all_hashes))


class Pack:
    """An open pack: a mapping of tensor names to zero-copy arrays. Use it as a context manager, or call `close`.

    Attributes:
        container: The file as sections of bytes.
        tensors: TensorIndexBin.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self._tensors: Table[TensorIndexHeaderV1, TensorIndexRowV1] | None = None
        self._metadata: Metadata | None = None
        self._tokenizer: TokenizerTable | None = None

    # ------------------------------------------------------------ tensors

    @property
    def tensors(self) -> Table[TensorIndexHeaderV1, TensorIndexRowV1]:
        """TensorIndexBin, sorted by name; rows are decoded when they are asked for."""
        if self._tensors is None:
            from .sections.table import Table

            data = self.section(SectionKind.TENSOR_INDEX_BIN)
            self._tensors = Table(data, TensorIndexHeaderV1, TensorIndexRowV1, section="TensorIndexBin")
        return self._tensors

    def __repr__(self) -> str:
        return f"<gpack.Pack {self.container.path!r}{' (closed)' if self.container.closed else ''}>"

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return (self.tensors.text(row, "name") for row in self.tensors)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.tensors.find(name.encode("utf-8", "surrogatepass")) is not None

    def keys(self) -> Iterator[str]:
        """Names of all tensors, sorted by their bytes."""
        return iter(self)

    def info(self, name: str) -> TensorIndexRowV1:
        """The tensor's row in TensorIndexBin.

        Raises:
            MissingError: There is no tensor of that name.
        """
        index = self.tensors.find(name.encode("utf-8", "surrogatepass"))
        if index is None:
            raise errors.MissingError(
                f"there is no tensor {name!r}", code="pack.no_tensor", path=self.container.path,
                hint="`guild inspect --tensors` lists them",
            )  # fmt: skip
        return self.tensors.row(index)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor as a read-only array over the mapped file.

        Raises:
            MissingError: There is no tensor of that name.
            UnsupportedError: Its bytes lie in an external shard.
            BoundsError: The index points outside the tensor's section.
        """
        from .tensor import Tensor

        row = self.info(name)
        data, stride = self._bytes_of(name, row)
        try:
            return Tensor.over(data, name=name, ggml_type=row.ggml_type, dims=row.dims[: row.n_dims], stride=stride)
        except ValueError as error:  # extents beyond numpy's, which only an empty tensor can have
            raise errors.FormatError(
                f"{name}: {error}", code="tensor.dims", path=self.container.path, section="TensorIndexBin", field="dims"
            ) from error

    def place(self, name: str) -> tuple[int, int, int, int]:
        """Where a tensor's bytes are in the file: offset, number of runs, bytes of a run, distance between runs.

        Ordinary tensors are one run; routed experts are one run to an expert.

        Raises:
            MissingError, UnsupportedError, BoundsError: As `[]`.
        """
        row = self.info(name)
        self._check_row(name, row)
        entry = self.container.entry(row.home)
        stride = self._stride(row)
        # An empty tensor may claim any number of experts, so it is one run of nothing.
        runs = row.dims[2] if stride is not None and row.byte_size else 1
        length = row.byte_size // runs
        stride = length if stride is None else stride
        end = row.offset + (runs - 1) * stride + length
        if end > entry.size or stride < length:
            raise errors.BoundsError(
                f"{runs} runs of {length} bytes, {stride} apart, end at byte {end} of a section of {entry.size}",
                code="tensor.bounds", path=self.container.path, section="TensorIndexBin", field=name,
            )  # fmt: skip
        return entry.offset + row.offset, runs, length, stride

    def _bytes_of(self, name: str, row: TensorIndexRowV1) -> tuple[memoryview, int | None]:
        offset, runs, length, stride = self.place(name)
        data = memoryview(self.container.mapping())[offset : offset + (runs - 1) * stride + length]
        return data, (stride if row.role != ExpertRole.NONE else None)

    def _check_row(self, name: str, row: TensorIndexRowV1) -> None:
        from .generated.rules import check_tensor_index_row_v1

        path = self.container.path
        if row.flags & TensorFlags.EXTERNAL:
            raise errors.UnsupportedError(
                "the tensor's bytes lie in an external shard", code="pack.external_tensor", path=path, field=name
            )
        for rule, field in check_tensor_index_row_v1(row):
            raise errors.FormatError(
                f"{name}: {field} is {getattr(row, field)}", code=rule, path=path, section="TensorIndexBin", field=field
            )

    def _stride(self, row: TensorIndexRowV1) -> int | None:
        """Distance between the experts of a tensor of routed experts; None for others."""
        if row.role == ExpertRole.NONE:
            return None
        if row.n_dims != 3:
            raise errors.FormatError(
                f"routed experts of rank {row.n_dims}, not 3", code="tensor.role",
                path=self.container.path, section="TensorIndexBin", field="n_dims",
            )  # fmt: skip
        from .sections.table import Table

        if row.home == SectionKind.EXPERT_BLOBS:
            layout: Any = Table(
                self.section(SectionKind.EXPERT_LAYOUT_BIN), ExpertLayoutHeaderV1, ExpertLayoutRowV1,
                section="ExpertLayoutBin",
            )  # fmt: skip
        else:
            layout = Table(self.section(row.home), MtpHeaderV1, MtpRowV1, section="MtpBlob")
        if row.home_row >= len(layout):
            raise errors.FormatError(
                f"home_row is {row.home_row}, the table has {len(layout)} rows", code="tensor.home_row",
                path=self.container.path, section="TensorIndexBin", field="home_row",
            )  # fmt: skip
        return int(layout.row(row.home_row).stride)

    # ------------------------------------------------------------ the rest

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, parsed and checked against its schema."""
        return self.container.manifest

    @property
    def metadata(self) -> Metadata:
        """The source's metadata: a mapping of keys to Python values, in the source's order."""
        if self._metadata is None:
            self._metadata = Metadata(self)
        return self._metadata

    @property
    def tokenizer_table(self) -> TokenizerTable:
        """TokenizerBin's arrays, as views of the mapped file.

        Raises:
            MissingError: The pack has no tokenizer.
        """
        if self._tokenizer is None:
            from .sections.tokenizer import TokenizerTable

            self._tokenizer = TokenizerTable(self.section(SectionKind.TOKENIZER_BIN))
        return self._tokenizer

    def section(self, name: int | str) -> memoryview:
        """A section's bytes, by name or kind, as a view of the mapped file.

        Raises:
            MissingError: There is no such section.
            ClosedError: The pack was closed.
        """
        _ = self.container.descriptor  # refuses where the file was closed
        return self.container.view(name)

    def close(self) -> None:
        """Closes the file and unmaps it; arrays that are still alive keep the mapping until the last is gone."""
        self._tensors = self._metadata = self._tokenizer = None
        self.container.close()

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Metadata:
    """A pack's metadata: `pack.metadata["general.architecture"]`; values are decoded when they are asked for."""

    def __init__(self, pack: Pack) -> None:
        from .sections.metadata import MetadataTable

        self._pack = pack
        self.table: MetadataTable = MetadataTable(pack.section(SectionKind.METADATA_KV_BIN))

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[str]:
        return self.table.keys()

    def keys(self) -> Iterator[str]:
        """The keys, in the order of the source."""
        return iter(self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.table.find(key) is not None

    def __getitem__(self, key: str) -> Any:
        """The value as int, float, bool, str or list; bytes that are not UTF-8 become lone surrogates.

        Raises:
            MissingError: There is no such key.
        """
        from .sections.restore import restore_value

        row = self.table.find(key)
        if row is None:
            raise errors.MissingError(f"there is no key {key!r}", code="pack.no_key", path=self._pack.container.path)
        return restore_value(self.table, row, lambda: self._pack.tokenizer_table).python()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default where there is no such key."""
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`
