"""Operators of expressions: arithmetic, comparisons, and what `[...]` finds in a value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from . import text
from .budget import Budget, limit
from .formatting import printf
from .methods import attribute
from .values import MAX_BITS, NUMBERS, SCALARS, Missing, Value, demand, equal, fault, key_of, measure, number, type_name


def add(budget: Budget, left: Value, right: Value) -> Value:
    """`left + right`."""
    if isinstance(left, str) and isinstance(right, str):
        budget.make(len(left) + len(right))
        return text.concat((left, right))
    for kind in (list, tuple):
        if isinstance(left, kind) and isinstance(right, kind):
            budget.make(8 * (len(left) + len(right)))
            return kind([*left, *right])
    return _arithmetic("+", operator.add, left, right)


def multiply(budget: Budget, left: Value, right: Value) -> Value:
    """`left * right`."""
    if isinstance(left, int) and isinstance(right, (str, list, tuple)):
        left, right = right, left
    if isinstance(right, int) and isinstance(left, (str, list, tuple)):
        budget.make(len(left) * max(right, 0) * (1 if isinstance(left, str) else 8))
        if isinstance(left, str):
            return text.repeat(left, right)
        return type(left)(left * right) if type(left) in (list, tuple) else list(left) * right
    return _arithmetic("*", operator.mul, left, right)


def power(_: Budget, left: Value, right: Value) -> Value:
    """`left ** right`."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 2 * MAX_BITS:
        raise limit(f"{left} ** {right} is too large")
    return _arithmetic("**", operator.pow, left, right)


def modulo(budget: Budget, left: Value, right: Value) -> Value:
    """`left % right`: the remainder, or a string formatted as printf does."""
    if isinstance(left, str):
        return printf(budget, left, list(right) if isinstance(right, tuple) else [right], right)
    return _arithmetic("%", operator.mod, left, right)


def arithmetic(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Budget, Value, Value], Value]:
    """An operator for numbers alone."""
    return lambda _, left, right: _arithmetic(symbol, function, left, right)


def _arithmetic(symbol: str, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    if isinstance(demand(left), NUMBERS) and isinstance(demand(right), NUMBERS):
        result = function(left, right)
        return number(result) if isinstance(result, NUMBERS) else _no_complex(symbol)
    raise fault(f"{symbol} is not defined between {type_name(left)} and {type_name(right)}")


def _no_complex(symbol: str) -> Value:
    raise fault(f"the result of {symbol} is not a real number")


def ordered(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Budget, Value, Value], bool]:
    """An operator that compares."""

    def compare(budget: Budget, left: Value, right: Value) -> bool:
        kinds: tuple[Any, ...] = (str, NUMBERS, list, tuple)
        if not any(isinstance(left, kind) and isinstance(right, kind) for kind in kinds):
            demand(left), demand(right)
            raise fault(f"{symbol} is not defined between {type_name(left)} and {type_name(right)}")
        measure(budget, left)
        measure(budget, right)
        return bool(function(left, right))

    return compare


def contains(budget: Budget, element: Value, container: Value) -> bool:
    """`element in container`."""
    if isinstance(container, str):
        if not isinstance(element, str):
            demand(element)
            raise fault(f"a {type_name(element)} cannot be in a string")
        budget.step(len(container) >> 6)
        return str.__contains__(container, element)
    if isinstance(container, dict):
        return key_of(element) in container
    if isinstance(container, (list, tuple)):
        budget.step(1 + (len(container) >> 2))
        if isinstance(element, (*SCALARS, Missing)):
            return element in container
        return any(equal(budget, element, other) for other in container)
    if isinstance(container, Missing):
        return False
    raise fault(f"nothing can be in a {type_name(container)}")


# ------------------------------------------------------------ what lies in a value


def get_item(budget: Budget, value: Value, key: Value) -> Value:
    """`value[key]`; what is not there is missing, unless the value is."""
    if isinstance(value, dict):
        if isinstance(key, SCALARS):
            found = value.get(key, value)  # the dict itself cannot be a value of its own
            if found is not value:
                return found
        return _other(budget, value, key)
    if isinstance(value, (str, list, tuple)):
        if isinstance(key, int):
            try:
                return text.item(value, key) if isinstance(value, str) else value[key]
            except IndexError:
                return Missing(f"there is no element {key} in a {type_name(value)} of {len(value)}")
        return _other(budget, value, key)
    return _other(budget, demand(value), key)


def _other(budget: Budget, value: Value, key: Value) -> Value:
    """`value["name"]` may mean `value.name`."""
    if isinstance(key, str):
        return attribute(budget, value, text.plain(key), items=False)
    shown = repr(key) if isinstance(key, SCALARS) else type_name(key)
    return Missing(f"a {type_name(value)} has no element {shown}")


def get_slice(budget: Budget, value: Value, bounds: tuple[Value, Value, Value]) -> Value:
    """`value[start:stop:step]`."""
    if not isinstance(demand(value), (str, list, tuple)):
        return Missing(f"a {type_name(value)} cannot be sliced")
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        return Missing("the bounds of a slice are no integers")
    if bounds[2] == 0:
        raise fault("the step of a slice is zero")
    at = slice(*bounds)
    budget.make(len(range(*at.indices(len(value)))) * (1 if isinstance(value, str) else 8))
    if isinstance(value, str):
        return text.item(value, at)
    return list(value)[at] if isinstance(value, list) else tuple(value)[at]
