"""Parsed expressions turned into functions of a frame. Strings that stand in the template are trusted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from jinja2 import nodes

from . import text
from .filters import run_filter
from .frame import Frame
from .methods import METHODS, attribute
from .operators import add, arithmetic, contains, get_item, get_slice, modulo, multiply, ordered, power
from .tests import run_test
from .values import (
    NUMBERS,
    Function,
    Loop,
    Missing,
    Value,
    concat,
    demand,
    equal,
    fault,
    iterate,
    key_of,
    show,
    truth,
    type_name,
)

Expression: TypeAlias = Callable[[Frame], Value]
Node: TypeAlias = Any  # jinja2 gives its nodes' fields no types that could be used
Arguments: TypeAlias = Callable[[Frame], tuple[tuple[Value, ...], dict[str, Value]]]

_BINARY = {
    nodes.Add: add,
    nodes.Sub: arithmetic("-", operator.sub),
    nodes.Mul: multiply,
    nodes.Div: arithmetic("/", operator.truediv),
    nodes.FloorDiv: arithmetic("//", operator.floordiv),
    nodes.Mod: modulo,
    nodes.Pow: power,
}
_COMPARE: dict[str, Callable[..., bool]] = {
    "eq": equal,
    "ne": lambda budget, left, right: not equal(budget, left, right),
    "lt": ordered("<", operator.lt),
    "lteq": ordered("<=", operator.le),
    "gt": ordered(">", operator.gt),
    "gteq": ordered(">=", operator.ge),
    "in": contains,
    "notin": lambda budget, left, right: not contains(budget, left, right),
}


def expression(node: Node) -> Expression:
    """The function that evaluates an expression.

    Raises:
        FormatError: `chat.unsupported` for what no chat template may do.
    """
    binary = _BINARY.get(type(node))
    if binary is not None:
        left, right = expression(node.left), expression(node.right)
        return lambda frame: binary(frame.run.budget, left(frame), right(frame))
    compile_node = _COMPILERS.get(type(node))
    if compile_node is None:
        raise fault(f"line {node.lineno}: {type(node).__name__} is not supported", code="chat.unsupported")
    return compile_node(node)


def _name(node: Node) -> Expression:
    name = node.name
    return lambda frame: frame.find(name)


def constant(value: Value) -> Value:
    """A constant of the template, its strings trusted."""
    if isinstance(value, str):
        return text.trusted(value)
    if isinstance(value, tuple):
        return tuple(map(constant, value))
    if isinstance(value, int) and value.bit_length() > 1024:
        raise fault("an integer of more than 1024 bits", code="chat.limit")
    return value


def _const(node: Node) -> Expression:
    value = constant(node.value)
    return lambda _: value


def _data(node: Node) -> Expression:
    value = text.trusted(node.data)
    return lambda _: value


def _sequence(kind: type[list[Value]] | type[tuple[Value, ...]]) -> Callable[[Node], Expression]:
    def compile_node(node: Node) -> Expression:
        items = [expression(item) for item in node.items]

        def evaluate(frame: Frame) -> Value:
            frame.run.budget.make(8 * len(items))
            return kind(item(frame) for item in items)

        return evaluate

    return compile_node


def _dict(node: Node) -> Expression:
    items = [(expression(pair.key), expression(pair.value)) for pair in node.items]

    def evaluate(frame: Frame) -> Value:
        frame.run.budget.make(16 * len(items))
        return {key_of(key(frame)): value(frame) for key, value in items}

    return evaluate


def _choice(node: Node) -> Expression:
    test, yes = expression(node.test), expression(node.expr1)
    no = expression(node.expr2) if node.expr2 is not None else lambda _: Missing("the condition was false")
    return lambda frame: yes(frame) if truth(test(frame)) else no(frame)


def _and(node: Node) -> Expression:
    left, right = expression(node.left), expression(node.right)

    def evaluate(frame: Frame) -> Value:
        value = left(frame)
        return right(frame) if truth(value) else value

    return evaluate


def _or(node: Node) -> Expression:
    left, right = expression(node.left), expression(node.right)

    def evaluate(frame: Frame) -> Value:
        value = left(frame)
        return value if truth(value) else right(frame)

    return evaluate


def _not(node: Node) -> Expression:
    inner = expression(node.node)
    return lambda frame: not truth(inner(frame))


def _sign(function: Callable[[Any], Any]) -> Callable[[Node], Expression]:
    def compile_node(node: Node) -> Expression:
        inner = expression(node.node)

        def evaluate(frame: Frame) -> Value:
            value = demand(inner(frame))
            if not isinstance(value, NUMBERS):
                raise fault(f"a {type_name(value)} has no sign")
            return function(value)

        return evaluate

    return compile_node


def _concat(node: Node) -> Expression:
    parts = [expression(part) for part in node.nodes]

    def evaluate(frame: Frame) -> Value:
        budget = frame.run.budget
        return concat(budget, [show(budget, part(frame)) for part in parts])

    return evaluate


def _compare(node: Node) -> Expression:
    first = expression(node.expr)
    rest = [(_COMPARE[operand.op], expression(operand.expr)) for operand in node.ops]

    def evaluate(frame: Frame) -> Value:
        left = first(frame)
        for compare, right_of in rest:
            right = right_of(frame)
            if not compare(frame.run.budget, left, right):
                return False
            left = right
        return True

    return evaluate


def _getattr(node: Node) -> Expression:
    inner, name = expression(node.node), node.attr
    return lambda frame: attribute(frame.run.budget, inner(frame), name)


def _getitem(node: Node) -> Expression:
    inner = expression(node.node)
    if isinstance(node.arg, nodes.Slice):
        bounds = [
            expression(bound) if bound is not None else lambda _: None
            for bound in (node.arg.start, node.arg.stop, node.arg.step)
        ]
        start, stop, step = bounds
        return lambda frame: get_slice(frame.run.budget, inner(frame), (start(frame), stop(frame), step(frame)))
    if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        key = node.arg.value  # the plain string: looking it up is faster
        return lambda frame: get_item(frame.run.budget, inner(frame), key)
    argument = expression(node.arg)
    return lambda frame: get_item(frame.run.budget, inner(frame), argument(frame))


# ------------------------------------------------------------ calls


def arguments(node: Node) -> Arguments:
    """The function that evaluates the arguments of a call, a filter or a test."""
    args = [expression(arg) for arg in node.args]
    kwargs = [(pair.key, expression(pair.value)) for pair in node.kwargs]
    more = expression(node.dyn_args) if node.dyn_args is not None else None
    named = expression(node.dyn_kwargs) if node.dyn_kwargs is not None else None

    def evaluate(frame: Frame) -> tuple[tuple[Value, ...], dict[str, Value]]:
        given = [arg(frame) for arg in args]
        by_name = {key: value(frame) for key, value in kwargs}
        if more is not None:
            given += iterate(frame.run.budget, more(frame))
        if named is not None:
            extra = named(frame)
            if not isinstance(extra, dict) or not all(isinstance(key, str) for key in extra):
                raise fault("what follows ** is no dict of names")
            by_name |= {text.plain(key): value for key, value in extra.items()}
        return tuple(given), by_name

    return evaluate


def call_value(frame: Frame, function: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Calls a function, macro or recursive loop."""
    budget = frame.run.budget
    budget.step(4)
    if isinstance(function, Function):
        return function.call(budget, *args, **kwargs)
    if isinstance(function, Loop):
        if function.recurse is None or len(args) != 1 or kwargs:
            raise fault("only a recursive loop can be called, with what it is to go through")
        return function.recurse(budget, args[0])
    demand(function)
    raise fault(f"a {type_name(function)} cannot be called")


