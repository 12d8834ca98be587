"""Finds the files of a safetensors model: a folder, one file, any shard, or `model.safetensors.index.json`.

Whatever file names the model, an index beside it that lists the file tells the whole, so that a part is never taken for
all. Links are followed to regular files, for model caches are made of them; names inside an index never lead out of its
folder.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..container.strict_json import parse_object, shorten
from ..errors import FormatError, PathError
from ..sections.assets import is_file_name
from .files import SourceFile
from .safetensors import METADATA, NO_METADATA, StoredTensor, read_header

INDEX, SINGLE, SUFFIX = "model.safetensors.index.json", "model.safetensors", ".safetensors"
INDEX_SUFFIX = SUFFIX + ".index.json"
MAX_INDEX = 256 << 20  # bytes
MAX_SHARDS = 100_000
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})\.safetensors")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LISTED = 10  # names that a message shows


class SafetensorsSet:
    """The files of one model, open for reading.

    Attributes:
        folder: Where they are.
        files: The index, if there is one, and the shards by name.
        shards: The shards.
        tensors: The tensors of all shards, shard by shard, each in its header's order.
        ignored: Of a folder, files with tensors that are none of the model's.
        metadata: What the shards say under `__metadata__`, by the shard's name; those that say nothing are not there.
        notes: Where index and shards do not say the same, and what was taken.
        reasons: Why the tensors may not be the whole model.
    """

    def __init__(self, path: Path) -> None:
        """Opens the model and checks every header.

        Raises:
            FormatError: A header or the index breaks a rule, or shards are missing; codes `safetensors.*`.
            UnsupportedError: A tensor's type is not known.
            PathError: There is no such file, or it cannot be read.
        """
        self.files: list[SourceFile] = []
        self.notes: list[str] = []
        self.reasons: list[str] = []
        self.metadata: dict[str, Any] = {}
        try:
            self.folder, names, self._map = self._resolve(path)
            shards = self._open_shards(names)
            self.shards = [file for _, file in shards]
            self.ignored = self._ignored(path, names) if path.is_dir() else []
            self.tensors = self._collect(shards)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        for index in _indexes(path):
            try:
                names, mapped = self._read_index(index)
            except FormatError as error:
                self.reasons.append(
                    f"{shorten(index.name)[1:-1]} may list further files, but it is damaged: {error.message}"
                )
                names, mapped = [], {}
            if path.name in names:
                return folder, names, mapped
            self.files.pop().close()
        if _SHARD.fullmatch(path.name):
            return folder, _shard_names(path), None
        if others := _numbered_alike(path):
            self.reasons.append(
                f"only {shorten(path.name)[1:-1]} was read: {_names(others)} beside it may be other parts of the "
                "same model, and there is no index that says so"
            )
        return folder, [path.name], None

    def _resolve_folder(self, folder: Path) -> tuple[Path, list[str], dict[str, str] | None]:
        # A link that leads nowhere is an error, not a reason to take other files.
        if os.path.lexists(folder / SINGLE):
            return self._resolve(folder / SINGLE)
        if os.path.lexists(folder / INDEX):
            return folder, *self._read_index(folder / INDEX)
        found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX))
        indexes = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(INDEX_SUFFIX))
        if len(indexes) == 1:
            return folder, *self._read_index(folder / indexes[0])
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
        """Opens all shards; those that are missing are reported together."""
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

    def _collect(self, shards: Iterable[tuple[str, SourceFile]]) -> list[StoredTensor]:
        """The tensors of all shards; of one that several hold, the index tells which.

        Raises:
            FormatError: `safetensors.index`: the index names what no shard holds; `convert.source`: no tensors at all.
        """
        found: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
        for name, file in shards:
            header = read_header(file)
            if header.metadata is not NO_METADATA:
                self.metadata[name] = header.metadata
            for tensor in header.tensors:
                found[tensor.name][name] = tensor
        absent = sorted(set(self._map or ()) - set(found))
        if absent:
            raise FormatError(
                f"the index names what no shard holds: {_names(absent)}",
                code="safetensors.index",
                path=self.files[0].path,
                field="weight_map",
            )
        if not found:
            raise FormatError("the model has no tensors", code="convert.source", path=self.files[-1].path)
        chosen = [self._choose(name, holders) for name, holders in found.items()]
        self._tell(found)
        return chosen

    def _choose(self, name: str, holders: Mapping[str, StoredTensor]) -> StoredTensor:
        """The tensor of that name: the index's, else the first shard's."""
        said = self._map.get(name) if self._map else None
        return holders[said] if said is not None and said in holders else next(iter(holders.values()))

    def _tell(self, found: Mapping[str, Mapping[str, StoredTensor]]) -> None:
        """Notes where index and shards do not say the same, and which tensors nothing decides about."""
        mapped = self._map or {}
        doubled = [name for name, holders in found.items() if len(holders) > 1]
        decided = [name for name in doubled if mapped.get(name) in found[name]]
        undecided = [name for name in doubled if mapped.get(name) not in found[name]]
        if decided:
            self.notes.append(f"{_first(decided, found)} in several shards; those that the index names were taken")
        if undecided:
            self.reasons.append(f"{_first(undecided, found)} in several shards, and no index says which one counts")
        if self._map is None:
            return
        unlisted = [name for name in found if name not in mapped]
        elsewhere = [name for name in found if name in mapped and mapped[name] not in found[name]]
        if unlisted:
            self.notes.append(f"{_first(unlisted, found)} in the shards, though the index does not name it")
        if elsewhere:
            self.notes.append(f"{_first(elsewhere, found)} in another shard than the index says")


def _first(names: Sequence[str], found: Mapping[str, Mapping[str, StoredTensor]]) -> str:
    """The beginning of a sentence about tensors: the first with its shards, and how many others there are."""
    held = f"{shorten(names[0])[1:-1]} ({_names(found[names[0]])})"
    return f"{held} and {len(names) - 1} other tensors are" if len(names) > 1 else f"{held} is"


def _indexes(path: Path) -> list[Path]:
    """Indexes that may list a file: first that of its own name, then the usual one, then all others of the folder."""
    folder, shard = path.parent, _SHARD.fullmatch(path.name)
    if not folder.is_dir():
        return []
    first = [(shard["stem"] if shard else path.name.removesuffix(SUFFIX)) + INDEX_SUFFIX, INDEX]
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(INDEX_SUFFIX))
    return [folder / name for name in dict.fromkeys((*first, *found)) if (folder / name).is_file()]


def _shard_names(path: Path) -> list[str]:
    """The names of all shards of a model without an index, whatever number of digits each has.

    Raises:
        FormatError: `safetensors.shards`: the numbers in the name are impossible.
    """
    given = _SHARD.fullmatch(path.name)
    if given is None:
        return [path.name]
    count = int(given["count"])
    found: dict[int, str] = {}
    for name in sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []:
        match = _SHARD.fullmatch(name)
        if match and match["stem"] == given["stem"] and int(match["count"]) == count:
            found.setdefault(int(match["number"]), name)
    found[int(given["number"])] = path.name
    first = 0 if 0 in found and count not in found else 1
    if not 0 < count <= MAX_SHARDS or not first <= int(given["number"]) < first + count:
        raise FormatError("the numbers in the name are impossible", code="safetensors.shards", path=path)
    digits = len(given["number"])
    return [
        found.get(number, f"{given['stem']}-{number:0{digits}}-of-{given['count']}{SUFFIX}")
        for number in range(first, first + count)
    ]


def _numbered_alike(path: Path) -> list[str]:
    """Other files of the folder that count on from this one: the same name but for one number, without gaps."""
    places = [match.span() for match in _NUMBER.finditer(path.name)]
    entries = [entry.name for entry in path.parent.iterdir() if entry.name.endswith(SUFFIX)] if places else []
    for start, end in places:
        pattern = re.compile(re.escape(path.name[:start]) + "([0-9]{1,9})" + re.escape(path.name[end:]))
        numbers = {int(match[1]): name for name in entries if (match := pattern.fullmatch(name))}
        if len(numbers) > 1 and sorted(numbers) in (list(range(len(numbers))), list(range(1, len(numbers) + 1))):
            return sorted(name for name in numbers.values() if name != path.name)
    return []


def _stem(name: str) -> Any:
    match = _SHARD.fullmatch(name)
    return (match["stem"], int(match["count"])) if match else name


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:_LISTED]) if len(listed) > 2 * _LISTED else ", ".join(listed)
    return shown if len(listed) <= 2 * _LISTED else f"{shown} and {len(listed) - _LISTED} others"
