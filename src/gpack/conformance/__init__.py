"""Conformance of other people's readers and writers, and of files that they wrote.

`check` puts every rule of the format to the test against a file, `dump` says what a file holds as a reader in any
language should, `vectors` are files that a reader must accept or reject, `misjudged` compares a report with a vector.
The base installation is enough.

| modules | what they do |
|---|---|
| checking, reasons, places, rendering | `check`: every rule against a file, and its report |
| walk, dumping, compare | `dump`, and where two dumps differ |
| vectors, recipe, judging | the vectors as files, and what a check of each should say |
| recipes, parts, memory_model | what the vectors are made from: valid models, and one change to a valid file |
| writer_recipes, writer_set, meaning, writer_rules | what writers are given, and what their files must say |
| protocol, process, process_group, sandbox, disk | the messages; somebody's program within bounds |
| reader_run, reader_talk, reader_judge; writer_run; workers | the runs, several programs side by side |
| outcomes, known_failures, junit, html, selection | what came of them, and how it is shown |
| cli, cli_run, cli_files | `gpack-conformance` |
| reference | gpack itself as a reader and a writer |
"""

from . import vectors
from .checking import CheckReport, Finding, RuleResult, check
from .dumping import dump
from .judging import misjudged
from .rendering import render_json, render_junit, render_text
from .vectors import Vector

__all__ = [
    "CheckReport",
    "Finding",
    "RuleResult",
    "Vector",
    "check",
    "dump",
    "misjudged",
    "render_json",
    "render_junit",
    "render_text",
    "vectors",
]
