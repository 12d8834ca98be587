"""What a comparison found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
# The parts of a pack, in the order in which they are reported: what the model is, then how the file lays it out.
PARTS = ("metadata", "tensor", "tokenizer", "asset", "manifest", "header", "directory", "footer", "section", "bytes")


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        part: Of `PARTS`.
        name: The field, section, key, tensor, file or path in the manifest.
        kind: `added` (only the second file has it), `removed` (only the first), `changed`.
        changes: What about it: names to the values in both files, JSON-ready.
        detail: Numbers of a comparison of bytes or elements, and the value of what was added or removed.
    """

    part: str
    name: str
    kind: str
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready values."""
        info: dict[str, Any] = {"part": self.part, "name": self.name, "kind": self.kind}
        if self.changes:
            info["changes"] = {name: list(pair) for name, pair in self.changes.items()}
        return info | ({"detail": dict(self.detail)} if self.detail else {})


@dataclass(frozen=True)
class NotCompared:
    """Something that could not be compared in meaning; where it lies in the files, its bytes were.

    Attributes:
        part: Of `PARTS`.
        name: What it is.
        reason: Why not.
    """

    part: str
    name: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """The note as JSON-ready values."""
        return {"part": self.part, "name": self.name, "reason": self.reason}


@dataclass
class Diff:
    """The comparison of two files.

    Attributes:
        a, b: What each file is: path, size, SHA-256 of the manifest, rules that it breaks.
        differences: In the order of `PARTS`.
        not_compared: What could not be compared in meaning.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    differences: list[Difference] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Nothing differs, and nothing outside of the files was left uncompared."""
        return not self.differences and not any(note.part == "tensor" for note in self.not_compared)

    def __bool__(self) -> bool:
        """Refuses, for whether a comparison that found something counts as true is anybody's guess.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a comparison is neither true nor false: ask for .equal or .differences")

    @property
    def counts(self) -> dict[str, int]:
        """Number of differences by part."""
        found = Counter(difference.part for difference in self.differences)
        return {part: found[part] for part in PARTS if found[part]}

    def add(self, part: str, name: str, kind: str, **rest: Any) -> None:
        """Notes a difference."""
        self.differences.append(Difference(part, name, kind, **rest))

    def skip(self, part: str, name: str, reason: object) -> None:
        """Notes what could not be compared."""
        self.not_compared.append(NotCompared(part, name, str(reason)))

    def sort(self) -> None:
        """Puts the differences into the order of `PARTS`; inside a part they stay as they were found."""
        self.differences.sort(key=lambda difference: PARTS.index(difference.part))

    def to_dict(self) -> dict[str, Any]:
        """The whole as JSON-ready values."""
        return {
            "equal": self.equal,
            "a": self.a,
            "b": self.b,
            "counts": self.counts,
            "differences": [difference.to_dict() for difference in self.differences],
            "not_compared": [note.to_dict() for note in self.not_compared],
        }
