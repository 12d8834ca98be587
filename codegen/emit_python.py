"""Python: constants, enums, `struct` records, numpy dtypes, construct parsers, rules and JSON Schemas."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, NamedTuple

from codegen import expressions
from codegen.emit_json import full_json_schema
from codegen.model import Field, Part, Rule, Schema, Section, Struct, snake
from codegen.render import render

CONSTRUCT_SCALARS = {
    "u8": "Int8ul",
    "u16": "Int16ul",
    "u32": "Int32ul",
    "u64": "Int64ul",
    "i8": "Int8sl",
    "i16": "Int16sl",
    "i32": "Int32sl",
    "i64": "Int64sl",
    "f32": "Float32l",
    "f64": "Float64l",
}


def emit(schema: Schema) -> dict[str, str]:
    """All modules: file name to formatted source. Modules that would be empty are left out."""
    wanted = {
        "__init__": True,
        "constants": True,
        "enums": bool(schema.enums or any(flags.bits for flags in schema.flags)),
        "structs": True,
        "dtypes": True,
        "constructs": True,
        "rules": bool(schema.rules),
        "layout": bool(schema.sections),
        "sections": bool(schema.sections and schema.rules),
        "json_schemas": bool(schema.json_schemas),
    }
    targets = schema.outputs.get("targets")
    if targets is not None:
        wanted = {name: on and (name in targets or name == "__init__") for name, on in wanted.items()}
    context = _context(schema)
    return {f"{name}.py": ruff_format(render(f"python/{name}.py.j2", **context)) for name, on in wanted.items() if on}


def ruff_format(source: str) -> str:
    """The source as ruff lays it out."""
    sorting = ["check", "--fix-only", "--quiet", "--select=I,F401", "--config=lint.isort.split-on-trailing-comma=false"]
    layout = ["format", "--config=format.skip-magic-trailing-comma=true"]
    for command in (sorting, layout):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length=120", "-"],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"ruff refuses generated code: {done.stderr}")
        source = done.stdout
    return source


def _context(schema: Schema) -> dict[str, Any]:
    flag_masks = {bit.name: bit.mask for flags in schema.flags[:1] for bit in flags.bits}
    checked, used = _checked(schema)
    return {
        "schema": schema,
        "snake": snake,
        "hex": hex,
        "repr": repr,
        "py_type": _py_type,
        "default": _default,
        "flat_index": _flat_index,
        "numpy_format": _numpy_format,
        "part_dtype": _part_dtype,
        "construct_type": _construct_type,
        "construct_part": _construct_part,
        "construct_expression": _construct_expression,
        "count_of": _count_of,
        "header_of": lambda section: _header_of(schema, section),
        "rules_of_record": _rules_of_record,
        "check_of": lambda item: f"rules.check_{snake(item.name)}",
        "table_name": lambda item: _table_name(schema, item),
        "file_name": f"{schema.id.capitalize()}File",
        "seconds": {item.name: item.also for item in schema.structs if item.also},
        "flag_of": flag_masks.__getitem__,
        "full": full_json_schema,
        "checked": checked,
        "used": sorted(used - {item.name for item in schema.structs}),
        "struct_names": _rule_imports(schema, checked),
        "given": lambda item: "".join(
            f", *, {name}: int" if i == 0 else f", {name}: int" for i, name in enumerate(item.given)
        ),
        "pass_given": lambda item: "".join(f", {name}={name}" for name in item.given),
    }


# ---------------------------------------------------------------- records


def _py_type(f: Field) -> str:
    if f.type.is_blob:
        return "bytes"
    number = "float" if f.type.base.startswith("f") else "int"
    return f"tuple[{number}, ...]" if f.type.is_array else number


def _default(item: Struct, f: Field) -> str:
    if item.magic is not None and f.name in ("magic", "footer_magic"):
        return hex(item.magic)
    if f.type.base == "ascii":
        return 'b""'
    if f.type.base == "bytes":
        return f"bytes({f.type.count})"
    return f"(0,) * {f.type.count}" if f.type.is_array else "0"


def _flat_index(item: Struct, f: Field) -> str:
    start = 0
    for other in item.fields:
        if other is f:
            break
        start += other.type.count or 1 if other.type.is_array else 1
    return f"{start}:{start + (f.type.count or 0)}" if f.type.is_array else str(start)


def _numpy_format(f: Field) -> str:
    if f.type.is_blob:
        return f"V{f.type.count}" if f.type.base == "bytes" else f"S{f.type.count}"
    scalar = f"<{f.type.base[0]}{f.type.element_size}"
    return f"({f.type.count},){scalar}" if f.type.is_array else scalar


def _part_dtype(part: Part) -> str:
    kind = "u" if part.type.is_blob else part.type.base[0]
    scalar = f'"<{kind}{part.type.element_size}"'
    return scalar if part.type.count is None else f"({scalar}, ({part.type.count},))"


# ---------------------------------------------------------------- construct


def _construct_type(item: Struct, f: Field) -> str:
    if f.type.is_blob:
        made = (
            f"construct.Bytes({f.type.count})"
            if f.type.base == "bytes"
            else f'construct.PaddedString({f.type.count}, "ascii")'
        )
    else:
        made = f"construct.{CONSTRUCT_SCALARS[f.type.base]}"
        made = f"construct.Array({f.type.count}, {made})" if f.type.is_array else made
    if f.enum and not f.type.is_array:
        made = f"construct.Enum({made}, enums.{f.enum})"
    if item.magic is not None and f.name in ("magic", "footer_magic"):
        return f"construct.Const({hex(item.magic)}, {made})"
    return f"construct.Default({made}, {_default(item, f)})" if f.reserved else made


def _construct_part(part: Part) -> str:
    count = _this(part.count, "this.header")
    if part.type.base == "u8" and not part.type.is_array:
        return f"construct.Bytes({count})"
    if part.type.is_blob:
        return f"construct.Array({count}, construct.Bytes({part.type.count}))"
    scalar = f"construct.{CONSTRUCT_SCALARS[part.type.base]}"
    if part.type.is_array:
        scalar = f"construct.Array({part.type.count}, {scalar})"
    return f"construct.Array({count}, {scalar})"


def _construct_expression(text: object) -> str:
    return str(text) if isinstance(text, int) or str(text).isdigit() else _this(str(text), "this")


def _this(text: str, owner: str) -> str:
    return f"lambda this: {_qualify(text, owner)}"


def _count_of(part: Part) -> str:
    return _qualify(part.count, "header")


def _qualify(text: str, owner: str) -> str:
    """Puts `owner.` before every name that has no owner yet."""
    return re.sub(r"(?<![.\w])([a-z_]\w*)", rf"{owner}.\1", text)


def _table_name(schema: Schema, item: Struct) -> str:
    """A table is called after its section, or after its header where no section has it."""
    names = [section.name for section in schema.sections if section.body.target == item.name]
    return names[0] if names else f"{item.name}Table"


def _header_of(schema: Schema, section: Section) -> Struct | None:
    """The record that a section begins with; None where it begins with none."""
    shape, target = section.body.shape, section.body.target
    if shape == "sequence":
        target = schema.sequence(target).header
    return schema.struct(target) if shape in ("table", "single", "sequence") else None


# ---------------------------------------------------------------- rules


class Checked(NamedTuple):
    """A struct and the code of its rules."""

    struct: Struct
    quick: list[tuple[Rule, str]]
    full: list[tuple[Rule, str]]
    sweeps: list[tuple[str, str, str]]


def _checked(schema: Schema) -> tuple[list[Checked], set[str]]:
    made, used = [], set()
    for item in schema.structs if schema.rules else ():
        quick: list[tuple[Rule, str]] = []
        full: list[tuple[Rule, str]] = []
        for rule in schema.rules_of(item.name):
            code, names = expressions.to_python(schema, item, rule.check or "True")
            used |= names
            (quick if rule.quick else full).append((rule, code))
        sweeps = [
            (rule.id, f.name, code)
            for rule in schema.rules
            for f in item.fields
            if (code := _sweep_code(rule, f, used))
        ]
        made.append(Checked(item, quick, full, sweeps))
    return made, used


def _rules_of_record(item: Checked) -> tuple[str, ...]:
    """Every rule that a record's check can report, each once."""
    ids = [rule.id for rule, _ in (*item.quick, *item.full)] + [rule_id for rule_id, _, _ in item.sweeps]
    return tuple(dict.fromkeys(ids))


def _sweep_code(rule: Rule, f: Field, used: set[str]) -> str:
    if rule.sweep == "reserved" and f.reserved:
        return f"any(v.{f.name})" if f.type.is_blob or f.type.is_array else f"v.{f.name}"
    if rule.sweep == "flags" and f.flags:
        used.add(f.flags)
        return f"v.{f.name} & ~{f.flags}.MASK"
    if rule.sweep == "u64" and f.type.base == "u64":
        return f"max(v.{f.name}) >> 53" if f.type.is_array else f"v.{f.name} >> 53"
    return ""


def _rule_imports(schema: Schema, checked: list[Checked]) -> list[str]:
    sizes = [f"{snake(item.name)}_size" for item in schema.sequences]
    return sorted([item.struct.name for item in checked] + sizes)
