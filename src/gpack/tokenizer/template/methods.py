"""What lies after a dot: methods of strings, dicts and lists, fields of namespaces and loops. Nothing else does.

The methods are Python's that read; those that would change a value in place do not exist, nor does anything with an
underscore in front. All of them charge for what they make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import text
from .budget import Budget
from .formatting import format_fields
from .values import (
    Function,
    Generated,
    Group,
    Loop,
    Missing,
    Namespace,
    Value,
    demand,
    equal,
    fault,
    iterate,
    key_of,
    type_name,
)

Method = Callable[..., Value]

_PURE = (
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
)
_CASES = ["capitalize", "casefold", "lower", "swapcase", "title", "upper"]


def attribute(budget: Budget, value: Value, name: str, *, items: bool = True) -> Value:
    """`value.name`: a method, else an item of that name, else missing.

    Raises:
        FormatError: `chat.unsafe` where the name reaches into Python.
    """
    methods = METHODS.get(type(value)) or _inherited(value)
    method = methods.get(name)
    if method is not None:
        return Function(name, lambda budget, *args, **kwargs: method(budget, value, *args, **kwargs))
    if items and isinstance(value, dict) and name in value and not name.startswith("__"):
        return value[name]
    if isinstance(value, Namespace) and (name in value.fields or not name.startswith("__")):
        return value.fields.get(name, Missing(f"the namespace has no attribute {name!r}"))
    if isinstance(value, Loop):
        return _loop_field(budget, value, name)
    if isinstance(value, Group) and name in ("grouper", "list"):
        return value[name == "list"]
    if name.startswith("__") or name in _FORBIDDEN.get(type(value), ()):
        raise fault(f"{name!r} of a {type_name(value)} is out of reach for a template", code="chat.unsafe")
    return Missing(f"a {type_name(demand(value))} has no attribute {name!r}")


def _inherited(value: Value) -> dict[str, Method]:
    for kind in (str, dict, list, tuple):
        if isinstance(value, kind):
            return METHODS[kind]
    return {}


# ------------------------------------------------------------ strings


def _charged(budget: Budget, value: str, pattern: object = None) -> None:
    """Charges for going through a string, as often as Python's search might in the worst case."""
    budget.make(len(value))
    if isinstance(pattern, str):
        budget.step(len(value) * len(pattern) >> 10)


def _string(value: Value, what: str) -> str:
    if isinstance(value, str):
        return value
    demand(value)
    raise fault(f"{what} is a {type_name(value)}, not a string")


def _simple(name: str) -> Method:
    def method(budget: Budget, value: str, *args: Value) -> Value:
        budget.make(len(value))
        return getattr(text.plain(value), name)(*args)

    return method


def _case(name: str) -> Method:
    def method(budget: Budget, value: str) -> str:
        budget.make(2 * len(value))
        return text.changed(value, getattr(text.plain(value), name)())

    return method


def _search(name: str) -> Method:
    def method(budget: Budget, value: str, wanted: Value, *bounds: Value) -> Value:
        parts = wanted if isinstance(wanted, tuple) else (wanted,)
        for part in parts:
            _charged(budget, value, _string(part, "what is looked for"))
        return getattr(text.plain(value), name)(wanted, *bounds)

    return method


def _strip(*, left: bool, right: bool) -> Method:
    def method(budget: Budget, value: str, chars: Value = None) -> str:
        _charged(budget, value, chars)
        return text.strip(value, None if chars is None else _string(chars, "the set"), left=left, right=right)

    return method


