"""The page and the JUnit document: whole, self-contained, and closed to what strangers write."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from gpack.conformance.html import html_report
from gpack.conformance.junit import junit
from gpack.conformance.outcomes import OUTCOMES, Outcome, Result, Run, Subject
from gpack.errors import UsageError

HOSTILE = "</style></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{}&amp;\0\x1b[31m\ud800\uffff"
VOID = {"meta", "input"}


def made(name: str = "r", **outcomes: Outcome) -> Run:
    run = Run(Subject("reader", name, "python", "1", "digest", ["r"]), seconds=2.0)
    run.results = [Result(name, "structure", True, "accept", outcome, "because") for name, outcome in outcomes.items()]
    return run


class Page(HTMLParser):
    """Checks that tags match, and keeps what is of interest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_the_matrix() -> None:
    """Two programs, three vectors: one that only one was asked about."""
    page = Page(html_report([made("one", a="pass", b="accepted"), made("two", b="pass", c="skip")]))
    assert page.rows[0] == ["vector", "level", "one", "two"]
    assert [row for row in page.rows if len(row) == 4][1:] == [
        ["a", "structure", "✓", ""],
        ["b", "structure", "accepted", "✓"],
        ["c", "structure", "", "skip"],
    ]


def test_a_page_says_what_was_given_and_what_was_not() -> None:
    text = html_report([made("one", a="pass", b="pass"), made("two", b="pass")])
    assert "<p>2 vectors, 2 programs.</p>" in text
    assert "<dt>empty</dt><dd>not asked" in text
    whole = html_report([made("one", a="pass")])
    assert "<p>1 vector, 1 program.</p>" in whole
    assert "<dt>empty</dt>" not in whole


def test_links_lead_to_what_happened() -> None:
    page = Page(html_report([made("one", a="crash", b="skip")]))
    targets = {attributes["id"] for tag, attributes in page.tags if tag == "details"}
    links = {(attributes["href"] or "").removeprefix("#") for tag, attributes in page.tags if tag == "a"}
    assert links == targets
    assert len(links) == 2


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = html_report([made("one", **dict.fromkeys(OUTCOMES, "crash"))])  # type: ignore[arg-type]
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint(
        {"script", "img", "link", "iframe", "object", "form", "svg", "base"}
    )
    for _, attributes in page.tags:
        assert not {"src", "srcset", "style-src", "action", "onclick"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    policy = next(attributes for tag, attributes in page.tags if attributes.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_hostile_text_stays_text() -> None:
    run = made(HOSTILE)
    run.subject.command = [HOSTILE]
    run.subject.language = run.subject.version = HOSTILE
    run.results = [Result(HOSTILE, HOSTILE, True, HOSTILE, "crash", HOSTILE, [HOSTILE], [HOSTILE], HOSTILE)]
    run.notes, run.stale = [HOSTILE], [HOSTILE]
    page = Page(html_report([run], title=HOSTILE))
    assert {tag for tag, _ in page.tags} <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "div",
        "span",
        "b",
        "i",
        "small",
        "input",
        "label",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "a",
        "details",
        "summary",
        "pre",
        "dl",
        "dt",
        "dd",
    }
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    html_report([run], title=HOSTILE).encode("utf-8", "backslashreplace")


def test_what_fails_is_open_and_what_is_known_is_not() -> None:
    run = made("one", a="crash", b="crash")
    run.results[1].known = "known"
    page = Page(html_report([run]))
    assert ["open" in attributes for tag, attributes in page.tags if tag == "details"] == [True, False]


def test_a_page_of_nothing() -> None:
    with pytest.raises(UsageError):
        html_report([])
    Page(html_report([made("one")]))


def test_junit() -> None:
    run = made("one", **{"a/ok": "pass", "a/bad": "crash", "a/skip": "skip", "a/known": "dump", "a/mild": "accepted"})  # type: ignore[arg-type]
    run.results[3].known = "known"
    run.results[4].required = False
    run.stale = ["gone"]
    suite = ET.fromstring(junit(run))
    assert suite.attrib["tests"] == "6"
    assert suite.attrib["failures"] == "2"
    assert suite.attrib["skipped"] == "3"
    found = {f"{case.attrib['classname']}/{case.attrib['name']}": [child.tag for child in case] for case in suite}
    assert found == {
        "a/ok": [],
        "a/bad": ["failure"],
        "a/skip": ["skipped"],
        "a/known": ["skipped"],
        "a/mild": ["skipped"],
        "run/gone": ["failure"],
    }
    assert suite[1][0].attrib["message"] == "crash: because"


def test_what_shows_nothing_fails_in_every_report() -> None:
    run = made("one", a="skip", b="skip")
    suite = ET.fromstring(junit(run))
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("3", "1", "2")
    assert suite[2][0].attrib["message"] == "everything was skipped, so it shows nothing"
    assert "<code>the run</code>: everything was skipped, so it shows nothing" in html_report([run])


def test_junit_of_hostile_text() -> None:
    run = made(HOSTILE)
    run.results = [Result(HOSTILE, "structure", True, HOSTILE, "crash", HOSTILE, [HOSTILE], [HOSTILE], HOSTILE)]
    suite = ET.fromstring(junit(run).encode())
    assert len(suite) == 1
    assert "<script>" in suite[0][0].attrib["message"]
    assert re.search("[\x00\x1b]", suite[0][0].attrib["message"]) is None