def _call(node: Node) -> Expression:
    given = arguments(node)
    if isinstance(node.node, nodes.Getattr):
        inner, name = expression(node.node.node), node.node.attr

        def call_method(frame: Frame) -> Value:
            value = inner(frame)
            methods = METHODS.get(type(value))
            method = methods.get(name) if methods is not None else None
            args, kwargs = given(frame)
            if method is None:
                return call_value(frame, attribute(frame.run.budget, value, name), args, kwargs)
            frame.run.budget.step(4)
            return method(frame.run.budget, value, *args, **kwargs)

        return call_method
    function = expression(node.node)

    def call(frame: Frame) -> Value:
        called = function(frame)
        args, kwargs = given(frame)
        return call_value(frame, called, args, kwargs)

    return call


def _filter(node: Node) -> Expression:
    return filtered(node, expression(node.node))


def filtered(node: Node, inner: Expression) -> Expression:
    """A filter, or a chain of them, applied to what `inner` gives where the chain itself begins with nothing."""
    if isinstance(node.node, nodes.Filter) and _begins_with_nothing(node.node):
        inner = filtered(node.node, inner)
    given, name = arguments(node), node.name

    def evaluate(frame: Frame) -> Value:
        value = inner(frame)
        args, kwargs = given(frame)
        frame.run.budget.step(2)
        return run_filter(frame.run.budget, name, value, args, kwargs)

    return evaluate


def _begins_with_nothing(node: Node) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    return node is None


def _test(node: Node) -> Expression:
    inner, given, name = expression(node.node), arguments(node), node.name

    def evaluate(frame: Frame) -> Value:
        value = inner(frame)
        args, kwargs = given(frame)
        return run_test(frame.run.budget, name, value, args, kwargs)

    return evaluate


_COMPILERS: dict[type, Callable[[Node], Expression]] = {
    nodes.Name: _name,
    nodes.Const: _const,
    nodes.TemplateData: _data,
    nodes.List: _sequence(list),
    nodes.Tuple: _sequence(tuple),
    nodes.Dict: _dict,
    nodes.CondExpr: _choice,
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Not: _not,
    nodes.Neg: _sign(operator.neg),
    nodes.Pos: _sign(operator.pos),
    nodes.Concat: _concat,
    nodes.Compare: _compare,
    nodes.Getattr: _getattr,
    nodes.Getitem: _getitem,
    nodes.Call: _call,
    nodes.Filter: _filter,
    nodes.Test: _test,
}
