"""From YAML to the model: meta-schema first, then everything that a JSON Schema cannot see."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from codegen import expressions
from codegen.consistency import check_coverage, check_names, need
from codegen.model import (
    Bit,
    Body,
    Constant,
    Enum,
    EnumValue,
    Field,
    FilePart,
    Flags,
    JsonSchema,
    Part,
    Rule,
    Schema,
    SchemaError,
    Section,
    Sequence,
    Struct,
    Table,
    Type,
    Vector,
    digest_of,
)

META_SCHEMA = Path(__file__).with_name("meta.schema.yaml")
Raw = Mapping[str, Any]


# libyaml's parser is about ten times as fast, but PyYAML may have been built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(_Loader):  # type: ignore[misc]
    """YAML in which a doubled key is an error, not the loss of the first."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise SchemaError(f"line {key_node.start_mark.line + 1}: key {key!r} is no text")
        if key in seen:
            raise SchemaError(f"line {key_node.start_mark.line + 1}: key {key!r} stands twice")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path: Path) -> Schema:
    """Reads a schema.

    Raises:
        SchemaError: The YAML does not follow the meta-schema, or contradicts itself.
    """
    text = path.read_bytes()
    try:
        raw = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise SchemaError(f"no YAML: {error}") from error
    _validate(raw, path)
    head = raw["format"]
    enums = [*map(_enum, raw.get("enums", ())), *_section_enum(raw)]
    structs = _structs(raw, packed=head.get("packed", False))
    schema = Schema(
        id=head["id"],
        title=head["title"],
        version=head["version"],
        license=head["license"],
        extension=head["extension"],
        doc=head["doc"],
        packed=head.get("packed", False),
        source=path.name,
        digest=digest_of(text),
        outputs=raw.get("outputs", {}),
        constants=tuple(Constant(**item) for item in raw.get("constants", ())),
        flags=tuple(map(_flags, raw.get("flags", ()))),
        enums=tuple(enums),
        structs=tuple(structs),
        sequences=tuple(map(_sequence, raw.get("sequences", ()))),
        sections=tuple(map(_section, raw.get("sections", ()))),
        file=tuple(FilePart(**item) for item in raw.get("file", ())),
        rules=tuple(_rules(raw)),
        json_schemas=tuple(JsonSchema(**item) for item in raw.get("json_schemas", ())),
    )
    check_names(schema)
    return _with_vectors(schema, raw)


