"""The filters that take lists apart and put them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import text
from .budget import Budget
from .methods import pairs
from .operators import add, get_item
from .values import Generated, Group, Missing, Value, demand, fault, iterate, truth, type_name


def at_path(budget: Budget, element: Value, path: Value) -> Value:
    """The attribute or item at `a.b.0` of an element."""
    if isinstance(path, int):
        return get_item(budget, element, path)
    for part in str(path).split("."):
        element = get_item(budget, element, int(part) if part.isdigit() else part)
    return element


def as_list(budget: Budget, value: Value) -> list[Value]:
    """`value | list`."""
    found = iterate(budget, value)
    budget.make(8 * len(found))
    return list(found)


def first(budget: Budget, value: Value) -> Value:
    """`value | first`."""
    if isinstance(value, (list, tuple, str)) and value:
        return get_item(budget, value, 0)
    found = iterate(budget, value)
    return found[0] if found else Missing("there is no first element: it is empty")


def last(budget: Budget, value: Value) -> Value:
    """`value | last`."""
    if isinstance(value, (list, tuple, str)) and value:
        return get_item(budget, value, -1)
    found = iterate(budget, value)
    return found[-1] if found else Missing("there is no last element: it is empty")


def reverse(budget: Budget, value: Value) -> Value:
    """`value | reverse`."""
    if isinstance(value, str):
        budget.make(len(value))
        return text.item(value, slice(None, None, -1))
    return Generated(reversed(iterate(budget, value)))


def default(_: Budget, value: Value, default_value: Value = "", boolean: Value = False) -> Value:
    """`value | default`, with default_value, boolean."""
    absent = isinstance(value, Missing) or (truth(boolean) and not truth(value))
    return default_value if absent else value


def items(budget: Budget, value: Value) -> Value:
    """`value | items`."""
    if isinstance(value, Missing):
        return Generated()
    if not isinstance(value, dict):
        raise fault(f"a {type_name(value)} has no items")
    return Generated(pairs(budget, value))


def _sort_key(budget: Budget, value: Value, *, case_sensitive: Value) -> Value:
    if isinstance(value, str):
        budget.make(len(value))
        budget.step(len(value) >> 4)
        return text.plain(value) if truth(case_sensitive) else value.lower()
    if isinstance(demand(value), (int, float)) or value is None:
        return value
    raise fault(f"a {type_name(value)} has no place in an order")


def _sorted(budget: Budget, found: list[Value], keys: list[Value], *, reverse: Value = False) -> list[Value]:
    budget.step(len(found) * max(len(found).bit_length(), 1))
    order = sorted(range(len(found)), key=keys.__getitem__, reverse=truth(reverse))
    return [found[at] for at in order]


def sort(
    budget: Budget, value: Value, reverse: Value = False, case_sensitive: Value = False, attribute: Value = None
) -> list[Value]:
    """`value | sort`, with reverse, case_sensitive, attribute."""
    found = iterate(budget, value)
    paths = [None] if attribute is None else attribute.split(",") if isinstance(attribute, str) else [attribute]
    keys = [
        tuple(
            _sort_key(
                budget, element if path is None else at_path(budget, element, path), case_sensitive=case_sensitive
            )
            for path in paths
        )
        for element in found
    ]
    return _sorted(budget, found, keys, reverse=reverse)


def dictsort(
    budget: Budget, value: Value, case_sensitive: Value = False, by: Value = "key", reverse: Value = False
) -> list[Value]:
    """`value | dictsort`, with case_sensitive, by, reverse."""
    if not isinstance(value, dict) or by not in ("key", "value"):
        raise fault("dictsort sorts a dict by key or by value")
    found = pairs(budget, value)
    keys = [_sort_key(budget, pair[by == "value"], case_sensitive=case_sensitive) for pair in found]
    return _sorted(budget, found, keys, reverse=reverse)


def unique(budget: Budget, value: Value, case_sensitive: Value = False, attribute: Value = None) -> Value:
    """`value | unique`, with case_sensitive, attribute."""
    seen, kept = set(), Generated()
    for element in iterate(budget, value):
        found = element if attribute is None else at_path(budget, element, attribute)
        key = _sort_key(budget, found, case_sensitive=case_sensitive)
        if key not in seen:
            seen.add(key)
            kept.append(element)
    return kept


def extreme(choose: Callable[..., Any]) -> Callable[..., Value]:
    """`min` or `max`."""

    def function(budget: Budget, value: Value, case_sensitive: Value = False, attribute: Value = None) -> Value:
        found = iterate(budget, value)
        if not found:
            return Missing("there is no such element: it is empty")
        keys = [
            _sort_key(
                budget,
                element if attribute is None else at_path(budget, element, attribute),
                case_sensitive=case_sensitive,
            )
            for element in found
        ]
        return found[choose(range(len(found)), key=keys.__getitem__)]

    return function


def total(budget: Budget, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    """`value | sum`, with attribute, start."""
    summed = start
    for element in iterate(budget, value):
        budget.step()
        summed = add(budget, summed, element if attribute is None else at_path(budget, element, attribute))
    return summed


def groupby(
    budget: Budget, value: Value, attribute: Value, default: Value = None, case_sensitive: Value = False
) -> list[Value]:
    """`value | groupby`, with attribute, default, case_sensitive."""
    found = iterate(budget, value)
    groups: dict[Value, Group] = {}
    for element in found:
        label = at_path(budget, element, attribute)
        label = default if isinstance(label, Missing) and default is not None else label
        key = _sort_key(budget, label, case_sensitive=case_sensitive)
        groups.setdefault(key, Group((label, [])))[1].append(element)
    return _sorted(budget, list(groups.values()), list(groups))


def batch(budget: Budget, value: Value, linecount: int, fill_with: Value = None) -> Value:
    """`value | batch`, with linecount, fill_with."""
    found = iterate(budget, value)
    if not isinstance(linecount, int) or linecount < 1:
        raise fault("a batch has at least one element")
    rows = Generated(found[at : at + linecount] for at in range(0, len(found), linecount))
    if rows and fill_with is not None:
        budget.make(linecount)
        rows[-1] += [fill_with] * (linecount - len(rows[-1]))
    return rows


def slices(budget: Budget, value: Value, slices: int, fill_with: Value = None) -> Value:
    """`value | slice`, with slices, fill_with."""
    found = iterate(budget, value)
    if not isinstance(slices, int) or slices < 1:
        raise fault("there is at least one slice")
    budget.make(8 * slices)
    size, longer = divmod(len(found), slices)
    rows, at = Generated(), 0
    for number in range(slices):
        end = at + size + (number < longer)
        fill = [fill_with] if fill_with is not None and number >= longer > 0 else []
        rows.append(found[at:end] + fill)
        at = end
    return rows
