"""Every rule of the format against somebody's file: passed, failed with its place, or not applicable, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..container.report import INTERNAL, Report, Violation
from ..errors import UsageError
from ..generated.layout import RECORD_RULES
from ..generated.rules import RULES
from ..sections.verify import Verification, verify
from .places import path_of, range_of
from .protocol import LEVELS
from .reasons import why_not

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


@dataclass(frozen=True)
class Finding:
    """One place where a rule is broken.

    Attributes:
        path: Schema path (`$.TensorIndexBin.rows[2].ggml_type`); None where there is none.
        range: Offset and length in bytes; None where it is nowhere in the file.
        message: What was found, and what must hold.
    """

    path: str | None
    range: tuple[int, int] | None
    message: str

    @property
    def place(self) -> str:
        """Where it is, for people: the path, and the first and the last byte."""
        where = self.path or "the file"
        if self.range is None:
            return where
        start, length = self.range
        return f"{where} at byte {start}" if length < 2 else f"{where} at bytes {start} to {start + length - 1}"


@dataclass(frozen=True)
class RuleResult:
    """What became of one rule.

    Attributes:
        status: passed, failed or not applicable.
        reason: Why it does not apply; empty otherwise.
        findings: The first places where it is broken, at most 100.
        count: How many there are.
    """

    rule: str
    status: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    count: int = 0

    @property
    def severity(self) -> str:
        """`error` or `warning`."""
        return RULES[self.rule].severity

    @property
    def doc(self) -> str:
        """What must hold."""
        return RULES[self.rule].doc


@dataclass(frozen=True)
class CheckReport:
    """All rules, and what became of them.

    Attributes:
        path: The file.
        size: Its size in bytes.
        level: The highest level of rules that were asked for.
        results: One for each rule of the format, in its order.
        seconds: How long it took.
        hint: What the user can do, where the file itself tells.
    """

    path: str
    size: int
    level: str
    results: tuple[RuleResult, ...]
    seconds: float
    hint: str | None = None

    @property
    def ok(self) -> bool:
        """No rule is broken; warnings do not count."""
        return not any(result.severity == "error" for result in self.failed)

    def __bool__(self) -> bool:
        """`ok`."""
        return self.ok

    @property
    def failed(self) -> tuple[RuleResult, ...]:
        """The rules that are broken, warnings too."""
        return tuple(result for result in self.results if result.status == FAILED)

    def count(self, status: str) -> int:
        """How many rules have that status."""
        return sum(result.status == status for result in self.results)

    def result(self, rule: str) -> RuleResult:
        """The result of a rule; KeyError where there is no such rule."""
        return {result.rule: result for result in self.results}[rule]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return {
            "format": "gpack-check",
            "version": 1,
            "ok": self.ok,
            "file": self.path,
            "size": self.size,
            "level": self.level,
            "seconds": round(self.seconds, 6),
            "hint": self.hint,
            "counts": {
                "passed": self.count(PASSED),
                "failed": self.count(FAILED),
                "not_applicable": self.count(NOT_APPLICABLE),
            },
            "rules": [_rule_dict(result) for result in self.results],
        }


def check(
    path: str | os.PathLike[str], *, level: str = "semantic", progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Checks every rule against a file.

    Memory stays bounded whatever the file's size. Shards of external experts are not looked at: `guild verify` does.

    Args:
        level: Rules of this level and below: `structure` hashes nothing, `digest` also hashes every section,
            `semantic` also asks whether the sections agree.
        progress: Called with (bytes hashed since the last call, bytes in all).

    Raises:
        PathError: The file is missing or cannot be read.
        UsageError: There is no such level.
    """
    if level not in LEVELS:
        raise UsageError(f"no level {level!r}: {', '.join(LEVELS)}", code="usage")
    wanted = LEVELS[: LEVELS.index(level) + 1]
    left_out = {rule for rule, said in RULES.items() if said.level not in wanted}
    found = verify(path, report=_Selective(left_out), progress=progress, digests=level != "structure")
    for violation in found.report.violations:
        if violation.rule == INTERNAL:
            raise violation.error(path)
    results = tuple(_result(rule, found, level) for rule in RULES)
    return CheckReport(found.path, found.structure.file_size, level, results, found.seconds, found.report.hint)


class _Selective(Report):
    """A report that does not take up some rules."""

    def __init__(self, left_out: Collection[str]) -> None:
        super().__init__()
        self._left_out = left_out

    def add(self, rule: str, section: str, field: str, offset: int | None, message: str) -> None:
        """Records a violation, unless its rule is left out."""
        if rule not in self._left_out:
            super().add(rule, section, field, offset, message)


def _result(rule: str, found: Verification, level: str) -> RuleResult:
    report = found.report
    if LEVELS.index(RULES[rule].level) > LEVELS.index(level):
        return RuleResult(rule, NOT_APPLICABLE, f"it is of level {RULES[rule].level}; {level} was asked for")
    if rule in report.counts:
        findings = tuple(_finding(v, found) for v in report.violations if v.rule == rule)
        return RuleResult(rule, FAILED, "", findings, report.counts[rule])
    if rule in report.checked or any(rule in RECORD_RULES[record] for record in report.records):
        return RuleResult(rule, PASSED)
    return RuleResult(rule, NOT_APPLICABLE, why_not(rule, found.structure, report))


def _finding(violation: Violation, found: Verification) -> Finding:
    return Finding(path_of(violation), range_of(violation, found.structure), violation.message)


def _rule_dict(result: RuleResult) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": result.rule,
        "level": RULES[result.rule].level,
        "severity": result.severity,
        "status": result.status,
    }
    if result.status == NOT_APPLICABLE:
        made["reason"] = result.reason
    if result.status == FAILED:
        made["count"] = result.count
        made["findings"] = [
            {"path": found.path, "range": None if found.range is None else list(found.range), "message": found.message}
            for found in result.findings
        ]
    return made
