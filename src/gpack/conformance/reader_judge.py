"""Which vectors a reader is asked about, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..terminal.units import plural
from .compare import at_depth, differences
from .outcomes import Result
from .process import Limits
from .protocol import DEPTHS, LEVELS, Answer

# First parts of schema paths that lie outside of the tables.
_CONTAINER_PARTS = ("header", "footer", "sections", "ManifestJson")


class Vector(Protocol):
    """What the runner needs of a vector; `gpack.conformance.vectors.Vector` is one."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def level(self) -> str:
        """Which readers are asked about it."""

    @property
    def required(self) -> bool:
        """Whether an answer that is not right fails the run."""

    @property
    def expect(self) -> str:
        """`accept` or `reject`."""

    @property
    def path(self) -> str | None:
        """Schema path of the field that was changed (`$.header.magic`); None where no single field was."""

    @property
    def large(self) -> bool:
        """Whether it is a sparse file that is larger than memory."""

    @property
    def cls(self) -> str | None:
        """The class of the rejection; None where the file is valid."""

    def write(self, folder: Path) -> Path:
        """Writes the file, and the shards beside it, into a folder; the file's path."""


_V = TypeVar("_V", bound=Vector)


@dataclass(frozen=True)
class ReaderOptions:
    """How a reader is run.

    Attributes:
        level: The highest level that it is asked about; None: what it says of itself.
        per_file: The command is started for every file, with its path as the last argument.
        depth: How much its dumps hold, where it does not say it itself.
        large: Ask about sparse files of many GiB whatever the reader does; else only of level `structure`, which has
            no reason to read them whole.
        strict_class: A rejection for a reason of another class fails; else it is noted.
        jobs: Programs that run side by side.
        most_faults: After so many crashes and the like the rest is not tried.
    """

    level: str | None = None
    per_file: bool = False
    depth: str = DEPTHS[-1]
    large: bool = False
    strict_class: bool = False
    jobs: int = 1
    most_faults: int = 100
    limits: Limits = field(default_factory=Limits)


def asked(vectors: Sequence[_V], level: str, depth: str = DEPTHS[-1], *, large: bool = False) -> list[_V]:
    """The vectors that a reader is asked about.

    Args:
        level: The highest level that it knows.
        depth: One that does not look into tables is not asked about broken ones.
        large: Ask about the large ones too where the reader hashes what it reads.
    """
    highest = LEVELS.index(level)
    return [
        vector
        for vector in vectors
        if LEVELS.index(vector.level) <= highest
        and (depth != "container" or _is_outside_tables(vector))
        and (large or level == LEVELS[0] or not vector.large)
    ]


def _is_outside_tables(vector: Vector) -> bool:
    """Whether it can be judged without looking into a section: by the fixed records, the manifest and digests."""
    if vector.expect == "accept" or vector.path is None or vector.level == "digest":
        return True
    part = vector.path.removeprefix("$.").partition(".")[0].partition("[")[0]
    return part in _CONTAINER_PARTS


class Judge:
    """Turns answers into results."""

    def __init__(self, options: ReaderOptions, depth: str, dump: Callable[[Path], dict[str, Any]]) -> None:
        self._options, self._depth, self._dump = options, depth, dump

    def blank(self, vector: Vector) -> Result:
        """A result that says nothing yet."""
        expect = "accept" if vector.expect == "accept" else f"reject ({vector.cls})"
        return Result(vector.id, vector.level, vector.required, expect, "pass")

    def judge(self, vector: Vector, path: Path, answer: Answer, result: Result) -> None:
        """Fills in what an answer means."""
        if answer.verdict == "skip":
            result.outcome, result.message = "skip", answer.message
        elif answer.verdict == "accept" and vector.expect == "accept":
            found = list(differences(at_depth(self._dump(path), self._depth), at_depth(answer.dump or {}, self._depth)))
            if found:
                result.outcome, result.message = (
                    "dump",
                    f"the dump differs from the file in {plural(len(found), 'place')}",
                )
                result.differ(found)
        elif answer.verdict == "accept":
            result.outcome, result.message = "accepted", "it accepted the file"
        elif vector.expect == "accept":
            result.outcome, result.message = "rejected", f"{answer.reject_class}: {answer.message}"
        elif answer.reject_class != vector.cls:
            self._other_class(vector, answer, result)

    def _other_class(self, vector: Vector, answer: Answer, result: Result) -> None:
        """Damage and age must not be mixed up; how deep a damage lies is a matter of where a reader looks first."""
        said = f"the class is {vector.cls}, it said {answer.reject_class}: {answer.message}"
        if self._options.strict_class or "unsupported" in (answer.reject_class, vector.cls):
            result.outcome, result.message = "class", said
        else:
            result.notes.append(said)
