"""A report of `check` as text, JSON, and JUnit XML."""

from __future__ import annotations

import json
import re
from xml.sax.saxutils import escape, quoteattr

from .checking import FAILED, NOT_APPLICABLE, PASSED, CheckReport, Finding, RuleResult

# Characters that XML 1.0 cannot hold.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_text(report: CheckReport, *, verbose: bool = False) -> str:
    """The report for people: the broken rules with their places, then the sums.

    Args:
        verbose: List the rules that passed and those that do not apply too.
    """
    lines = []
    for result in report.results:
        if result.status == FAILED:
            word = "FAILED" if result.severity == "error" else "WARNING"
            lines.append(f"{word} {result.rule}")
            lines += [f"  {_place(found)}: {found.message}" for found in result.findings]
            if result.count > len(result.findings):
                lines.append(f"  {result.count - len(result.findings)} more like these")
        elif verbose:
            reason = f": {result.reason}" if result.reason else ""
            lines.append(f"{result.status} {result.rule}{reason}")
    sums = ", ".join(f"{report.count(status)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))
    lines.append(f"{report.path}: {'conforms' if report.ok else 'does not conform'} ({sums}; level {report.level})")
    if report.hint:
        lines.append(report.hint)
    return "\n".join(map(_printable, lines)) + "\n"


def render_json(report: CheckReport) -> str:
    """The report as JSON."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=True) + "\n"


def render_junit(report: CheckReport) -> str:
    """The report as JUnit XML: a test case to a rule, so that a build server shows which rules a writer breaks."""
    failures = sum(result.status == FAILED and result.severity == "error" for result in report.results)
    head = (
        f'<testsuite name={_attribute(f"gpack {report.path}")} tests="{len(report.results)}" failures="{failures}" '
        f'errors="0" skipped="{report.count(NOT_APPLICABLE)}" time="{report.seconds:.6f}">'
    )
    cases = "\n".join(map(_junit_case, report.results))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{head}\n{cases}\n</testsuite>\n</testsuites>\n'


def _junit_case(result: RuleResult) -> str:
    group = result.rule.partition(".")[0]
    start = f"<testcase classname={_attribute(f'gpack.{group}')} name={_attribute(result.rule)}"
    if result.status == NOT_APPLICABLE:
        return f"{start}><skipped message={_attribute(result.reason)}/></testcase>"
    if result.status == PASSED:
        return f"{start}/>"
    told = "\n".join(f"{_place(found)}: {found.message}" for found in result.findings)
    if result.severity == "warning":
        return f"{start}><system-out>{escape(_clean(told))}</system-out></testcase>"
    return f"{start}><failure message={_attribute(result.doc)}>{escape(_clean(told))}</failure></testcase>"


def _place(found: Finding) -> str:
    where = found.path or "the file"
    if found.range is None:
        return where
    start, length = found.range
    return f"{where}, bytes {start} to {start + length}" if length else f"{where}, byte {start}"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _printable(line: str) -> str:
    """Names of hostile files must not steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
