"""Reads GGUF models, in one file or in shards, as other people's programs wrote them.

What a file claims is checked against what it has before anything is allocated or believed; the metadata is
found but not decoded, and the tensors' bytes are not read until they are asked for. The rules are those of
the GGUF specification and of llama.cpp's reader (ggml/docs/gguf.md, ggml/src/gguf.cpp).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from gpack.container.place import Place
from gpack.errors import BoundsError, FormatError, UnsupportedError
from gpack.sections.strings import StringTable
from gpack.sections.values import Value
from gpack.sources.files import SourceFile
from gpack.sources.gguf_header import UNKNOWN_SIZE, Header, RawTensor, parse_header
from gpack.sources.gguf_split import SPLIT_KEYS, check_shards, shard_paths

__all__ = ["GgufSource", "Shard", "StringTable", "TensorInfo", "Value"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of the model.

    Attributes:
        name: Its name, unique in the model.
        ggml_type: The id of its type.
        dims: Elements along each dimension, as ggml orders them: the contiguous one first; 0 to 4 of them.
        shard: Index of the file that holds it.
        offset: Byte in that file where its data begins.
        byte_size: Bytes of its data; -1 if its type is not known (only with `allow_unknown_types`).
        position: Its place among the model's tensors, from 0.
    """

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    shard: int
    offset: int
    byte_size: int
    position: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the model.

    Attributes:
        path: Its path, beside the one that was opened.
        file_size: Bytes.
        header_size: Bytes before the data section, padding included.
        version: Its GGUF version.
        alignment: Its own alignment in bytes; 32 where it names none.
        tensor_count: Number of tensors in it.
    """

    path: Path
    file_size: int
    header_size: int
    version: int
    alignment: int
    tensor_count: int


class GgufSource:
    """A GGUF model, open for reading. Use it as a context manager, or call `close`.

    Attributes:
        shards: The model's files, in order.
        version: GGUF version of the first file.
        alignment: Alignment of the first file, bytes.
        metadata: The first file's entries in its order, without `split.*`.
        tensors: The tensors of all files, in order.
        assets, extensions, notes: Nothing: a GGUF has no files beside it and nothing else to tell.
    """

    def __init__(self, files: Sequence[SourceFile], headers: Sequence[Header]) -> None:
        """Takes over open files and their headers; `open` is the way to make one.

        Raises:
            FormatError: If the shards contradict one another or tensors lie where they cannot.
        """
        check_shards([file.path for file in files], headers)
        self._files = tuple(files)
        self.shards = tuple(map(_shard, files, headers))
        self.version = headers[0].version
        self.alignment = headers[0].alignment
        self.metadata = {key: value for key, value in headers[0].metadata.items() if key not in SPLIT_KEYS}
        self.tensors = _place_tensors(self.shards, headers)
        self.assets: dict[str, bytes] = {}
        self.extensions: dict[str, Any] = {}
        self.notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, allow_unknown_types: bool = False) -> GgufSource:
        """Opens a model, by its file or by any of its shards, and checks its headers.

        Args:
            path: The file. The other shards are those beside it.
            allow_unknown_types: Let tensors of unknown types pass, with a byte size of -1.

        Raises:
            FormatError: If a file breaks a rule; codes `gguf.*`, with file, place and values.
            UnsupportedError: If the version, byte order or a tensor's type is none that is handled.
            PathError: If a file is missing, no regular file, or unreadable; codes `io.*`.
        """
        files = [SourceFile(path)]
        try:
            opened = parse_header(files[0], allow_unknown_types=allow_unknown_types)
            headers = []
            for shard_path in shard_paths(files[0].path, opened):
                if shard_path == Path(path):
                    # The file that was given is open already: it moves to its place in the order.
                    files.append(files.pop(0))
                    headers.append(opened)
                else:
                    files.append(SourceFile(shard_path))
                    headers.append(parse_header(files[-1], allow_unknown_types=allow_unknown_types))
            return cls(files, headers)
        except BaseException:
            for file in files:
                file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; a second call does nothing. The metadata stays usable."""
        for file in self._files:
            file.close()

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The open files, shard by shard."""
        return self._files

    def range_of(self, tensor: TensorInfo) -> Place:
        """Where the tensor's bytes are."""
        return Place(self.shards[tensor.shard].path, self.fileno(tensor.shard), tensor.offset, tensor.byte_size)

    def describe_files(self) -> list[dict[str, Any]]:
        """The shards, for a report."""
        return [
            {"file": shard.path.name, "size": shard.file_size, "version": shard.version, "alignment": shard.alignment}
            for shard in self.shards
        ]

    def origin(self, tensor: TensorInfo) -> dict[str, Any]:
        """The shard of a tensor and its place in it, for a report."""
        return {"source": self.shards[tensor.shard].path.name, "source_offset": tensor.offset}

    def fileno(self, shard: int) -> int:
        """The file descriptor of a shard.

        Raises:
            ClosedError: If the source was closed.
        """
        return self._files[shard].fileno()

    def read(self, tensor: TensorInfo) -> bytes:
        """The tensor's bytes, as they are in the file.

        Raises:
            UnsupportedError: `gguf.tensor_type` if its type is not known.
            PathError: `io.short_read` if the file was truncated meanwhile, `io.read` for other faults.
        """
        if tensor.byte_size == UNKNOWN_SIZE:
            raise UnsupportedError(
                f"the tensor {tensor.name!r} is of unknown type {tensor.ggml_type}, so its size is not known",
                code="gguf.tensor_type",
                path=self.shards[tensor.shard].path,
                field=tensor.name,
            )
        return self.read_at(tensor.shard, tensor.offset, tensor.byte_size)

    def read_at(self, shard: int, offset: int, length: int) -> bytes:
        """`length` bytes of a shard from byte `offset` on.

        Raises:
            PathError: `io.short_read` if the file ends before, `io.read` for other faults.
        """
        return self._files[shard].read_at(offset, length)

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, decoded as `Value.python` does; `default` if there is none."""
        value = self.metadata.get(key)
        return default if value is None else value.python()


def _shard(file: SourceFile, header: Header) -> Shard:
    return Shard(
        path=file.path,
        file_size=file.size,
        header_size=header.data_offset,
        version=header.version,
        alignment=header.alignment,
        tensor_count=len(header.tensors),
    )


def _place_tensors(shards: Sequence[Shard], headers: Sequence[Header]) -> tuple[TensorInfo, ...]:
    """The tensors of all shards with their absolute places, which are checked."""
    placed: dict[str, TensorInfo] = {}
    for index, (shard, header) in enumerate(zip(shards, headers, strict=True)):
        _check_places(shard, header.tensors)
        for raw in header.tensors:
            if raw.name in placed:
                other = shards[placed[raw.name].shard].path.name
                raise _tensor_error(FormatError, "gguf.tensor_name", f"{other} holds this tensor too", shard, raw)
            placed[raw.name] = TensorInfo(
                name=raw.name,
                ggml_type=raw.ggml_type,
                dims=raw.dims,
                shard=index,
                offset=shard.header_size + raw.offset,
                byte_size=raw.byte_size,
                position=len(placed),
            )
    return tuple(placed.values())


def _check_places(shard: Shard, tensors: Sequence[RawTensor]) -> None:
    """Checks that the tensors lie inside their file, aligned, and none upon another."""
    sized = [tensor for tensor in tensors if tensor.byte_size != UNKNOWN_SIZE]
    for tensor in sized:
        _check_place(shard, tensor)
    occupied = sorted((tensor for tensor in sized if tensor.byte_size), key=lambda tensor: tensor.offset)
    for before, after in pairwise(occupied):
        if before.offset + before.byte_size > after.offset:
            raise _tensor_error(
                BoundsError,
                "gguf.tensor_bounds",
                f"it begins at offset {after.offset} of the data, inside the tensor {before.name!r}, whose "
                f"{before.byte_size} bytes begin at offset {before.offset}",
                shard,
                after,
            )


def _check_place(shard: Shard, tensor: RawTensor) -> None:
    if tensor.offset % shard.alignment:
        raise _tensor_error(
            BoundsError,
            "gguf.tensor_bounds",
            f"its offset {tensor.offset} is no multiple of the alignment {shard.alignment}",
            shard,
            tensor,
        )
    end = shard.header_size + tensor.offset + tensor.byte_size
    if end > shard.file_size:
        raise _tensor_error(
            BoundsError,
            "gguf.tensor_bounds",
            f"its {tensor.byte_size} bytes at offset {tensor.offset} of the data end at byte {end}, "
            f"but the file has {shard.file_size} bytes",
            shard,
            tensor,
            hint="the file is damaged or its download was cut off",
        )


def _tensor_error(
    kind: type[FormatError], code: str, message: str, shard: Shard, tensor: RawTensor, *, hint: str | None = None
) -> FormatError:
    return kind(
        message,
        code=code,
        path=shard.path,
        section="tensor info",
        field=tensor.name,
        offset=tensor.info_offset,
        hint=hint,
    )
