"""Every rule of the schema: a pack that breaks it is found, at the right place, and nothing else is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpack import errors
from gpack.conformance.recipes import bases as packs
from gpack.conformance.recipes.broken import CASES, Case
from gpack.conformance.recipes.case import Base
from gpack.container.reader import Container
from gpack.generated.rules import RULES
from gpack.sections.verify import verify


def closure(rule: str) -> set[str]:
    """The rule and all that it implies."""
    found: set[str] = set()
    ahead = [rule]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += RULES[name].implies
    return found


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case, tmp_path: Path) -> None:
    data, changed = case.sealed()
    path = tmp_path / "broken.gpack"
    path.write_bytes(data)
    report = verify(path).report
    assert case.rule in report.counts
    assert set(report.counts) <= closure(case.rule), report.violations
    found = [v for v in report.violations if v.rule == case.rule]
    places = [(v.section, v.field) for v in found]
    assert not case.section or case.section in {section for section, _ in places}
    assert not case.field or case.field in {field for _, field in places}, places
    if case.placed:
        offsets = [v.offset for v in found]
        assert any(start <= at < end for at in offsets if at is not None for start, end in changed), (offsets, changed)
    assert report.ok == (RULES[case.rule].severity == "warning")
    _check_quick(case.rule, path)


def _check_quick(rule: str, path: Path) -> None:
    if not RULES[rule].quick:
        Container.open(path).close()
        return
    with pytest.raises(errors.GpackError) as caught:
        Container.open(path)
    assert caught.value.code == rule
    assert type(caught.value) is getattr(errors, RULES[rule].error)


@pytest.mark.parametrize("make", [packs.plain, packs.vocabulary, packs.small, packs.everything, packs.external])
def test_the_unbroken_packs_pass(make: Base, tmp_path: Path) -> None:
    path = tmp_path / "good.gpack"
    path.write_bytes(make())
    assert verify(path).report.violations == []
    Container.open(path, verify_all_hashes=True).close()
