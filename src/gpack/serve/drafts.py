"""Drafts of several texts in a step: as many rows as bring most tokens in a second, given to the likeliest drafts.

A draft never changes a text; see `generate.drafting`. What a step takes is learnt as a line over its rows, and how
often drafts are right for each text by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..engine.engine import Engine
from ..generate.drafting import Draft
from .chances import MOST_DRAFTS, StepCost
from .job import Job

_LEAST_GAIN = 1.03
_LEAST_ROWS = 16  # that are left for prompts


class Drafts:
    """Guesses for all texts of a scheduler.

    Attributes:
        cost: What its steps take.
    """

    def __init__(self, engine: Engine, draft: Draft, n_ctx: int) -> None:
        self._engine, self._draft, self._n_ctx = engine, draft, n_ctx
        self.cost = StepCost()
        self._turn = 0.0  # seconds for one more draft of all texts by the draft layer

    def choose(self, jobs: Sequence[Job]) -> None:
        """Gives each of the texts that are written together its drafts for the next step, or none."""
        for job in jobs:
            job.drafts = []
        if self._draft == "off" or not jobs:
            return
        most = self._engine.batch - len(jobs) - _LEAST_ROWS
        rooms = {job: min(self._room(job), most) for job in jobs}
        counts = (
            self._best(rooms, most)
            if self._draft == "auto"
            else {job: min(self._draft, room, most // len(jobs)) for job, room in rooms.items()}
        )
        wanted = [(job, count) for job, count in counts.items() if count > 0]
        layered = [(job, count) for job, count in wanted if job.follows_layer]
        for job, count in wanted:
            if not job.follows_layer:
                job.drafts = job.drafter.draft(job.tokens, count)
        if layered:
            started = time.perf_counter()
            asked = [(job.engine_text, job.tokens[-1], count) for job, count in layered]
            for (job, _), found in zip(layered, self._engine.draft(asked), strict=True):
                job.drafts = found
            each = (time.perf_counter() - started) / max(count for _, count in layered)
            self._turn = each if not self._turn else 0.8 * self._turn + 0.2 * min(each, 3 * self._turn)

    def learn(self, job: Job, right: int) -> None:
        """So many of a text's drafts were right."""
        job.chances.note(right, refused=right < len(job.drafts))

    def _room(self, job: Job) -> int:
        most = job.request.max_tokens
        left = self._n_ctx if most is None else most - len(job.writing.ids) - 1
        return max(0, min(self._n_ctx - job.position - 2, left, MOST_DRAFTS if self._draft == "auto" else left))

    def _best(self, rooms: dict[Job, int], most: int) -> dict[Job, int]:
        """The drafts that bring most tokens in a second."""
        if not self.cost.is_known:
            return {}
        chances: list[tuple[float, int, Job]] = []
        for job, room in rooms.items():
            if job.chances.wait:
                job.chances.wait -= 1
                continue
            chances += [(chance, place, job) for place, chance in enumerate(job.chances.cumulative()[:room])]
        tried = {job for _, _, job in chances}
        chances.sort(key=lambda item: -item[0])  # those of a text fall with their place: all before one come before it
        rows, tokens = len(rooms), float(len(rooms))
        least = _LEAST_GAIN * tokens / self.cost.seconds(rows)
        counts: dict[Job, int] = {}
        best: dict[Job, int] = {}
        depth = 0
        for chance, place, job in chances[:most]:
            rows, tokens = rows + 1, tokens + chance
            counts[job] = place + 1
            if job.follows_layer:
                depth = max(depth, place + 1)
            rate = tokens / (self.cost.seconds(rows) + depth * self._turn)
            if rate > least:
                least, best = rate, dict(counts)
        for job in tried - set(best):
            job.chances.rest()
        return best