def _validate(raw: object, path: Path) -> None:
    meta = yaml.load(META_SCHEMA.read_text(), Loader=_Loader)  # noqa: S506 - a SafeLoader
    validator = jsonschema.Draft202012Validator(meta)
    errors = sorted(validator.iter_errors(raw), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        lines = [f"{path.name}: {'.'.join(map(str, e.absolute_path)) or '$'}: {e.message[:200]}" for e in errors[:10]]
        raise SchemaError("\n".join(lines))


# ---------------------------------------------------------------- plain items


def _flags(item: Raw) -> Flags:
    return Flags(**{**item, "bits": tuple(Bit(**bit) for bit in item["bits"])})


def _enum(item: Raw) -> Enum:
    columns = item.get("columns", {})
    values = []
    for value in item["values"]:
        extra = {name: value[name] for name in columns if name in value}
        if set(extra) != set(columns):
            raise SchemaError(f"enum {item['name']}.{value['name']}: columns {sorted(columns)} are all needed")
        values.append(EnumValue(value["name"], value["value"], value["doc"], extra))
    return Enum(item["name"], item["repr"], item["doc"], tuple(values), columns)


def _section_enum(raw: Raw) -> Iterable[Enum]:
    """The section kinds are an enumeration too, and are written down once, under `sections`."""
    if raw.get("sections"):
        values = tuple(EnumValue(item["id"], item["kind"], item["doc"]) for item in raw["sections"])
        yield Enum("SectionKind", "u32", "Kinds of sections.", values)


def _sequence(item: Raw) -> Sequence:
    parts = tuple(
        Part(
            part["name"],
            Type.parse(part["type"], f"sequence {item['name']}"),
            str(part["count"]),
            part["unit"],
            part["doc"],
            part.get("when"),
        )
        for part in item["parts"]
    )
    return Sequence(item["name"], item["header"], item["alignment"], item["doc"], parts)


def _section(item: Raw) -> Section:
    ((shape, target),) = item["body"].items()
    rest = {key: value for key, value in item.items() if key not in ("body", "needs")}
    body = Body(shape, "" if target is True else target)
    return Section(body=body, needs=tuple(item.get("needs", ())), **rest)


def _rules(raw: Raw) -> Iterable[Rule]:
    includers: dict[str, list[str]] = {}
    for item in raw.get("structs", ()):
        if not item.get("abstract"):
            includers.setdefault(item["name"], []).append(item["name"])
            if "include" in item:
                includers.setdefault(item["include"], []).append(item["name"])
    for item in raw.get("rules", ()):
        rest = {key: value for key, value in item.items() if key not in ("except", "implies")}
        structs = [name for name in includers.get(item.get("struct", ""), ()) if name not in item.get("except", ())]
        yield Rule(implies=tuple(item.get("implies", ())), structs=tuple(structs), **rest)


# ---------------------------------------------------------------- structs


def _structs(raw: Raw, *, packed: bool) -> list[Struct]:
    by_name = {item["name"]: item for item in raw.get("structs", ())}
    made = []
    for item in raw.get("structs", ()):
        where = f"struct {item['name']}"
        need(f"{where}: include", {item.get("include")} - {None}, by_name)
        parent = by_name.get(item.get("include", ""), {})
        fields = _fields([*parent.get("fields", ()), *item["fields"]], where, packed=packed)
        size = sum(field.type.size for field in fields)
        if size != item["size"]:
            raise SchemaError(f"{where}: the fields take {size} bytes, not {item['size']}")
        if item.get("abstract"):
            continue
        made.append(
            Struct(
                name=item["name"],
                size=size,
                doc=item["doc"],
                fields=tuple(fields),
                magic=item.get("magic"),
                given={**parent.get("given", {}), **item.get("given", {})},
                rows=item.get("rows"),
                also=Table(**item["also"]) if "also" in item else None,
                include=item.get("include"),
                include_doc=parent.get("doc", ""),
            )
        )
    return made


def _fields(items: Iterable[Raw], where: str, *, packed: bool) -> list[Field]:
    fields: list[Field] = []
    offset = 0
    for item in items:
        for made in _expand(item, offset, where):
            if not packed and made.offset % made.type.element_size:
                raise SchemaError(f"{where}.{made.name}: offset {made.offset} is not naturally aligned")
            if any(made.name == other.name for other in fields):
                raise SchemaError(f"{where}.{made.name}: the field stands twice")
            fields.append(made)
            offset = made.offset + made.type.size
    return fields


def _expand(item: Raw, offset: int, where: str) -> Iterable[Field]:
    rest = {key: item[key] for key in ("doc", "unit", "reserved", "enum", "flags") if key in item}
    if item["type"] != "ref":
        yield Field(item["name"], Type.parse(item["type"], f"{where}.{item['name']}"), offset, **rest)
        return
    name, word = item["name"], Type("u32", None)
    ref = {"ref": name, "ref_align": item.get("align", 1), "ref_unit": item.get("unit"), "ref_doc": item["doc"]}
    yield Field(f"{name}_offset", word, offset, f"Start of: {item['doc']}", "bytes", **ref)
    yield Field(f"{name}_length", word, offset + 4, f"Length of: {item['doc']}", "bytes", **ref)


# ---------------------------------------------------------------- vectors


def _with_vectors(schema: Schema, raw: Raw) -> Schema:
    from dataclasses import replace

    structs = []
    faults: list[str] = []
    for item in schema.structs:
        source = next(other for other in raw["structs"] if other["name"] == item.name)
        structs.append(replace(item, vectors=tuple(_vectors(schema, item, source.get("vectors", ()), faults))))
    if faults:
        raise SchemaError("\n".join(faults))
    schema = replace(schema, structs=tuple(structs))
    check_coverage(schema)
    return schema


def _vectors(schema: Schema, item: Struct, raws: Iterable[Raw], faults: list[str]) -> Iterable[Vector]:
    made: dict[str, Vector] = {}
    for raw in raws:
        where = f"struct {item.name}, vector {raw['name']!r}"
        if raw["name"] in made:
            raise SchemaError(f"{where}: the name stands twice")
        vector = _vector(item, raw, made, where)
        try:
            broken = set(expressions.broken_rules(schema, item, decode(item, vector.data), vector.given))
        except Exception as error:  # an expression may fail in as many ways as Python has
            raise SchemaError(f"{where}: a check fails: {type(error).__name__}: {error}") from error
        implied = {other for rule in schema.rules if rule.id in vector.breaks for other in rule.implies}
        if not set(vector.breaks) <= broken or not broken <= set(vector.breaks) | implied:
            faults.append(f"{where}: breaks {sorted(broken)}, but {sorted(vector.breaks)} is written")
        made[raw["name"]] = vector
        yield vector


def _vector(item: Struct, raw: Raw, made: Mapping[str, Vector], where: str) -> Vector:
    given = raw.get("given", {})
    breaks, doc = tuple(raw.get("breaks", ())), raw.get("doc", "")
    if "from" in raw:
        base = made.get(raw["from"])
        if base is None:
            raise SchemaError(f"{where}: no vector {raw['from']!r} stands before it")
        fields = decode(item, base.data)
        unknown = set(raw.get("set", {})) - set(fields)
        if unknown:
            raise SchemaError(f"{where}: no field {sorted(unknown)}")
        try:
            fields.update({name: _from_yaml(item.field(name), value) for name, value in raw.get("set", {}).items()})
            data = encode(item, fields)
        except (struct.error, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(f"{where}: {raw['set']} does not fit: {error}") from error
        return Vector(raw["name"], data, shown_values(item, data), {**base.given, **given}, breaks, doc)
    try:
        data = bytes.fromhex(raw["hex"])
    except ValueError as error:
        raise SchemaError(f"{where}: {error}") from error
    if len(data) != item.size:
        raise SchemaError(f"{where}: {len(data)} bytes, not {item.size}")
    if set(given) != set(item.given):
        raise SchemaError(f"{where}: `given` must say {sorted(item.given)}")
    if shown_values(item, data) != raw["values"]:
        raise SchemaError(f"{where}: the bytes mean {shown_values(item, data)}, not {raw['values']}")
    return Vector(raw["name"], data, raw["values"], given, breaks, doc)


def decode(item: Struct, data: bytes) -> dict[str, Any]:
    """Fields of a struct as Python values: numbers, tuples of numbers, bytes."""
    flat = iter(struct.unpack(item.struct_format, data))
    take: Callable[[int], tuple[Any, ...]] = lambda n: tuple(next(flat) for _ in range(n))  # noqa: E731
    return {f.name: take(f.type.count or 0) if f.type.is_array else next(flat) for f in item.fields}


def encode(item: Struct, fields: Mapping[str, Any]) -> bytes:
    """The inverse of `decode`."""
    flat: list[Any] = []
    for f in item.fields:
        flat.extend(fields[f.name] if f.type.is_array else [fields[f.name]])
    return struct.pack(item.struct_format, *flat)


def shown_values(item: Struct, data: bytes) -> dict[str, Any]:
    """The fields as a vector shows them: no reserved ones, bytes as hex, ASCII as text without its NULs."""
    shown: dict[str, Any] = {}
    for f, value in zip(item.fields, decode(item, data).values(), strict=True):
        if f.type.base == "ascii":
            shown[f.name] = value.rstrip(b"\0").decode("ascii")
        elif f.type.base == "bytes":
            shown[f.name] = value.hex()
        elif not f.reserved:
            shown[f.name] = list(value) if f.type.is_array else value
        if f.reserved:
            shown.pop(f.name, None)
    return shown


def _from_yaml(f: Field, value: Any) -> Any:
    if f.type.base == "ascii":
        return value.encode("ascii")
    return bytes.fromhex(value) if f.type.base == "bytes" else value


def to_json(value: object) -> str:
    """JSON as all generated JSON files have it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
