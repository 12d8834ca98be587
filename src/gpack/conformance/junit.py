"""A run as JUnit XML, which continuous integration shows; and text that XML can hold."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from .outcomes import Result, Run

# What XML 1.0 cannot hold even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(run: Run) -> str:
    """The document. Known failures are skipped tests; what fails the run is a failure, misbehaviour an error."""
    failed = sum(result.fails for result in run.results) + len(run.complaints)
    skipped = sum(_is_skipped(result) for result in run.results)
    subject = run.subject
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuite name={attribute(f'gpack-conformance {subject.kind} {subject.name}')}"
        f' tests="{len(run.results) + len(run.complaints)}" failures="{failed}" skipped="{skipped}"'
        f' time="{run.seconds:.3f}">',
    ]
    for result in run.results:
        lines += _case(result)
    for what, complaint in run.complaints:
        lines += [
            f'<testcase classname="run" name={attribute(what)}>',
            f"<failure message={attribute(complaint)}/>",
            "</testcase>",
        ]
    return "\n".join([*lines, "</testsuite>", ""])


def _case(result: Result) -> list[str]:
    group, _, name = result.id.rpartition("/")
    head = f'<testcase classname={attribute(group)} name={attribute(name)} time="{result.seconds:.3f}"'
    if result.fails:
        text = "\n".join([*result.differences, *result.notes, result.stderr]).strip()
        message = f"{result.outcome}: {result.message}" + (f" ({result.known})" if result.known else "")
        return [f"{head}>", f"<failure message={attribute(message)}>{content(text)}</failure>", "</testcase>"]
    if _is_skipped(result):
        return [f"{head}>", f"<skipped message={attribute(f'{result.outcome}: {result.message}')}/>", "</testcase>"]
    return [f"{head}/>"]


def _is_skipped(result: Result) -> bool:
    return not result.fails and result.outcome != "pass"


def attribute(text: str) -> str:
    """A value with its quotes."""
    return quoteattr(_clean(text))


def content(text: str) -> str:
    """Text between two tags."""
    return escape(_clean(text))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
