"""What gpack says of a file that somebody's writer wrote."""

from __future__ import annotations

from pathlib import Path

from ..sections.verify import verify
from .checking import check


def broken_rules(path: Path) -> list[str]:
    """The rules that a file breaks, one line for each place: rule, schema path, bytes, what was found.

    Raises:
        PathError: It cannot be read.
    """
    report = check(path)
    lines = []
    for result in report.failed:
        if result.severity == "error":
            lines += [f"{result.rule}: {finding.place}: {finding.message}" for finding in result.findings]
            if result.count > len(result.findings):
                lines.append(f"{result.rule}: {result.count - len(result.findings)} more places")
    if not lines:  # shards are looked for where a sound pack says
        shards = verify(path, shards=True).shards
        lines += [f"shard {shard.name}: {shard.error}" for shard in shards if shard.error is not None]
    return lines
