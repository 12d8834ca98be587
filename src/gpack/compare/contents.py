"""Metadata, tokenizer, raw files and manifest of two packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import isfinite
from typing import Any, NamedTuple

from ..errors import GpackError
from ..generated.constants import SECTION_NAMES, MetadataType, SectionKind
from ..sections.assets import AssetTable
from ..sections.gbt import GbtView
from ..sections.metadata import is_stub
from ..sections.restore import restore_value
from ..sections.values import Value
from .opened import Key, Opened
from .result import ADDED, CHANGED, REMOVED, Diff

_SHOWN = 8  # elements of an array, and
_TEXT = 200  # characters of a string that a difference shows
_MISSING = object()


class Entry(NamedTuple):
    """A metadata entry; the bytes of a stub are TokenizerBin's, and are compared there."""

    value: Value
    is_stub: bool

    @property
    def kind(self) -> tuple[int, int, int]:
        """Type, type of the elements, number of elements."""
        return self.value.value_type, self.value.element_type, self.value.count

    @property
    def raw(self) -> bytes:
        """The bytes that are compared as metadata."""
        return b"" if self.is_stub else bytes(self.value.raw)

    @property
    def holder(self) -> str:
        """The section that holds the value."""
        return SECTION_NAMES[SectionKind.TOKENIZER_BIN if self.is_stub else SectionKind.METADATA_KV_BIN]

    def info(self) -> dict[str, Any]:
        """What an added or removed entry is."""
        held = {"held_by": self.holder} if self.is_stub else {"value": shown(self.value.python())}
        return {"type": _type(self.value.value_type), **held}


def _type(value_type: int) -> str:
    """What a type is called, as `guild inspect` has it; the number of one that nobody knows."""
    return MetadataType.NAMES.get(value_type, str(value_type)).lower()


def _is_trusted(kind: int, trusted: set[Key]) -> bool:
    return any(known == kind for known, _ in trusted)


def _both(found: Diff, left: Opened, right: Opened, kind: int, read: Callable[[Opened], Any]) -> list[Any] | None:
    """Something of both files; None, and a note, where a file has no such section or it cannot be read."""
    if any(file.structure.find(kind) is None for file in (left, right)):
        return None  # the directory says it
    try:
        return [read(file) for file in (left, right)]
    except GpackError as error:
        found.skip("section", SECTION_NAMES[kind], error)
        return None


# ---------------------------------------------------------------- metadata


def compare_metadata(found: Diff, left: Opened, right: Opened, trusted: set[Key]) -> None:
    """Keys that were added, removed or changed; what TokenizerBin holds in both files is compared as the tokenizer."""
    kind = SectionKind.METADATA_KV_BIN
    if _is_trusted(kind, trusted):
        return
    read = _both(found, left, right, kind, _values)
    if read is None:
        return
    mine, theirs = read
    for key in [*mine, *(key for key in theirs if key not in mine)]:
        one, other = mine.get(key), theirs.get(key)
        if one is None or other is None:
            entry = one or other
            found.add("metadata", key, ADDED if one is None else REMOVED, detail=entry.info())
        elif one.kind != other.kind or one.raw != other.raw:
            _add_value(found, key, one, other)
    order = [[key for key in values if key in mine and key in theirs] for values in (mine, theirs)]
    if order[0] != order[1]:
        found.add("metadata", "(order)", CHANGED, detail={"first": _first(*order)})
    tables = [file.pack.metadata.table.table.header for file in (left, right)]
    for name in ("source_version", "source_alignment"):
        pair = tuple(getattr(header, name) for header in tables)
        if pair[0] != pair[1]:
            found.add("metadata", f"({name})", CHANGED, changes={name: pair})


def _values(file: Opened) -> dict[str, Entry]:
    """The entries by key, in the source's order."""
    _ = file.section(SectionKind.METADATA_KV_BIN)
    table = file.pack.metadata.table
    made = {}
    for row in table.rows():
        value = restore_value(table, row, lambda: file.pack.tokenizer_table)
        made[value.key] = Entry(value, is_stub(row))
    return made


def _add_value(found: Diff, key: str, one: Entry, other: Entry) -> None:
    names = ("type", "element_type", "count")
    kinds = [
        (_type(entry.value.value_type), _type(entry.value.element_type), entry.value.count) for entry in (one, other)
    ]
    changes: dict[str, tuple[Any, Any]] = {
        name: (before, after) for name, before, after in zip(names, *kinds, strict=True) if before != after
    }
    detail: dict[str, Any] = {}
    if one.is_stub != other.is_stub:
        changes["held_by"] = one.holder, other.holder
    elif not one.is_stub:
        before, after = one.value.python(), other.value.python()
        changes["value"] = shown(before), shown(after)
        if isinstance(before, list) and isinstance(after, list):
            detail = _elements(before, after)
    found.add("metadata", key, CHANGED, changes=changes, detail=detail)


