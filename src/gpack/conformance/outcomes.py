"""What came of each vector or recipe, and of a whole run; as JSON and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..container.strict_json import shorten
from ..errors import FormatError, PathError

RESULT_FORMAT, RESULT_VERSION = "gpack-conformance-result", 1
_MAX_RESULT_BYTES = 256 << 20
_MAX_RESULT_DEPTH = 64

Outcome: TypeAlias = Literal[
    "pass",
    "skip",
    "accepted",
    "rejected",
    "class",
    "dump",
    "refused",
    "missing",
    "rules",
    "meaning",
    "bytes",
    "leftovers",
    "crash",
    "timeout",
    "memory",
    "processes",
    "output",
    "disk",
    "protocol",
    "touched",
    "not-run",
]
OUTCOMES: dict[Outcome, str] = {
    "pass": "as it should be",
    "skip": "the program said that it cannot do this, and why",
    "accepted": "a reader accepted a file that must be rejected",
    "rejected": "a reader rejected a file that must be accepted",
    "class": "a reader rejected a file, but for a reason of another class",
    "dump": "a reader accepted a file, but read other values than are in it",
    "refused": "a writer said that it cannot write this",
    "missing": "a writer ended well, but there is no regular file where its output should be",
    "rules": "a writer's file breaks rules of the format",
    "meaning": "a writer's file keeps the rules, but does not say what the recipe says",
    "bytes": "a writer's file means the same, but its bytes are not those of the canonical form",
    "leftovers": "a writer left other files behind",
    "crash": "the program ended without an answer",
    "timeout": "the program took too long",
    "memory": "the program used more memory than it may",
    "processes": "the program started more processes than it may",
    "output": "the program wrote more to its output than it may",
    "disk": "the program filled its folders with more than it may",
    "protocol": "the program said something that is not of the protocol",
    "touched": "the program changed its input, or wrote beside its folder",
    "not-run": "the program failed too often, so this was not tried",
}
GOOD: tuple[Outcome, ...] = ("pass", "skip")
# What is wrong whatever the vector is worth.
MISBEHAVIOUR: tuple[Outcome, ...] = (
    "leftovers",
    "crash",
    "timeout",
    "memory",
    "processes",
    "output",
    "disk",
    "protocol",
    "touched",
    "not-run",
)
# What is said of a known failure.
Known: TypeAlias = Literal["", "known", "fixed", "changed"]
_MAX_DIFFERENCES = 50


@dataclass
class Result:
    """What came of one vector or recipe.

    Attributes:
        id: Id of the vector or recipe.
        level: Its level.
        required: Recommended ones do not fail a run, unless the program misbehaves.
        expect: What should have come of it, in words.
        message: What came of it instead.
        differences: The single differences, each beginning with a JSON path, or the broken rules.
        notes: What else was noticed, and fails nothing.
        stderr: The end of what the program said on standard error, where it did not pass.
        known: Whether a list of known failures names it: `known`, or `fixed` (it passes), or `changed` (it fails
            otherwise than the list says).
    """

    id: str
    level: str
    required: bool
    expect: str
    outcome: Outcome
    message: str = ""
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stderr: str = ""
    seconds: float = 0.0
    known: Known = ""

    @property
    def good(self) -> bool:
        """Whether it passed or was skipped."""
        return self.outcome in GOOD

    @property
    def fails(self) -> bool:
        """Whether it fails the run."""
        if self.known:
            return self.known != "known"
        return not self.good and (self.required or self.outcome in MISBEHAVIOUR)

    def differ(self, found: Sequence[str]) -> None:
        """Keeps the first differences, and how many there are."""
        self.differences = list(found[:_MAX_DIFFERENCES])
        if len(found) > _MAX_DIFFERENCES:
            self.differences.append(f"and {len(found) - _MAX_DIFFERENCES} more")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is empty is left out."""
        made: dict[str, Any] = {
            "id": self.id,
            "level": self.level,
            "required": self.required,
            "expect": self.expect,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 6),
        }
        extra = {
            "message": self.message,
            "differences": self.differences,
            "notes": self.notes,
            "stderr": self.stderr,
            "known": self.known,
        }
        return made | {key: value for key, value in extra.items() if value}


