"""Would the vectors notice that a rule is missing? For every rule: without it, its id vanishes and the run fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import disable

from gpack.conformance import Vector, check, misjudged, vectors
from gpack.conformance.judging import expected_failures
from gpack.errors import InternalError
from gpack.generated.rules import RULES

SHOWING: dict[str, list[Vector]] = {rule: [] for rule in RULES}
for _vector in vectors.load():
    if expected_failures(_vector) and not _vector.large:
        SHOWING[_vector.rules[0]].append(_vector)


@pytest.mark.parametrize("rule", RULES)
def test_a_missing_rule_is_missed(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself is taken out of gpack's code: of all its vectors none has the id left, and each fails the run.

    That all of them pass with all rules in place is in test_vectors.py.
    """
    showing: Sequence[Vector] = SHOWING[rule]
    assert showing
    assert disable(rule, monkeypatch)
    for vector in showing:
        try:
            report = check(vector.write(tmp_path))
        except InternalError:  # what the rule keeps away upsets the check, which says so
            continue
        assert rule not in {result.rule for result in report.failed}, vector.id
        complaint = misjudged(vector, report)
        assert complaint is not None
        assert rule in complaint or "was accepted" in complaint
