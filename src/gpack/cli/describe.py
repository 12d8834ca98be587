"""Packs and GGUFs described as JSON-ready values, for `guild inspect`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from ..container.structure import section_name
from ..convert.plan import Plan
from ..errors import GpackError, UnsupportedError
from ..generated import constants as c
from ..generated import structs
from ..generated.sections import SECTIONS
from ..pack import Pack
from ..pack import open as open_pack
from ..sections.restore import restore_value
from ..sections.table import Table
from ..sections.values import Value
from ..sources.gguf import GgufSource
from ..sources.model import IMPORT_EXTENSION

ALL = c.MAX_NUMBER  # elements of metadata arrays to decode
_DUMPED = 64  # first bytes of a blob that are shown


def describe_pack(path: str, *, tensors: bool = False, metadata: bool = False, elements: int = ALL) -> dict[str, Any]:
    """A pack: model, sections, tensors by type, experts, tokenizer, draft layers.

    Raises:
        GpackError: The pack cannot be opened or read.
    """
    with open_pack(path) as pack:
        container, manifest = pack.container, pack.manifest
        rows = [(pack.tensors.text(row, "name"), row) for row in pack.tensors]
        info: dict[str, Any] = {
            "file": path,
            "format": f"GPACK version {container.header.format_version}",
            "size": container.file_size,
            "manifest_sha256": container.footer.manifest_sha256.hex(),
            "producer": manifest["producer"],
            "flags": [name for mask, name in c.GPackFlags.NAMES.items() if container.header.flags & mask],
            "model": manifest["model"],
            "sections": [_entry(entry) for entry in container.entries],
            "types": _by_type((row.ggml_type, math.prod(row.dims), row.byte_size) for _, row in rows),
        }
        info |= {part: manifest[part] for part in ("experts", "tokenizer", "mtp") if part in manifest}
        if IMPORT_EXTENSION in manifest.get("extensions", {}):
            info[IMPORT_EXTENSION] = manifest["extensions"][IMPORT_EXTENSION]
        info["assets"] = [{"name": name, "bytes": len(pack.asset(name))} for name in pack.assets()]
        if tensors:
            info["tensors"] = [_tensor_row(name, row) for name, row in rows]
        if metadata:
            values = (
                restore_value(pack.metadata.table, row, lambda: pack.tokenizer_table)
                for row in pack.metadata.table.rows()
            )
            info["metadata"] = {value.key: _value(value, elements) for value in values}
        return info


def describe_gguf(path: str, *, tensors: bool = False, metadata: bool = False, elements: int = ALL) -> dict[str, Any]:
    """A GGUF, described as the pack that it would become; one that cannot become a pack is listed too, with the reason.

    Raises:
        GpackError: The file cannot be read.
    """
    with GgufSource.open(path, allow_unknown_types=True) as source:
        info: dict[str, Any] = {
            "file": path,
            "format": f"GGUF version {source.version}",
            "size": sum(shard.file_size for shard in source.shards),
            "shards": [
                {
                    "file": s.path.name,
                    "size": s.file_size,
                    "tensors": s.tensor_count,
                    "version": s.version,
                    "alignment": s.alignment,
                }
                for s in source.shards
            ],
            "types": _by_type((t.ggml_type, math.prod(t.dims), max(t.byte_size, 0)) for t in source.tensors),
        }
        try:
            manifest = _plan(source).manifest
            if IMPORT_EXTENSION in manifest.get("extensions", {}):
                info[IMPORT_EXTENSION] = manifest["extensions"][IMPORT_EXTENSION]
            info |= {part: manifest[part] for part in ("model", "experts", "tokenizer", "mtp") if part in manifest}
        except GpackError as error:
            info["model"] = _bare_model(source)
            info["problem"] = error.to_dict()
        if tensors:
            info["tensors"] = [
                {
                    "name": t.name,
                    "type": _type_name(t.ggml_type),
                    "dims": list(t.dims),
                    "bytes": t.byte_size,
                    "place": source.shards[t.shard].path.name,
                    "offset": t.offset,
                }
                for t in source.tensors
            ]
        if metadata:
            info["metadata"] = {key: _value(value, elements) for key, value in source.metadata.items()}
        return info


def describe_section(path: str, name: str) -> dict[str, Any]:
    """One section of a pack: its entry, and header and rows, text or first bytes.

    Raises:
        MissingError: The pack has no such section.
        GpackError: The pack cannot be opened or read.
    """
    with open_pack(path) as pack:
        # Names are matched whatever their case.
        kinds = {section_name(entry).lower(): entry.kind for entry in pack.container.entries}
        entry = pack.container.entry(int(name) if name.isdecimal() else kinds.get(name.lower(), name))
        info: dict[str, Any] = {"file": path, "section": _entry(entry)}
        known = SECTIONS.get(entry.kind)
        if known is not None and known.shape == "table":
            info |= _table(pack, entry)
        elif known is not None and known.shape == "sequence":
            info["header"] = _record(pack.tokenizer_table.header)
        elif known is not None and known.header is not None:
            info["header"] = _record(known.header.decode(pack.container.read(entry.kind, 0, known.header.SIZE)))
        elif known is not None and known.shape == "json":
            info["text"] = json.dumps(pack.manifest, indent=2)
        else:
            info["bytes"] = pack.container.read(entry.kind, 0, min(_DUMPED, entry.size)).hex(" ", 4)
        return info


def _table(pack: Pack, entry: structs.GPackSectionEntryV1) -> dict[str, Any]:
    table: Table[Any, Any] = Table(entry.kind, pack.container.view(entry.kind))
    info: dict[str, Any] = {"header": _record(table.header), "rows": [_table_row(table, row) for row in table]}
    if entry.kind == c.SectionKind.TOKENIZER_ASSETS:
        info["rows"] = [{"name": asset, "bytes": len(pack.asset(asset))} for asset in pack.assets()]
    return info


def _table_row(table: Table[Any, Any], row: structs.Record) -> dict[str, Any]:
    """A row with its first reference as text, and without the fields that only say where that text is."""
    values = _record(row)
    info: dict[str, Any] = {}
    for ref, _ in row.REFS:
        del values[f"{ref}_offset"]
        length = values.pop(f"{ref}_length")
        if ref == row.REFS[0][0]:
            info[ref] = bytes(table.bytes_of(row, ref)).decode("utf-8", "backslashreplace")
        else:
            info[f"{ref}_bytes"] = length
    return info | values


def _record(record: structs.Record) -> dict[str, Any]:
    """A record's fields without the reserved ones: bytes as hex, magics as text, enumerations and flags by name."""
    info: dict[str, Any] = {}
    for field, value in record.to_dict().items():
        if field in record.ENUMS:
            info[field] = getattr(c, record.ENUMS[field]).NAMES.get(value, f"unknown ({value})")
        elif field in record.FLAGS:
            names = getattr(c, record.FLAGS[field]).NAMES
            info[field] = " ".join(name for mask, name in names.items() if value & mask) or value
        elif field == "magic":
            info[field] = value.to_bytes(4, "little").decode("latin-1")
        elif field == "dims":
            info[field] = list(value[: getattr(record, "n_dims", len(value))])
        elif not field.startswith("reserved"):
            info[field] = value.hex() if isinstance(value, bytes) else value
    return info


