"""Parsed statements turned into functions of a frame. They give `BREAK` or `CONTINUE` where a loop is to hear of it.

What is straight-line costs nothing: a template is finite. Each turn of a loop and each call of a macro is charged
with the number of nodes in its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from jinja2 import nodes

from .budget import Budget
from .expressions import Expression, Node, arguments, call_value, expression, filtered
from .frame import Frame
from .values import Function, Loop, Missing, Namespace, Value, concat, demand, fault, iterate, show, truth, type_name

Statement: TypeAlias = Callable[[Frame], int]

NEXT, CONTINUE, BREAK = 0, 1, 2


def body(statements: Sequence[Node]) -> Statement:
    """The function that runs statements, one after the other."""
    compiled = [statement(node) for node in statements]
    if len(compiled) == 1:
        return compiled[0]

    def run(frame: Frame) -> int:
        for each in compiled:
            signal = each(frame)
            if signal:
                return signal
        return NEXT

    return run


def statement(node: Node) -> Statement:
    """The function that runs a statement.

    Raises:
        FormatError: `chat.unsupported` for what no chat template may do.
    """
    compile_node = _COMPILERS.get(type(node))
    if compile_node is None:
        raise fault(f"line {node.lineno}: {type(node).__name__} is not supported", code="chat.unsupported")
    return compile_node(node)


def weight(parsed: Sequence[Node]) -> int:
    """Number of nodes."""
    waiting, count = list(parsed), 0
    while waiting:
        waiting += waiting.pop().iter_child_nodes()
        count += 1
    return count


def captured(frame: Frame, run: Statement) -> str:
    """What statements print, as a string."""
    state = frame.run
    before, state.out = state.out, []
    try:
        run(frame)
        return concat(state.budget, state.out)
    finally:
        state.out = before


# ------------------------------------------------------------ output and assignment


def _output(node: Node) -> Statement:
    parts = [expression(part) for part in node.nodes]

    def run(frame: Frame) -> int:
        state = frame.run
        for part in parts:
            state.emit(show(state.budget, part(frame)))
        return NEXT

    return run


def target(node: Node) -> Callable[[Frame, Value], None]:
    """The function that gives a variable, several, or a namespace's attribute their values."""
    if isinstance(node, nodes.Name):
        name = node.name

        def assign(frame: Frame, value: Value) -> None:
            frame.variables[name] = value

        return assign
    if isinstance(node, nodes.NSRef):
        owner, field = node.name, node.attr

        def assign_field(frame: Frame, value: Value) -> None:
            namespace = frame.find(owner)
            if not isinstance(namespace, Namespace):
                raise fault(f"{owner!r} is a {type_name(namespace)}, no namespace: its attributes cannot be set")
            namespace.fields[field] = value

        return assign_field
    if isinstance(node, (nodes.Tuple, nodes.List)):
        parts = [target(item) for item in node.items]

        def unpack(frame: Frame, value: Value) -> None:
            found = iterate(frame.run.budget, demand(value))
            if len(found) != len(parts):
                raise fault(f"{len(found)} values for {len(parts)} names")
            for part, item in zip(parts, found, strict=True):
                part(frame, item)

        return unpack
    raise fault(f"line {node.lineno}: nothing can be assigned here", code="chat.unsupported")


def _assign(node: Node) -> Statement:
    assign, value = target(node.target), expression(node.node)

    def run(frame: Frame) -> int:
        assign(frame, value(frame))
        return NEXT

    return run


def _assign_block(node: Node) -> Statement:
    assign, inner = target(node.target), body(node.body)
    shown = _held(node.filter)

    def run(frame: Frame) -> int:
        assign(frame, shown(frame, captured(frame.inner(), inner)))
        return NEXT

    return run


def _filter_block(node: Node) -> Statement:
    inner, shown = body(node.body), _held(node.filter)

    def run(frame: Frame) -> int:
        frame.run.emit(show(frame.run.budget, shown(frame, captured(frame.inner(), inner))))
        return NEXT

    return run


def _held(node: Node) -> Callable[[Frame, str], Value]:
    """The filter of a block; what is filtered is passed in a variable that no template can name."""
    if node is None:
        return lambda _, value: value
    name = "{}"
    apply = filtered(node, lambda frame: frame.find(name))
    return lambda frame, value: apply(frame.inner({name: value}))


# ------------------------------------------------------------ conditions and blocks


def _if(node: Node) -> Statement:
    branches = [(expression(each.test), body(each.body)) for each in (node, *node.elif_)]
    otherwise = body(node.else_)

    def run(frame: Frame) -> int:
        for test, then in branches:
            if truth(test(frame)):
                return then(frame)
        return otherwise(frame)

    return run


def _scope(node: Node) -> Statement:
    inner = body(node.body)
    return lambda frame: inner(frame.inner())


