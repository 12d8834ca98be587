"""The vectors of `spec/vectors`: files that a reader must accept, and files that it must reject.

`index.json` says what each vector is, a recipe how its bytes are made; spec/vectors/README.md has the form of both.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import FormatError, PathError
from .protocol import CLASSES, LEVELS
from .recipe import Recipe

FORMAT, VERSION = "gpack-vectors", 1
ENDING = ".gpack"
SHARDS = "recipes/shards"
_INSTALLED = Path(__file__).parent / "data"
_CHECKOUT = Path(__file__).parents[3] / "spec" / "vectors"
_ID = re.compile(r"[a-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True)
class Vector:
    """One file that a reader is judged by.

    Attributes:
        id: Stable name, also the path of the file below a folder, without its ending.
        doc: What is special about it.
        level: Readers of this level and above are judged by it: structure, digest or semantic.
        required: A reader must judge it rightly; else it is recommended.
        expect: accept or reject.
        cls: Class of the rejection (structure, digest, semantic, unsupported); None for an accepted one.
        rules: Of a rejected one the broken rule first, then those that break with it; of an accepted one the rules
            that it adds to what `valid/plain` already has.
        path: Schema path of the field that was changed (`$.header.magic`); None where no single field was.
        range: Offset and length in bytes of that field; None where it is nowhere.
        since: The version of the format that first had it.
        shards: Names of files that lie beside it.
        recipe: How its bytes are made.
        folder: Where the index lies.
    """

    id: str
    doc: str
    level: str
    required: bool
    expect: str
    cls: str | None
    rules: tuple[str, ...]
    path: str | None
    range: tuple[int, int] | None
    since: str
    shards: tuple[str, ...]
    recipe: Recipe
    folder: VectorFolder = field(repr=False, compare=False)

    @property
    def large(self) -> bool:
        """It is too large for memory: a sparse file."""
        return self.recipe.large

    def data(self) -> bytes:
        """The file's bytes.

        Raises:
            FormatError: `conformance.recipe` where the vector is a large one, or its recipe is damaged.
        """
        return self.recipe.data(self.folder.data)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the file as FOLDER/ID.gpack, and its shards beside it.

        Raises:
            PathError: A file cannot be written.
        """
        path = Path(folder) / f"{self.id}{ENDING}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PathError(f"cannot be made: {error.strerror}", code="io.write", path=path.parent) from error
        self.recipe.write(path, self.folder.data)
        for name in self.shards:
            self.folder.shard(name).write(path.parent / name, self.folder.data)
        return path

    def to_dict(self) -> dict[str, Any]:
        """The entry of the index."""
        return {
            "id": self.id,
            "doc": self.doc,
            "level": self.level,
            "required": self.required,
            "expect": self.expect,
            "class": self.cls,
            "rules": list(self.rules),
            "path": self.path,
            "range": None if self.range is None else list(self.range),
            "since": self.since,
            "shards": list(self.shards),
            "recipe": recipe_path(self.id),
        }


@dataclass(frozen=True)
class VectorFolder:
    """A folder with an index and recipes.

    Attributes:
        path: The folder.
        known: Bytes of vectors that others build upon, by id; filled as they are asked for.
    """

    path: Path
    known: dict[str, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def vectors(self) -> dict[str, Vector]:
        """All vectors by id, in the order of the index.

        Raises:
            FormatError, PathError: `conformance.vectors` where index or recipes are missing or damaged.
        """
        index = self._json("index.json")
        if not isinstance(index, dict) or index.get("format") != FORMAT or index.get("version") != VERSION:
            raise FormatError(f"not an index of {FORMAT} {VERSION}", code="conformance.vectors", path=self.path)
        try:
            made = [self._vector(entry) for entry in index["vectors"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"the index is damaged: {error!r}", code="conformance.vectors", path=self.path) from error
        return {vector.id: vector for vector in made}

    def data(self, vector_id: str) -> bytes:
        """The bytes of another vector, which a recipe builds upon; kept, for many build upon the same few."""
        if vector_id not in self.known:
            if vector_id not in self.vectors:
                raise FormatError(f"no vector {vector_id!r}", code="conformance.recipe", path=self.path)
            self.known[vector_id] = self.vectors[vector_id].data()
        return self.known[vector_id]

    def shard(self, name: str) -> Recipe:
        """The recipe of a shard."""
        return Recipe.parse(self._json(f"{SHARDS}/{_plain(name)}.json"))

    def _vector(self, entry: Mapping[str, Any]) -> Vector:
        place = entry["range"]
        return Vector(
            id=checked_id(entry["id"]),
            doc=entry["doc"],
            level=_one_of(entry["level"], LEVELS),
            required=bool(entry["required"]),
            expect=_one_of(entry["expect"], ("accept", "reject")),
            cls=None if entry["class"] is None else _one_of(entry["class"], CLASSES),
            rules=tuple(entry["rules"]),
            path=entry["path"],
            range=None if place is None else (int(place[0]), int(place[1])),
            since=entry["since"],
            shards=tuple(map(_plain, entry["shards"])),
            recipe=Recipe.parse(self._json(entry["recipe"])),
            folder=self,
        )

    def _json(self, name: str) -> Any:
        path = self.path / name
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise FormatError(f"{name!r} leads out of the folder", code="conformance.vectors", path=self.path)
        try:
            return json.loads(path.read_bytes())
        except OSError as error:
            raise PathError(f"cannot be read: {error.strerror}", code="conformance.vectors", path=path) from error
        except ValueError as error:
            raise FormatError(f"no JSON: {error}", code="conformance.vectors", path=path) from error


def load(folder: str | os.PathLike[str] | None = None) -> list[Vector]:
    """All vectors, sorted by id.

    Args:
        folder: A folder with `index.json`; default those that came with gpack.

    Raises:
        FormatError, PathError: `conformance.vectors` where they are missing or damaged.
    """
    return list(VectorFolder(default_folder() if folder is None else Path(folder)).vectors.values())


def default_folder() -> Path:
    """Where the vectors that came with gpack are: in the installed package, or in the checkout."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def write_all(vectors: Sequence[Vector], folder: str | os.PathLike[str]) -> list[Path]:
    """Writes the files of all vectors below a folder, and `index.json`.

    Raises:
        PathError: A file cannot be written.
    """
    made = [vector.write(folder) for vector in vectors]
    (Path(folder) / "index.json").write_text(index_text(vectors))
    return made


def index_text(vectors: Sequence[Vector]) -> str:
    """The text of `index.json`: an entry to a line, so that a change shows as one."""
    entries = ",\n".join(json.dumps(v.to_dict(), ensure_ascii=True) for v in sorted(vectors, key=lambda v: v.id))
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "vectors": [\n{entries}\n]}}\n'


def recipe_path(vector_id: str) -> str:
    """Where a vector's recipe lies below the folder."""
    return f"recipes/{vector_id}.json"


def checked_id(vector_id: str) -> str:
    """An id that is a path below a folder.

    Raises:
        FormatError: It is none.
    """
    if not _ID.fullmatch(vector_id) or ".." in vector_id:
        raise FormatError(f"{vector_id!r} is no id of a vector", code="conformance.vectors")
    return vector_id


def _plain(name: str) -> str:
    if not _ID.fullmatch(name) or "/" in name or ".." in name:
        raise FormatError(f"{name!r} is no name of a file", code="conformance.vectors")
    return name


def _one_of(value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise FormatError(f"{value!r} is none of {', '.join(known)}", code="conformance.vectors")
    return value
