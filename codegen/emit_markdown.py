"""Markdown: the reference from which a reader or writer in another language is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from codegen import expressions
from codegen.byte_diagram import draw
from codegen.loader import decode
from codegen.model import SCALARS, Field, Rule, Schema, Section, Sequence, Struct, Vector
from codegen.prose import anchor, shown_number
from codegen.render import render

FUNCTIONS = {
    "align_up(x, n)": "the next multiple of n, x itself where it is one",
    "is_c_string(b)": "printable ASCII, not empty, NUL-terminated, with nothing but NULs after",
    "ones_after(a, n)": "the elements of a from number n on are 1",
    "product(a)": "the product of the elements",
    "zero(b)": "all bytes are zero",
}
SWEEPS = {"u64": "every u64 field", "reserved": "every reserved field", "flags": "every flags field"}
KINDS = {"u": "unsigned integer", "i": "signed integer, two's complement", "f": "IEEE 754 number"}


class Line(NamedTuple):
    """A key of a JSON document: its path, type with limits, whether it must be there, and its meaning."""

    path: str
    type: str
    required: bool
    doc: str


def emit(schema: Schema) -> str:
    """The text of the document."""
    return render(
        "markdown.j2",
        schema=schema,
        contents=list(contents(schema)),
        link=link,
        cell=cell,
        code=code,
        scalars=list(_scalars(schema)),
        refs={item.name: list(_refs(item)) for item in schema.structs if item.refs},
        body=body,
        companions=companions,
        diagram=draw,
        field_type=field_type,
        users=users,
        valid_vectors=lambda item: [vector for vector in item.vectors if not vector.breaks],
        broken_vectors=lambda item: [vector for vector in item.vectors if vector.breaks],
        vector_lines=vector_lines,
        changes=changes,
        sequence_lines=sequence_lines,
        rule_groups=rule_groups(schema),
        rule_meaning=rule_meaning,
        functions={name: doc for name, doc in FUNCTIONS.items() if any(_calls(rule, name) for rule in schema.rules)},
        json_lines=lambda document: list(json_lines(document.schema)),
        shown_number=shown_number,
        prefixes={item.include: item.include_doc for item in schema.structs if item.include},
    )


# ---------------------------------------------------------------- pieces


def link(heading: str) -> str:
    """A link to a heading of this document."""
    return f"[{heading}](#{anchor(heading)})"


def cell(text: str) -> str:
    """Text that may stand in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Code that may stand in a table's cell."""
    return f"`{cell(str(text))}`"


def contents(schema: Schema) -> Iterator[tuple[int, str]]:
    """Headings with their depth, in the document's order."""
    yield 0, "Conventions"
    if schema.file:
        yield 0, "The file"
    if schema.sections:
        yield 0, "Sections"
    if schema.constants:
        yield 0, "Constants"
    yield 0, "Structs"
    yield from ((1, item.name) for item in schema.structs)
    for title, items in (
        ("Arrays after a header", schema.sequences),
        ("Enumerations", schema.enums),
        ("Flags", schema.flags),
    ):
        if items:
            yield 0, title
            yield from ((1, item.name) for item in items)
    if any(item.tables for item in schema.structs):
        yield 0, "Tables and heaps"
    if schema.rules:
        yield 0, "Rules"
        yield from ((1, f"Rules: {group}") for group in rule_groups(schema))
    yield from ((0, document.title) for document in schema.json_schemas)


def _scalars(schema: Schema) -> Iterator[tuple[str, int, str]]:
    """Scalar types that the format uses: name, size, meaning."""
    fields = [f.type.base for item in schema.structs for f in item.fields]
    used = {*fields, *(part.type.base for sequence in schema.sequences for part in sequence.parts)}
    yield from ((name, size, KINDS[name[0]]) for name, (_, size) in SCALARS.items() if name in used)


def _refs(item: Struct) -> Iterator[tuple[str, int, str]]:
    """Heap references of a row: name, alignment, meaning."""
    for f in item.fields:
        if f.ref and f.name == f"{f.ref}_offset":
            yield f.ref, f.ref_align, f.ref_doc


def body(schema: Schema, section: Section) -> str:
    """What a section holds, with links."""
    target = section.body.target
    if section.body.shape == "json":
        title = next((document.title for document in schema.json_schemas if document.name == target), target)
        return f"JSON: {link(title)}"
    names = {"table": "table", "single": "one tensor", "sequence": "arrays", "blob": "blob"}
    return f"{names[section.body.shape]}: {link(target)}" if target else names[section.body.shape]


def companions(schema: Schema, section: Section) -> str:
    """Names of the sections that must be there too."""
    names = {other.kind: other.name for other in schema.sections}
    return ", ".join(names[kind] for kind in section.needs)


def field_type(f: Field) -> str:
    """The type, with a link to its enumeration or flags."""
    named = f.enum or f.flags
    return f"{f.type} {link(named)}" if named else str(f.type)


def users(schema: Schema, item: Struct) -> list[str]:
    """Where the struct stands in a file."""
    found = [f"`{part.id}` of the file" for part in schema.file if part.type == item.name]
    found += [f"rows of {link(other.name)}" for other in schema.structs for t in other.tables if t.rows == item.name]
    found += [f"start of {link(sequence.name)}" for sequence in schema.sequences if sequence.header == item.name]
    found += [f"start of section {section.name}" for section in schema.sections if section.body.target == item.name]
    return found


# ---------------------------------------------------------------- vectors


