"""The tests of the language: `value is name(argument)`."""

from __future__ import annotations

import operator
from collections.abc import Callable

from .budget import Budget
from .operators import contains, modulo, ordered
from .values import NUMBERS, Function, Generated, Missing, Value, demand, equal, fault

Test = Callable[..., bool]


def run_test(budget: Budget, name: str, value: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
    """Applies a test by its name.

    Raises:
        FormatError: There is no such test, or the value does not suit it.
    """
    test = TESTS.get(name)
    if test is None:
        raise fault(f"there is no test {name!r}")
    return bool(test(budget, value, *args, **kwargs))


def _instance(*kinds: type) -> Test:
    return lambda _, value: isinstance(value, kinds)


def _remainder(wanted: int) -> Test:
    return lambda budget, value: bool(modulo(budget, _no_string(value), 2) == wanted)


def _no_string(value: Value) -> Value:
    if isinstance(value, str):
        raise fault("a string is neither odd nor even")
    return value


def _same(_: Budget, value: Value, other: Value) -> bool:
    if isinstance(value, (str, *NUMBERS)) and type(value) is type(other):
        return bool(value == other)
    return value is other or (isinstance(value, Missing) and isinstance(other, Missing))


def _case(name: str) -> Test:
    def test(budget: Budget, value: Value) -> bool:
        shown = value if isinstance(value, str) else ""
        budget.make(len(shown))
        return bool(getattr(shown, name)())

    return test


_EQUAL, _UNEQUAL = equal, lambda budget, left, right: not equal(budget, left, right)
_COMPARISONS: dict[str, Test] = {
    name: ordered(symbol, function)
    for names, symbol, function in (
        (("lt", "lessthan", "<"), "<", operator.lt),
        (("le", "<="), "<=", operator.le),
        (("gt", "greaterthan", ">"), ">", operator.gt),
        (("ge", ">="), ">=", operator.ge),
    )
    for name in names
}

# `filters` adds "filter", which knows them.
TESTS: dict[str, Test] = {
    "defined": lambda _, value: not isinstance(value, Missing),
    "undefined": lambda _, value: isinstance(value, Missing),
    "none": lambda _, value: value is None,
    "string": _instance(str),
    "number": _instance(int, float),
    "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    "float": _instance(float),
    "boolean": _instance(bool),
    "true": lambda _, value: value is True,
    "false": lambda _, value: value is False,
    "mapping": _instance(dict),
    "iterable": _instance(str, list, tuple, dict, Missing),
    "sequence": lambda _, value: isinstance(value, (str, list, tuple, dict, Missing)) and type(value) is not Generated,
    "callable": _instance(Function),
    "sameas": _same,
    "equalto": _EQUAL,
    "eq": _EQUAL,
    "==": _EQUAL,
    "ne": _UNEQUAL,
    "!=": _UNEQUAL,
    "in": contains,
    "odd": _remainder(1),
    "even": _remainder(0),
    "divisibleby": lambda budget, value, num: modulo(budget, _no_string(demand(value)), num) == 0,
    "lower": _case("islower"),
    "upper": _case("isupper"),
    "escaped": lambda _, value: False,
    "test": lambda _, value: isinstance(value, str) and value in TESTS,
    **_COMPARISONS,
}
