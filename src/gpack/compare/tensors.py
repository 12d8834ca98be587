"""The tensors of two packs: which there are, what they are, where they lie, and their bytes."""

from __future__ import annotations

from typing import Any

from ..errors import GpackError
from ..generated.constants import SECTION_NAMES, ExpertRole, GgmlType, SectionKind, TensorFlags
from ..generated.structs import TensorIndexRowV1
from .opened import Key, Opened
from .result import ADDED, CHANGED, REMOVED, Diff
from .streams import compare_places

PART = "tensor"
INDEX = SectionKind.TENSOR_INDEX_BIN
# Sections that hold tensors' bytes.
BLOBS = frozenset(
    {
        SectionKind.DENSE_PACK_BLOB,
        SectionKind.NATIVE_DENSE_BLOB,
        SectionKind.EMBED_BLOB,
        SectionKind.HEAD_BLOB,
        SectionKind.PLE_BLOB,
        SectionKind.EXPERT_BLOBS,
        SectionKind.MTP_BLOB,
    }
)
_LAYOUTS = (SectionKind.EXPERT_LAYOUT_BIN,)


def compare_tensors(found: Diff, left: Opened, right: Opened, trusted: set[Key]) -> None:
    """Notes tensors that were added, removed or changed; those whose place alone differs are counted.

    Args:
        trusted: Sections that are known to be equal.
    """
    try:
        rows = [_rows(file) for file in (left, right)]
    except GpackError as error:
        found.skip("section", "TensorIndexBin", error)
        return
    mine, theirs = rows
    kinds = {kind for kind, _ in trusted}
    if INDEX in kinds and kinds >= {row.home for row in mine.values() if not _outside(row)} | _layouts(mine):
        return
    moved = 0
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None:
            row = one or other
            assert row is not None
            detail = {"type": _type(row), "shape": _shape(row), "bytes": row.byte_size}
            found.add(PART, name, ADDED if one is None else REMOVED, detail=detail)
            continue
        moved += one.offset != other.offset
        changes = _changes(one, other)
        detail = {}
        if _alike(one, other) and not _known_equal(one, other, kinds):
            try:
                apart = compare_places(left.place(name), right.place(name), one.ggml_type)
            except GpackError as error:
                found.skip(PART, name, error)
                apart = None
            if apart is not None and apart.count:
                detail = apart.detail()
        if changes or detail:
            found.add(PART, name, CHANGED, changes=changes, detail=detail)
    if moved:
        found.add(PART, "(places)", CHANGED, detail={"tensors_at_another_offset": moved})


def _rows(file: Opened) -> dict[str, TensorIndexRowV1]:
    _ = file.section(INDEX)
    table = file.pack.tensors
    return {table.text(row, "name"): row for row in table}


def _changes(one: TensorIndexRowV1, other: TensorIndexRowV1) -> dict[str, tuple[Any, Any]]:
    before, after = _facts(one), _facts(other)
    return {name: (value, after[name]) for name, value in before.items() if value != after[name]}


def _facts(row: TensorIndexRowV1) -> dict[str, Any]:
    return {
        "type": _type(row),
        "shape": _shape(row),
        "bytes": row.byte_size,
        "home": SECTION_NAMES.get(row.home, str(row.home)),
        "role": ExpertRole.NAMES.get(row.role, str(row.role)),
        "flags": row.flags,
        "position": row.position,
    }


def _type(row: TensorIndexRowV1) -> str:
    return GgmlType.NAMES.get(row.ggml_type, str(row.ggml_type))


def _shape(row: TensorIndexRowV1) -> list[int]:
    """Contiguous axis first, as the pack has it."""
    return [int(extent) for extent in row.dims[: min(row.n_dims, len(row.dims))]]


def _alike(one: TensorIndexRowV1, other: TensorIndexRowV1) -> bool:
    """Whether bytes can be compared one by one."""
    return (one.ggml_type, _shape(one), one.byte_size) == (other.ggml_type, _shape(other), other.byte_size) and bool(
        one.byte_size
    )


def _outside(row: TensorIndexRowV1) -> bool:
    return bool(row.flags & TensorFlags.EXTERNAL)


def _layouts(rows: dict[str, TensorIndexRowV1]) -> set[int]:
    """What must be equal besides for experts to lie at the same places."""
    return set(_LAYOUTS) if any(row.home == SectionKind.EXPERT_BLOBS for row in rows.values()) else set()


def _known_equal(one: TensorIndexRowV1, other: TensorIndexRowV1, kinds: set[int]) -> bool:
    """Whether equal digests say that the bytes are equal: the same place in equal sections, or in the same shards."""
    if (one.home, one.offset, one.flags, one.home_row) != (other.home, other.offset, other.flags, other.home_row):
        return False
    if one.home == SectionKind.EXPERT_BLOBS and not kinds >= set(_LAYOUTS):
        return False
    return _outside(one) or one.home in kinds
