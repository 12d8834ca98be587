"""What a writer's recipe says, and what a pack says, in one shape: so that the two can be compared."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ..container.reader import Container
from ..generated.constants import PRIVATE_KIND, GgmlType, MetadataType, SectionKind
from ..pack import Pack
from ..sections.placement import Shape, assign_placements, draft_start
from ..sections.restore import restore_value
from .writer_recipes import KIND_NAMES, WriterRecipe, text_to_json, to_json


def meaning_of_recipe(recipe: WriterRecipe) -> dict[str, Any]:
    """What the pack that the recipe asks for says."""
    document = recipe.document
    common = {name: document[name] for name in ("format_version", "min_reader_version", "producer")}
    if recipe.level == "container":
        return common | {
            "manifest": document["manifest"],
            "sections": [
                _section(recipe, section) for section in sorted(document["sections"], key=lambda s: s["kind"])
            ],
        }
    return common | {
        "metadata": [_key(item["key"], item["type"], item["value"]) for item in document["metadata"]],
        "tensors": {item["name"]: _tensor(recipe, index, item) for index, item in enumerate(document["tensors"])},
        "assets": {item["name"]: _digest(recipe.files[item["file"]]) for item in document["assets"]},
        "experts": document["experts"] if _has_routed(document) else None,
        "private_sections": [
            _section(recipe, section) for section in sorted(document["private_sections"], key=lambda s: s["kind"])
        ],
        "extensions": document["extensions"],
        "name": document.get("name", _default_name(document)),
    }


def meaning_of_pack(path: Path, level: str) -> dict[str, Any]:
    """What a pack says, as gpack reads it.

    Raises:
        GpackError: It cannot be read.
    """
    with Container.open(path) as container, Pack(container) as pack:
        common = {
            "format_version": container.header.format_version,
            "min_reader_version": container.header.min_reader_version,
            "producer": pack.manifest["producer"],
        }
        if level == "container":
            derived = (*common, "schema", "flags", "sections")
            manifest = {key: value for key, value in pack.manifest.items() if key not in derived}
            return common | {"manifest": manifest, "sections": _sections(container, 0)}
        return common | {
            "metadata": _metadata(pack),
            "tensors": {name: _packed_tensor(pack, name) for name in pack},
            "assets": {name: _digest(bytes(pack.asset(name))) for name in pack.assets()},
            "experts": pack.manifest.get("experts", {}).get("mode"),
            "private_sections": _sections(container, PRIVATE_KIND),
            "extensions": pack.manifest.get("extensions", {}),
            "name": pack.manifest["model"]["name"],
        }


# ---------------------------------------------------------------- of a recipe


def _section(recipe: WriterRecipe, section: dict[str, Any]) -> dict[str, Any]:
    data = recipe.files[section["file"]]
    return {
        "kind": section["kind"],
        "name": section["name"],
        "alignment": section["alignment"],
        "item_count": str(section["item_count"]),
        "size": str(len(data)),
        "sha256": _digest(data),
    }


def _tensor(recipe: WriterRecipe, index: int, tensor: dict[str, Any]) -> dict[str, Any]:
    if "file" in tensor:
        data = recipe.files[tensor["file"]]
    else:
        size = _byte_size(tensor["type_id"], tensor["dims"])
        data = recipe.files[recipe.document["shards"][tensor["shard"]]["file"]][
            tensor["offset"] : tensor["offset"] + size
        ]
    return _tensor_of(tensor["ggml_type"], tensor["dims"], index, data)


def _byte_size(kind: int, dims: list[int]) -> int:
    elements = 1
    for extent in dims:
        elements *= extent
    return elements // GgmlType.BLOCK[kind] * GgmlType.BYTES[kind]


def _has_routed(document: dict[str, Any]) -> bool:
    """Whether the pack has routed experts: tensors may be called like some and be ordinary ones."""
    values = {item["key"]: item["value"] for item in document["metadata"]}
    shapes = [Shape(item["name"], item["type_id"], tuple(item["dims"])) for item in document["tensors"]]
    placements = assign_placements(shapes, draft_start(values.get)).values()
    return any(placement.section == SectionKind.EXPERT_BLOBS for placement in placements)


def _default_name(document: dict[str, Any]) -> str:
    """`general.name`, else the architecture, else `unknown`: spec/GPACK.md, the manifest."""
    values = {item["key"]: item["value"] for item in document["metadata"]}
    return values.get("general.name") or values.get("general.architecture") or "unknown"


# ---------------------------------------------------------------- of a pack


def _sections(container: Container, first: int) -> list[dict[str, Any]]:
    """The sections of kinds from `first` on, without the manifest."""
    return [
        {
            "kind": entry.kind,
            "name": entry.name.rstrip(b"\0").decode("ascii", "replace"),
            "alignment": entry.alignment,
            "item_count": str(entry.item_count),
            "size": str(entry.size),
            "sha256": _digest(container.read(entry.kind)),
        }
        for entry in container.entries
        if entry.kind >= first and entry.kind != SectionKind.MANIFEST_JSON
    ]


def _metadata(pack: Pack) -> list[dict[str, Any]]:
    table = pack.metadata.table
    metadata = []
    for row in table.rows():
        value = restore_value(table, row, lambda: pack.tokenizer_table)
        kind = KIND_NAMES.get(value.value_type, "?")
        if value.value_type == MetadataType.ARRAY:
            kind = f"[{KIND_NAMES.get(value.element_type, '?')}]"
        metadata.append(_key(value.key, kind, _python_to_json(value.element_type, value.python())))
    return metadata


def _python_to_json(element_type: int, value: Any) -> Any:
    """A decoded value as a recipe has it; of nested arrays the innermost type follows from the values."""
    if isinstance(value, list):
        return [_python_to_json(element_type, item) for item in value]
    kind = KIND_NAMES.get(element_type, "?")
    if element_type == MetadataType.ARRAY:
        kind = {bool: "bool", int: "i32", float: "f64", str: "str"}[type(value)]
    return to_json(kind, value)


def _packed_tensor(pack: Pack, name: str) -> dict[str, Any]:
    row, tensor = pack.info(name), pack[name]
    data = np.ascontiguousarray(tensor.view(np.ndarray)).tobytes()
    return _tensor_of(tensor.type_name, list(row.dims[: row.n_dims]), row.position, data)


# ---------------------------------------------------------------- the shape of both


def _key(key: str, kind: str, value: Any) -> dict[str, Any]:
    nested = kind.startswith("[[")
    return {"key": text_to_json(key), "type": "[array]" if nested else kind, "value": json.dumps(value)}


def _tensor_of(type_name: str, dims: list[int], position: int, data: bytes) -> dict[str, Any]:
    return {
        "type": type_name,
        "dims": [str(extent) for extent in dims],
        "position": position,
        "size": str(len(data)),
        "sha256": _digest(data),
    }


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
