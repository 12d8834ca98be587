"""Checks that compute, in Kaitai's language: sums, products, remainders, tables of values, outside facts.

Rust's output computes in 32 bits as soon as two types differ, Go's does not compile then, and a u8 that was read is of
another type than one that was cast. So every operand and every result is cast to u8; then all targets compute the same
in 64 bits, and JavaScript exactly, because every number is below 2^53 and what exceeds it equals none that is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from codegen.model import Enum, Field, Schema, Struct

OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
# Facts about a struct's surroundings, as the grammar knows them.
WIDTH = 64  # bits that every target has for a number
GIVEN = {"section_size": "len_section"}


class UntranslatableError(Exception):
    """The expression needs more than Kaitai's targets agree upon."""


class Wide:
    """Writes one piece of a rule as the check of one field, which is `_` there."""

    def __init__(
        self, schema: Schema, item: Struct, number: Callable[[ast.expr], int | None], carrier: Field | None
    ) -> None:
        self.enums = {enum.name: enum for enum in schema.enums}
        self.fields = {f.name: f for f in item.fields}
        self.given = {name: text for name, text in given(schema, item).items() if name in item.given}
        self.constant = number
        self.carrier = carrier

    def condition(self, node: ast.expr) -> str:
        """A true or false expression.

        Raises:
            UntranslatableError: Some target would compute it otherwise.
        """
        if isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.Or) else " and "
            return f"({word.join(map(self.condition, node.values))})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"not ({self.condition(node.operand)})"
        if isinstance(node, ast.IfExp):
            test = self.condition(node.test)
            chosen, other = self.condition(node.body), self.condition(node.orelse)
            return f"(({test} and {chosen}) or (not ({test}) and {other}))"
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return self._flag(node)
        raise UntranslatableError

    def _comparisons(self, node: ast.Compare) -> str:
        """Every link of a chain."""
        made, left = [], node.left
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparison, ast.In) and isinstance(right, ast.Tuple):
                choices = [self._comparison(left, "==", item) for item in right.elts]
                made.append(f"({' or '.join(choices)})")
            elif type(comparison) in COMPARISONS:
                made.append(self._comparison(left, COMPARISONS[type(comparison)], right))
            else:
                raise UntranslatableError
            left = right
        return made[0] if len(made) == 1 else f"({' and '.join(made)})"

    def _comparison(self, left: ast.expr, sign: str, right: ast.expr) -> str:
        f, value = self._signed(left), self.constant(right)
        if f and value is not None and -128 <= value < 128:  # the literals that Rust gives the field's own type
            return f"{self._name(f)} {sign} {value}"
        if f and sign in ("<", "<="):
            return f"({self._name(f)} < 0 or {self._name(f)}.as<u8> {sign} {self.number(right)})"
        if (
            sign == "=="
            and isinstance(right, ast.BinOp)
            and isinstance(right.op, ast.Mult)
            and self.bits(right) > WIDTH
        ):
            return self._product(self.number(left), right)
        return f"{self.number(left)} {sign} {self.number(right)}"

    def _product(self, value: str, node: ast.BinOp) -> str:
        """`value == a * b` by division, where the product may be too large for 64 bits."""
        first, second = self.number(node.left), self.number(node.right)
        divided = f"({value} / {_divisor(second)}).as<u8> == {first}"
        whole = f"({value} % {_divisor(second)}).as<u8> == 0.as<u8>"
        nothing = f"({second} == 0.as<u8> and {value} == 0.as<u8>)"
        return f"({nothing} or ({second} > 0.as<u8> and {whole} and {divided}))"

    def bits(self, node: ast.expr) -> int:
        """The most bits that a number takes; every 64-bit field is below 2^53."""
        value = self.constant(node)
        if value is not None:
            return value.bit_length()
        if isinstance(node, ast.BinOp):
            left, right = self.bits(node.left), self.bits(node.right)
            longest = {ast.Mult: left + right, ast.Add: max(left, right) + 1, ast.Mod: min(left, right)}
            return longest.get(type(node.op), left)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            return max(value.columns[node.value.attr].bit_length() for value in self._column_owner(node).values)
        names = [item.id for item in ast.walk(node) if isinstance(item, ast.Name) and item.id in self.fields]
        return max((min(8 * self.fields[name].type.element_size, 53) for name in names), default=53)

    def _signed(self, node: ast.expr) -> Field | None:
        f = self.fields.get(node.id) if isinstance(node, ast.Name) else None
        return f if f and f.type.base.startswith("i") and f.type.count is None else None

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "has" and isinstance(node.func.value, ast.Name):
            known = [value.value for value in self.enums[node.func.value.id].values]
            return any_of(self.number(node.args[0]), known)
        f = self._argument(node)
        if isinstance(node.func, ast.Name) and node.func.id == "ones_after" and f.type.count:
            rank = self.number(node.args[1])
            items = (f"({rank} > {i}.as<u8> or {f.name}[{i}].as<u8> == 1.as<u8>)" for i in range(f.type.count))
            return f"({' and '.join(items)})"
        if isinstance(node.func, ast.Name) and node.func.id == "zero" and f.type.base == "bytes":
            return f"{self._name(f)} == [{', '.join('0' * (f.type.count or 0))}]"
        raise UntranslatableError

    def _argument(self, node: ast.Call) -> Field:
        first = node.args[0]
        if isinstance(first, ast.Name) and first.id in self.fields:
            return self.fields[first.id]
        raise UntranslatableError

    def _flag(self, node: ast.BinOp) -> str:
        left, right = node.left, node.right
        if isinstance(left, ast.Name) and isinstance(right, ast.Attribute):
            f = self.fields.get(left.id)
            if f and f.flags:
                return f"{f.name}.{right.attr.lower()}"
        raise UntranslatableError

    def number(self, node: ast.expr) -> str:
        """A whole number that is not negative, as a u8.

        Raises:
            UntranslatableError: Some target would compute it otherwise.
        """
        value = self.constant(node)
        if value is not None and value >= 0:
            return f"{value}.as<u8>"
        if isinstance(node, ast.Name):
            return self._fact(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return self._operation(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "align_up":
            return self._align_up(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        raise UntranslatableError

    def _operation(self, node: ast.BinOp) -> str:
        if self.bits(node) > WIDTH:
            raise UntranslatableError
        right = self.number(node.right)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and self.constant(node.right) is None:
            right = _divisor(right)
        return f"({self.number(node.left)} {OPERATIONS[type(node.op)]} {right}).as<u8>"

    def _align_up(self, node: ast.Call) -> str:
        alignment = self.constant(node.args[1])
        if not alignment:
            raise UntranslatableError
        raised = f"({self.number(node.args[0])} + {alignment - 1}.as<u8>).as<u8>"
        return f"(({raised} / {alignment}.as<u8>).as<u8> * {alignment}.as<u8>).as<u8>"

    def _subscript(self, node: ast.Subscript) -> str:
        """An element of an array, or a column of an enumeration."""
        index, array = self.constant(node.slice), node.value
        if isinstance(array, ast.Name) and index is not None and self.fields[array.id].type.is_array:
            return f"{array.id}[{index}].as<u8>"
        if isinstance(array, ast.Attribute) and isinstance(node.slice, ast.Name):
            self._column_owner(node)
            return f"{column_id(node.slice.id, array.attr)}.as<u8>"
        raise UntranslatableError

    def _column_owner(self, node: ast.Subscript) -> Enum:
        """The enumeration of `Enum.column[field]`."""
        if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
            return self.enums[node.value.value.id]
        raise UntranslatableError

    def _fact(self, name: str) -> str:
        f = self.fields.get(name)
        if f and f.type.base.startswith("u") and f.type.count is None and not f.flags:
            return f"{self._name(f)}.as<u8>"
        if name in self.given:
            text = self.given[name]
            return f"{'_' if self.carrier and text == self.carrier.name else text}.as<u8>"
        raise UntranslatableError

    def _name(self, f: Field) -> str:
        return "_" if f is self.carrier else f.name


def any_of(value: str, allowed: Iterable[int]) -> str:
    """Membership as a few ranges."""
    spans: list[list[int]] = []
    for number in sorted(allowed):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = []
    for low, high in spans:
        if low == high:
            shown.append(f"{value} == {low}.as<u8>")
        else:
            above = f"{value} >= {low}.as<u8> and " if low else ""
            shown.append(f"({above}{value} <= {high}.as<u8>)")
    return f"({' or '.join(shown)})"


def _divisor(value: str) -> str:
    """1 instead of 0: Go divides before it looks whether the result is asked for."""
    return f"({value} == 0.as<u8> ? 1.as<u8> : {value}).as<u8>"


def column_id(field: str, column: str) -> str:
    """Name of the instance that holds a column of an enumeration for the value of a field."""
    return f"{field}_{column}"


def columns_used(item: Struct, schema: Schema, checks: Mapping[str, object]) -> Iterator[tuple[Field, str, str]]:
    """The instances that the checks ask for: field, column, and the expression of its value; 0 for unknown values."""
    for f in item.fields:
        enum = schema.enum(f.enum) if f.enum else None
        for column in enum.columns if enum else ():
            if enum and any(column_id(f.name, column) in str(valid) for valid in checks.values()):
                yield f, column, _column(f.name, column, enum)


def _column(field: str, column: str, enum: Enum) -> str:
    by_number: dict[int, list[int]] = {}
    for value in enum.values:
        by_number.setdefault(value.columns[column], []).append(value.value)
    shown = "0.as<u8>"
    for number, values in sorted(by_number.items(), reverse=True):
        shown = f"({any_of(f'{field}.as<u8>', values)} ? {number}.as<u8> : {shown}).as<u8>"
    return shown


def given(schema: Schema, item: Struct) -> dict[str, str]:
    """Outside facts in Kaitai's language.

    A fact that a rule sets equal to a field (`total_file_size == file_size`) is that field: Kaitai's Rust output takes
    `_io.size` for a field of that name, where the grammar has one.
    """
    known = dict(GIVEN)
    if not item.given.keys() - GIVEN.keys():
        return known
    for rule in schema.rules:
        for struct in rule.structs:
            if fact := _equal_fact(schema.struct(struct), rule.check):
                part = next((part.id for part in schema.file if part.type == struct), None)
                name = f"_root.{part}.{rule.field}" if item.name != struct else str(rule.field)
                known |= {fact: name} if part else {}
    return known


def _equal_fact(item: Struct, check: str | None) -> str | None:
    """`fact` of the rule `field == fact`."""
    tree = ast.parse(check or "0", mode="eval").body
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        left, right = tree.left, tree.comparators[0]
        if isinstance(left, ast.Name) and isinstance(right, ast.Name) and right.id in item.given.keys() - GIVEN.keys():
            return right.id
    return None


def is_equal_fact(item: Struct, check: str | None) -> bool:
    """Whether a rule is what makes a field stand for an outside fact; the grammar must see to it elsewhere."""
    return _equal_fact(item, check) is not None


def carrier_of(item: Struct, used: Iterable[Field], alone: Collection[str] = ()) -> Field | None:
    """The field whose check can speak of these: the last of them, or the next that is a plain number.

    Fields `alone` keep their checks to themselves.
    """
    last = max((item.fields.index(f) for f in used), default=0)
    for f in item.fields[last:]:
        if f.type.count is None and f.type.base.startswith("u") and not f.flags and f.name not in alone:
            return f
    return None


def needs_section(item: Struct, checks: Mapping[str, object]) -> bool:
    """Whether a check asks for the length of the section."""
    return any(GIVEN["section_size"] in str(valid) for valid in checks.values())
