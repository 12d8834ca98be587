"""Kaitai Struct: the whole file as a grammar that Kaitai's compiler turns into parsers in many languages.

What decides the shape of the grammar was tried with compiler 0.11 and its targets:

- A body with `size` and `type` is read at once, so payloads have none: types get offset and length as parameters
  and read lazily from the root's stream.
- Fields stay plain numbers, because Java turns unknown values of an enumeration into null; an instance beside the
  field gives the enumeration.
- Go adds and compares numbers of one type only, and Rust computes in 32 bits as soon as types differ. A parameter of
  type u8 and a value cast by `.as<u8>` are of one type for both; a u8 read from the file is of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from codegen import kaitai_rules, kaitai_wide
from codegen.ksy_yaml import Hex, Node, doc_text, dump
from codegen.model import Enum, Field, FilePart, Flags, Part, Schema, Section, Sequence, Struct, Table, Type, snake
from codegen.render import render

KS_VERSION = "0.9"  # the first with `valid` and `bit-endian`
SCALARS = {"i8": "s1", "i16": "s2", "i32": "s4", "i64": "s8", "f32": "f4", "f64": "f8"} | {
    f"u{8 * size}": f"u{size}" for size in (1, 2, 4, 8)
}
PARAMS = {
    "ofs_heap": "Start of the heap, from the start of the file.",
    "ofs_data": "Start of the data after the heap, from the start of the file.",
    "len_section": "Length of the section.",
}


def emit(schema: Schema) -> str:
    """The text of the `.ksy` file."""
    body: Node = {"doc": doc_text(_file_doc(schema))}
    if "markdown" in schema.outputs:
        body["doc-ref"] = schema.outputs["markdown"]
    if schema.file:
        body["instances"] = {part.id: _file_part(part) for part in schema.file}
    body["types"] = {
        **{snake(item.name): _struct(schema, item) for item in schema.structs},
        **_bodies(schema),
        **{snake(item.name): _flags(schema, item) for item in schema.flags},
    }
    if schema.enums:
        body["enums"] = {snake(item.name): _enum(item) for item in schema.enums}
    return render("ksy.j2", schema=schema, ks_version=KS_VERSION, body=dump(body))


def _file_doc(schema: Schema) -> str:
    spanning = [rule.id for rule in schema.rules if rule.where]
    sweeps = [rule.id for rule in schema.rules if rule.sweep and rule.sweep != "u64"]
    parts = [schema.doc]
    if schema.sections:
        parts.append("Payloads are never read as a whole: read them from the stream, at the offset and size given.")
    if spanning or sweeps:
        parts.append(
            "This grammar checks structure. It leaves to a full reader the rules that span several structures, and "
            f"those that a later version may lift: {', '.join((*sweeps, *spanning))}."
        )
    return "\n\n".join(parts)


def _file_part(part: FilePart) -> Node:
    node: Node = {"pos": _number(part.at), "type": snake(part.type)}
    if part.repeat:
        node |= {"repeat": "expr", "repeat-expr": _number(part.repeat)}
    return {**node, "doc": doc_text(part.doc)}


def _number(text: str | int) -> str | int:
    return int(text) if str(text).isdigit() else text


# ---------------------------------------------------------------- structs


def _struct(schema: Schema, item: Struct) -> Node:
    checks = kaitai_rules.checks_of(schema, item)
    doc = item.doc
    if checks.unchecked:
        doc += f"\n\nNot checked, or only in part: {', '.join(checks.unchecked)}."
    node: Node = {"-orig-id": item.name, "doc": doc_text(doc)}
    if params := _params(schema, item):
        node["params"] = [{"id": name, "type": "u8", "doc": PARAMS[name]} for name in params]
    valid = dict(checks.by_field)
    if _ends_file(schema, item):
        node["doc"] = doc_text(f"{doc} Nothing follows: this is how a file's size is checked.")
        valid[item.fields[-1].name] = {"expr": "_ >= 0 and _io.eof"}
    node["seq"] = [_field(f, valid.get(f.name)) for f in item.fields]
    instances = {
        **_enum_instances(item),
        **_column_instances(schema, item, checks.by_field),
        **_ref_instances(schema, item),
        **_data_instance(schema, item),
        **_body_instance(schema, item),
    }
    return {**node, "instances": instances} if instances else node


def _params(schema: Schema, item: Struct) -> list[str]:
    """What the struct gets to know of its surroundings: names of `PARAMS`."""
    if header := _heap_header(schema, item):
        return ["ofs_heap", *(["ofs_data"] if _has_data(header, item) else [])]
    checks = kaitai_rules.checks_of(schema, item).by_field
    return ["len_section"] if kaitai_wide.needs_section(item, checks) else []


def _ends_file(schema: Schema, item: Struct) -> bool:
    """Whether a rule-given size of the file says where this struct ends it."""
    facts = {name for other in schema.structs for name in kaitai_wide.given(schema, other).values()}
    places = {str(part.at).removesuffix(f" - {item.size}") for part in schema.file if part.type == item.name}
    return any(f"_root.{place}" in facts for place in places)


def _has_data(header: Struct, row: Struct) -> bool:
    """Rows of a section that is a small archive say where their bytes are in it."""
    names = {f.name for f in row.fields}
    return any(f.name == "ofs_data" for f in header.fields) and {"offset", "byte_size"} <= names


def _field(f: Field, valid: Any) -> Node:
    node: Node = {"id": f.name, **({"-reserved": True} if f.reserved else {}), **_type(f)}
    if valid is not None:
        node["valid"] = Hex(valid) if isinstance(valid, int) and "magic" in f.name else valid
    return {**node, "doc": doc_text(f.doc)}


def _type(f: Field) -> Node:
    if f.type.base == "ascii":
        return {"size": f.type.count, "type": "strz", "encoding": "ASCII"}
    if f.type.base == "bytes":
        return {"size": f.type.count}
    if f.flags:
        return {"size": f.type.size, "type": snake(f.flags)}
    return _numbers(f.type)


def _numbers(kind: Type) -> Node:
    node: Node = {"type": SCALARS[kind.base]}
    return node if kind.count is None else {**node, "repeat": "expr", "repeat-expr": kind.count}


def _enum_instances(item: Struct) -> Node:
    return {
        f"{f.name}_enum": {
            "value": f.name,
            "enum": snake(f.enum),
            "doc": f"`{f.name}` as an enumeration, where it is known.",
        }
        for f in item.fields
        if f.enum and not f.type.is_array
    }


def _column_instances(schema: Schema, item: Struct, checks: Mapping[str, Any]) -> Node:
    return {
        kaitai_wide.column_id(f.name, column): {"value": value, "doc": f"`{column}` of `{f.name}`; 0 where unknown."}
        for f, column, value in kaitai_wide.columns_used(item, schema, checks)
    }


def _heap_header(schema: Schema, item: Struct) -> Struct | None:
    """The table header that has the heap of this row, where the row refers to one."""
    header = schema.table_of_rows(item.name) if item.refs else None
    return header if header and any(f.name == "ofs_heap" for f in header.fields) else None


def _ref_instances(schema: Schema, item: Struct) -> Node:
    if not _heap_header(schema, item):
        return {}
    made: Node = {}
    for f in item.fields:
        if f.ref and f.name == f"{f.ref}_offset":
            node: Node = {"io": "_root._io", "pos": f"ofs_heap + {f.name}.as<u8>", "size": f"{f.ref}_length"}
            if f.ref_unit == "text":
                node |= {"type": "str", "encoding": "UTF-8"}
            made[f.ref] = {**node, "doc": doc_text(f.ref_doc)}
    return made


def _data_instance(schema: Schema, item: Struct) -> Node:
    """The bytes that a row of a small archive stands for."""
    if "ofs_data" not in _params(schema, item):
        return {}
    return {
        "data": {
            "io": "_root._io",
            "pos": "ofs_data + offset.as<u8>",
            "size": "byte_size",
            "doc": "Its bytes; read when they are asked for.",
        }
    }


def _body_instance(schema: Schema, item: Struct) -> Node:
    """The payload of a directory entry, by its kind."""
    kind = next((f.name for f in item.fields if f.enum == "SectionKind"), None)
    if not kind or item.name not in {part.type for part in schema.file} or not schema.sections:
        return {}
    cases = {f"section_kind::{section.id.lower()}": _body_type(schema, section) for section in schema.sections}
    cases = {case: name for case, name in cases.items() if name}
    if not cases:
        return {}
    body = {
        "io": "_root._io",
        "pos": "offset",
        "type": {"switch-on": f"{kind}_enum", "cases": cases},
        "doc": doc_text("The payload, where it is more than a blob; nothing is read before it is asked for."),
    }
    return {"body": body}


# ---------------------------------------------------------------- section bodies


def _body_type(schema: Schema, section: Section) -> str:
    """Type of a section's payload, with its arguments; empty for a blob."""
    if section.body.shape == "blob":
        return ""
    if section.body.shape == "single":
        single = schema.struct(section.body.target)
        return snake(single.name) + ("(size)" if _params(schema, single) else "")
    return f"{snake(section.name)}_body(offset, size)"