def _elements(before: Sequence[Any], after: Sequence[Any]) -> dict[str, Any]:
    """Which elements of two arrays differ."""
    pairs = enumerate(zip_longest(before, after, fillvalue=_MISSING))
    places = [index for index, (one, other) in pairs if one is not other and one != other]
    if not places:
        return {}
    first = places[0]
    held = [shown(values[first]) if first < len(values) else None for values in (before, after)]
    return {"differing_elements": len(places), "first_index": first, "first": held}


def _first(before: Sequence[Any], after: Sequence[Any]) -> Any:
    return _elements(before, after).get("first")


def shown(value: Any) -> Any:
    """A value as JSON has it, long ones cut."""
    if isinstance(value, str):
        try:
            text = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:  # half a pair, which JSON can hold
            text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return text if len(text) <= _TEXT else f"{text[:_TEXT]}... ({len(text)} characters)"
    if isinstance(value, list):
        head = [shown(item) for item in value[:_SHOWN]]
        return head if len(value) <= _SHOWN else [*head, f"... ({len(value)} elements)"]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


# ---------------------------------------------------------------- tokenizer


def compare_tokenizers(found: Diff, left: Opened, right: Opened, trusted: set[Key]) -> None:
    """The header's numbers, tokens, their types, merges, and the chat template."""
    kind = SectionKind.TOKENIZER_BIN
    if _is_trusted(kind, trusted):
        return
    read = _both(found, left, right, kind, lambda file: GbtView(file.section(kind)))
    if read is None:
        return
    one, other = read
    before, after = one.header.to_dict(), other.header.to_dict()
    for name, value in before.items():
        if value != after[name] and not isinstance(value, bytes):
            found.add("tokenizer", name, CHANGED, changes={name: (value, after[name])})
    try:
        for name, pair in (
            ("tokens", (_tokens(one), _tokens(other))),
            ("token_types", (list(one.token_types), list(other.token_types))),
            ("merges", (_merges(one), _merges(other))),
        ):
            if detail := _elements(*pair):
                found.add("tokenizer", name, CHANGED, detail=detail)
    except GpackError as error:
        found.skip("tokenizer", "tokens", error)
    templates = [bytes(view.chat_template) for view in read]
    if templates[0] != templates[1]:
        detail = {"bytes": [len(text) for text in templates], "first_offset": _place(*templates)}
        found.add("tokenizer", "chat_template", CHANGED, detail=detail)


def _tokens(view: GbtView) -> list[str]:
    return [view.token(number).decode("utf-8", "backslashreplace") for number in range(len(view))]


def _merges(view: GbtView) -> list[list[int]]:
    return [list(view.triples[3 * rank : 3 * rank + 3]) for rank in range(view.header.n_merges)]


def _place(one: bytes, other: bytes) -> int:
    """The first byte that differs, or where the shorter ends."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


# ---------------------------------------------------------------- raw files, manifest


def compare_assets(found: Diff, left: Opened, right: Opened, trusted: set[Key]) -> None:
    """The files that lay beside the weights."""
    kind = SectionKind.TOKENIZER_ASSETS
    if _is_trusted(kind, trusted):
        return
    read = _both(found, left, right, kind, lambda file: AssetTable(file.section(kind)))
    if read is None:
        return
    try:
        mine, theirs = ({name: bytes(table.read(name)) for name in table.names()} for table in read)
    except GpackError as error:
        found.skip("section", SECTION_NAMES[kind], error)
        return
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None:
            found.add(
                "asset",
                name,
                ADDED if one is None else REMOVED,
                detail={"bytes": len(one if one is not None else other or b"")},
            )
        elif one != other:
            found.add(
                "asset",
                name,
                CHANGED,
                changes={"bytes": (len(one), len(other))} if len(one) != len(other) else {},
                detail={"first_offset": _place(one, other)},
            )


def compare_manifests(found: Diff, left: Opened, right: Opened, trusted: set[Key]) -> None:
    """The manifests by path; what they say of sections the directory says too."""
    kind = SectionKind.MANIFEST_JSON
    if _is_trusted(kind, trusted):
        return
    read = _both(found, left, right, kind, _manifest)
    if read is None:
        return
    mine, theirs = (dict(_leaves(manifest, "$")) for manifest in read)
    for path in [*mine, *(path for path in theirs if path not in mine)]:
        if path.startswith("$.sections"):
            continue
        if path not in mine or path not in theirs:
            held = theirs if path not in mine else mine
            found.add("manifest", path, ADDED if path not in mine else REMOVED, detail={"value": shown(held[path])})
        elif mine[path] != theirs[path]:
            found.add("manifest", path, CHANGED, changes={"value": (shown(mine[path]), shown(theirs[path]))})


def _manifest(file: Opened) -> dict[str, Any]:
    _ = file.section(SectionKind.MANIFEST_JSON)
    return file.pack.manifest


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values of a JSON value: what is no object or list, and what is empty."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
