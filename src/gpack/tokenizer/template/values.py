"""The values of a template, and what its operators do with them.

A value is None, a bool, int, float or string, a list, tuple or dict of values, or one of the classes below. No other
object ever gets in, nothing reaches into Python, and nothing that a template does changes a value in place. What an
operator makes is charged to the budget before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ...errors import FormatError
from . import text
from .budget import Budget, limit

Value: TypeAlias = Any  # one of those named above

MAX_BITS = 1024  # of an integer
_LONG = 256  # characters from which comparing strings is charged
SCALARS = (str, int, float, bool, type(None))
NUMBERS = (int, float)  # bool is an int


def fault(message: str, *, code: str = "chat.render") -> FormatError:
    """An error of a template while it runs."""
    return FormatError(message, code=code, section="chat template")


class Missing:
    """What is not there: prints as nothing, is false and empty; using it otherwise is an error."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Missing)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Undefined"


class Generated(list[Value]):
    """What filters give that are generators in Jinja: true even where it is empty."""


class Namespace:
    """`namespace(...)`: the one thing that a template may set attributes of."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Value]) -> None:
        self.fields = fields


class Function:
    """Something that a template may call.

    Attributes:
        name: For messages.
        call: The function; the budget comes first.
    """

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Value]) -> None:
        self.name = name
        self.call = call


class Loop:
    """The variable `loop`."""

    __slots__ = ("changed_to", "depth0", "index0", "items", "recurse")

    def __init__(self, items: list[Value], depth0: int, recurse: Callable[[Budget, Value], Value] | None) -> None:
        self.items = items
        self.depth0 = depth0
        self.index0 = 0
        self.recurse = recurse
        self.changed_to: tuple[Value, ...] | None = None


class Group(tuple[Value, list[Value]]):
    """One group of `groupby`: a pair whose parts also have names."""

    __slots__ = ()


def type_name(value: Value) -> str:
    """The value's type, as a template's author knows it."""
    if isinstance(value, Missing):
        return "undefined"
    return "str" if isinstance(value, str) else type(value).__name__.lower()


def truth(value: Value) -> bool:
    """Whether a value counts as true."""
    return not isinstance(value, Missing) and (isinstance(value, Generated) or bool(value))


def demand(value: Value) -> Value:
    """The value itself.

    Raises:
        FormatError: It is missing.
    """
    if isinstance(value, Missing):
        raise fault(value.what)
    return value


def measure(budget: Budget, value: Value) -> tuple[int, int, int]:
    """Charges for visiting a value to its leaves, shared parts as often as they occur: elements, characters, depth.

    Raises:
        FormatError: `chat.limit` where that is too much, or too deep.
    """
    if isinstance(value, str):
        budget.make(len(value))
        return 1, len(value), 0
    if not isinstance(value, (list, tuple, dict)):
        return 1, 0, 0
    count = characters = depth = 0
    level: list[Value] = [value]
    while level:
        depth += 1
        if depth > budget.max_depth:
            raise limit(f"a value is nested more than {budget.max_depth} deep")
        deeper: list[Value] = []
        for container in level:
            budget.step(1 + len(container))
            budget.make(len(container))
            count += len(container)
            elements = [*container, *container.values()] if isinstance(container, dict) else container
            for element in elements:
                if isinstance(element, str):
                    characters += len(element)
                    budget.make(len(element))
                elif isinstance(element, (list, tuple, dict)):
                    deeper.append(element)
        level = deeper
    return count, characters, depth


def show(budget: Budget, value: Value) -> str:
    """The value as it is printed."""
    if isinstance(value, str):
        return value
    if isinstance(value, Missing):
        return ""
    if isinstance(value, (list, tuple, dict)):
        _data_only(budget, value)
        shown = repr(list(value) if isinstance(value, Generated) else value)
        budget.make(len(shown))
        return shown
    if value is None or isinstance(value, NUMBERS):
        return str(value)
    raise fault(f"a {type_name(value)} cannot be printed")


def _data_only(budget: Budget, value: Value) -> None:
    """Refuses to print functions and the like, which lie in a value, and charges for printing it."""
    measure(budget, value)
    waiting: list[Value] = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += current.values()
        elif isinstance(current, (list, tuple)):
            waiting += current
        elif not isinstance(current, (*SCALARS, Missing)):
            raise fault(f"a {type_name(current)} cannot be printed")


def iterate(budget: Budget, value: Value) -> list[Value]:
    """The elements of a value, charged; a list is given as it is, since nothing changes it."""
    if isinstance(value, list):
        budget.step(1 + (len(value) >> 6))
        return value
    if isinstance(value, (tuple, dict)):
        budget.make(8 * len(value))
        return list(value)
    if isinstance(value, str):
        budget.step(len(value))
        budget.make(32 * len(value))
        return list(text.characters(value))
    if isinstance(value, Missing):
        return []
    raise fault(f"a {type_name(value)} has no elements")


def length(value: Value) -> int:
    """`value | length`."""
    if isinstance(value, (str, list, tuple, dict)):
        return len(value)
    if isinstance(value, Missing):
        return 0
    raise fault(f"a {type_name(value)} has no length")


# ------------------------------------------------------------ operators


def concat(budget: Budget, parts: Iterable[str]) -> str:
    """Strings, one after the other, charged."""
    parts = list(parts)
    budget.make(sum(map(len, parts)))
    return text.concat(parts)


def number(value: int | float) -> int | float:
    """The number, if it is not too large.

    Raises:
        FormatError: `chat.limit`.
    """
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise limit(f"an integer of {value.bit_length()} bits")
    return value


def equal(budget: Budget, left: Value, right: Value) -> bool:
    """`left == right`."""
    if isinstance(left, str):
        if isinstance(right, str) and len(left) > _LONG and len(left) == len(right):
            budget.step(len(left) >> 6)
    elif isinstance(left, (list, tuple, dict)) and isinstance(right, (list, tuple, dict)):
        # Comparing visits no more than the parts of the smaller one.
        measure(budget, left)
        measure(budget, right)
    return bool(left == right)


def key_of(value: Value) -> Value:
    """The value, if it can be a key.

    Raises:
        FormatError: It is none of those that can.
    """
    if isinstance(demand(value), SCALARS):
        return value
    raise fault(f"a {type_name(value)} cannot be a key")


def pairs_of(value: Value) -> list[tuple[Value, Value]]:
    """The items of a dict, or of a list of pairs."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
        return [(pair[0], pair[1]) for pair in value]
    raise fault(f"a {type_name(value)} is neither a dict nor made of pairs")
