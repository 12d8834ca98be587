"""What all tests of the engine share."""

from __future__ import annotations

import pytest

from gpack.engine.backends.cpu.team import MOST_THREADS, Team

TEAM_CORES = Team._cores_now  # for tests of what the fixture takes away


@pytest.fixture(autouse=True)
def _all_threads_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of three threads runs three, on a machine of two cores too."""
    monkeypatch.setattr(Team, "_cores_now", lambda _self: MOST_THREADS)