def _bodies(schema: Schema) -> dict[str, Node]:
    made = {}
    for section in schema.sections:
        name = f"{snake(section.name)}_body"
        if section.body.shape == "table":
            made[name] = _table_body(schema, section)
        elif section.body.shape == "sequence":
            made[name] = _sequence_body(schema, section)
            made.update(_part_types(schema.sequence(section.body.target)))
        elif section.body.shape == "json":
            made[name] = _json_body(schema, section)
    return made


def _body(schema: Schema, section: Section, doc: str, header: Struct | None, instances: Node) -> Node:
    place = [("ofs_section", "Start of the section, from the start of the file."), ("len_section", "Its length.")]
    node: Node = {
        "-orig-id": section.name,
        "doc": doc_text(doc),
        "params": [{"id": name, "type": "u8", "doc": meaning} for name, meaning in place],
    }
    if header:
        arguments = "(len_section)" if _params(schema, header) else ""
        node["seq"] = [{"id": "header", "type": snake(header.name) + arguments}]
    return {**node, "instances": instances}


def _table_body(schema: Schema, section: Section) -> Node:
    header = schema.struct(section.body.target)
    return _body(schema, section, section.doc, header, {t.id: _rows(schema, t) for t in header.tables})


def _rows(schema: Schema, table: Table) -> Node:
    row = schema.struct(table.rows)
    places = [f"ofs_section + header.{name}.as<u8>" for name in _params(schema, row)]
    arguments = f"({', '.join(places)})" if places else ""
    return {
        "pos": f"ofs_section + header.{table.offset}.as<u8>",
        "size": f"header.{table.stride}",
        "type": f"{snake(row.name)}{arguments}",
        "repeat": "expr",
        "repeat-expr": f"header.{table.count}",
        "doc": doc_text(f"Rows, `{table.stride}` apart: what a later version appends to a row is skipped."),
    }


