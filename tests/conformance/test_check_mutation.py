"""Would the vectors notice that a rule is missing? For every rule: without it, its id vanishes and the run fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpack.conformance import Vector, check, misjudged, vectors
from gpack.conformance.judging import expected_failures
from gpack.container import structure
from gpack.generated.rules import RULES

SHOWING: dict[str, list[Vector]] = {rule: [] for rule in RULES}
for _vector in vectors.load():
    if expected_failures(_vector) and not _vector.large:
        SHOWING[_vector.rules[0]].append(_vector)


@pytest.mark.parametrize("rule", RULES)
def test_a_missing_rule_is_missed(rule: str, tmp_path: Path) -> None:
    showing: Sequence[Vector] = SHOWING[rule]
    assert showing
    for vector in showing:
        path = vector.write(tmp_path)
        assert misjudged(vector, check(path)) is None
        crippled = check(path, without={rule})
        assert rule not in {result.rule for result in crippled.failed}
        complaint = misjudged(vector, crippled)
        assert complaint is not None
        assert rule in complaint or "was accepted" in complaint


def test_a_check_that_is_really_gone_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the report but the check itself: gpack's function that looks at the order of sections does nothing."""
    vector = SHOWING["section.gap"][0]
    path = vector.write(tmp_path)
    monkeypatch.setattr(structure, "_check_order", lambda found, report: None)
    report = check(path)
    assert report.result("section.gap").status == "not applicable"
    assert misjudged(vector, report) == f"{vector.id} was accepted"
