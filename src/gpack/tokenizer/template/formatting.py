"""Strings formatted as `%` and as `str.format` do, fields bounded, without attributes and items of what is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter

from . import text
from .budget import Budget, limit
from .values import NUMBERS, Missing, Value, concat, demand, fault, show, type_name

_MAX_WIDTH = 10_000  # of a formatted field
_PRINTF = re.compile(
    r"%(?:\((?P<name>[^)]*)\))?(?P<flags>[-+ #0]*)(?P<width>\d{1,6})?(?:\.(?P<digits>\d{1,6}))?(?P<kind>.)"
)
_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?(?P<width>\d{0,6})[_,]?(?:\.(?P<digits>\d{1,6}))?[a-zA-Z%]?", re.DOTALL)


def printf(budget: Budget, template: str, values: list[Value], whole: Value) -> str:
    """`template % values`.

    Raises:
        FormatError: `chat.render` where they do not fit together.
    """
    budget.make(len(template))
    parts, at, waiting = [], 0, iter(values)
    named = False
    for match in _PRINTF.finditer(template):
        parts.append(text.item(template, slice(at, match.start())))
        at = match.end()
        budget.step()
        if match["kind"] == "%":
            parts.append("%")
            continue
        if match["name"] is not None:
            named = True
            found = (
                whole.get(match["name"], Missing(f"there is no {match['name']!r} to format"))
                if isinstance(whole, dict)
                else Missing("what is formatted has no names")
            )
            value = demand(found)
        else:
            value = next(waiting, _NOTHING)
        parts.append(_printed(budget, match, value))
    rest = text.item(template, slice(at, None))
    if "%" in rest:
        raise fault("an incomplete format")
    if not named and next(waiting, _NOTHING) is not _NOTHING and not isinstance(whole, dict):
        raise fault("not all values were used by the format")
    return concat(budget, [*parts, rest])


_NOTHING = object()


def _printed(budget: Budget, match: re.Match[str], value: Value) -> str:
    if value is _NOTHING:
        raise fault("there are not enough values for the format")
    kind, width, digits = match["kind"], int(match["width"] or 0), int(match["digits"] or 0)
    if max(width, digits) > _MAX_WIDTH:
        raise limit(f"a field of {max(width, digits)} characters")
    if kind in "sra":
        shown = show(budget, value)
        if kind != "s" and isinstance(value, str):
            shown = repr(value)
        if match["digits"] is not None:
            shown = text.item(shown, slice(0, digits))
        gap = " " * (width - len(shown))
        return concat(budget, (shown, gap) if "-" in match["flags"] else (gap, shown))
    if kind not in "diouxXeEfFgGc" or not isinstance(demand(value), (*NUMBERS, str)):
        raise fault(f"%{kind} cannot show a {type_name(value)}")
    pattern = "%" + match["flags"] + (match["width"] or "") + (f".{digits}" if match["digits"] else "") + kind
    return str(pattern % value)


def format_fields(budget: Budget, template: str, *args: Value, **kwargs: Value) -> str:
    """`template.format(...)`: fields by place or name, with a format, without attributes and items."""
    budget.make(len(template))
    parts: list[str] = []
    ours = 0 not in text.mask_of(template)
    counter: Iterator[Value] = iter(args)
    for literal, field, spec, conversion in Formatter().parse(text.plain(template)):
        if literal:
            parts.append(text.trusted(literal) if ours else literal)
        if field is None:
            continue
        if field and not (field.isdigit() or field.isidentifier()):
            raise fault(f"the field {field!r} reaches into its value", code="chat.unsafe")
        value = next(counter, _NOTHING) if not field else _field(field, args, kwargs)
        if value is _NOTHING:
            raise fault("there are not enough values for the format")
        parts.append(_formatted(budget, value, spec or "", conversion))
    return concat(budget, parts)


def _field(field: str, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    if field.isdigit():
        at = int(field[:9])
        return args[at] if at < len(args) else _NOTHING
    return kwargs.get(field, _NOTHING)


def _formatted(budget: Budget, value: Value, spec: str, conversion: str | None) -> str:
    if conversion in ("r", "a"):
        value = repr(value) if isinstance(value, str) else show(budget, value)
    if not spec:
        return show(budget, value)
    match = _SPEC.fullmatch(spec)
    if match is None or max(int(match["width"] or 0), int(match["digits"] or 0)) > _MAX_WIDTH:
        raise fault(f"the format {spec!r} is not understood")
    if not isinstance(demand(value), (str, *NUMBERS)):
        raise fault(f"the format {spec!r} cannot show a {type_name(value)}")
    return format(text.plain(value) if isinstance(value, str) else value, spec)
