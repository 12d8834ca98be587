"""`gpack.open`: tensors, metadata and sections of a pack.

Opening needs the lighter half of the standard library; numpy is imported when the first tensor is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import errors
from .container.place import Place
from .container.reader import Container
from .container.structure import check_path
from .generated.constants import ExpertFlags, ExpertRole, SectionKind, TensorFlags
from .generated.structs import ExpertLayoutHeaderV1, ExpertLayoutRowV1, TensorIndexHeaderV1, TensorIndexRowV1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .sections.metadata import MetadataTable
    from .sections.shards import ShardFile, ShardFolder
    from .sections.table import Table
    from .sections.tokenizer import TokenizerTable
    from .tensor import Tensor


def open(  # noqa: A001 - gpack.open
    path: str | os.PathLike[str],
    *,
    verify_all_hashes: bool = False,
    expert_dir: str | os.PathLike[str] | None = None,
    io: str = "auto",
) -> Pack:
    """Opens a pack.

    The quick open takes well under a millisecond: it checks the fixed records and the manifest's SHA-256. With
    `verify_all_hashes` every section's SHA-256 is checked too, which reads the whole file.

    Args:
        expert_dir: Folder of the shards of external experts; default the pack's own. They are opened, and checked
            by size and header digest, when the first tensor of theirs is asked for.
        io: `mmap`: tensors are arrays over the mapped file; `read`: each access reads the tensor (slow disks); `auto`:
            mapped, and read where the file system refuses to map, which the log says.

    Raises:
        PathError: The file is missing or unreadable.
        UnsupportedError: The file needs a newer reader.
        FormatError: The first rule that the file breaks; the code is the rule's id.
    """
    if expert_dir is not None:
        check_path(expert_dir, "expert_dir")
    return Pack(Container.open(path, verify_all_hashes=verify_all_hashes, io=io), expert_dir=expert_dir, io=io)


class Pack(Mapping["str", "Tensor"]):
    """An open pack: a mapping of tensor names to zero-copy arrays. Use it as a context manager, or call `close`.

    Tensors of external experts are arrays over the mapped shard.

    Attributes:
        container: The file as sections of bytes.
        tensors: TensorIndexBin.
    """

    def __init__(
        self, container: Container, *, expert_dir: str | os.PathLike[str] | None = None, io: str = "auto"
    ) -> None:
        self.container = container
        self._io = io
        self._expert_dir = expert_dir
        self._absolute_dir = None if expert_dir is None else os.path.abspath(expert_dir)
        self._shards: ShardFolder | None = None
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
            self._tensors = Table(SectionKind.TENSOR_INDEX_BIN, data)
        return self._tensors

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a pack is its path and digest; where it is unpickled it is opened again, and its shards when needed.

        Raises:
            ClosedError: It was closed.
        """
        return _opened_again, (self.container, self._absolute_dir, self._io)

    def __copy__(self) -> Pack:
        """The same file, opened for itself: each of the two is closed alone."""
        return Pack(self.container.__copy__(), expert_dir=self._expert_dir, io=self._io)

    def __deepcopy__(self, memo: object) -> Pack:
        return self.__copy__()

    # Two packs are equal where they are one: comparing their bytes is for `gpack.diff`.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __repr__(self) -> str:
        return f"<gpack.Pack {self.container.path!r}{' (closed)' if self.container.closed else ''}>"

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors, sorted by their bytes."""
        return (self.tensors.text(row, "name") for row in self.tensors)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.tensors.find(name.encode("utf-8", "surrogatepass")) is not None

    def info(self, name: str) -> TensorIndexRowV1:
        """The tensor's row in TensorIndexBin.

        Raises:
            MissingError: There is no tensor of that name.
        """
        index = self.tensors.find(name.encode("utf-8", "surrogatepass")) if isinstance(name, str) else None
        if index is None:
            raise errors.MissingError(
                f"there is no tensor {name!r}",
                code="pack.no_tensor",
                path=self.container.path,
                hint="`guild inspect --tensors` lists them",
            )
        return self.tensors.row(index)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor, read-only: an array over the mapped file, or in memory where that cannot be mapped.

        Code planes of a pack directory come as their bytes.

        Raises:
            MissingError: There is no tensor of that name.
            BoundsError: The index points outside the tensor's section or shard.
            PathError, BoundsError, DigestError: Its shard is missing (`shard.missing`), of another size
                (`shard.size`), or another file (`shard.header`).
        """
        from .tensor import Tensor

        row = self.info(name)
        place, file = self._locate(name, row)
        data = file.span(place.offset, place.span)
        stride = place.stride if row.role != ExpertRole.NONE else None
        if row.flags & TensorFlags.CODE_PLANES:
            return Tensor.bytes_of(data, name=name)
        try:
            return Tensor.over(data, name=name, ggml_type=row.ggml_type, dims=row.dims[: row.n_dims], stride=stride)
        except ValueError as error:  # extents beyond numpy's, which only an empty tensor can have
            raise errors.FormatError(
                f"{name}: {error}", code="tensor.dims", path=self.container.path, section="TensorIndexBin", field="dims"
            ) from error

    def place(self, name: str) -> Place:
        """Where a tensor's bytes are, in the pack or in a shard, which is then open and checked.

        Raises:
            GpackError: As `[]`.
        """
        return self.place_of(name, self.info(name))

    def place_of(self, name: str, row: TensorIndexRowV1) -> Place:
        """As `place`, of a tensor whose row is known."""
        return self._locate(name, row)[0]

    def _locate(self, name: str, row: TensorIndexRowV1) -> tuple[Place, Container | ShardFile]:
        """Where a tensor's bytes are, and the open file that holds them."""
        self._check_row(name, row)
        layout = self._layout_row(row)
        # An empty tensor may claim any number of experts, so it is one run of nothing.
        runs = row.dims[2] if layout is not None and row.byte_size else 1
        length = row.byte_size // runs
        if row.flags & TensorFlags.EXTERNAL:
            return self._locate_external(name, row, layout, runs, length)
        entry = self.container.entry(row.home)
        stride = length if layout is None else int(layout.stride)
        self._check_place(name, runs, length, stride, row.offset, entry.size)
        path, descriptor = self.container.path, self.container.descriptor
        place = Place(path, descriptor, entry.offset + row.offset, length, runs=runs, stride=stride)
        return place, self.container

    def _locate_external(
        self, name: str, row: TensorIndexRowV1, layout: Any, runs: int, length: int
    ) -> tuple[Place, ShardFile]:
        """The columns of a layer's matrix; of a fused one those of its gate, which the up half follows at once."""
        first = "up" if row.role == ExpertRole.UP else "down" if row.role == ExpertRole.DOWN else "gate"
        if (
            layout is None
            or not layout.flags & ExpertFlags.EXTERNAL
            or row.offset != getattr(layout, f"{first}_offset")
        ):
            raise errors.FormatError(
                f"{name}: the layout of its layer has another place",
                code="tensor.home_row",
                path=self.container.path,
                section="TensorIndexBin",
                field="home_row",
            )
        shard = self.shards.file(getattr(layout, f"{first}_shard"))
        stride = getattr(layout, f"{first}_stride")
        self._check_place(name, runs, length, stride, row.offset, shard.row.file_size)
        return Place(shard.path, shard.descriptor, row.offset, length, runs=runs, stride=stride), shard

    def _check_place(self, name: str, runs: int, length: int, stride: int, offset: int, size: int) -> None:
        end = offset + (runs - 1) * stride + length
        if end > size or stride < length:
            raise errors.BoundsError(
                f"{runs} runs of {length} bytes, {stride} apart, end at byte {end} of {size}",
                code="tensor.bounds",
                path=self.container.path,
                section="TensorIndexBin",
                field=name,
            )

    @property
    def shards(self) -> ShardFolder:
        """The shards of external experts; none where the experts are embedded.

        Raises:
            FormatError: The table of shards is broken, or a name in it is a path.
        """
        if self._shards is None:
            from .sections.shards import ShardFolder, folder_of

            folder = folder_of(self.container.path) if self._expert_dir is None else os.fspath(self._expert_dir)
            self._shards = ShardFolder(self.expert_layout, folder, self._io)
        return self._shards

    @property
    def expert_layout(self) -> Table[ExpertLayoutHeaderV1, ExpertLayoutRowV1]:
        """ExpertLayoutBin.

        Raises:
            MissingError: The pack has no routed experts.
        """
        from .sections.table import Table

        data = self.section(SectionKind.EXPERT_LAYOUT_BIN)
        return Table(SectionKind.EXPERT_LAYOUT_BIN, data)

    def _check_row(self, name: str, row: TensorIndexRowV1) -> None:
        from .generated.rules import check_tensor_index_row_v1

        path = self.container.path
        for rule, field in check_tensor_index_row_v1(row):
            if rule == "field.reserved":
                continue  # a later version may say there what this one can do without
            raise errors.FormatError(
                f"{name}: {field} is {getattr(row, field)}", code=rule, path=path, section="TensorIndexBin", field=field
            )

    def _layout_row(self, row: TensorIndexRowV1) -> Any:
        """The row of a tensor of routed experts in the table that lays them out; None for other tensors."""
        if row.role == ExpertRole.NONE:
            return None
        if row.n_dims != 3:
            raise errors.FormatError(
                f"routed experts of rank {row.n_dims}, not 3",
                code="tensor.role",
                path=self.container.path,
                section="TensorIndexBin",
                field="n_dims",
            )
        from .sections.table import Table

        layout: Any = (
            self.expert_layout
            if row.home == SectionKind.EXPERT_BLOBS
            else Table(SectionKind.MTP_BLOB, self.section(row.home))
        )
        if row.home_row >= len(layout):
            raise errors.FormatError(
                f"home_row is {row.home_row}, the table has {len(layout)} rows",
                code="tensor.home_row",
                path=self.container.path,
                section="TensorIndexBin",
                field="home_row",
            )
        return layout.row(row.home_row)

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

    def assets(self) -> list[str]:
        """Names of the files that lay beside the weights."""
        if self.container.find(SectionKind.TOKENIZER_ASSETS) is None:
            return []
        from .sections.assets import AssetTable

        return list(AssetTable(self.section(SectionKind.TOKENIZER_ASSETS)).names())

    def asset(self, name: str) -> memoryview:
        """The bytes of a file that lay beside the weights.

        Raises:
            MissingError: The pack has no such file.
            FormatError: The archive is damaged.
        """
        names = self.assets()
        if name not in names:
            raise errors.MissingError(
                f"there is no file {name!r}",
                code="pack.no_asset",
                path=self.container.path,
                hint=f"there are {', '.join(names)}" if names else "the pack has none",
            )
        from .sections.assets import AssetTable

        return AssetTable(self.section(SectionKind.TOKENIZER_ASSETS)).read(name)

    def section(self, name: int | str) -> memoryview:
        """A section's bytes, by name or kind, as a view of the mapped file.

        Raises:
            MissingError: There is no such section.
            ClosedError: The pack was closed.
        """
        _ = self.container.descriptor  # refuses where the file was closed
        return self.container.view(name)

    def close(self) -> None:
        """Closes pack and shards and unmaps them; arrays that are still alive keep their mapping."""
        self._tensors = self._metadata = self._tokenizer = None
        if self._shards is not None:
            self._shards.close()
        self.container.close()

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened_again(container: Container, expert_dir: str | None, io: str) -> Pack:
    return Pack(container, expert_dir=expert_dir, io=io)


class Metadata(Mapping["str", "Any"]):
    """A pack's metadata: `pack.metadata["general.architecture"]`; values are decoded when they are asked for."""

    def __init__(self, pack: Pack) -> None:
        from .sections.metadata import MetadataTable

        self._pack = pack
        self.table: MetadataTable = MetadataTable(pack.section(SectionKind.METADATA_KV_BIN))

    def __reduce__(self) -> tuple[Any, ...]:
        return Metadata, (self._pack,)

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[str]:
        """The keys, in the order of the source."""
        return self.table.keys()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.table.find(key) is not None

    def __getitem__(self, key: str) -> Any:
        """The value as int, float, bool, str or list; bytes that are not UTF-8 become lone surrogates.

        Raises:
            MissingError: There is no such key.
        """
        from .sections.restore import restore_value

        row = self.table.find(key) if isinstance(key, str) else None
        if row is None:
            raise errors.MissingError(f"there is no key {key!r}", code="pack.no_key", path=self._pack.container.path)
        return restore_value(self.table, row, lambda: self._pack.tokenizer_table).python()
