"""Hostile files from elsewhere with every consumer: an answer, and little memory, as the kernel counts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hostile_table import outcomes

FOLDER = Path(os.environ.get("GPACK_CASES", Path(__file__).parents[2] / "shared" / "cases")) / "hostile"
KIB_OF_PEAK = 128 << 10


@pytest.mark.filterwarnings("ignore:This process")  # it forks, with threads of pytest-xdist
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the hostile files are not here (GPACK_CASES)")
def test_every_consumer_answers_and_stays_small(tmp_path: Path) -> None:
    seen = 0
    for path, consumer, outcome in outcomes(FOLDER, tmp_path):
        told = f"{path.name}, {consumer}: {outcome}"
        assert outcome.answer in {"ok", *(f"exit {status}" for status in range(5))} or "." in outcome.answer, told
        assert outcome.peak < KIB_OF_PEAK, told
        seen += 1
    assert seen > 0
