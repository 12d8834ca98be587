"""Whether a report of `check` says of a vector what the vector's entry says: the run of our own checker."""

from __future__ import annotations

from .checking import CheckReport
from .vectors import Vector


def expected_failures(vector: Vector) -> frozenset[str]:
    """The rules that a full check finds broken; an accepted vector with a path breaks rules that only warn."""
    return frozenset(vector.rules if vector.expect == "reject" or vector.path else ())


def misjudged(vector: Vector, report: CheckReport) -> str | None:
    """What the report of a vector's file says wrongly; None where it says just what it should.

    Args:
        report: Of level semantic, or of a lower one where the vector is a large one.
    """
    if report.ok != (vector.expect == "accept"):
        return f"{vector.id} was {'accepted' if report.ok else 'rejected'}"
    found, expected = {result.rule for result in report.failed}, expected_failures(vector)
    if found == expected:
        return None
    missed, wrong = sorted(expected - found), sorted(found - expected)
    return f"{vector.id}: missed {', '.join(missed) or 'none'}; reported without reason {', '.join(wrong) or 'none'}"
