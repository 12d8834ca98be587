"""Seeds: the published vectors, and small files of other people's formats, made here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gpack.conformance import vectors

CORPUS_LIMIT = 4096  # bytes of a pack: what is small is tried often


@cache
def small_packs() -> dict[str, bytes]:
    """The published vectors up to that size, by id: valid ones, and those that break a rule."""
    made: dict[str, bytes] = {}
    for vector in vectors.load():
        if not vector.large and len(data := vector.data()) <= CORPUS_LIMIT:
            made[vector.id] = data
    return made


def write_packs(folder: Path) -> None:
    """The same as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in small_packs().items():
        (folder / name.replace("/", "_")).write_bytes(data)
