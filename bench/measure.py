"""Running jobs by turns, in processes of their own, and what came of it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpack.terminal import units
from gpack.terminal.table import render

Outcome = dict[str, Any]
Way = Callable[[], Outcome]

_CALM = 1 / 3  # cores busy with something else
_PATIENCE = 3
_WORKER = Path(__file__).with_name("worker.py")
# Compiled modules are kept, as an installation keeps them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Samples:
    """The runs of one job.

    Attributes:
        seconds: Of each run.
        elsewhere: Cores that other programs kept busy meanwhile, the median of the runs.
    """

    seconds: tuple[float, ...]
    elsewhere: float = 0.0

    @property
    def median(self) -> float:
        """The middle one: a run that was disturbed does not move it."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, high = units.duration(min(self.seconds)), units.duration(max(self.seconds))
        return f"{units.duration(self.median)} ({low} to {high}, n = {len(self.seconds)})"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "median": self.median,
            "min": min(self.seconds),
            "max": max(self.seconds),
            "n": len(self.seconds),
            "elsewhere": round(self.elsewhere, 3),
        }


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        case: What `--only` names.
        what: What was measured.
        ours, peer: As people read them.
        ratio: Ours over the peer's, or of the target's kind where there is no peer.
        target: In words; empty where there is none.
        reached: None where there is no target.
        elsewhere: Cores that other programs kept busy.
        data: The numbers, JSON-ready.
    """

    case: str
    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""
    reached: bool | None = None
    elsewhere: float | None = None
    data: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dict(vars(self))


def compare(case: str, what: str, ours: Samples, peer: Samples, peer_name: str, most: float | None = None) -> Row:
    """A line that compares medians; the target is at most `most` times the peer's time."""
    ratio = ours.median / peer.median
    return Row(
        case,
        what,
        str(ours),
        f"{peer_name}: {peer}",
        f"{ratio:.3g}x" if ratio < 100 else f"{ratio:.0f}x",
        "" if most is None else f"at most {most:.3g}x",
        None if most is None else ratio <= most,
        max(ours.elsewhere, peer.elsewhere),
        {"ours": ours.to_dict(), "peer": peer.to_dict(), "peer_name": peer_name, "ratio": ratio, "most": most},
    )


def bound(case: str, what: str, value: float, most: float, show: Callable[[float], str]) -> Row:
    """A line that compares a value with a limit."""
    limit = f"at most {show(most)}"
    return Row(case, what, show(value), target=limit, reached=value <= most, data={"value": value, "most": most})


def job(name: str, *arguments: object) -> Outcome:
    """One job of `worker.py` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-P", str(_WORKER), name, *map(str, arguments)],
        stdout=subprocess.PIPE,
        check=True,
        env=ENVIRONMENT,
    )
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def warm_up(ways: dict[str, Way]) -> None:
    """Runs each way once: modules are compiled, files read into the page cache."""
    for way in ways.values():
        way()


def by_turns(rounds: int, ways: dict[str, Way]) -> dict[str, list[Outcome]]:
    """Runs the ways one after the other, round by round, so that whatever slows the machine slows all of them.

    Rounds in which other programs took more than a third of a core are repeated, up to three times as many rounds;
    the calmest ones count. `elsewhere` of an outcome says how many cores the others took.
    """
    done: list[dict[str, Outcome]] = []
    while len(done) < _PATIENCE * rounds and sum(_disturbance(held) < _CALM for held in done) < rounds:
        done.append({name: _watched(way) for name, way in ways.items()})
    calmest = sorted(done, key=_disturbance)[:rounds]
    return {name: [held[name] for held in calmest] for name in ways}


def _disturbance(held: dict[str, Outcome]) -> float:
    return float(max(outcome["elsewhere"] for outcome in held.values()))


def _watched(way: Way) -> Outcome:
    """Runs a way, and adds `elsewhere`: cores that processes which are none of ours kept busy meanwhile."""
    started, own, busy = time.perf_counter(), _own_cpu(), _busy_cpu()
    outcome = way()
    taken = (_busy_cpu() - busy) - (_own_cpu() - own)
    return outcome | {"elsewhere": max(taken, 0.0) / (time.perf_counter() - started)}


def _own_cpu() -> float:
    """CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _busy_cpu() -> float:
    """CPU seconds that all cores have been busy."""
    user, nice, system, _idle, _waiting, *rest = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(map(int, (user, nice, system, *rest)))
    return float(ticks / os.sysconf("SC_CLK_TCK"))


def samples(outcomes: Sequence[Outcome], key: str = "seconds") -> Samples:
    """The seconds of a job's runs."""
    disturbed = statistics.median(outcome.get("elsewhere", 0.0) for outcome in outcomes)
    return Samples(tuple(outcome[key] for outcome in outcomes), disturbed)


def command(*words: object, environment: dict[str, str] = ENVIRONMENT) -> Outcome:
    """A whole process, from start to exit, its output thrown away."""
    started = time.perf_counter()
    subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL, check=True, env=environment)
    return {"seconds": time.perf_counter() - started}


def table(rows: Sequence[Row]) -> str:
    """The report."""
    said = {None: "", True: "reached", False: "MISSED"}
    cells = [(row.what, row.ours, row.peer, row.ratio, row.target, said[row.reached], _cores(row)) for row in rows]
    return render(cells, ("what", "ours", "peer", "ratio", "target", "", "others"))


def _cores(row: Row) -> str:
    return "" if row.elsewhere is None else f"{row.elsewhere:.1f} cores"
