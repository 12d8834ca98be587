"""JSON read with suspicion: bounded size and depth, no doubled keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from ..generated.constants import MAX_NUMBER, MAX_NUMBER_LENGTH


class JsonFaultError(ValueError):
    """JSON that is not what it may be."""


def parse_object(
    data: bytes, *, max_bytes: int, max_depth: int, plain: bool, as_written: bool = False
) -> dict[str, Any]:
    """The object that the JSON text is.

    Args:
        max_bytes: The longest text that is looked at.
        max_depth: The deepest nesting.
        plain: Refuse what JSON itself lacks (NaN, Infinity), and numbers that are too long or too large for a double;
            a whole number below 2^53 is an `int` however it is written, any other a `float`.
        as_written: Then what has a fraction or an exponent is a `float`, whole or not.

    Raises:
        ValueError: No UTF-8, no JSON, not an object, a doubled key, too long or nested too deeply.
    """
    if len(data) > max_bytes:
        raise JsonFaultError(f"it has {len(data)} bytes, and may have {max_bytes}")
    text = data.decode("utf-8")
    _check_depth(text, max_depth)
    strictness: dict[str, Any] = {}
    if plain:
        fraction = _fraction if as_written else _number
        strictness = {"parse_constant": _refuse_constant, "parse_int": _number, "parse_float": fraction}
    value = json.loads(text, object_pairs_hook=_unique, **strictness)
    if not isinstance(value, dict):
        raise JsonFaultError(f"it is a {type(value).__name__}, not an object")
    return value


def shorten(value: Any) -> str:
    """A value for a message, whatever its size: printable ASCII, at most 80 characters."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_depth(text: str, max_depth: int) -> None:
    """Nesting is counted before the parser sees it, for the parser recurses.

    A string that never ends is skipped too: trying again after each of its quotes would take quadratic time.
    """
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', text, re.DOTALL):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > max_depth:
                raise JsonFaultError(f"it is nested more than {max_depth} deep at character {match.start()}")
        elif mark in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonFaultError(f"the key {shorten(key)} stands twice")
            seen.add(key)
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise JsonFaultError(f"{name} is no JSON")


def _number(text: str) -> int | float:
    """A number as JSON's numbers are meant, a double."""
    value = _fraction(text)
    return int(value) if value.is_integer() and abs(value) <= MAX_NUMBER else value


def _fraction(text: str) -> float:
    if len(text) > MAX_NUMBER_LENGTH:
        raise JsonFaultError(f"the number {text[:20]}... has more than {MAX_NUMBER_LENGTH} characters")
    value = float(text)
    if not math.isfinite(value):
        raise JsonFaultError(f"the number {text} is too large")
    return value
