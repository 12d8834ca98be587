"""The functions that every chat template may call, as Hugging Face and Jinja define them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

from ...errors import UsageError
from .budget import Budget, limit
from .values import Function, Namespace, Value, fault, key_of, pairs_of, show

_MAX_RANGE = 100_000  # Jinja's own limit in a sandbox
_DATE_FORMAT = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*", re.DOTALL)
_SHOWN = 2000  # characters of a template's own message


def names(now: datetime | None) -> dict[str, Value]:
    """The functions by name.

    Args:
        now: What `strftime_now` takes for the present; None: the clock.
    """
    functions: dict[str, Callable[..., Value]] = {
        "raise_exception": _raise,
        "range": _range,
        "namespace": lambda _, *args, **kwargs: Namespace(_fields(*args, **kwargs)),
        "dict": lambda _, *args, **kwargs: _fields(*args, **kwargs),
        "joiner": _joiner,
        "strftime_now": lambda budget, pattern: _strftime(budget, pattern, now),
    }
    return {name: Function(name, function) for name, function in functions.items()}


def _raise(budget: Budget, message: Value = "") -> NoReturn:
    raise UsageError(
        f"the template refuses these messages: {show(budget, message)[:_SHOWN]}",
        code="chat.raised",
        section="chat template",
    )


def _range(budget: Budget, *bounds: Value) -> list[int]:
    found = range(*bounds)
    if not -(1 << 62) < found.start < 1 << 62 or not -(1 << 62) < found.stop < 1 << 62 or len(found) > _MAX_RANGE:
        raise limit(f"a range of more than {_MAX_RANGE} numbers")
    budget.make(8 * len(found))
    return list(found)


def _fields(*args: Value, **kwargs: Value) -> dict[str, Value]:
    if len(args) > 1:
        raise fault("it takes one dict at most")
    fields = {key_of(key): value for key, value in pairs_of(args[0])} if args else {}
    return fields | kwargs


def _joiner(_: Budget, sep: Value = ", ") -> Function:
    calls = 0

    def join(_: Budget) -> Value:
        nonlocal calls
        calls += 1
        return sep if calls > 1 else ""

    return Function("joiner", join)


def _strftime(budget: Budget, pattern: Value, now: datetime | None) -> str:
    if not isinstance(pattern, str) or len(pattern) > 256 or not _DATE_FORMAT.fullmatch(pattern):
        raise fault("what strftime_now takes is no short format of a date")
    budget.make(1024)
    return (now or datetime.now()).strftime(str(pattern))
