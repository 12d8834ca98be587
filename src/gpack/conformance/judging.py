"""What gpack says of a file that somebody's writer wrote."""

from __future__ import annotations

from pathlib import Path

from ..sections.verify import verify


def broken_rules(path: Path) -> list[str]:
    """The rules that a file breaks, one line each: rule, place, byte, what was found.

    Raises:
        PathError: It cannot be read.
    """
    result = verify(path, shards=True)
    lines = []
    for violation in result.report.errors():
        place = f"{violation.section}.{violation.field}".rstrip(".")
        at = "" if violation.offset is None else f" at byte {violation.offset}"
        lines.append(f"{violation.rule}: {place}{at}: {violation.message}")
    lines += [f"shard {shard.name}: {shard.error}" for shard in result.shards if shard.error is not None]
    return lines