def _with(node: Node) -> Statement:
    values = [(target(name), expression(value)) for name, value in zip(node.targets, node.values, strict=True)]
    inner = body(node.body)

    def run(frame: Frame) -> int:
        within = frame.inner()
        for assign, value in values:
            assign(within, value(frame))
        return inner(within)

    return run


# ------------------------------------------------------------ loops


def _for(node: Node) -> Statement:
    items, assign, turn = expression(node.iter), target(node.target), body(node.body)
    test = expression(node.test) if node.test is not None else None
    otherwise, cost, recursive = body(node.else_), 2 + weight(node.body), node.recursive

    def go(frame: Frame, found: Value, depth: int) -> int:
        budget = frame.run.budget
        elements = iterate(budget, found)
        if test is not None:
            kept = []
            for element in elements:
                budget.step(4)
                within = frame.inner()
                assign(within, element)
                if truth(test(within)):
                    kept.append(element)
            elements = kept
        loop = Loop(elements, depth, recurse_from(frame, depth) if recursive else None)
        for at, element in enumerate(elements):
            budget.step(cost)
            loop.index0 = at
            within = frame.inner({"loop": loop})
            assign(within, element)
            if turn(within) == BREAK:
                break
        return NEXT if elements else otherwise(frame)

    def recurse_from(frame: Frame, depth: int) -> Callable[[Budget, Value], Value]:
        def recurse(budget: Budget, found: Value) -> Value:
            budget.enter()

            def again(within: Frame) -> int:
                return go(within, found, depth + 1)

            try:
                return captured(frame, again)
            finally:
                budget.leave()

        return recurse

    return lambda frame: go(frame, items(frame), 0)


# ------------------------------------------------------------ macros


def macro(node: Node, name: str) -> Callable[[Frame], Function]:
    """The function that makes a macro, closed over the frame where it stands."""
    names = [arg.name for arg in node.args]
    defaults = dict(zip(names[len(names) - len(node.defaults) :], map(expression, node.defaults), strict=True))
    inner, cost = body(node.body), 16 + weight(node.body)  # a call costs more than what it runs
    used = {each.name for each in node.find_all(nodes.Name)}

    def bind(frame: Frame, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Frame:
        within = frame.inner(dict(zip(names, args, strict=False)))
        caller = kwargs.pop("caller", None) if "caller" not in names else None
        if len(args) > len(names) and "varargs" not in used:
            raise fault(f"the macro {name!r} takes not more than {len(names)} arguments")
        within.variables["varargs"] = args[len(names) :]
        for parameter in names[len(args) :]:
            if parameter in kwargs:
                within.variables[parameter] = kwargs.pop(parameter)
            elif parameter in defaults:
                within.variables[parameter] = defaults[parameter](within)
            else:
                within.variables[parameter] = Missing(f"the parameter {parameter!r} was not provided")
        if kwargs and "kwargs" not in used:
            raise fault(f"the macro {name!r} takes no argument {next(iter(kwargs))!r}")
        within.variables["kwargs"] = kwargs
        if "caller" not in names:
            within.variables["caller"] = caller or Missing("there is no caller")
        return within

    def make(frame: Frame) -> Function:
        def call(budget: Budget, *args: Value, **kwargs: Value) -> Value:
            budget.enter()
            budget.step(cost)
            try:
                return captured(bind(frame, args, kwargs), inner)
            finally:
                budget.leave()

        return Function(name, call)

    return make


def _macro(node: Node) -> Statement:
    name, make = node.name, macro(node, node.name)

    def run(frame: Frame) -> int:
        frame.variables[name] = make(frame)
        return NEXT

    return run


def _call_block(node: Node) -> Statement:
    function, given, make = expression(node.call.node), arguments(node.call), macro(node, "caller")

    def run(frame: Frame) -> int:
        args, kwargs = given(frame)
        kwargs["caller"] = make(frame)
        frame.run.emit(show(frame.run.budget, call_value(frame, function(frame), args, kwargs)))
        return NEXT

    return run


def _expression_statement(node: Node) -> Statement:
    evaluate: Expression = expression(node.node)

    def run(frame: Frame) -> int:
        evaluate(frame)
        return NEXT

    return run


_COMPILERS: dict[type, Callable[[Node], Statement]] = {
    nodes.Output: _output,
    nodes.Assign: _assign,
    nodes.AssignBlock: _assign_block,
    nodes.FilterBlock: _filter_block,
    nodes.If: _if,
    nodes.For: _for,
    nodes.With: _with,
    nodes.Scope: _scope,
    nodes.Block: _scope,
    nodes.Macro: _macro,
    nodes.CallBlock: _call_block,
    nodes.ExprStmt: _expression_statement,
    nodes.Break: lambda _: lambda _frame: BREAK,
    nodes.Continue: lambda _: lambda _frame: CONTINUE,
}
