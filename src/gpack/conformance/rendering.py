"""A report of `check` as text, JSON, and JUnit XML."""

from __future__ import annotations

import json

from ..terminal.table import printable
from .checking import FAILED, NOT_APPLICABLE, PASSED, CheckReport, RuleResult
from .junit import attribute, content


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
            lines += [f"  {found.place}: {found.message}" for found in result.findings]
            if result.count > len(result.findings):
                lines.append(f"  {result.count - len(result.findings)} more like these")
        elif verbose:
            reason = f": {result.reason}" if result.reason else ""
            lines.append(f"{result.status} {result.rule}{reason}")
    sums = ", ".join(f"{report.count(status)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))
    lines.append(f"{report.path}: {'conforms' if report.ok else 'does not conform'} ({sums}; level {report.level})")
    if report.hint:
        lines.append(report.hint)
    return "\n".join(map(printable, lines)) + "\n"


def render_json(report: CheckReport) -> str:
    """The report as JSON."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=True) + "\n"


def render_junit(report: CheckReport) -> str:
    """The report as JUnit XML: a test case to a rule, so that a build server shows which rules a writer breaks."""
    failures = sum(result.status == FAILED and result.severity == "error" for result in report.results)
    head = (
        f'<testsuite name={attribute(f"gpack {report.path}")} tests="{len(report.results)}" failures="{failures}" '
        f'errors="0" skipped="{report.count(NOT_APPLICABLE)}" time="{report.seconds:.6f}">'
    )
    cases = "\n".join(map(_junit_case, report.results))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{head}\n{cases}\n</testsuite>\n</testsuites>\n'


def _junit_case(result: RuleResult) -> str:
    group = result.rule.partition(".")[0]
    start = f"<testcase classname={attribute(f'gpack.{group}')} name={attribute(result.rule)}"
    if result.status == NOT_APPLICABLE:
        return f"{start}><skipped message={attribute(result.reason)}/></testcase>"
    if result.status == PASSED:
        return f"{start}/>"
    text = "\n".join(f"{found.place}: {found.message}" for found in result.findings)
    if result.severity == "warning":
        return f"{start}><system-out>{content(text)}</system-out></testcase>"
    return f"{start}><failure message={attribute(result.doc)}>{content(text)}</failure></testcase>"