def _json_body(schema: Schema, section: Section) -> Node:
    text = {"pos": "ofs_section", "size": "len_section", "type": "str", "encoding": "UTF-8", "doc": "The JSON text."}
    return _body(schema, section, section.doc, None, {"text": text})


def _sequence_body(schema: Schema, section: Section) -> Node:
    sequence = schema.sequence(section.body.target)
    instances: Node = {}
    end: str | int = schema.struct(sequence.header).size
    for part in sequence.parts:
        start, length = f"ofs_{part.name}", f"len_{part.name}"
        aligned = _aligned(end, sequence.alignment)
        present = _presence(schema, sequence, part)
        instances[start] = {
            "value": _u8(f"{present} ? {aligned} : {_u8(end)}") if present else aligned,
            "doc": f"Start of `{part.name}`, from the start of the section.",
        }
        instances[length] = {"value": _length(part, present), "doc": f"Bytes of `{part.name}`."}
        instances[part.name] = _part(sequence, part) | ({"if": present} if present else {})
        end = f"{_u8(start)} + {_u8(length)}"
    header = schema.struct(sequence.header)
    return _body(schema, section, f"{section.doc} {sequence.doc}", header, instances)


def _u8(value: str | int) -> str:
    """The value as a u8. Every operand and every result is cast, or some target computes it in 32 bits."""
    text = str(value)
    if re.fullmatch(r"[\w.]+\.as<u8>", text):
        return text
    return f"{text}.as<u8>" if re.fullmatch(r"[\w.]+", text) else f"({text}).as<u8>"


