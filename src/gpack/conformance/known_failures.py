"""Lists of known failures. They can only shrink: an entry that passes, or fails otherwise than it says, fails the run.

A line is an id, a blank and an outcome; what follows `#` is a remark:

    invalid/header.magic/zero   accepted   # we do not look at the magic yet
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from ..errors import FormatError, PathError
from .outcomes import GOOD, OUTCOMES, Outcome, Run

_MAX_BYTES = 16 << 20


def read_known_failures(path: str | os.PathLike[str]) -> dict[str, Outcome]:
    """The list: id to the outcome that is known.

    Raises:
        PathError: It cannot be read.
        FormatError: A line is no entry, or an id stands twice (`conformance.known_failures`).
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("utf-8")
    except FileNotFoundError as error:
        raise PathError("the file does not exist", code="io.not_found", path=path) from error
    except OSError as error:
        raise PathError(error.strerror or str(error), code="io.read", path=path) from error
    except UnicodeDecodeError as error:
        raise _fault(path, 1, "it is no UTF-8") from error
    if len(text) > _MAX_BYTES:
        raise _fault(path, 1, f"it has over {_MAX_BYTES} bytes")
    known: dict[str, Outcome] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise _fault(path, number, "a line is an id and an outcome")
        name, outcome = words
        if outcome not in OUTCOMES or outcome in GOOD:
            failures = ", ".join(item for item in OUTCOMES if item not in GOOD)
            raise _fault(path, number, f"{outcome!r} is no failure; those are {failures}")
        if name in known:
            raise _fault(path, number, f"{name} stands twice")
        known[name] = outcome
    return known


def apply_known_failures(run: Run, known: Mapping[str, Outcome], everything: Collection[str]) -> None:
    """Marks the results that the list names, and the entries that name nothing.

    Args:
        everything: All ids that there are, whether they were run or not.
    """
    for result in run.results:
        listed = known.get(result.id)
        if listed is None:
            continue
        if result.outcome == "pass":
            result.known = "fixed"
        else:
            result.known = "known" if result.outcome == listed else "changed"
    run.stale = sorted(known.keys() - set(everything))


def list_entry(name: str, outcome: Outcome) -> str:
    """A line of such a list."""
    return f"{name} {outcome}"


def _fault(path: str | os.PathLike[str], line: int, message: str) -> FormatError:
    return FormatError(f"line {line}: {message}", code="conformance.known_failures", path=Path(path))
