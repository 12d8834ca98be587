"""The language of `check:` expressions: a small, side-effect-free subset of Python's.

Names are the struct's fields, its `given` facts, the format's constants, `MAGIC`, `SIZE` (the struct's), `ROW_SIZE`
(of the table's rows), `X_size` for a sequence X after the struct, `Struct.SIZE` of any struct, and enumerations or
flags with `.NAME`, `.has(value)` and `.column[value]`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from codegen.model import Rule, Schema, SchemaError, Sequence, Struct, snake

ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.BitAnd,
    ast.BitOr,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.Attribute,
    ast.Subscript,
)


def align_up(value: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-value // alignment) * alignment


def is_c_string(data: bytes) -> bool:
    """Printable ASCII, not empty, NUL-terminated, with nothing after the first NUL."""
    text, _, rest = data.partition(b"\0")
    return 0 < len(text) < len(data) and not any(rest) and all(32 < byte < 127 for byte in text)


def ones_after(dims: tuple[int, ...], rank: int) -> bool:
    """Extents from `rank` on are 1."""
    return all(extent == 1 for extent in dims[rank:])


def zero(data: bytes) -> bool:
    """All bytes are zero."""
    return not any(data)


FUNCTIONS = {
    "align_up": align_up,
    "is_c_string": is_c_string,
    "ones_after": ones_after,
    "product": math.prod,
    "zero": zero,
}


def validate(schema: Schema, rule: Rule) -> None:
    """Refuses an expression that leaves the language or names something unknown."""
    if rule.check is None:
        return
    where = f"rule {rule.id}"
    if not rule.structs:
        raise SchemaError(f"{where}: no struct {rule.struct!r}")
    tree = parse(rule.check, where)
    for name in rule.structs:
        item = schema.struct(name)
        known = {*facts(schema, item), *(f.name for f in item.fields), *item.given, *FUNCTIONS}
        unknown = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - known - _types(schema)
        if unknown:
            raise SchemaError(f"{where}: unknown names {sorted(unknown)} for {name}")
        if rule.field not in {f.name for f in item.fields}:
            raise SchemaError(f"{where}: {name} has no field {rule.field!r}")


def parse(text: str, where: str) -> ast.Expression:
    """The expression as a tree; SchemaError where it leaves the language."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise SchemaError(f"{where}: {error.msg} in {text!r}") from error
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise SchemaError(f"{where}: {type(node).__name__} is not allowed in {text!r}")
    return tree


def evaluate(schema: Schema, item: Struct, check: str, fields: Mapping[str, Any], given: Mapping[str, int]) -> bool:
    """Whether the expression holds for these fields."""
    names = {**facts(schema, item), **_type_values(schema), **FUNCTIONS, **given, **fields}
    for sequence in schema.sequences:
        if sequence.header == item.name:
            names[f"{snake(sequence.name)}_size"] = sequence_size(schema, sequence, fields)
    return bool(eval(compile(parse(check, item.name), item.name, "eval"), {"__builtins__": {}}, names))  # noqa: S307 - vetted tree


def broken_rules(schema: Schema, item: Struct, fields: Mapping[str, Any], given: Mapping[str, int]) -> Iterator[str]:
    """Ids of the rules that a struct with these fields breaks on its own."""
    for rule in schema.rules:
        if item.name in rule.structs and rule.check:
            if not evaluate(schema, item, rule.check, fields, given):
                yield rule.id
        elif rule.sweep and any(_sweep_breaks(schema, rule.sweep, f, fields[f.name]) for f in item.fields):
            yield rule.id


def _sweep_breaks(schema: Schema, sweep: str, f: Any, value: Any) -> bool:
    if sweep == "reserved":
        return f.reserved and (any(value) if f.type.is_blob or f.type.is_array else value != 0)
    if sweep == "flags":
        return bool(f.flags and value & ~schema.flag_set(f.flags).mask)
    numbers = value if f.type.is_array else (value,)
    return f.type.base == "u64" and any(number >= 1 << 53 for number in numbers)


def sequence_size(schema: Schema, sequence: Sequence, fields: Mapping[str, Any]) -> int:
    """Bytes of header and arrays together."""
    end = schema.struct(sequence.header).size
    for part in sequence.parts:
        announced = sequence.condition(schema, part)
        if announced and not fields[announced[0].name] & announced[1].mask:
            continue
        count = eval(compile(parse(part.count, sequence.name), "count", "eval"), {"__builtins__": {}}, dict(fields))  # noqa: S307 - vetted tree
        end = align_up(end, sequence.alignment) + count * part.type.size
    return end


def facts(schema: Schema, item: Struct) -> dict[str, int]:
    """Names that are numbers before any byte is read; sizes of sequences stand as 0."""
    known = {constant.name: constant.value for constant in schema.constants}
    known["SIZE"] = item.size
    if item.magic is not None:
        known["MAGIC"] = item.magic
    if item.rows is not None:
        known["ROW_SIZE"] = schema.struct(item.rows).size
    known.update({f"{snake(s.name)}_size": 0 for s in schema.sequences if s.header == item.name})
    return known


def _types(schema: Schema) -> set[str]:
    return {item.name for group in (schema.enums, schema.flags, schema.structs) for item in group}


def _type_values(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for enum in schema.enums:
        space = {value.name: value.value for value in enum.values}
        columns = {name: {value.value: value.columns[name] for value in enum.values} for name in enum.columns}
        made[enum.name] = SimpleNamespace(has=set(space.values()).__contains__, **space, **columns)
    for struct in schema.structs:
        made[struct.name] = SimpleNamespace(SIZE=struct.size)
    for flags in schema.flags:
        made[flags.name] = SimpleNamespace(**{bit.name: bit.mask for bit in flags.bits})
    return made


class _ToPython(ast.NodeTransformer):
    """Rewrites an expression for generated code, where the struct is `v` and tables are class attributes."""

    def __init__(self, schema: Schema, item: Struct) -> None:
        self.schema = schema
        self.fields = {f.name for f in item.fields}
        self.facts = facts(schema, item)
        self.constants = {constant.name for constant in schema.constants}
        self.types = _types(schema)
        self.used: set[str] = set()

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.fields:
            return ast.Attribute(ast.Name("v", ast.Load()), node.id, ast.Load())
        if node.id.endswith("_size") and node.id in self.facts:
            return ast.Call(ast.Name(node.id, ast.Load()), [ast.Name("v", ast.Load())], [])
        if node.id in self.constants or node.id in self.types:
            self.used.add(node.id)
            return node
        return ast.Constant(self.facts[node.id]) if node.id in self.facts else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "has":
            self.visit(node.func)
            names = ast.Attribute(node.func.value, "NAMES", ast.Load())
            return ast.Compare(self.visit(node.args[0]), [ast.In()], [names])
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if (
            isinstance(node.value, ast.Attribute)
            and isinstance(node.value.value, ast.Name)
            and node.value.value.id in self.types
        ):
            node.value.attr = node.value.attr.upper()
        return node


def to_python(schema: Schema, item: Struct, check: str) -> tuple[str, set[str]]:
    """The expression as generated Python, and the constants and types that it uses."""
    writer = _ToPython(schema, item)
    tree = writer.visit(parse(check, item.name))
    return ast.unparse(ast.fix_missing_locations(tree)), writer.used
