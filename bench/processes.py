"""Jobs of our engine, of its state at an earlier commit, and of llama.cpp, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bench import Bench
from .measure import ENVIRONMENT, Outcome

ROOT = Path(__file__).parents[1]


def ours(bench: Bench, name: str, options: dict[str, Any], *, at: Path | None = None) -> Outcome:
    """A job of `our_engine.py`.

    Args:
        at: Sources of another commit that do it; None: those of this one.

    Raises:
        SystemExit: Another package did it than the one that was asked for.
    """
    environment = ENVIRONMENT if at is None else environment_of(at)
    outcome = _process(["-m", "bench.our_engine", name], bench.folder / "ours.json", options, environment)
    if at is not None and not Path(outcome["package"]).is_relative_to(at):
        raise SystemExit(f"bench: {outcome['package']} did the job of {at}")
    return outcome


def peer(bench: Bench, library: str, name: str, options: dict[str, Any]) -> Outcome:
    """A job of `llama_cpp.py`."""
    return _process(["-m", "bench.llama_cpp", library, name], bench.folder / "peer.json", options, ENVIRONMENT)


def environment_of(at: Path) -> dict[str, str]:
    """In which Python finds the package in that folder of sources before any other."""
    paths = [str(at), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(paths)}


def _process(words: Sequence[str], place: Path, options: dict[str, Any], environment: dict[str, str]) -> Outcome:
    place.write_text(json.dumps(options))
    done = subprocess.run(
        [sys.executable, *words, str(place)], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE
    )
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def machine_has_avx2_beside_better() -> bool:
    """Whether this CPU runs AVX2 kernels, but others by itself."""
    from gpack.engine.backends.cpu.variants import usable

    names = [variant.name for variant in usable()]
    return "avx2" in names[1:]
