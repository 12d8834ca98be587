"""Conformance of other people's readers and writers, and of files that they wrote.

`check` puts every rule of the format to the test against a file, `dump` says what a file holds as a reader in any
language should, `vectors` are files that a reader must accept or reject,
`misjudged` compares a report with a vector. The base installation is enough.
"""

from . import vectors
from .checking import CheckReport, Finding, RuleResult, check
from .dumping import dump
from .judging import misjudged
from .rendering import render_json, render_junit, render_text
from .vectors import Vector

__all__ = [
    "CheckReport", "Finding", "RuleResult", "Vector",
    "check", "dump", "misjudged", "render_json", "render_junit", "render_text", "vectors",
]  # fmt: skip
