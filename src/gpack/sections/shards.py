"""External shards: found by their names in one folder, and checked before a byte of theirs is believed.

Standard library only, and light: `gpack.open` comes here for external tensors.
"""

from __future__ import annotations

import os

from .. import errors
from ..container.held import HoldsFile
from ..container.mapped import MappedFile
from ..container.reader import hash_range, of_nothing
from ..container.structure import close_read, open_file
from ..generated.constants import ShardFlags
from ..generated.structs import ExpertShardRowV1
from .assets import is_file_name
from .table import bytes_referred

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .table import Table

SECTION = "ExpertLayoutBin"


class ShardFile(HoldsFile):
    """A shard whose size and header are those that the pack records; open until `close`.

    Attributes:
        name: Its file name, as the pack has it.
        path: Where it was found.
        row: What the pack says of it.
    """

    __slots__ = ("_descriptor", "_mapped", "name", "path", "row")

    def __init__(self, name: str, row: ExpertShardRowV1, path: str, io: str = "auto") -> None:
        """Opens and checks the file; links are followed to regular files.

        Raises:
            PathError: It is missing (`shard.missing`), no regular file, or unreadable.
            BoundsError: It has another size (`shard.size`).
            DigestError: It has another header (`shard.header`).
        """
        self.name, self.row, self.path = name, row, path
        self._mapped = MappedFile(path, row.file_size, io)
        self._descriptor = -1
        try:
            self._descriptor, size = open_file(path)
        except errors.PathError as error:
            if error.code != "io.not_found":
                raise
            raise errors.PathError(
                f"the shard {name!r} is missing",
                code="shard.missing",
                path=path,
                hint="put it beside the .gpack, or name its folder with --expert-dir",
            ) from error
        try:
            self._check(size)
        except BaseException:
            self.close()
            raise

    def _check(self, size: int) -> None:
        row = self.row
        # The header first, where it is there: another file usually has another size too.
        actual = hash_range(self._descriptor, 0, row.header_size, self.path) if size >= row.header_size else None
        if actual is not None and actual != row.header_sha256:
            raise errors.DigestError(
                f"the first {row.header_size} bytes of the shard have the SHA-256 {actual.hex()}, "
                f"the pack records {row.header_sha256.hex()}",
                code="shard.header",
                path=self.path,
                offset=0,
                hint="it is another file of that name",
            )
        if size != row.file_size:
            raise errors.BoundsError(
                f"the shard has {size} bytes, the pack records {row.file_size}",
                code="shard.size",
                path=self.path,
                hint="its download was cut off, or bytes were added",
            )

    @property
    def descriptor(self) -> int:
        """The open file.

        Raises:
            ClosedError: The shard was closed.
        """
        if self._descriptor < 0:
            raise errors.ClosedError("the shard was closed", code="pack.closed", path=self.path)
        return self._descriptor

    @property
    def covered(self) -> bool:
        """Whether the pack records a digest of every byte."""
        return bool(self.row.flags & ShardFlags.HAS_SHA256)

    def span(self, offset: int, length: int) -> memoryview:
        """A range of the file, read-only: a view of the mapped file, or a copy where it cannot be mapped.

        Raises:
            PathError: The file was cut since it was opened, cannot be read, or must be mapped and cannot be.
        """
        return self._mapped.span(self.descriptor, offset, length)

    def check_digest(self, progress: Callable[[int], None] | None = None) -> None:
        """Compares every byte with the digest that the pack records.

        Raises:
            DigestError: `shard.sha256`.
            PathError: The read failed, or the file was cut meanwhile.
        """
        actual = hash_range(self.descriptor, 0, self.row.file_size, self.path, progress)
        if actual != self.row.sha256:
            raise errors.DigestError(
                f"the shard's {self.row.file_size} bytes have the SHA-256 {actual.hex()}, "
                f"the pack records {self.row.sha256.hex()}{of_nothing(self.row.sha256)}",
                code="shard.sha256",
                path=self.path,
                hint="it is damaged, or was changed",
            )

    def close(self) -> None:
        """Closes the file; the mapping goes with the last array that looks at it."""
        if self._descriptor >= 0:
            close_read(self._descriptor)
            self._descriptor = -1
        self._mapped.close()


class ShardFolder:
    """The shards of a pack, each opened and checked when it is first asked for.

    Attributes:
        folder: The only folder where they are looked for.
        names: Their file names.
        rows: What the pack says of them.
    """

    __slots__ = ("_io", "_open", "folder", "names", "rows")

    def __init__(self, table: Table[Any, Any], folder: str, io: str = "auto") -> None:
        """Reads the table of shards; no file is touched.

        Raises:
            FormatError: The table is broken, or a name is a path.
        """
        self.folder, self._io = folder, io
        self.rows = list(shard_rows(table))
        self.names = [_file_name(table, row) for row in self.rows]
        self._open: dict[int, ShardFile] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def file(self, index: int) -> ShardFile:
        """The shard of that number, checked.

        Raises:
            BoundsError: There is no such shard (`expert.shard_ref`).
            GpackError: As `ShardFile`.
        """
        if not 0 <= index < len(self.rows):
            raise errors.BoundsError(
                f"shard {index} of {len(self.rows)}", code="expert.shard_ref", section=SECTION, field="shard"
            )
        if index not in self._open:
            path = os.path.join(self.folder, self.names[index])
            self._open[index] = ShardFile(self.names[index], self.rows[index], path, self._io)
        return self._open[index]

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._open.popitem()[1].close()


def shard_rows(table: Table[Any, Any]) -> Iterator[ExpertShardRowV1]:
    """The rows of ExpertLayoutBin's second table.

    Raises:
        BoundsError: They leave the section.
        FormatError: Their names share bytes of the heap, or leave it (`index.heap_order`).
    """
    header = table.header
    end = header.ofs_shards + header.num_shards * header.shard_row_size
    if header.shard_row_size < ExpertShardRowV1.SIZE or end > len(table.data):
        raise errors.BoundsError("the shards leave the section", code="expert.shard_table", section=SECTION)
    total = bytes_referred(table.data, header.ofs_shards, header.num_shards, header.shard_row_size, ExpertShardRowV1)
    if total > header.len_heap:
        raise errors.FormatError(
            f"the shards' names have {total} bytes together, the heap has {header.len_heap}",
            code="index.heap_order",
            section=SECTION,
        )
    for index in range(header.num_shards):
        yield ExpertShardRowV1.decode(table.data, header.ofs_shards + index * header.shard_row_size)


def _file_name(table: Table[Any, Any], row: ExpertShardRowV1) -> str:
    """A shard's name, which can only mean a file of the folder.

    Raises:
        FormatError: It is a path, or not UTF-8.
    """
    name = table.text(row, "name")
    if not is_file_name(name):
        raise errors.FormatError(
            f"the shard's name {name!r} is no plain file name", code="expert.shard_path", section=SECTION, field="name"
        )
    return name


def folder_of(path: str | os.PathLike[str]) -> str:
    """The folder in which a pack lies; a link to the pack is not followed."""
    return os.path.dirname(os.fspath(path)) or os.curdir
