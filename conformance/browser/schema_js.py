"""The schema for the page: names, documentation, and every rule of a single record as a JavaScript function.

`check:` expressions are a small subset of Python (codegen/expressions.py); each construct of it has its counterpart
here. Numbers are doubles: the format keeps every offset, size and count below 2^53, and the page reports what is not.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from codegen import expressions
from codegen.model import Schema, Sequence, Struct, snake

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "===",
    ast.NotEq: "!==",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
}


def emit(schema: Schema) -> str:
    """A CommonJS module with `rules`, `sections`, `columns`, `constants`, `flags` and `records`."""
    facts = {
        "rules": {rule.id: {"doc": rule.doc, "level": rule.level, "severity": rule.severity} for rule in schema.rules},
        "sections": [_section(schema, number) for number in range(len(schema.sections))],
        "columns": {enum.name: _columns(enum) for enum in schema.enums},
        "constants": {constant.name: constant.value for constant in schema.constants},
        "flags": {flags.name: {bit.name: bit.mask for bit in flags.bits} for flags in schema.flags},
        "types": {struct.name: snake(struct.name) for struct in schema.structs},
    }
    records = ",\n".join(f"  {json.dumps(snake(item.name))}: {_record(schema, item)}" for item in schema.structs)
    return (
        '"use strict";\nconst { align_up, is_c_string, ones_after, product, zero } = require("./expressions");\n'
        + "".join(f"const {name} = {json.dumps(value)};\n" for name, value in facts.items())
        + f"const records = {{\n{records}\n}};\n"
        + f"module.exports = {{ {', '.join(facts)}, records }};\n"
    )


def _section(schema: Schema, number: int) -> dict[str, Any]:
    item = schema.sections[number]
    flag = next((bit.mask for flags in schema.flags for bit in flags.bits if bit.name == item.flag), 0)
    return {
        "kind": item.kind,
        "name": item.name,
        "alignment": item.alignment,
        "mandatory": item.mandatory,
        "needs": list(item.needs),
        "flag": flag,
        "items": item.items,
        "doc": item.doc,
        "shape": item.body.shape,
    }


def _columns(enum: Any) -> dict[int, dict[str, Any]]:
    return {value.value: {"name": value.name, "doc": value.doc, **value.columns} for value in enum.values}


def _record(schema: Schema, item: Struct) -> str:
    """Size, flag masks, reserved fields, and the checks of one struct."""
    checks = [
        f"    [{json.dumps(rule.id)}, {json.dumps(rule.field)}, (v, g) => {_Writer(schema, item).text(rule.check)}]"
        for rule in schema.rules
        if item.name in rule.structs and rule.check
    ]
    given = {
        "size": item.size,
        "magic": item.magic,
        "flags": {f.name: schema.flag_set(f.flags).mask for f in item.fields if f.flags},
        "reserved": [f.name for f in item.fields if f.reserved],
        "wide": [f.name for f in item.fields if f.type.base == "u64"],
    }
    return json.dumps(given)[:-1] + ', "checks": [\n' + ",\n".join(checks) + "\n  ]}"


class _Writer:
    """Writes an expression over the record `v` and the facts `g` that are given from outside."""

    def __init__(self, schema: Schema, item: Struct) -> None:
        self.schema = schema
        self.item = item
        self.fields = {f.name for f in item.fields}
        self.facts = expressions.facts(schema, item)
        self.spaces: dict[str, dict[str, int]] = {
            **{enum.name: {value.name: value.value for value in enum.values} for enum in schema.enums},
            **{flags.name: {bit.name: bit.mask for bit in flags.bits} for flags in schema.flags},
            **{struct.name: {"SIZE": struct.size} for struct in schema.structs},
        }

    def text(self, check: str | None) -> str:
        """The expression in JavaScript."""
        return self._node(expressions.parse(check or "", self.item.name).body)

    def _node(self, node: ast.expr) -> str:
        match node:
            case ast.BoolOp():
                word = " && " if isinstance(node.op, ast.And) else " || "
                return f"({word.join(self._node(value) for value in node.values)})"
            case ast.UnaryOp():
                return f"({'!' if isinstance(node.op, ast.Not) else '-'}{self._node(node.operand)})"
            case ast.BinOp(op=ast.FloorDiv()):
                return f"Math.floor({self._node(node.left)} / {self._node(node.right)})"
            case ast.BinOp():
                return f"({self._node(node.left)} {OPERATORS[type(node.op)]} {self._node(node.right)})"
            case ast.Compare():
                return self._comparison(node)
            case ast.IfExp():
                return f"({self._node(node.test)} ? {self._node(node.body)} : {self._node(node.orelse)})"
            case ast.Tuple():
                return f"[{', '.join(self._node(item) for item in node.elts)}]"
            case ast.Constant():
                return json.dumps(node.value)
            case ast.Name():
                return self._name(node.id)
            case _:
                return self._member(node)

    def _comparison(self, node: ast.Compare) -> str:
        links, left = [], node.left
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparison, ast.In):
                links.append(f"{self._node(right)}.includes({self._node(left)})")
            else:
                links.append(f"{self._node(left)} {COMPARISONS[type(comparison)]} {self._node(right)}")
            left = right
        return f"({' && '.join(links)})"

    def _name(self, name: str) -> str:
        if name in self.fields:
            return f"v.{name}"
        for sequence in self.schema.sequences:
            if name == f"{snake(sequence.name)}_size" and sequence.header == self.item.name:
                return self._sequence_size(sequence)
        return str(self.facts[name]) if name in self.facts else f"g.{name}"

    def _member(self, node: ast.expr) -> str:
        """`Space.NAME`, `Space.has(value)`, `Space.column[value]`, and calls of functions."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return f"{node.func.id}({', '.join(self._node(item) for item in node.args)})"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return f"({self._node(node.args[0])} in columns.{ast.unparse(node.func.value)})"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            space, column = ast.unparse(node.value.value), node.value.attr
            return f"(columns.{space}[{self._node(node.slice)}] || {{}}).{column}"
        if isinstance(node, ast.Subscript):
            return f"{self._node(node.value)}[{self._node(node.slice)}]"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return str(self.spaces[node.value.id][node.attr])
        raise NotImplementedError(f"{ast.unparse(node)!r} has no counterpart in JavaScript yet")

    def _sequence_size(self, sequence: Sequence) -> str:
        """Bytes of header and arrays together."""
        lines = [f"let at = {self.schema.struct(sequence.header).size};"]
        for part in sequence.parts:
            announced = sequence.condition(self.schema, part)
            condition = f"if (v.{announced[0].name} & {announced[1].mask}) " if announced else ""
            count = self._node(ast.parse(part.count, mode="eval").body)
            lines.append(f"{condition}at = align_up(at, {sequence.alignment}) + {count} * {part.type.size};")
        return f"(() => {{ {' '.join(lines)} return at; }})()"
