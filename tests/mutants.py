"""gpack's own checks with one rule taken out: the statements that report it are changed, not what they report."""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType

import pytest

import gpack.container
import gpack.generated
import gpack.sections

_LEAVES = (ast.Return, ast.Continue, ast.Break)


def disable(rule: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes a rule out of every function that checks it.

    Where a condition leads to nothing but a report, the condition is no longer looked at; a call that passes the rule
    on to a helper is not made; of a list of rules it is left out.

    Returns:
        The names of the functions that were changed.
    """
    changed = []
    for function, tree, words in _functions():
        constants = {name for name, value in function.__globals__.items() if isinstance(value, str) and value == rule}
        if words.isdisjoint({rule, *constants}):
            continue
        mutant = _Without(rule, constants).visit(copy.deepcopy(tree))
        if mutant.changed:
            monkeypatch.setattr(function, "__code__", _code_of(mutant))
            changed.append(function.__qualname__)
    return changed


class _Without(ast.NodeTransformer):
    def __init__(self, rule: str, constants: set[str]) -> None:
        self._rule, self._constants = rule, constants
        self._changed = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """The function, with a note whether anything in it was changed."""
        self.generic_visit(node)
        node.changed = self._changed  # type: ignore[attr-defined]
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        """A condition for the report alone is false; where the function returns after it, only the report goes."""
        if any(map(self._reports, node.body)) and not any(isinstance(item, _LEAVES) for item in node.body):
            node.test = ast.Constant(value=False)
            self._changed = True
        self.generic_visit(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """The report itself, or the call of what checks and reports."""
        if self._reports(node):
            self._changed = True
            return ast.Pass()
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """`for rule, found in (("a.rule", ...), ("another.rule", ...))`."""
        if isinstance(node.iter, ast.Tuple):
            kept = [item for item in node.iter.elts if not self._names(item)]
            self._changed = self._changed or len(kept) < len(node.iter.elts)
            node.iter.elts = kept
        self.generic_visit(node)
        return node

    def _reports(self, node: ast.AST) -> bool:
        """Whether a statement is a call that is given the rule; `report.check(...)` only says what is looked at."""
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return False
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr == "check":
            return False
        return any(self._names(argument) for argument in node.value.args)

    def _names(self, node: ast.AST) -> bool:
        """Whether the rule stands in an expression, as itself or by the name of a module's constant."""
        return any(
            (isinstance(item, ast.Constant) and item.value == self._rule)
            or (isinstance(item, ast.Name) and item.id in self._constants)
            for item in ast.walk(node)
        )


@cache
def _functions() -> tuple[tuple[FunctionType, ast.FunctionDef, frozenset[object]], ...]:
    """The functions with their syntax trees, and the constants and names in these."""
    return tuple(
        (function, tree, frozenset(_words(tree))) for module in _modules() for function, tree in _functions_of(module)
    )


def _words(tree: ast.FunctionDef) -> Iterator[object]:
    for item in ast.walk(tree):
        if isinstance(item, ast.Constant):
            yield item.value
        elif isinstance(item, ast.Name):
            yield item.id


def _modules() -> Iterator[ModuleType]:
    yield importlib.import_module("gpack.generated.rules")
    for package in (gpack.container, gpack.sections):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def _functions_of(module: ModuleType) -> Iterator[tuple[FunctionType, ast.FunctionDef]]:
    """The functions and methods of a module, each with its syntax tree."""
    for node in ast.parse(inspect.getsource(module)).body:
        holder = getattr(module, node.name) if isinstance(node, ast.ClassDef) else module
        for item in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(item, ast.FunctionDef) and isinstance(found := vars(holder).get(item.name), FunctionType):
                yield found, item


def _code_of(tree: ast.FunctionDef) -> CodeType:
    tree.decorator_list = []
    module = ast.fix_missing_locations(ast.Module(body=[tree], type_ignores=[]))
    made = compile(module, "<mutant>", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    return next(item for item in made.co_consts if isinstance(item, CodeType) and item.co_name == tree.name)
