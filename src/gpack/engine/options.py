"""Options of engines and texts: defaults and limits."""

from __future__ import annotations

import operator

from ..errors import UsageError

DEFAULT_CONTEXT = 4096  # positions, where the model was trained on more and nothing else is asked for
DEFAULT_BATCH = 512
MOST_OPEN = 64  # tokens of a chunk that stays open
MOST_TOKENS = 1 << 48  # memory ends long before that


def count_option(value: int | None, field: str, default: int, most: int) -> int:
    """An argument that counts something.

    Raises:
        UsageError: It is not a whole number, or not from 1 to `most`.
    """
    if value is None:
        return default
    try:
        chosen = operator.index(value)
    except TypeError as error:
        raise UsageError(f"{field} is {value!r}, not a whole number", code="usage", field=field) from error
    if not 1 <= chosen <= most:
        raise UsageError(f"{field} is {chosen}, not between 1 and {most}", code="usage", field=field)
    return chosen
