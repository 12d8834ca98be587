"""Carries many texts on at once: one thread that makes step after step of one engine.

A step has a row for each text that is being written, and the rest of its rows are for prompts, of which each step reads
as much as takes about a tenth of a second: nobody waits for somebody else's long prompt. A text's bytes depend on its
request alone, whatever it shares its steps with; so a text can be put back, where memory ends, and computed again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from ..engine.engine import Chunk, Engine, Outcome
from ..errors import GpackError, InternalError, UsageError
from ..generate.drafting import Draft, draft_option
from ..generate.prefixes import PrefixStore
from ..generate.request import LENGTH, Piece
from .chances import Pace
from .counters import Counters
from .drafts import Drafts
from .job import Event, Job

LOG = logging.getLogger("gpack.serve")
Floats = npt.NDArray[np.float32]
_LEAST_ROWS = 16  # that prompts have in each step


Call = tuple[Callable[[Event], None], Event]


class Scheduler:
    """Texts of one engine. `submit` and `cancel` may be called from any thread; `close` ends it.

    Attributes:
        counters: What happened so far.
        prefixes: States that prompts begin with.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        parallel: int,
        queue: int,
        n_ctx: int,
        cache_type: str = "F16",
        draft: Draft = "auto",
        layer: bool = False,
        kept_bytes: int | None = None,
        post: Callable[[list[Call]], None] | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            parallel: Texts that are carried on together.
            queue: Further ones that may wait.
            n_ctx: Most tokens of a text.
            cache_type: How keys and values are kept.
            draft: Tokens that are guessed for each text in a step; `auto`: what is fastest.
            layer: The model has a draft layer, which guesses where it can be used.
            kept_bytes: Most bytes of kept states; default half of what the states of all texts may take.
            post: Gets all that is to be told after a step, to call it elsewhere; default: here.

        Raises:
            UsageError: An argument makes no sense; `io.memory`: the state of one text is beyond the engine's budget.
        """
        self.engine, self.parallel, self.queue, self.n_ctx = engine, parallel, queue, n_ctx
        self.cache_type = cache_type
        self._drafts = Drafts(engine, draft_option(draft), n_ctx)
        self._layer = layer and draft_option(draft) != "off" and engine.drafts_off is None
        self.counters = Counters()
        self.prefixes = PrefixStore(engine.pool.budget // 2 if kept_bytes is None else kept_bytes)
        engine.pool.relief.append(weakref.WeakMethod(self.prefixes.forget))
        with engine.sequence(n_ctx=n_ctx, cache_type=cache_type) as text:
            self._kind = text.state.layouts
        engine.lower(cache_type)
        if self._layer:
            engine.lower_drafts(cache_type)
        self._waiting: deque[Job] = deque()
        self._admitted: list[Job] = []  # in the order in which they came
        self._changed = threading.Condition()
        self._is_closing = False
        self._pace = Pace()
        self._is_full = False  # a text was put back, and none has ended since
        self._told: list[Call] = []
        self._post = post or _call
        self._thread = threading.Thread(target=self._run, name="gpack-steps", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ from any thread

    @property
    def waiting(self) -> int:
        """Texts that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Texts that are carried on."""
        return len(self._admitted)

    def submit(self, *jobs: Job) -> None:
        """Adds texts, all or none.

        Raises:
            UsageError: `serve.busy`: too many wait already; `engine.context`: a prompt is longer than the context;
                `engine.token`; `serve.closing`.
        """
        for job in jobs:
            job.check(self.n_ctx, self.engine.n_vocab)
        with self._changed:
            if self._is_closing:
                raise UsageError("the server is shutting down", code="serve.closing")
            room = self.queue + max(0, self.parallel - len(self._admitted))
            if len(self._waiting) + len(jobs) > room:
                raise UsageError(f"{len(self._waiting)} requests wait already", code="serve.busy")
            self._waiting += jobs
            self.counters.prompt_tokens += sum(len(job.request.ids) for job in jobs)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Nobody wants this text any more: it ends before the next step."""
        with self._changed:
            job.is_cancelled = True
            self._changed.notify()

    def close(self, keep: Callable[[PrefixStore], None] | None = None) -> int:
        """Takes no more texts, and cuts those that there are, whose clients are told; how many were cut.

        Args:
            keep: Gets what is kept of prompts when nothing runs any more, before it is forgotten.
        """
        with self._changed:
            self._is_closing = True
            cut = [job for job in (*self._waiting, *self._admitted) if not job.is_cancelled]
            for job in cut:
                job.is_cut = True
            self._changed.notify()
        self._thread.join()
        if keep is not None:
            keep(self.prefixes)
        self.prefixes.clear()
        return len(cut)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while self._has_work():
            try:
                for job in self._admit():
                    self._guarded(job, partial(self._begin, job))
                self._step()
            except GpackError as error:
                self._fail_all(error)
            except Exception as error:  # whatever it was, the clients must hear of it
                LOG.exception("a step failed")
                self._fail_all(InternalError(f"a step failed: {error}", code="internal"))
            self._deliver()
        self._deliver()

    def _has_work(self) -> bool:
        """Waits for some; False where there will be no more."""
        with self._changed:
            self._drop()
            while not self._waiting and not self._admitted:
                if self._is_closing:
                    return False
                self._changed.wait()
                self._drop()
            return True

    def _drop(self) -> None:
        """Leaves what nobody wants any more, and what is cut, whose clients are told."""
        closing = UsageError("the server is shutting down; the answer was cut", code="serve.closing")
        for job in [job for job in (*self._waiting, *self._admitted) if job.is_cancelled or job.is_cut]:
            with contextlib.suppress(ValueError):
                self._waiting.remove(job)
            if job.is_cancelled:
                self._leave(job)
            else:
                self._fail(job, closing)

    def _guarded(self, job: Job, work: Callable[[], None]) -> None:
        """What goes wrong with one text fails that text alone."""
        try:
            work()
        except GpackError as error:
            self._fail(job, error)
        except Exception as error:
            LOG.exception("a text failed")
            self._fail(job, InternalError(f"the text failed: {error}", code="internal"))

    def _leave(self, job: Job) -> None:
        job.is_done = True
        job.close()
        self._is_full = False
        with contextlib.suppress(ValueError):
            self._admitted.remove(job)

    def _admit(self) -> list[Job]:
        """Takes waiting texts in while there is room; one whose prompt another one reads just now waits for that."""
        held: list[Job] = []
        taken: list[Job] = []
        with self._changed:
            if self._is_full and self._admitted:
                return taken
            while self._waiting and len(self._admitted) < self.parallel:
                job = self._waiting.popleft()
                leader = job.after
                if leader is not None and not leader.has_read and not leader.is_done:
                    held.append(job)
                    continue
                self._admitted.append(job)
                taken.append(job)
            self._waiting.extendleft(reversed(held))
        return taken

    def _begin(self, job: Job) -> None:
        text = job.text = self.engine.sequence(n_ctx=self.n_ctx, cache_type=self.cache_type, drafts=self._layer)
        tokens = job.tokens
        if (found := self.prefixes.find(tokens[:-1], self._kind)) is not None and found[0].position <= self.n_ctx:
            state, reached = found
            text.restore(state)  # type: ignore[arg-type]
            if text.position > reached:
                text.truncate(reached)
        if not job.writing.ids:
            self.counters.reused_tokens += text.position
            job.writing.timings.cached_tokens = text.position

    # ------------------------------------------------------------ a step

    def _step(self) -> None:
        chunks, jobs = self._chunks()
        if not chunks:
            return
        started = time.perf_counter()
        try:
            outcomes = list(self.engine.step(chunks, copy=False))
        except UsageError as error:
            if error.code != "engine.budget":
                raise
            self._make_room(jobs, error)
            return
        seconds = time.perf_counter() - started
        self._note(jobs, sum(len(chunk.tokens) for chunk in chunks), seconds)
        short: list[Job] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.error is None:
                self._guarded(job, partial(self._went_on, job, outcome))
            elif outcome.error.code == "engine.budget":
                short.append(job)
                lack = outcome.error
            else:
                self._fail(job, outcome.error)
        if short:
            self._make_room(short, lack)

    def _note(self, jobs: list[Job], rows: int, seconds: float) -> None:
        """Learns from what a step took."""
        self.counters.steps += 1
        self.counters.step_seconds += seconds
        read = rows - sum(1 + len(job.drafts) for job in jobs if job.has_read)
        if not read:
            self._drafts.cost.note(rows, seconds)
        self._pace.note(rows, read, seconds)

    def _chunks(self) -> tuple[list[Chunk], list[Job]]:
        """What the next step computes: a row of each text that is written, then parts of prompts."""
        chunks: list[Chunk] = []
        jobs = [job for job in self._admitted if job.unread == 1 and job.has_read]
        reading = [job for job in self._admitted if not (job.unread == 1 and job.has_read)]
        jobs = jobs[: self.engine.batch]
        self._drafts.choose(jobs)
        for job in jobs:
            tokens = job.ahead(1) + job.drafts
            chunks.append(Chunk(job.engine_text, tokens, logits="all", open=bool(job.drafts)))
        # However many texts are written, some rows are left for prompts: none of them waits for ever.
        written = sum(len(chunk.tokens) for chunk in chunks)
        left = min(self.engine.batch - written, max(_LEAST_ROWS, self._pace.rows - written))
        # The shortest first: nobody waits for a long prompt. The oldest has half of the rows whatever comes after it.
        oldest = reading[:1]
        for job in [*oldest, *sorted(reading[1:], key=lambda job: job.unread)]:
            share = left - left // 2 if job in oldest and len(reading) > 1 else left
            count = min(share, self._until_kept(job))
            if count > 0:
                jobs.append(job)
                is_last = count == job.unread
                chunks.append(Chunk(job.engine_text, job.ahead(count), logits="last" if is_last else "none"))
                left -= count
        return chunks, jobs

    def _until_kept(self, job: Job) -> int:
        """Tokens that a text reads until its state is to be kept, or its prompt ends."""
        if self.engine.is_trimmable:
            return job.unread
        ends = [end - job.position for end in job.request.keep_at if end > job.position]
        return min([job.unread, *ends])

    def _went_on(self, job: Job, outcome: Outcome) -> None:
        """A text read some tokens: of those that it was given, or of those that it has chosen."""
        if job.unread > (1 if outcome.opened is not None else 0):
            self._keep(job, at_turn=True)
            return
        if not job.has_read:
            job.has_read = True
            self._keep(job, at_turn=False)
            timings = job.writing.timings
            timings.prompt_tokens = len(job.request.ids) - timings.cached_tokens
            timings.prompt_seconds = time.monotonic() - job.started
            self.counters.read_tokens += timings.prompt_tokens
            if job.request.max_tokens == 0:
                job.writing.reason = LENGTH
                self._finish(job)
                return
        drafts, used = job.drafts, 0
        while self._write(job, outcome.logits[used]):
            if used == len(drafts) or drafts[used] != job.writing.ids[-1]:
                break
            used += 1
        if outcome.opened is not None:
            self.engine.accept([(outcome.opened, 1 + used)])
            self.counters.drafted += len(drafts)
            self.counters.accepted += used
            self._drafts.learn(job, used)
        if job.writing.has_ended:
            self._finish(job)

    def _write(self, job: Job, logits: Floats) -> bool:
        """Chooses one more token; False where the text has ended."""
        piece = job.writing.push(logits)
        now, timings = time.monotonic(), job.writing.timings
        if piece is None:
            return False
        self.counters.tokens += 1
        if len(job.writing.ids) == 1:
            timings.first_token_seconds = now - job.started
            self.counters.first_token.append(now - job.started)
        else:
            timings.decoded_tokens += 1
            timings.decode_seconds += now - job.last_token
            self.counters.between.append(now - job.last_token)
        job.last_token = now
        self._told.append((job.tell, Event(piece)))
        return not job.writing.has_ended

    def _keep(self, job: Job, *, at_turn: bool) -> None:
        """Keeps a state that was committed, so that others may begin with it."""
        if not at_turn or (not self.engine.is_trimmable and job.position in job.request.keep_at):
            self.prefixes.keep(job.engine_text.checkpoint())

    def _finish(self, job: Job) -> None:
        if job.writing.ids and job.text is not None:
            self.prefixes.keep(job.text.checkpoint())
        rest = job.writing.flush()
        self._leave(job)
        self._told.append((job.tell, Event(Piece(rest, generation=job.result()))))

    # ------------------------------------------------------------ what goes wrong

    def _make_room(self, jobs: list[Job], error: GpackError) -> None:
        """Puts the youngest text back, to be computed again; the last one that is left fails."""
        if len(self._admitted) <= 1:
            for job in jobs:
                self._fail(job, error)
            return
        youngest = self._admitted.pop()
        youngest.close()
        self.counters.put_back += 1
        self._is_full = True
        with self._changed:
            self._waiting.appendleft(youngest)

    def _fail(self, job: Job, error: GpackError) -> None:
        self._leave(job)
        self._told.append((job.tell, Event(error=error)))

    def _fail_all(self, error: GpackError) -> None:
        for job in list(self._admitted):
            self._fail(job, error)

    def _deliver(self) -> None:
        """Tells what is new when the step's work is done."""
        told, self._told = self._told, []
        try:
            if told:
                self._post(told)
        except Exception:  # the steps go on for the others
            LOG.exception("clients could not be told")


def _call(calls: list[Call]) -> None:
    for tell, event in calls:
        tell(event)
