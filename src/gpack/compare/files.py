"""`gpack.diff`: the comparison as a whole, and its fixed records, directory and bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..container.place import Place
from ..generated.constants import SectionKind
from ..generated.structs import Record
from .contents import compare_assets, compare_manifests, compare_metadata, compare_tokenizers
from .opened import Key, Opened
from .result import ADDED, CHANGED, REMOVED, Diff
from .streams import compare_places
from .tensors import BLOBS, compare_tensors

# What a difference in a section means, by the part it was reported under.
_MEANINGS = dict.fromkeys(BLOBS, "tensor") | {
    SectionKind.METADATA_KV_BIN: "metadata",
    SectionKind.TENSOR_INDEX_BIN: "tensor",
    SectionKind.TOKENIZER_BIN: "tokenizer",
    SectionKind.TOKENIZER_ASSETS: "asset",
    SectionKind.MANIFEST_JSON: "manifest",
}


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    compare_bytes: bool = False,
    expert_dir: str | os.PathLike[str] | None = None,
) -> Diff:
    """Compares two packs, damaged ones too, as far as they can be opened. No blob is read into memory.

    Sections whose recorded digests are equal are taken for equal. Where a fixed record is damaged, the files are also
    compared byte by byte.

    Args:
        compare_bytes: Trust no digest: read and compare every byte of both files.
        expert_dir: Folder of the shards of external experts; default the folder of each pack.

    Raises:
        PathError: A file is missing or unreadable.
        UsageError: A file is no pack at all.
    """
    with Opened(a, expert_dir) as left, Opened(b, expert_dir) as right:
        found = Diff(left.describe(), right.describe())
        _compare_records(found, left, right)
        equal = _compare_directories(found, left, right)
        trusted = set() if compare_bytes else equal
        compare_metadata(found, left, right, trusted)
        compare_tensors(found, left, right, trusted)
        compare_tokenizers(found, left, right, trusted)
        compare_assets(found, left, right, trusted)
        compare_manifests(found, left, right, trusted)
        _compare_sections(found, left, right, equal, compare_bytes=compare_bytes)
        if compare_bytes or not left.is_sound or not right.is_sound:
            _compare_files(found, left, right)
        found.sort()
        return found


def _compare_records(found: Diff, left: Opened, right: Opened) -> None:
    for part in ("header", "footer"):
        one: Record | None = getattr(left.structure, part)
        other: Record | None = getattr(right.structure, part)
        if one is None or other is None:
            lacking = left if one is None else right
            found.skip(part, part, f"{lacking.path} is too short for it, or damaged")
            continue
        for name, pair in _changed(one, other).items():
            found.add(part, name, CHANGED, changes={name: pair})


def _changed(one: Record, other: Record) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, with both values, JSON-ready."""
    before, after = one.to_dict(), other.to_dict()
    return {name: (_plain(value), _plain(after[name])) for name, value in before.items() if value != after[name]}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _compare_directories(found: Diff, left: Opened, right: Opened) -> set[Key]:
    """Notes what differs; returns the sections of equal size and digest that lie inside both files."""
    mine, theirs = left.entries, right.entries
    equal = set()
    for key in _union(mine, theirs):
        one, other = mine.get(key), theirs.get(key)
        if one is None or other is None:
            entry = one or other
            assert entry is not None
            detail = {"size": entry.size, "item_count": entry.item_count, "sha256": entry.sha256.hex()}
            found.add("directory", key[1], ADDED if one is None else REMOVED, detail=detail)
            continue
        changes = _changed(one, other)
        if changes:
            found.add("directory", key[1], CHANGED, changes=changes)
        if (one.size, one.sha256) == (other.size, other.sha256) and left.holds(one) and right.holds(other):
            equal.add(key)
    if len(mine) < len(left.structure.entries) or len(theirs) < len(right.structure.entries):
        found.skip("directory", "entries", "a kind stands twice; only the last of its entries was compared")
    return equal


def _union(mine: Mapping[Key, Any], theirs: Mapping[Key, Any]) -> Iterable[Key]:
    return [*mine, *(key for key in theirs if key not in mine)]


def _compare_sections(found: Diff, left: Opened, right: Opened, equal: set[Key], *, compare_bytes: bool) -> None:
    """The bytes of sections: of those with another digest whose difference has no reported meaning; or of all."""
    mine, theirs = left.entries, right.entries
    parts = {entry.part for entry in found.differences}
    for key in (key for key in mine if key in theirs):
        one, other = mine[key], theirs[key]
        if not (left.holds(one) and right.holds(other)):
            lacking = left if not left.holds(one) else right
            found.skip("section", key[1], f"it leaves {lacking.path}, which is truncated or damaged")
            continue
        if not compare_bytes and (key in equal or _MEANINGS.get(key[0]) in parts):
            continue
        apart = compare_places(_place(left, one.offset, one.size), _place(right, other.offset, other.size))
        if apart.count or one.size != other.size:
            found.add("section", key[1], CHANGED, detail={**apart.detail(), "sizes": [one.size, other.size]})


def _compare_files(found: Diff, left: Opened, right: Opened) -> None:
    """Every byte, also those between sections and after the end."""
    apart = compare_places(_place(left, 0, left.size), _place(right, 0, right.size))
    if apart.count or left.size != right.size:
        found.add("bytes", "file", CHANGED, detail={**apart.detail(), "sizes": [left.size, right.size]})


def _place(file: Opened, offset: int, size: int) -> Place:
    return Place(file.path, file.descriptor, offset, size)