def _entry(entry: structs.GPackSectionEntryV1) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "name": section_name(entry),
        "offset": entry.offset,
        "size": entry.size,
        "alignment": entry.alignment,
        "item_count": entry.item_count,
        "items": c.SECTION_ITEMS.get(entry.kind, "items"),
        "sha256": entry.sha256.hex(),
    }


def _tensor_row(name: str, row: structs.TensorIndexRowV1) -> dict[str, Any]:
    return {
        "name": name,
        "type": _type_name(row.ggml_type),
        "dims": list(row.dims[: row.n_dims]),
        "bytes": row.byte_size,
        "place": "shard" if row.flags & c.TensorFlags.EXTERNAL else c.SECTION_NAMES.get(row.home, str(row.home)),
        "offset": row.offset,
    }


def _by_type(tensors: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Tensors, parameters and bytes of each type, largest first."""
    sums: dict[int, list[int]] = {}
    for ggml_type, elements, size in tensors:
        held = sums.setdefault(ggml_type, [0, 0, 0])
        held[0] += 1
        held[1] += elements
        held[2] += size
    ordered = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    return [
        {"type": _type_name(ggml_type), "tensors": tensors, "parameters": parameters, "bytes": size}
        for ggml_type, (tensors, parameters, size) in ordered
    ]


def _value(value: Value, elements: int) -> dict[str, Any]:
    name = c.MetadataType.NAMES[value.value_type].lower()
    if value.value_type == c.MetadataType.ARRAY:
        name = f"{c.MetadataType.NAMES[value.element_type].lower()}[{value.count}]"
    return {"type": name, "count": value.count, "value": _json_safe(value.head(elements))}


def _json_safe(value: Any) -> Any:
    """Text that is not UTF-8 with its bytes written out; NaN and infinities as text, for JSON has none."""
    if isinstance(value, list):
        return [_json_safe(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _plan(source: GgufSource) -> Plan:
    """What the source would become.

    Raises:
        GpackError: It cannot be converted.
    """
    for tensor in source.tensors:
        if tensor.ggml_type not in c.GgmlType.NAMES:
            raise UnsupportedError(
                f"the tensor {tensor.name!r} is of unknown type {tensor.ggml_type}",
                code="gguf.tensor_type",
                field=tensor.name,
            )
    return Plan(source)


def _bare_model(source: GgufSource) -> dict[str, Any]:
    """What can be said of a model that cannot be converted."""
    return {
        "name": str(source.get("general.name", "unknown")),
        "architecture": str(source.get("general.architecture", "unknown")),
        "parameter_count": sum(math.prod(tensor.dims) for tensor in source.tensors),
        "tensor_count": len(source.tensors),
        "tied_embeddings": False,
    }


def _type_name(ggml_type: int) -> str:
    return c.GgmlType.NAMES.get(ggml_type, f"unknown ({ggml_type})")
