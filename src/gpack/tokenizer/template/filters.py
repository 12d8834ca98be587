"""The filters of the language: Jinja's, as far as chat templates have a use for them, and the ecosystem's `tojson`.

Each is a function of the budget, the value and the filter's arguments; what it gives has the origin of what it is
made of where that is simple, and is untrusted otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from . import text
from .budget import Budget, limit
from .formatting import printf
from .lists import (
    as_list,
    at_path,
    batch,
    default,
    dictsort,
    extreme,
    first,
    groupby,
    items,
    last,
    reverse,
    slices,
    sort,
    total,
    unique,
)
from .methods import METHODS, attribute, joined, replaced
from .tests import TESTS, run_test
from .values import (
    NUMBERS,
    Generated,
    Missing,
    Value,
    concat,
    demand,
    fault,
    iterate,
    length,
    measure,
    show,
    truth,
    type_name,
)

Filter = Callable[..., Value]

_MAX_INDENT = 64
_MAX_DIGITS = 400  # of a number that is read from a string
_WORD_STARTS = re.compile(r"([-\s({\[<]+)")


def run_filter(budget: Budget, name: str, value: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Applies a filter by its name.

    Raises:
        FormatError: There is no such filter, or the value does not suit it.
    """
    function = FILTERS.get(name)
    if function is None:
        raise fault(f"there is no filter {name!r}")
    return function(budget, value, *args, **kwargs)


def tojson(
    budget: Budget,
    value: Value,
    ensure_ascii: Value = False,
    indent: Value = None,
    separators: Value = None,
    sort_keys: Value = False,
) -> str:
    """JSON as Hugging Face's templates know it: characters as they are, nothing escaped for HTML."""
    elements, characters, depth = measure(budget, value)
    if isinstance(indent, str):
        step = len(indent)
    elif indent is None or isinstance(indent, int):
        step = max(indent or 0, 0)
    else:
        raise fault(f"an indent is a number or a string, not a {type_name(indent)}")
    for extra in separators or ():
        step = max(step, len(extra))
    if step > _MAX_INDENT:
        raise limit(f"an indent of {step} characters")
    budget.make(characters + elements * (8 + step * (depth + 1)))
    if indent is not None:
        budget.step(4 * elements)  # then Python's own encoder does the work
    written = json.dumps(
        list(value) if isinstance(value, Generated) else value,
        ensure_ascii=truth(ensure_ascii),
        indent=indent,
        separators=tuple(separators) if separators else None,
        sort_keys=truth(sort_keys),
    )
    budget.make(len(written))
    return written


# ------------------------------------------------------------ strings


def _method(name: str) -> Filter:
    function = METHODS[str][name]
    return lambda budget, value, *args: function(budget, show(budget, value), *args)


def _title(budget: Budget, value: Value) -> str:
    shown = show(budget, value)
    budget.make(2 * len(shown))
    words = _WORD_STARTS.split(text.plain(shown))
    return text.changed(shown, "".join(word[0].upper() + word[1:].lower() for word in words if word))


def _replace(budget: Budget, value: Value, old: Value, new: Value, count: Value = None) -> str:
    places = -1 if count is None else count
    return replaced(budget, show(budget, value), show(budget, old), show(budget, new), places)


def _join(budget: Budget, value: Value, d: Value = "", attribute: Value = None) -> str:
    found = iterate(budget, value)
    if attribute is not None:
        found = [at_path(budget, element, attribute) for element in found]
    return joined(budget, show(budget, d), [show(budget, element) for element in found])


def _indent(budget: Budget, value: Value, width: Value = 4, first: Value = False, blank: Value = False) -> str:
    shown = concat(budget, (show(budget, value), "\n"))
    gap = width if isinstance(width, str) else text.repeat(text.trusted(" "), min(width, 1 << 20))
    lines = METHODS[str]["splitlines"](budget, shown)
    budget.make(len(lines) * (len(gap) + 1))
    parts: list[str] = [gap] if truth(first) else []
    for at, line in enumerate(lines):
        if at:
            parts.append("\n")
        if at and (line or truth(blank)):
            parts.append(gap)
        parts.append(line)
    return concat(budget, parts)


