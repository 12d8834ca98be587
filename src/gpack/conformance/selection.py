"""Which vectors and recipes are meant, and how they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from ..errors import UsageError
from ..terminal.table import render


class Item(Protocol):
    """A vector or a recipe."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def doc(self) -> str:
        """What it is about."""

    @property
    def level(self) -> str:
        """Its level."""


_T = TypeVar("_T", bound=Item)


def chosen(items: Sequence[_T], only: Sequence[str] | None) -> list[_T]:
    """Those whose ids match one of the patterns; all where there are none.

    Raises:
        UsageError: A pattern matches nothing.
    """
    if not only:
        return list(items)
    for pattern in only:
        if not any(fnmatchcase(item.id, pattern) for item in items):
            raise UsageError(f"no id matches {pattern!r}", code="usage", hint="`gpack-conformance list` shows the ids")
    return [item for item in items if any(fnmatchcase(item.id, pattern) for pattern in only)]


def lines_of(items: Sequence[Item]) -> list[str]:
    """A table of them."""
    rows = [(item.id, item.level, getattr(item, "expect", "write"), item.doc) for item in items]
    return render(rows, ("id", "level", "expect", "about")).splitlines()
