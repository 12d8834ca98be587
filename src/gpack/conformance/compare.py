"""Two dumps, or two of anything JSON: where they differ, by JSON path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..container.strict_json import shorten

# What a section's part of a dump may leave out at the depth `container`.
_TABLE_PARTS = ("header", "rows", "shards")


def at_depth(dump: dict[str, Any], depth: str) -> dict[str, Any]:
    """A dump as far as a reader of that depth has to give it; what is of another form stays as it is."""
    sections = dump.get("sections")
    if depth == "tables" or not isinstance(sections, list):
        return dump
    return {**dump, "sections": [_without_tables(section) for section in sections]}


def _without_tables(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {key: value for key, value in section.items() if key not in _TABLE_PARTS}


def differences(expected: Any, found: Any, path: str = "$") -> Iterator[str]:
    """Every place where `found` is not what is expected: path, what is there, what should be.

    A number that stands as text, or text that stands as a number, differs: JSON keeps only so many digits, so the form
    of every value is laid down.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            place = f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"
            if key not in found:
                yield f"{place} is missing, should be {shorten(expected[key])}"
            elif key not in expected:
                yield f"{place} is {shorten(found[key])}, should not be there"
            else:
                yield from differences(expected[key], found[key], place)
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path} has {len(found)} items, should have {len(expected)}"
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not _equal(expected, found):
        yield f"{path} is {shorten(found)}, should be {shorten(expected)}"


def _equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return expected == found  # 1.0 is 1 in JSON
    return type(expected) is type(found) and bool(expected == found)