def _aligned(end: str | int, alignment: int) -> str:
    """The next multiple of `alignment`."""
    if isinstance(end, int):
        return _u8(-(-end // alignment) * alignment)
    raised = _u8(f"{_u8(end)} + {_u8(alignment - 1)}")
    return _u8(f"{_u8(f'{raised} / {_u8(alignment)}')} * {_u8(alignment)}")


def _presence(schema: Schema, sequence: Sequence, part: Part) -> str | None:
    """The bit of the header that announces an optional part."""
    announced = sequence.condition(schema, part)
    return announced and f"header.{announced[0].name}.{announced[1].name.lower()}"


def _length(part: Part, present: str | None) -> str:
    """Bytes of a part."""
    length = _u8(_count(part, ".as<u8>"))
    if part.type.size > 1:
        length = _u8(f"{length} * {_u8(part.type.size)}")
    return _u8(f"{present} ? {length} : {_u8(0)}") if present else length


def _count(part: Part, cast: str = "") -> str:
    """The count of elements, in terms of a body's `header`; `cast` goes after every operand."""
    return re.sub(r"\w+", lambda match: f"{'' if match[0].isdigit() else 'header.'}{match[0]}{cast}", part.count)


def _part(sequence: Sequence, part: Part) -> Node:
    node: Node = {"pos": f"ofs_section + ofs_{part.name}"}
    if part.type.is_blob or part.type == Type("u8", None):
        node["size"] = f"len_{part.name}"
    else:
        kind = _item_name(sequence, part) if part.type.is_array else SCALARS[part.type.base]
        node |= {"type": kind, "repeat": "expr", "repeat-expr": _count(part)}
    return {**node, "doc": doc_text(part.doc)}


def _item_name(sequence: Sequence, part: Part) -> str:
    return f"{snake(sequence.name)}_{part.name}_item"


def _part_types(sequence: Sequence) -> dict[str, Node]:
    """Types of the elements that are arrays themselves."""
    return {
        _item_name(sequence, part): {"doc": doc_text(part.doc), "seq": [{"id": "values", **_numbers(part.type)}]}
        for part in sequence.parts
        if part.type.is_array
    }


# ---------------------------------------------------------------- flags and enumerations


def _flags(schema: Schema, item: Flags) -> Node:
    node: Node = {"meta": {"bit-endian": "le"}, "-orig-id": item.name, "doc": doc_text(item.doc)}
    if item.bits:
        node["seq"] = _bits(item, kaitai_rules.required_bits(schema, item.name))
    number = {"pos": 0, "type": SCALARS[item.repr], "doc": "All bits as one number, unknown ones too."}
    return {**node, "instances": {"as_int": number}}


def _bits(item: Flags, required: set[str]) -> list[Node]:
    made: list[Node] = []
    next_bit = 0
    for bit in sorted(item.bits, key=lambda bit: bit.bit):
        if bit.bit > next_bit:
            made.append({"id": f"reserved_{next_bit}", "type": f"b{bit.bit - next_bit}"})
        node: Node = {"id": bit.name.lower(), "-orig-id": f"{item.prefix}{bit.name}", "type": "b1"}
        if bit.name in required:
            node["valid"] = True
        made.append({**node, "doc": doc_text(bit.doc)})
        next_bit = bit.bit + 1
    return made


def _enum(item: Enum) -> Mapping[int, Node]:
    return {value.value: {"id": value.name.lower(), "doc": doc_text(value.doc)} for value in item.values}