def vector_lines(schema: Schema, item: Struct, vector: Vector) -> Iterator[tuple[int, str, str, str]]:
    """A vector split into fields: offset, bytes, name, meaning."""
    for f in item.fields:
        data = vector.data[f.offset : f.offset + f.type.size]
        yield f.offset, data.hex(" "), f.name, "" if f.reserved else meaning(schema, f, vector.values[f.name])


def meaning(schema: Schema, f: Field, value: Any) -> str:
    """A field's value as people read it."""
    if f.type.base == "bytes":
        return "digest" if f.unit == "digest" else str(value)
    if f.type.base == "ascii":
        return f'"{value}"'
    if f.enum and not f.type.is_array:
        name = {item.value: item.name for item in schema.enum(f.enum).values}.get(value, "unknown")
        return f"{value} ({name})"
    if f.flags:
        names = [bit.name for bit in schema.flag_set(f.flags).bits if value & bit.mask]
        return f"{value} ({', '.join(names)})" if names else str(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"0x{value:08X}" if f.unit == "id" and value >= 1 << 24 else str(value)


def changes(item: Struct, vector: Vector) -> list[str]:
    """How a broken vector differs from the struct's nearest valid one."""
    valid = [other for other in item.vectors if not other.breaks]
    base = min(valid, key=lambda other: len(_differences(item, vector, other)))
    return [f"from *{base.name}*" if len(valid) > 1 else "", *_differences(item, vector, base)]


def _differences(item: Struct, vector: Vector, base: Vector) -> list[str]:
    old, new = decode(item, base.data), decode(item, vector.data)
    made = [f"`{name} = {_short(value)}`" for name, value in new.items() if value != old[name]]
    return made + [f"{name} {value}" for name, value in vector.given.items() if base.given.get(name) != value]


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        text, digits = value.rstrip(b"\0"), value.hex()
        if all(32 < byte < 127 for byte in text):
            return f'"{text.decode()}"'
        return f"…{digits.lstrip('0')[-8:]}" if digits.startswith("0") else f"{digits[:8]}…"
    return str(list(value)) if isinstance(value, tuple) else shown_number(value)


# ---------------------------------------------------------------- sequences


def sequence_lines(schema: Schema, sequence: Sequence) -> Iterator[tuple[str, str, str, str]]:
    """Arrays with their formulas: name, start, bytes, meaning."""
    start = str(expressions.align_up(schema.struct(sequence.header).size, sequence.alignment))
    for part in sequence.parts:
        count = f"({part.count})" if re.search(r"\W", part.count) else part.count
        length = count if part.type.size == 1 else f"{part.type.size} * {count}"
        if part.when:
            yield part.name, start, length, f"Only with `{part.when}`; else no bytes. {part.doc}"
        else:
            yield part.name, start, length, part.doc
        start = f"align_up({part.name} + {length}, {sequence.alignment})"


# ---------------------------------------------------------------- rules


def rule_groups(schema: Schema) -> Mapping[str, list[Rule]]:
    """Rules by the first word of their id."""
    groups: dict[str, list[Rule]] = {}
    for rule in schema.rules:
        groups.setdefault(rule.id.partition(".")[0], []).append(rule)
    return groups


def rule_meaning(rule: Rule) -> str:
    """The rule in words, then as an expression, then where it is checked."""
    parts = [cell(rule.doc)]
    if rule.check:
        parts.append(f"{_of(rule)}: {code(rule.check)}")
    elif rule.sweep:
        parts.append(f"Holds for {SWEEPS[rule.sweep]}.")
    return "<br>".join(parts)


def _of(rule: Rule) -> str:
    return link(rule.structs[0]) if len(rule.structs) == 1 else f"{len(rule.structs)} structs ({rule.struct})"


def _calls(rule: Rule, name: str) -> bool:
    return f"{name.partition('(')[0]}(" in (rule.check or "")


# ---------------------------------------------------------------- JSON


def json_lines(node: Mapping[str, Any], path: str = "", *, required: bool = True) -> Iterator[Line]:
    """The keys of a JSON Schema, parents before children."""
    if path:
        yield Line(path, json_type(node), required, node.get("description", ""))
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield from json_lines(child, below, required=name in node.get("required", ()))
    if isinstance(node.get("items"), Mapping) and "properties" in node["items"]:
        yield from list(json_lines(node["items"], f"{path}[]"))[1:]


def json_type(node: Mapping[str, Any]) -> str:
    """Type and limits in words."""
    if "const" in node:
        return code(node["const"])
    if "enum" in node:
        return " or ".join(map(code, node["enum"]))
    kind = str(node.get("type", "any"))
    if kind == "array":
        inner = node.get("items", {})
        return f"array of {json_type(inner)}" + _limit(node.get("minItems"), node.get("maxItems"), "items")
    if kind == "object" and isinstance(node.get("additionalProperties"), Mapping):
        return f"object of {json_type(node['additionalProperties'])}"
    if kind == "string":
        pattern = f", {code(node['pattern'])}" if "pattern" in node else ""
        return f"string{_limit(node.get('minLength'), node.get('maxLength'), 'characters')}{pattern}"
    return kind + _limit(node.get("minimum"), node.get("maximum"), "")


def _limit(low: int | None, high: int | None, unit: str) -> str:
    if (low, high, unit) == (1, None, "characters"):
        return ", not empty"
    shown = [_power(value) for value in (low, high) if value is not None]
    if not shown:
        return ""
    words = " to ".join(shown) if len(shown) == 2 else f"at {'least' if high is None else 'most'} {shown[0]}"
    return f", {words} {unit}".rstrip()


def _power(value: int) -> str:
    """2^53 - 1 reads better than sixteen digits."""
    bits = value.bit_length()
    return f"2^{bits} - 1" if bits >= 31 and value == (1 << bits) - 1 else str(value)