def _split(*, from_right: bool) -> Method:
    def method(budget: Budget, value: str, sep: Value = None, maxsplit: int = -1) -> list[str]:
        _charged(budget, value, sep)
        budget.make(8 * len(value) // max(len(sep), 1) if isinstance(sep, str) else 4 * len(value))
        if isinstance(value, text.Text):
            budget.step(len(value) if sep is None else 2 * value.count(_string(sep, "the separator")))
        return text.split(
            value, None if sep is None else _string(sep, "the separator"), maxsplit, from_right=from_right
        )

    return method


def _partition(*, from_right: bool) -> Method:
    def method(budget: Budget, value: str, sep: Value) -> tuple[str, ...]:
        _charged(budget, value, _string(sep, "the separator"))
        parts = text.plain(value).rpartition(sep) if from_right else text.plain(value).partition(sep)
        ends = (len(parts[0]), len(parts[0]) + len(parts[1]), len(value))
        return tuple(text.item(value, slice(start, end)) for start, end in zip((0, *ends), ends, strict=False))

    return method


def _splitlines(budget: Budget, value: str, keepends: Value = False) -> list[str]:
    budget.make(9 * len(value))
    lines = text.plain(value).splitlines(keepends=True)
    budget.step(len(lines))
    at, parts = 0, []
    for line in lines:
        kept = line if keepends else line.splitlines()[0]
        parts.append(text.item(value, slice(at, at + len(kept))))
        at += len(line)
    return parts


def replaced(budget: Budget, value: str, old: Value, new: Value, count: int = -1) -> str:
    """`value.replace(old, new, count)`."""
    old, new = _string(old, "what is replaced"), _string(new, "the replacement")
    _charged(budget, value, old)
    places = value.count(old) if old else len(value) + 1
    places = places if count < 0 else min(places, count)
    budget.make(len(value) + places * (16 + len(new)))
    return text.replace(value, old, new, count)


def joined(budget: Budget, separator: str, values: Value) -> str:
    """`separator.join(values)`, of strings."""
    parts = [_string(part, "a part") for part in iterate(budget, values)]
    budget.make(sum(map(len, parts)) + len(separator) * len(parts))
    return text.join(separator, parts)


def _padded(name: str) -> Method:
    def method(budget: Budget, value: str, width: int, *fill: Value) -> str:
        budget.make(max(len(value), width))
        return str(getattr(text.plain(value), name)(width, *fill))

    return method


def _without(*, prefix: bool) -> Method:
    def method(budget: Budget, value: str, affix: Value) -> str:
        budget.make(len(value))
        size = len(_string(affix, "what is removed"))
        if prefix:
            return text.item(value, slice(size, None)) if value.startswith(affix) else value
        return text.item(value, slice(0, len(value) - size)) if value.endswith(affix) else value

    return method


# ------------------------------------------------------------ dicts, lists, loops


def pairs(budget: Budget, value: dict[Value, Value]) -> list[tuple[Value, Value]]:
    """`value.items()`."""
    budget.make(8 * len(value))
    return list(value.items())


def _keys(budget: Budget, value: dict[Value, Value]) -> list[Value]:
    budget.make(len(value))
    return list(value)


def _values(budget: Budget, value: dict[Value, Value]) -> list[Value]:
    budget.make(len(value))
    return list(value.values())


def _get(_: Budget, value: dict[Value, Value], key: Value, default: Value = None) -> Value:
    return value.get(key_of(key), default)


def _copy(budget: Budget, value: Value) -> Value:
    budget.make(len(value))
    return dict(value) if isinstance(value, dict) else list(value)


def _count(budget: Budget, value: Value, wanted: Value) -> int:
    return sum(equal(budget, element, wanted) for element in iterate(budget, value))


def _index(budget: Budget, value: Value, wanted: Value) -> int:
    for at, element in enumerate(iterate(budget, value)):
        if equal(budget, element, wanted):
            return at
    raise fault("the value is not in the list")


def _loop_field(budget: Budget, loop: Loop, name: str) -> Value:
    at, count = loop.index0, len(loop.items)
    fields: dict[str, Any] = {
        "index": at + 1,
        "index0": at,
        "revindex": count - at,
        "revindex0": count - at - 1,
        "first": at == 0,
        "last": at == count - 1,
        "length": count,
        "depth": loop.depth0 + 1,
        "depth0": loop.depth0,
    }
    if name in fields:
        return fields[name]
    if name == "previtem":
        return loop.items[at - 1] if at else Missing("there is no previous item")
    if name == "nextitem":
        return loop.items[at + 1] if at + 1 < count else Missing("there is no next item")
    if name == "cycle":
        return Function(name, lambda budget, *values: _cycle(loop, values))
    if name == "changed":
        return Function(name, lambda budget, *values: _changed(budget, loop, values))
    if name.startswith("_"):
        raise fault(f"{name!r} of a loop is out of reach for a template", code="chat.unsafe")
    return Missing(f"a loop has no attribute {name!r}")


def _cycle(loop: Loop, values: tuple[Value, ...]) -> Value:
    if not values:
        raise fault("there is nothing to cycle through")
    return values[loop.index0 % len(values)]


def _changed(budget: Budget, loop: Loop, values: tuple[Value, ...]) -> bool:
    before, loop.changed_to = loop.changed_to, values
    return before is None or not equal(budget, before, values)


_STRING: dict[str, Method] = {
    **{name: _simple(name) for name in _PURE},
    **{name: _case(name) for name in _CASES},
    **{name: _search(name) for name in ("count", "find", "index", "rfind", "rindex", "startswith", "endswith")},
    **{name: _padded(name) for name in ("ljust", "rjust", "center", "zfill")},
    "strip": _strip(left=True, right=True),
    "lstrip": _strip(left=True, right=False),
    "rstrip": _strip(left=False, right=True),
    "split": _split(from_right=False),
    "rsplit": _split(from_right=True),
    "partition": _partition(from_right=False),
    "rpartition": _partition(from_right=True),
    "splitlines": _splitlines,
    "replace": replaced,
    "join": joined,
    "removeprefix": _without(prefix=True),
    "removesuffix": _without(prefix=False),
    "format": format_fields,
}
_LIST: dict[str, Method] = {"count": _count, "index": _index, "copy": _copy}
METHODS: dict[type, dict[str, Method]] = {
    str: _STRING,
    text.Text: _STRING,
    dict: {"items": pairs, "keys": _keys, "values": _values, "get": _get, "copy": _copy},
    list: _LIST,
    Generated: _LIST,
    tuple: {"count": _count, "index": _index},
}
_FORBIDDEN: dict[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("__") and name not in methods)
    for kind, methods in METHODS.items()
}
