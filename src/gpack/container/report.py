"""What a check found: violations of rules, each with its place, and the report that collects them.

Standard library only, and light: a quick open uses it.
"""

from __future__ import annotations

from .. import errors
from ..generated.rules import RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Violations of one rule that a report keeps; the rest are counted.
KEPT_PER_RULE = 100


INTERNAL = "internal"  # stands for a rule where a check itself fails


class Violation:
    """One broken rule.

    Attributes:
        rule: Id of the rule.
        section: Name of the section, or `header`, `directory`, `footer`.
        field: Path of the field inside the section (`rows[3].offset`).
        offset: Absolute byte offset in the file, where it is known.
        message: What was found there.
    """

    __slots__ = ("field", "message", "offset", "rule", "section")

    def __init__(self, rule: str, section: str, field: str, offset: int | None, message: str) -> None:
        self.rule = rule
        self.section = section
        self.field = field
        self.offset = offset
        self.message = message

    @property
    def severity(self) -> str:
        """`error` or `warning`."""
        return severity(self.rule)

    def error(self, path: object, hint: str | None = None) -> errors.GpackError:
        """The violation as the exception that the rule asks for."""
        name = "InternalError" if self.rule == INTERNAL else RULES[self.rule].error
        kind: type[errors.GpackError] = getattr(errors, name)
        return kind(
            self.message,
            code=self.rule,
            path=path,
            section=self.section,
            field=self.field,
            offset=self.offset,
            hint=hint,
        )

    def to_dict(self) -> dict[str, Any]:
        """The violation as JSON-ready values."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "section": self.section,
            "field": self.field,
            "offset": self.offset,
            "message": self.message,
        }

    def __repr__(self) -> str:
        return f"Violation({self.rule}, {self.section}.{self.field} @ {self.offset}: {self.message})"


class Report:
    """All violations of a file: the first 100 of each rule, and how many there are.

    Attributes:
        violations: What was kept, in the order of finding.
        counts: Rule id to the number of violations, kept or not.
        checked: Ids of the rules that were put to the test somewhere, broken or not.
        records: Names of the records whose own rules were all put to the test.
        hint: What the user can do about them, where the file itself tells.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = {}
        self.checked: set[str] = set()
        self.records: set[str] = set()
        self.hint: str | None = None

    def add(self, rule: str, section: str, field: str, offset: int | None, message: str) -> None:
        """Records a violation; the message says what was found, the rule's text is put after it."""
        count = self.counts.get(rule, 0) + 1
        self.counts[rule] = count
        if count <= KEPT_PER_RULE:
            wanted = "Must hold: " if RULES[rule].severity == "error" else ""  # a warning's text says what it is about
            self.violations.append(
                Violation(rule, section, field, offset, f"{message} {wanted}{RULES[rule].doc}".lstrip())
            )

    def add_escaped(self, section: str, error: Exception) -> None:
        """Records what ended a check that should have judged the bytes: a rule of the format that stopped it, or a
        fault of this program. Either way the file was not found to be sound.
        """
        if isinstance(error, errors.GpackError) and error.code in RULES:
            self.add(error.code, error.section or section, error.field or "", error.offset, f"{error.message}.")
            return
        self.counts[INTERNAL] = self.counts.get(INTERNAL, 0) + 1
        message = f"The check ended with {type(error).__name__}: {error}. Please report it."
        self.violations.append(Violation(INTERNAL, section, "", None, message))

    def check(self, *rules: str) -> None:
        """Notes that rules are put to the test."""
        self.checked.update(rules)

    def check_record(self, record: type[Any]) -> None:
        """Notes that all rules of a record are put to the test."""
        self.records.add(record.__name__)

    def add_broken(
        self, broken: list[tuple[str, str]], record: Any, section: str, *, base: int, prefix: str = "", **facts: int
    ) -> None:
        """Records what a generated check returned for a record that starts at file offset `base`.

        Args:
            facts: What else the check knew, such as `file_size`.
        """
        known = "".join(f", {name} is {value}" for name, value in facts.items())
        for rule, name in broken:
            found = f"Found {name} = {show(getattr(record, name))}{known}."
            self.add(rule, section, prefix + name, base + record.OFFSETS[name], found)

    def insert(self, place: int, other: Report) -> None:
        """Takes over what another report found about other rules of the same file.

        Args:
            place: Before which of the violations those of the other belong.
        """
        self.violations[place:place] = other.violations
        for rule, count in other.counts.items():
            self.counts[rule] = self.counts.get(rule, 0) + count
        self.checked |= other.checked
        self.records |= other.records

    @property
    def ok(self) -> bool:
        """No error was found; warnings do not count."""
        return all(severity(rule) != "error" for rule in self.counts)

    def __bool__(self) -> bool:
        """`ok`."""
        return self.ok

    def first_error(self) -> Violation | None:
        """The first violation that is not a warning."""
        return next(self.errors(), None)

    def errors(self) -> Iterator[Violation]:
        """The violations that are not warnings."""
        return (violation for violation in self.violations if violation.severity == "error")


def severity(rule: str) -> str:
    """`error` or `warning`."""
    return "error" if rule == INTERNAL else RULES[rule].severity


def show(value: object) -> str:
    """A field's value, short enough for a message."""
    if isinstance(value, bytes):
        text = value.hex()
        return text if len(text) <= 64 else f"{text[:64]}..."
    if isinstance(value, int) and value >= 1 << 16:
        return f"{value} (0x{value:x})"
    return str(value)
