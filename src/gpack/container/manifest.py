"""ManifestJson: RFC 8785 canonical JSON, parsed with suspicion, checked against the published JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..errors import FormatError
from ..generated.constants import MAX_MANIFEST, MAX_MANIFEST_DEPTH
from ..generated.json_schemas import MANIFEST
from ..generated.structs import GPackHeaderV1, GPackSectionEntryV1
from .strict_json import JsonFaultError, parse_object, shorten
from .structure import section_name

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
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
        FormatError: It has no such form: NaN, an infinity, an integer from 2^53 on, a lone surrogate, a key that is no
            text, or too deep a nesting.
    """
    import rfc8785  # opening a pack needs none of it

    try:
        _check_depth(value, 0)
        return rfc8785.dumps(value)
    except ValueError as error:  # of the package, and of UTF-8
        raise FormatError(f"the manifest cannot be written: {error}", code="manifest.json") from error


def parse_json(data: bytes) -> dict[str, Any]:
    """The manifest's object.

    Raises:
        ValueError: No UTF-8, no JSON, not an object, NaN, a doubled key, a number that no double holds, or nested too
            deeply.
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
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
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
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))


def _object_faults(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}.{key}", "is missing"
    others = schema.get("additionalProperties", {})
    for key, item in value.items():
        place = key if _PLAIN_KEY.fullmatch(key) else shorten(key)
        yield from schema_faults(item, schema.get("properties", {}).get(key, others), f"{where}.{place}")


def _string_faults(value: str, schema: dict[str, Any], where: str) -> Iterator[tuple[str, str]]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield where, f"has {len(value)} characters"
    # JSON Schema's `$` means the end, Python's also the place before a final line feed.
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield where, f"is {shorten(value)}, which does not match {schema['pattern']}"


# ---------------------------------------------------------------- parts of the parser


def _check_depth(value: Any, depth: int) -> None:
    if depth > MAX_MANIFEST_DEPTH:
        raise JsonFaultError(f"nested more than {MAX_MANIFEST_DEPTH} deep")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(item, depth + 1)
