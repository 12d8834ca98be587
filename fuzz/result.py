"""What a run of one target came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpack.terminal.table import render

GOAL_PASSED, GOAL_QUIET = 0.5, 100_000  # share of inputs; executions


@dataclass(frozen=True)
class Result:
    """A run of one target.

    Attributes:
        executions: Inputs that were tried.
        passed: Of these, inputs whose header held, so that what comes after it was reached.
        opened: Of these, inputs that were taken for good.
        edges: Edges of the program that were reached; None where nobody counts them.
        since_edge: Executions since the last new one.
        finding: What was found; None where nothing was.
        skipped: Why it did not run.
        by: What ran it.
    """

    target: str
    executions: int = 0
    passed: int = 0
    opened: int = 0
    edges: int | None = None
    since_edge: int | None = None
    finding: str | None = None
    skipped: str | None = None
    by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Names and values."""
        return asdict(self)


def table(results: Iterable[Result]) -> str:
    """A line for each target."""
    rows: list[Sequence[str]] = []
    for result in results:
        if result.skipped is not None:
            rows.append((result.target, "skipped", "", "", "", "", result.skipped))
            continue
        executions = max(result.executions, 1)
        rows.append(
            (
                result.target,
                f"{result.executions:,}",
                f"{result.passed / executions:.0%}",
                f"{result.opened / executions:.0%}",
                "" if result.edges is None else str(result.edges),
                "" if result.since_edge is None else f"{result.since_edge:,}",
                "FOUND" if result.finding else "nothing found",
            )
        )
    names = ("target", "executions", "header held", "taken", "edges", "since the last new one", "outcome")
    return render(rows, names)
