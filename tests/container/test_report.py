"""Violations and the report that collects them."""

from __future__ import annotations

from gpack import errors
from gpack.container.report import Report


def test_report_by_hand() -> None:
    report = Report()
    assert report.first_error() is None
    report.add("expert.uncovered", "ExpertLayoutBin", "shards[0].sha256", None, "It says.")
    assert report.first_error() is None
    report.add("header.magic", "header", "magic", 0, "Found x.")
    first = report.first_error()
    assert first is not None
    error = first.error("file.gpack")
    assert type(error) is errors.FormatError
    assert (error.code, error.path, error.section, error.field, error.offset) == (
        "header.magic",
        "file.gpack",
        "header",
        "magic",
        0,
    )
    assert first.to_dict().keys() == {"rule", "severity", "section", "field", "offset", "message"}
    assert report.violations[0].severity == "warning"
    # A warning says what is so, an error what should be.
    assert report.violations[0].message == "It says. A shard has no full digest: its tensor bytes are covered by none."
    assert first.message.startswith("Found x. Must hold: ")
