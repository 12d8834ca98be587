"""From `check:` expressions to C over the structs of the generated header.

All numbers are int64_t: the rule that 64-bit fields are below 2^53 is checked first, sums and products saturate, so
that what does not fit equals nothing that does. Helpers are those of `templates/dump/c.j2`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from codegen import expressions
from codegen.emit_c import macro, member
from codegen.model import Rule, Schema, SchemaError, Sequence, Struct, snake

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "plus", ast.Mult: "times"}
PLAIN: dict[type[ast.operator], str] = {ast.Sub: "-", ast.FloorDiv: "/", ast.Mod: "%"}


def checks(schema: Schema, item: Struct) -> Iterator[tuple[Rule, str]]:
    """The rules of a struct on its own, each with its condition."""
    for rule in schema.rules_of(item.name):
        if rule.check and rule.severity == "error":
            yield rule, _Writer(schema, item).text(expressions.parse(rule.check, rule.id).body)


def sequence_steps(schema: Schema, sequence: Sequence) -> Iterator[tuple[str, str, int]]:
    """Of each array after a header: whether it is there, its count, and the bytes of an element."""
    writer = _Writer(schema, schema.struct(sequence.header))
    for part in sequence.parts:
        announced = sequence.condition(schema, part)
        there = f"(v->{announced[0].name} & {announced[1].mask}u)" if announced else "1"
        yield there, writer.text(expressions.parse(part.count, part.name).body), part.type.size


class _Writer:
    """Writes expressions of one struct, which is `v`."""

    def __init__(self, schema: Schema, item: Struct) -> None:
        self.schema = schema
        self.item = item
        self.fields = {f.name: f for f in item.fields}
        self.facts = expressions.facts(schema, item)
        self.masks = {(flags.name, bit.name): bit.mask for flags in schema.flags for bit in flags.bits}
        self.values = {(enum.name, value.name): value.value for enum in schema.enums for value in enum.values}
        self.values |= {(other.name, "SIZE"): other.size for other in schema.structs}

    def text(self, node: ast.expr) -> str:
        """The expression in C.

        Raises:
            SchemaError: It holds what this writer does not know.
        """
        if isinstance(node, ast.BoolOp):
            word = " || " if isinstance(node.op, ast.Or) else " && "
            return f"({word.join(map(self.text, node.values))})"
        if isinstance(node, ast.UnaryOp):
            return f"{'!' if isinstance(node.op, ast.Not) else '-'}({self.text(node.operand)})"
        if isinstance(node, ast.IfExp):
            return f"({self.text(node.test)} ? {self.text(node.body)} : {self.text(node.orelse)})"
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        return self._simple(node)

    def _simple(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return f"INT64_C({node.value})"
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return f"INT64_C({self.values[node.value.id, node.attr]})"
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise SchemaError(f"{self.item.name}: no C for {ast.unparse(node)}")

    def _comparisons(self, node: ast.Compare) -> str:
        made, left = [], node.left
        for sign, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(right, ast.Tuple):
                made.append(f"({' || '.join(f'{self.text(left)} == {self.text(item)}' for item in right.elts)})")
            else:
                made.append(f"{self.text(left)} {COMPARISONS[type(sign)]} {self.text(right)}")
            left = right
        return f"({' && '.join(made)})"

    def _operation(self, node: ast.BinOp) -> str:
        if isinstance(node.op, ast.BitAnd) and isinstance(node.right, ast.Attribute):
            owner = node.right.value
            if isinstance(owner, ast.Name):
                return f"({self.text(node.left)} & {self.masks[owner.id, node.right.attr]})"
        if type(node.op) in OPERATIONS:
            return f"{OPERATIONS[type(node.op)]}({self.text(node.left)}, {self.text(node.right)})"
        return f"({self.text(node.left)} {PLAIN[type(node.op)]} {self.text(node.right)})"

    def _name(self, name: str) -> str:
        if name in self.fields:
            f = self.fields[name]
            return f"v->{member(f)}" if f.type.count is not None else f"(int64_t)v->{member(f)}"
        if name.endswith("_size") and name in self.facts:
            return f"{name}(v)"
        return f"INT64_C({self.facts[name]})" if name in self.facts else name

    def _subscript(self, node: ast.Subscript) -> str:
        if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
            table = macro(self.schema, node.value.value.id).lower()
            return f"(int64_t){table}_{node.value.attr}((uint32_t)({self.text(node.slice)}))"
        return f"(int64_t){self.text(node.value)}[{self.text(node.slice)}]"

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            return f"known_{snake(node.func.value.id)}({self.text(node.args[0])})"
        if isinstance(node.func, ast.Name):
            arguments = [self.text(item) for item in node.args]
            first = node.args[0]
            if isinstance(first, ast.Name) and first.id in self.fields and self.fields[first.id].type.count:
                arguments.insert(1, str(self.fields[first.id].type.count))
            return f"{node.func.id}({', '.join(arguments)})"
        raise SchemaError(f"{self.item.name}: no C for {ast.unparse(node)}")
