"""From `check:` expressions to Kaitai's `valid`: as much of a struct's rules as every target computes the same way.

An expression is split at its `and`s. A piece that speaks of plain numbers of one type, literals, remainders and flags
becomes a short check of the last field that it names; one that computes is written by `codegen.kaitai_wide`, which
casts every operand. Products of many numbers, tables and functions beyond those stay out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from codegen import expressions, kaitai_wide
from codegen.kaitai_wide import UntranslatableError
from codegen.model import Field, Schema, Struct, snake

MAX_NUMBER = (1 << 53) - 1
NEWER = "UnsupportedError"
SHORT = 127  # Kaitai's Rust output gives literals up to this the type of what they are compared with, others 32 bits
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
SWAPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass
class Checks:
    """Values for `valid` by field name, and the rules that they do not cover."""

    by_field: dict[str, Any] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)


@dataclass
class _Limits:
    """What is known of one field."""

    base: str
    equal: int | None = None
    low: int | None = None
    high: int | None = None
    others: list[str] = field(default_factory=list)

    def add(self, comparison: str, value: int) -> None:
        """Narrows by `field <comparison> value`."""
        if comparison == "==":
            self.equal = value
        elif comparison in (">", ">="):
            low = value + (comparison == ">")
            self.low = low if self.low is None else max(self.low, low)
        else:
            high = value - (comparison == "<")
            self.high = high if self.high is None else min(self.high, high)

    def _literal(self, value: int) -> int | str:
        """A literal; Kaitai's Go and Rust outputs compare large numbers rightly only with a floating-point one."""
        large = value > SHORT if self.base in ("u32", "u64") else value >= 1 << 31
        return f"{value}.0" if large else value

    def valid(self) -> Any:
        """The value of Kaitai's `valid`; None where nothing is known."""
        if self.equal is not None and not self.others:
            return self.equal
        if not self.others:
            limits = {"min": self.low, "max": self.high}
            return {name: self._literal(value) for name, value in limits.items() if value is not None} or None
        equal = [] if self.equal is None else [f"_ == {self.equal}"]
        low = [] if self.low is None else [f"_ >= {self._literal(self.low)}"]
        high = [] if self.high is None else [f"_ <= {self._literal(self.high)}"]
        pieces = [*equal, *low, *high, *self.others]
        if not any(re.search(r"\b_\b", piece) for piece in pieces):
            pieces.insert(0, "_ >= 0")  # Go does not compile a check that does not speak of its own field
        return {"expr": " and ".join(pieces)}


def checks_of(schema: Schema, item: Struct) -> Checks:
    """The checks of a struct's fields."""
    limits = {f.name: _Limits(f.type.base) for f in item.fields}
    if any(rule.sweep == "u64" for rule in schema.rules):
        for f in item.fields:
            if f.type.base == "u64":
                limits[f.name].low, limits[f.name].high = 0, MAX_NUMBER
    checks = Checks()
    for rule in schema.rules_of(item.name):
        if rule.severity != "error":
            continue
        if kaitai_wide.is_equal_fact(item, rule.check):
            checks.unchecked.append(rule.id)
            continue
        writer = _Writer(schema, item)
        # A failure at such a field means a newer file, so that readers can tell: other rules are checked elsewhere.
        alone = newer_fields(schema, item) if rule.error != NEWER else set()
        for piece in _pieces(expressions.parse(rule.check or "", rule.id).body):
            try:
                _add(limits, item, writer, piece, alone)
            except UntranslatableError:
                if rule.id not in checks.unchecked:
                    checks.unchecked.append(rule.id)
    found = {name: limit.valid() for name, limit in limits.items()}
    checks.by_field = {name: valid for name, valid in found.items() if valid is not None}
    return checks


