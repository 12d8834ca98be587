"""What must hold in a whole schema, beyond the form of its items: names, rules, sections, vectors for all of them."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from codegen import expressions
from codegen.model import Schema, SchemaError


def check_names(schema: Schema) -> None:
    """Names are unique, and what is named is there.

    Raises:
        SchemaError: They are not.
    """
    _unique("constant", [item.name for item in schema.constants])
    _unique("enum or flags", [item.name for item in schema.enums] + [item.name for item in schema.flags])
    _unique("struct", [item.name for item in schema.structs])
    _unique("rule", [item.id for item in schema.rules])
    _unique("section kind", [item.kind for item in schema.sections])
    for enum in schema.enums:
        _unique(f"value of {enum.name}", [value.value for value in enum.values])
    names = {item.name for item in schema.structs}
    for item in schema.structs:
        for table in item.tables:
            need(f"struct {item.name}: rows", {table.rows}, names)
            columns = {table.offset, table.count, table.stride}
            need(f"struct {item.name}: fields of the table", columns, {f.name for f in item.fields})
        for f in item.fields:
            need(f"{item.name}.{f.name}: enum", {f.enum} - {None}, {e.name for e in schema.enums})
            need(f"{item.name}.{f.name}: flags", {f.flags} - {None}, {e.name for e in schema.flags})
            if f.unit is None and not f.reserved:
                raise SchemaError(f"{item.name}.{f.name}: a unit is needed")
            if keyword.iskeyword(f.name):
                raise SchemaError(f"{item.name}.{f.name}: the name is a keyword of Python")
    _check_rules(schema)
    for sequence in schema.sequences:
        need(f"sequence {sequence.name}: header", {sequence.header}, names)
    _check_sections(schema)
    for part in schema.file:
        need(f"file part {part.id}: type", {part.type}, names)


def _check_rules(schema: Schema) -> None:
    """Their expressions name what there is, and they do not contradict themselves."""
    ids = {rule.id for rule in schema.rules}
    for rule in schema.rules:
        need(f"rule {rule.id}: implies", set(rule.implies), ids)
        expressions.validate(schema, rule)
        if rule.recommended and (rule.quick or rule.severity != "error"):
            raise SchemaError(f"rule {rule.id}: only an error that a full verify finds can be recommended")


def _check_sections(schema: Schema) -> None:
    """What a section's body, needs and flag name must be there."""
    targets: dict[str, set[str]] = {
        "table": {item.name for item in schema.structs if item.rows},
        "single": {item.name for item in schema.structs},
        "sequence": {item.name for item in schema.sequences},
        "json": {item.name for item in schema.json_schemas},
        "blob": {""},
    }
    bits = {bit.name for flags in schema.flags for bit in flags.bits}
    for section in schema.sections:
        where = f"section {section.name}"
        need(f"{where}: {section.body.shape}", {section.body.target}, targets[section.body.shape])
        need(f"{where}: needs", set(section.needs), {other.kind for other in schema.sections})
        need(f"{where}: flag", {section.flag} - {None}, bits)
    _unique("section", [section.id for section in schema.sections])
    _unique("section", [section.name for section in schema.sections])


def check_coverage(schema: Schema) -> None:
    """Every rule that a single struct can break is broken by a vector, and every struct has a valid one.

    Raises:
        SchemaError: Some are not, or have none.
    """
    broken = {rule for item in schema.structs for vector in item.vectors for rule in vector.breaks}
    missing = [rule.id for rule in schema.rules if (rule.structs or rule.sweep) and rule.id not in broken]
    bare = [item.name for item in schema.structs if not any(not vector.breaks for vector in item.vectors)]
    gaps = {"rules without a rejecting vector": missing, "structs without a valid vector": bare}
    lacks = [f"{what}: {', '.join(names)}" for what, names in gaps.items() if names]
    if lacks:
        raise SchemaError(f"{'; '.join(lacks)}; they stand under `vectors` of the struct")


def _unique(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"{what} {name!r} stands twice")
        seen.add(name)


def need(what: str, wanted: Iterable[object], known: Iterable[object]) -> None:
    """All that is wanted is known.

    Raises:
        SchemaError: Something is not.
    """
    missing = set(wanted) - set(known)
    if missing:
        raise SchemaError(f"{what}: unknown {sorted(map(str, missing))}")
