"""Checks of the files of external experts: they are no part of the pack, but it records what they must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import FormatError, GpackError
from ..generated.constants import ShardFlags
from .shards import ShardFolder
from .table import Table


@dataclass(frozen=True)
class ShardCheck:
    """What was found of one shard.

    Attributes:
        name: Its file name.
        size: Bytes, as the pack records.
        covered: The pack records a digest of every byte.
        uncovered_bytes: Bytes that no digest covers.
        bytes_hashed: Bytes that went through SHA-256.
        error: What is wrong with it; None where nothing is.
    """

    name: str
    size: int
    covered: bool
    uncovered_bytes: int
    bytes_hashed: int
    error: GpackError | None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values."""
        return {
            "name": self.name,
            "ok": self.error is None,
            "size": self.size,
            "covered": self.covered,
            "uncovered_bytes": self.uncovered_bytes,
            "error": None if self.error is None else self.error.to_dict(),
        }


def check_shards(table: Table[Any, Any], folder: str) -> list[ShardCheck]:
    """Size, header digest and, where it is recorded, full digest of every shard.

    Args:
        table: ExpertLayoutBin.
        folder: Where the shards are looked for.
    """
    try:
        shards = ShardFolder(table, folder)
    except FormatError:
        return []  # a broken table, or a path for a name: reported by the rules
    try:
        return [_check(shards, index) for index in range(len(shards))]
    finally:
        shards.close()


def _check(shards: ShardFolder, index: int) -> ShardCheck:
    row, hashed = shards.rows[index], 0
    error: GpackError | None = None
    covered = bool(row.flags & ShardFlags.HAS_SHA256)
    try:
        shard = shards.file(index)
        hashed = row.header_size
        if covered:
            shard.check_digest()
            hashed += row.file_size
    except GpackError as fault:
        error = fault
    uncovered = 0 if covered else row.file_size - row.header_size
    return ShardCheck(shards.names[index], row.file_size, covered, uncovered, hashed, error)