def _escape(budget: Budget, value: Value) -> str:
    shown = show(budget, value)
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        shown = replaced(budget, shown, character, name)
    return shown


def _format(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> str:
    if args and kwargs:
        raise fault("format takes values by place or by name, not both")
    return printf(budget, show(budget, value), list(args), kwargs or args)


def _wordcount(budget: Budget, value: Value) -> int:
    shown = show(budget, value)
    budget.make(8 * len(shown))
    return len(re.findall(r"\w+", shown))


# ------------------------------------------------------------ numbers


def _int(_: Budget, value: Value, default: Value = 0, base: int = 10) -> Value:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        return default
    demand(value)
    try:
        return int(value, base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(_: Budget, value: Value, default: Value = 0.0) -> Value:
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        return default
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _round(_: Budget, value: Value, precision: int = 0, method: str = "common") -> Value:
    if not isinstance(demand(value), NUMBERS) or not isinstance(precision, int) or abs(precision) > 30:
        raise fault("what is rounded is not a number, or to more than 30 digits")
    if method == "common":
        return round(value, precision)
    if method not in ("ceil", "floor"):
        raise fault(f"there is no way of rounding called {method!r}")
    scaled = value * 10**precision
    return (math.ceil(scaled) if method == "ceil" else math.floor(scaled)) / 10**precision


def _abs(_: Budget, value: Value) -> Value:
    if not isinstance(demand(value), NUMBERS):
        raise fault(f"a {type_name(value)} has no absolute value")
    return abs(value)


def _map(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> Value:
    found = iterate(budget, value) if truth(value) else []
    budget.step(4 * len(found))
    if not args and "attribute" in kwargs:
        path, has_default = kwargs.pop("attribute"), "default" in kwargs
        default = kwargs.pop("default", None)
        if kwargs:
            raise fault(f"map does not take {', '.join(kwargs)}")
        values = (at_path(budget, element, path) for element in found)
        budget.make(8 * len(found))
        return Generated(default if has_default and isinstance(item, Missing) else item for item in values)
    if not args:
        raise fault("map takes a filter or an attribute")
    return Generated(run_filter(budget, str(args[0]), element, args[1:], dict(kwargs)) for element in found)


def _chosen(*, wanted: bool, by_attribute: bool) -> Filter:
    def function(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> Value:
        if by_attribute and not args:
            raise fault("there is no attribute to choose by")
        path, rest = (args[0], args[1:]) if by_attribute else (None, args)
        kept = Generated()
        for element in iterate(budget, value) if truth(value) else ():
            budget.step(4)
            seen = at_path(budget, element, path) if by_attribute else element
            passes = run_test(budget, str(rest[0]), seen, rest[1:], kwargs) if rest else truth(seen)
            if passes == wanted:
                kept.append(element)
        return kept

    return function


def _attr(budget: Budget, value: Value, name: Value) -> Value:
    return attribute(budget, value, str(name), items=False)


def _same(budget: Budget, value: Value) -> Value:
    return show(budget, value)


FILTERS: dict[str, Filter] = {
    **{name: _method(name) for name in ("capitalize", "lower", "upper", "center")},
    "trim": _method("strip"),
    "title": _title,
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "escape": _escape,
    "e": _escape,
    "format": _format,
    "wordcount": _wordcount,
    "string": _same,
    "safe": _same,
    "tojson": tojson,
    "int": _int,
    "float": _float,
    "round": _round,
    "abs": _abs,
    "length": lambda _, value: length(value),
    "count": lambda _, value: length(value),
    "list": as_list,
    "first": first,
    "last": last,
    "reverse": reverse,
    "default": default,
    "d": default,
    "items": items,
    "sort": sort,
    "dictsort": dictsort,
    "unique": unique,
    "min": extreme(min),
    "max": extreme(max),
    "sum": total,
    "map": _map,
    "select": _chosen(wanted=True, by_attribute=False),
    "reject": _chosen(wanted=False, by_attribute=False),
    "selectattr": _chosen(wanted=True, by_attribute=True),
    "rejectattr": _chosen(wanted=False, by_attribute=True),
    "groupby": groupby,
    "batch": batch,
    "slice": slices,
    "attr": _attr,
}

TESTS["filter"] = lambda _, value: isinstance(value, str) and value in FILTERS