@dataclass
class Subject:
    """The program that was tested.

    Attributes:
        kind: `reader` or `writer`.
        level: The level up to which it was asked.
    """

    kind: str
    name: str
    language: str
    version: str
    level: str
    command: list[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dict(vars(self))


def program_name(command: Sequence[str]) -> str:
    """What a program is called that does not say it itself: the script that an interpreter runs, else the program."""
    script = next((part for part in command[1:] if not part.startswith("-") and Path(part).is_file()), command[0])
    return Path(script).stem


@dataclass
class Run:
    """What came of a whole run.

    Attributes:
        notes: What was noticed that belongs to no single vector.
        stale: Entries of the known-failure list that name nothing.
    """

    subject: Subject
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Nothing fails the run."""
        return not self.complaints and not any(result.fails for result in self.results)

    def __bool__(self) -> bool:
        """`ok`."""
        return self.ok

    @property
    def complaints(self) -> list[tuple[str, str]]:
        """What fails the run beside its results: what is meant, and what is wrong with it."""
        made = [(entry, "the list of known failures names what does not exist") for entry in self.stale]
        if all(result.outcome == "skip" for result in self.results):  # a check that cannot fail is none
            what = "everything was skipped" if self.results else "nothing was asked"
            made.append(("the run", f"{what}, so it shows nothing"))
        return made

    @property
    def counts(self) -> dict[str, int]:
        """How many came out in which way, in the order of `OUTCOMES`."""
        counted = Counter(result.outcome for result in self.results)
        return {outcome: counted[outcome] for outcome in OUTCOMES if outcome in counted}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, as spec/conformance/result.schema.json has it."""
        from .. import __version__

        return {
            "format": RESULT_FORMAT,
            "version": RESULT_VERSION,
            "gpack": __version__,
            "ok": self.ok,
            "subject": self.subject.to_dict(),
            "seconds": round(self.seconds, 6),
            "counts": self.counts,
            "notes": self.notes,
            "stale": self.stale,
            "results": [result.to_dict() for result in self.results],
        }


def load_run(path: str | Path) -> Run:
    """Reads a run's JSON, with suspicion: it may come from anybody.

    Raises:
        PathError: It cannot be read.
        FormatError: It is no result of a run (`conformance.result`).
    """
    from ..container.strict_json import parse_object

    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise PathError("the file does not exist", code="io.not_found", path=path) from error
    except OSError as error:
        raise PathError(error.strerror or str(error), code="io.read", path=path) from error
    try:
        info = parse_object(data, max_bytes=_MAX_RESULT_BYTES, max_depth=_MAX_RESULT_DEPTH, plain=False)
        return _run_of(info)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"it is no result of a run: {error}",
            code="conformance.result",
            path=path,
            hint="give files that `gpack-conformance reader --json FILE` has written",
        ) from error


def _run_of(info: dict[str, Any]) -> Run:
    if (info.get("format"), info.get("version")) != (RESULT_FORMAT, RESULT_VERSION):
        raise ValueError(f"format and version are {shorten(info.get('format'))}, {shorten(info.get('version'))}")
    subject = Subject(
        **{name: _text(info["subject"][name]) for name in ("kind", "name", "language", "version", "level")},
        command=_texts(info["subject"]["command"]),
    )
    run = Run(
        subject,
        [_result_of(item) for item in info["results"]],
        _texts(info["notes"]),
        _texts(info["stale"]),
        float(info["seconds"]),
    )
    ids = [result.id for result in run.results]
    if len(set(ids)) != len(ids):
        raise ValueError("an id stands twice")
    return run


def _result_of(info: dict[str, Any]) -> Result:
    if info["outcome"] not in OUTCOMES or info.get("known", "") not in get_args(Known):
        raise ValueError(f"there is no outcome {shorten(info['outcome'])} {shorten(info.get('known', ''))}")
    return Result(
        _text(info["id"]),
        _text(info["level"]),
        bool(info["required"]),
        _text(info["expect"]),
        info["outcome"],
        _text(info.get("message", "")),
        _texts(info.get("differences", [])),
        _texts(info.get("notes", [])),
        _text(info.get("stderr", "")),
        float(info["seconds"]),
        info.get("known", ""),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shorten(value)} is no text")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError(f"{shorten(value)} is no list of texts")
    return [_text(item) for item in value]


def dump_json(value: Any) -> str:
    """JSON for a file: indented, lone surrogates escaped."""
    return json.dumps(value, indent=1) + "\n"
