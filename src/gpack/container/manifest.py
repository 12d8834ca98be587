"""ManifestJson: RFC 8785 canonical JSON, parsed with suspicion, checked against the published JSON Schema.

The manifest keeps away from the canonical form's traps (no floats, integers below 2^53, no lone surrogates), so
sorted keys, no white space and JSON's shortest escapes are all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import FormatError
from ..generated.constants import MAX_MANIFEST, MAX_MANIFEST_DEPTH, MAX_NUMBER
from ..generated.json_schemas import MANIFEST
from ..generated.structs import GPackHeaderV1, GPackSectionEntryV1
from .strict_json import JsonFaultError, parse_object, shorten
from .structure import section_name

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
}


def canonical(value: Any) -> bytes:
    """The value as RFC 8785 canonical JSON.

    Raises:
        FormatError: The value holds a float, an integer from 2^53 on, a lone surrogate, or a key that is not ASCII.
    """
    try:
        _check_values(value, 0)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (JsonFaultError, UnicodeEncodeError) as error:
        raise FormatError(f"the manifest cannot be written: {error}", code="manifest.json") from error


def parse_json(data: bytes) -> dict[str, Any]:
    """The manifest's object.

    Raises:
        ValueError: No UTF-8, no JSON, not an object, NaN, a doubled key, or nested too deeply.
    """
    return parse_object(data, max_bytes=MAX_MANIFEST, max_depth=MAX_MANIFEST_DEPTH, plain=True)


def parse_manifest(data: bytes, *, path: object = None) -> dict[str, Any]:
    """The manifest, checked against its schema.

    Raises:
        FormatError: `manifest.json` or `manifest.schema`, with the first fault.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise FormatError(str(error), code="manifest.json", path=path, section="ManifestJson") from error
    for field, message in schema_faults(value):
        raise FormatError(message, code="manifest.schema", path=path, section="ManifestJson", field=field)
    return value


def schema_faults(value: Any, schema: dict[str, Any] = MANIFEST, where: str = "$") -> Iterator[tuple[str, str]]:
    """(path, message) of everything in which the value departs from a JSON Schema.

    Understands the keywords that the schema uses: type, const, enum, required, properties, additionalProperties (as
    a schema), items, maxItems, minimum, maximum, minLength, maxLength, pattern.
    """
    if "const" in schema and value != schema["const"]:
        yield where, f"is {shorten(value)}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield where, f"is {shorten(value)}, none of {schema['enum']}"
    kind = schema.get("type")
    if kind is not None and not _is_a(value, kind):
        yield where, f"is {shorten(value)}, no {kind}"
    elif isinstance(value, dict):
        yield from _object_faults(value, schema, where)
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield where, f"has {len(value)} items, and may have {schema['maxItems']}"
        for index, item in enumerate(value[: schema.get("maxItems")]):
            yield from schema_faults(item, schema.get("items", {}), f"{where}[{index}]")
    elif isinstance(value, str):
        yield from _string_faults(value, schema, where)
    elif isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield where, f"is {value}, outside {schema.get('minimum')} to {schema.get('maximum')}"


def binding_faults(
    manifest: dict[str, Any], header: GPackHeaderV1, entries: list[GPackSectionEntryV1], own_kind: int
) -> Iterator[tuple[str, str]]:
    """(path, message) of everything that the manifest says otherwise than header and directory."""
    for name in ("format_version", "min_reader_version", "flags"):
        if manifest.get(name) != getattr(header, name):
            yield f"$.{name}", f"is {shorten(manifest.get(name))}, the header has {getattr(header, name)}"
    expected = [section_record(entry) for entry in entries if entry.kind != own_kind]
    found = manifest.get("sections")
    found = found if isinstance(found, list) else []
    if len(found) != len(expected):
        yield ("$.sections", f"has {len(found)} sections, the directory has {len(expected)} beside the manifest")
    for index, (said, real) in enumerate(zip(found, expected, strict=False)):
        for key, value in real.items():
            actual = said.get(key) if isinstance(said, dict) else None
            if actual != value:
                yield f"$.sections[{index}].{key}", f"is {shorten(actual)}, the directory has {value!r}"


def section_record(entry: GPackSectionEntryV1) -> dict[str, Any]:
    """A directory entry as the manifest repeats it."""
    return {
        "kind": entry.kind,
        "name": section_name(entry),
        "flags": entry.flags,
        "offset": entry.offset,
        "size": entry.size,
        "alignment": entry.alignment,
        "item_count": entry.item_count,
        "sha256": entry.sha256.hex(),
    }


# ---------------------------------------------------------------- parts of the schema


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))


def _object_faults(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}.{key}", "is missing"
    others = schema.get("additionalProperties", {})
    for key, item in value.items():
        yield from schema_faults(item, schema.get("properties", {}).get(key, others), f"{where}.{key}")


def _array_faults(value: list[Any], schema: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxItems", len(value)):
        yield where, f"has {len(value)} items, and may have {schema['maxItems']}"
    for index, item in enumerate(value):
        yield from schema_faults(item, schema.get("items", {}), f"{where}[{index}]")


def _string_faults(value: str, schema: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield where, f"has {len(value)} characters"
    # JSON Schema's `$` means the end, Python's also the place before a final line feed.
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield where, f"is {shorten(value)}, which does not match {schema['pattern']}"


# ---------------------------------------------------------------- parts of the parser


def _check_values(value: Any, depth: int) -> None:
    if depth > MAX_MANIFEST_DEPTH:
        raise JsonFaultError(f"nested more than {MAX_MANIFEST_DEPTH} deep")
    if isinstance(value, float):
        raise JsonFaultError(f"{value!r} is a float")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_NUMBER:
        raise JsonFaultError(f"{value} is too large")
    if isinstance(value, dict):
        for key, item in value.items():
            if not (isinstance(key, str) and key.isascii()):
                raise JsonFaultError(f"the key {key!r} is not ASCII")
            _check_values(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, depth + 1)
