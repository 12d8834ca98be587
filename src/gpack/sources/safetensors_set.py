"""Finds the files of a safetensors model: a folder, one file, any shard, or `model.safetensors.index.json`.

Links are followed to regular files, for model caches are made of them; names inside an index never lead out of its
folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..container.strict_json import parse_object, shorten
from ..errors import FormatError, PathError
from ..sections.assets import is_file_name
from .files import SourceFile
from .safetensors import METADATA, StoredTensor, read_header

INDEX, SINGLE, SUFFIX = "model.safetensors.index.json", "model.safetensors", ".safetensors"
INDEX_SUFFIX = SUFFIX + ".index.json"
MAX_INDEX = 256 << 20  # bytes
MAX_SHARDS = 100_000
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.safetensors")
_LISTED = 10  # names that a message shows


class SafetensorsSet:
    """The files of one model, open for reading.

    Attributes:
        folder: Where they are.
        files: The index, if there is one, and the shards by name.
        shards: The shards.
        tensors: The tensors of all shards, shard by shard, each in its header's order.
        ignored: Of a folder, files with tensors that are none of the model's.
    """

    def __init__(self, path: Path) -> None:
        """Opens the model and checks every header.

        Raises:
            FormatError: A header or the index breaks a rule, or shards are missing; codes `safetensors.*`.
            UnsupportedError: A tensor's type is not known.
            PathError: There is no such file, or it cannot be read.
        """
        self.files: list[SourceFile] = []
        try:
            self.folder, names, self._map = self._resolve(path)
            shards = self._open_shards(names)
            self.shards = [file for _, file in shards]
            self.ignored = self._ignored(path, names) if path.is_dir() else []
            self.tensors = _collect(shards, self._map, self.files)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files; a second call does nothing."""
        for file in self.files:
            file.close()

    def _ignored(self, folder: Path, names: Sequence[str]) -> list[str]:
        """Names of the folder's other files with tensors, and of an index that is not used."""
        used = {*names, *(file.path.name for file in self.files)}
        found = (entry.name for entry in folder.iterdir() if entry.name.endswith((SUFFIX, INDEX_SUFFIX)))
        return sorted(name for name in found if name not in used)

    def _resolve(self, path: Path) -> tuple[Path, list[str], dict[str, str] | None]:
        """The folder, the names of the shards, and the index's map of tensors to shards."""
        if path.is_dir():
            return self._resolve_folder(path)
        folder = path.parent
        if path.name.endswith(INDEX_SUFFIX):
            return folder, *self._read_index(path)
        shard = _SHARD.fullmatch(path.name)
        if shard is None:
            return folder, [path.name], None
        index = folder / (shard["stem"] + INDEX_SUFFIX)
        if index.is_file():
            names, mapped = self._read_index(index)
            if path.name in names:
                return folder, names, mapped
        count = int(shard["count"])
        if not 0 < int(shard["number"]) <= count <= MAX_SHARDS:
            raise FormatError("the numbers in the name are impossible", code="safetensors.shards", path=path)
        return folder, [f"{shard['stem']}-{n:05}-of-{shard['count']}{SUFFIX}" for n in range(1, count + 1)], None

    def _resolve_folder(self, folder: Path) -> tuple[Path, list[str], dict[str, str] | None]:
        # A link that leads nowhere is an error, not a reason to take other files.
        if os.path.lexists(folder / SINGLE):
            return folder, [SINGLE], None
        if os.path.lexists(folder / INDEX):
            return folder, *self._read_index(folder / INDEX)
        found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX))
        if len(found) == 1 or len({_stem(name) for name in found}) == 1:
            return self._resolve(folder / found[0])
        others = sorted({entry.suffix for entry in folder.iterdir()} & {".bin", ".pt", ".pth", ".gguf"})
        raise FormatError(
            f"the folder has no {SINGLE} and no {INDEX}; of safetensors files it has {_names(found) or 'none'}",
            code="convert.source",
            path=folder,
            hint="give the file that is meant"
            if found or ".gguf" in others
            else "files of pickled tensors are not read: they are programs"
            if others
            else None,
        )

    def _read_index(self, path: Path) -> tuple[list[str], dict[str, str]]:
        file = SourceFile(path)
        self.files.append(file)

        def fault(message: str, code: str = "safetensors.index", field: str = "weight_map") -> FormatError:
            return FormatError(message, code=code, path=path, field=field)

        if file.size > MAX_INDEX:
            raise fault(f"the index has {file.size} bytes", field="")
        try:
            index = parse_object(file.read_at(0, file.size), max_bytes=MAX_INDEX, max_depth=16, plain=False)
        except ValueError as error:
            raise fault(f"the index is no JSON object of its kind: {error}", field="") from error
        mapped = index.get("weight_map")
        if not isinstance(mapped, dict) or not mapped:
            raise fault(f"it is {shorten(mapped)}, no object of tensor names and file names")
        for tensor, name in mapped.items():
            if not isinstance(name, str) or not is_file_name(name):
                raise fault(
                    f"the tensor {shorten(tensor)} lies in {shorten(name)}, no plain file name",
                    "safetensors.index_path",
                )
        names = sorted(set(mapped.values()))
        if len(names) > MAX_SHARDS:
            raise fault(f"it names {len(names)} files")
        return names, {key: value for key, value in mapped.items() if key != METADATA}

    def _open_shards(self, names: Iterable[str]) -> list[tuple[str, SourceFile]]:
        """Opens all shards; those that are missing are told together."""
        opened, missing = [], []
        for name in names:
            try:
                file = SourceFile(self.folder / name)
            except PathError as error:
                if error.code != "io.not_found" or (isinstance(names, list) and len(names) == 1):
                    raise
                missing.append(name)
                continue
            self.files.append(file)
            opened.append((name, file))
        if missing:
            raise FormatError(
                f"{len(missing)} of {len(missing) + len(opened)} shards are missing: {_names(missing)}",
                code="safetensors.shards",
                path=self.folder,
                hint="get the missing files",
            )
        return opened


def _collect(
    shards: Iterable[tuple[str, SourceFile]], mapped: Mapping[str, str] | None, files: list[SourceFile]
) -> list[StoredTensor]:
    """The tensors of all shards, which agree with the index."""
    found: dict[str, StoredTensor] = {}
    for name, file in shards:
        for tensor in read_header(file):
            if tensor.name in found:
                raise FormatError(
                    f"{found[tensor.name].file.path.name} holds this tensor too",
                    code="safetensors.tensor_name",
                    path=file.path,
                    field=tensor.name,
                )
            said = name if mapped is None else mapped.get(tensor.name)
            if said != name:
                where = "names it nowhere" if said is None else f"says that it is in {said}"
                raise FormatError(
                    f"the shard holds the tensor, but the index {where}",
                    code="safetensors.index",
                    path=file.path,
                    field=tensor.name,
                )
            found[tensor.name] = tensor
    absent = [] if mapped is None else sorted(set(mapped) - set(found))
    if absent:
        raise FormatError(
            f"the index names what no shard holds: {_names(absent)}",
            code="safetensors.index",
            path=files[0].path,
            field="weight_map",
        )
    if not found:
        raise FormatError("the model has no tensors", code="convert.source", path=files[-1].path)
    return list(found.values())


def _stem(name: str) -> Any:
    match = _SHARD.fullmatch(name)
    return (match["stem"], match["count"]) if match else name


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:_LISTED]) if len(listed) > 2 * _LISTED else ", ".join(listed)
    return shown if len(listed) <= 2 * _LISTED else f"{shown} and {len(listed) - _LISTED} others"