def _pieces(node: ast.expr) -> Iterator[ast.expr]:
    """The parts that must all hold: operands of `and`, links of a chained comparison."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from _pieces(value)
    elif isinstance(node, ast.Compare):
        left = node.left
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            yield ast.Compare(left, [comparison], [right])
            left = right
    else:
        yield node


def newer_fields(schema: Schema, item: Struct) -> set[str]:
    """Fields whose check says that a file needs a newer reader."""
    return {rule.field for rule in schema.rules_of(item.name) if rule.error == NEWER and rule.field}


def _add(limits: dict[str, _Limits], item: Struct, writer: _Writer, piece: ast.expr, alone: set[str]) -> None:
    names = {node.id for node in ast.walk(piece) if isinstance(node, ast.Name)}
    names |= {text for fact, text in kaitai_wide.given(writer.schema, item).items() if fact in names}
    used = [f for f in item.fields if f.name in names]
    if used and used[-1].flags and _bare_bit(piece) in required_bits(writer.schema, used[-1].flags):
        return  # the type of the flags checks it
    try:
        if used and used[-1].name in alone:
            raise UntranslatableError
        _add_short(limits, used, writer, piece)
    except UntranslatableError:
        carrier = kaitai_wide.carrier_of(item, used, alone)
        if carrier is None:
            raise
        shown = kaitai_wide.Wide(writer.schema, item, writer.number, carrier).condition(piece)
        limits[carrier.name].others.append(shown)


def _add_short(limits: dict[str, _Limits], used: list[Field], writer: _Writer, piece: ast.expr) -> None:
    """A piece that needs no casts.

    Raises:
        UntranslatableError: It does.
    """
    kinds = {f.type.base for f in used if not f.flags}
    if not used or len(kinds) > 1 or any(f.type.count is not None for f in used):
        raise UntranslatableError
    last = used[-1]
    if last.flags:
        raise UntranslatableError  # Kaitai's Rust output cannot check a field of a type of its own
    bound = _bound(piece, writer, last)
    if bound and bound[0] == "==" and last.type.base == "u64" and bound[1] > SHORT:
        raise UntranslatableError
    if bound:
        limits[last.name].add(*bound)
    else:
        limits[last.name].others.append(writer.text(piece, last))


def _bare_bit(piece: ast.expr) -> str | None:
    """`BIT` of the whole expression `field & Flags.BIT`."""
    if isinstance(piece, ast.BinOp) and isinstance(piece.op, ast.BitAnd) and isinstance(piece.right, ast.Attribute):
        return piece.right.attr
    return None


def required_bits(schema: Schema, flags: str) -> set[str]:
    """Bits that are set in every valid struct with such flags."""
    found = []
    for item in schema.structs:
        if any(f.flags == flags for f in item.fields):
            checks = [rule.check for rule in schema.rules_of(item.name) if rule.check and rule.severity == "error"]
            pieces = [piece for check in checks for piece in _pieces(expressions.parse(check, item.name).body)]
            found.append({_bare_bit(piece) for piece in pieces if _flags_of(piece, item) == flags} - {None})
    return {bit for bit in set.intersection(*found) if bit} if found else set()


def _flags_of(piece: ast.expr, item: Struct) -> str | None:
    if isinstance(piece, ast.BinOp) and isinstance(piece.left, ast.Name):
        return next((f.flags for f in item.fields if f.name == piece.left.id), None)
    return None


def _bound(piece: ast.expr, writer: _Writer, f: Field) -> tuple[str, int] | None:
    """`field < 5` as ("<", 5), and the same the other way round."""
    if not isinstance(piece, ast.Compare) or isinstance(piece.ops[0], (ast.In, ast.NotEq)):
        return None
    sides = (piece.left, piece.comparators[0])
    values = [writer.number(side) for side in sides]
    comparison = COMPARISONS[type(piece.ops[0])]
    for side, value, shown in ((sides[0], values[1], comparison), (sides[1], values[0], SWAPPED[comparison])):
        if isinstance(side, ast.Name) and side.id == f.name and value is not None:
            return shown, value
    return None


class _Writer:
    """Writes an expression in Kaitai's language."""

    def __init__(self, schema: Schema, item: Struct) -> None:
        self.schema = schema
        self.fields = {f.name: f for f in item.fields}
        sizes = {f"{snake(sequence.name)}_size" for sequence in schema.sequences}
        self.facts = {name: value for name, value in expressions.facts(schema, item).items() if name not in sizes}
        self.enums = {(enum.name, value.name): value.value for enum in schema.enums for value in enum.values}
        self.enums |= {(other.name, "SIZE"): other.size for other in schema.structs}

    def number(self, node: ast.expr) -> int | None:
        """The value of a literal, a constant, an enumeration's value or a struct's size."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.number(node.operand)
            return None if value is None else -value
        if isinstance(node, ast.Name) and node.id not in self.fields:
            return self.facts.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self.enums.get((node.value.id, node.attr))
        return None

    def text(self, node: ast.expr, last: Field) -> str:
        """The expression; `last` is the field that is being checked, `_` in Kaitai.

        Raises:
            UntranslatableError: The expression leaves what the targets agree upon.
        """
        value = self.number(node)
        if value is not None:
            return str(value)
        if isinstance(node, ast.Name) and node.id in self.fields and not self.fields[node.id].flags:
            return "_" if node.id == last.name else node.id
        if isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.Or) else " and "
            return f"({word.join(self.text(item, last) for item in node.values)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"not ({self.text(node.operand, last)})"
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._comparison(node, last)
        if isinstance(node, ast.BinOp):
            return self._operation(node, last)
        raise UntranslatableError

    def _comparison(self, node: ast.Compare, last: Field) -> str:
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.In) and isinstance(right, ast.Tuple):
            shown = self.text(left, last)
            return f"({' or '.join(f'{shown} == {self.text(item, last)}' for item in right.elts)})"
        limits = [value for value in map(self.number, (left, right)) if value is not None]
        if limits and limits[0] > SHORT and not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            raise UntranslatableError
        return f"{self.text(left, last)} {COMPARISONS[type(node.ops[0])]} {self.text(right, last)}"

    def _operation(self, node: ast.BinOp, last: Field) -> str:
        if isinstance(node.op, ast.Mod):
            return f"{self.text(node.left, last)} % {self.text(node.right, last)}"
        left, right = node.left, node.right
        if isinstance(node.op, ast.BitAnd) and isinstance(left, ast.Name) and isinstance(right, ast.Attribute):
            owner = self.fields.get(left.id)
            if owner and owner.flags:
                return f"{'_' if owner is last else owner.name}.{right.attr.lower()}"
        raise UntranslatableError
