"""An engine: one model on one device, and any number of texts that it carries on together, step by step.

    with model.engine(threads=2) as engine, engine.sequence() as a, engine.sequence() as b:
        result = engine.step([Chunk(a, [1, 2, 3]), Chunk(b, [4])])
        result.logits  # float32 [2, n_vocab]: after the last token of each

A text's numbers are its own: with equal options the bits of its logits do not depend on what else is in a step, on how
its tokens are cut into chunks, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, GpackError, UsageError
from ..machine import half_of_free_memory
from ..model.load import LoadedModel
from .backends import Compute, make_backend
from .backends.base import Segment, Step
from .chunks import Chunk, Outcome, StepResult, check_text, check_tokens
from .draft_layer import DraftLayer
from .finite import is_finite
from .options import DEFAULT_BATCH, DEFAULT_CONTEXT, MOST_TOKENS, count_option
from .plans import Plan, planned
from .prepared import prepare
from .replay import Replay
from .state.pool import Pool
from .state.sequence import OpenChunk
from .state.sequence import Sequence as Text
from .state.states import Layouts, TextState, group_states
from .state.turns import Turns

__all__ = ["Chunk", "Engine", "Outcome", "StepResult"]


class Engine:
    """A model on a device. Use it as a context manager, or call `close`.

    Steps run one after another, whoever asks for them.

    Attributes:
        n_vocab: Tokens of the vocabulary, and logits of a position.
        n_embd: Width of the hidden state.
        n_context: Positions that the model was trained on.
        batch: Most rows of a step.
        pool: The memory of all texts.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        threads: int | None = None,
        compute: Compute = "int8",
        batch: int = DEFAULT_BATCH,
        cpu: str | None = None,
        device: str = "cpu",
        state_bytes: int | None = None,
        check_weights: bool | None = None,
    ) -> None:
        """Checks metadata and tensors, lowers the model's graphs and starts the threads.

        Args:
            threads: Default: as many cores as the process may use, by its affinity and its CPU quota.
            compute: `int8`: activations are rounded to 8 bits where they meet quantised weights, which is fast. `f32`:
                never.
            batch: Most rows of a step.
            cpu: The variant of kernels; default what `GPACK_CPU` says, else the best that this CPU can run.
            device: `cpu`, or `reference`: numpy in float64, slow and plain.
            state_bytes: Most bytes of the states of all texts; default half of the free memory.
            check_weights: Look for weights that are not finite. Default: where all matrices fit into half of the free
                memory, and experts into 1 GiB, once for all engines of a model. True: all, which reads the whole file.
                False: none but norms and biases.

        Raises:
            FormatError: `engine.key`, `engine.tensor`, `engine.shape`: a key or tensor is missing or contradicts
                another; `engine.nan`: a weight is not finite.
            DigestError: `section.sha256`: a matrix is all zeros, and was not written so.
            UnsupportedError: `engine.architecture`, `engine.key`: the model is of a kind that cannot be run;
                `engine.numba`: numba is not installed.
            UsageError: An argument makes no sense; `io.memory`: there is not enough memory for a batch.
        """
        self._prepared = prepare(model)
        self._check_files = model.check_files
        self.n_vocab, self.n_embd = self._prepared.n_vocab, self._prepared.h.n_embd
        self.n_context = min(self._prepared.h.n_context, self._prepared.h.most_context or MOST_TOKENS)
        self.batch = count_option(batch, "batch", DEFAULT_BATCH, MOST_TOKENS)
        budget = count_option(state_bytes, "state_bytes", max(half_of_free_memory(), 1), 1 << 62)
        self._turns = Turns()
        self._closed = False
        self._layouts: dict[str, Layouts] = {}
        self._programs: dict[tuple[str, ...], Any] = {}
        self.backend = make_backend(device, threads=threads, compute=compute, batch=self.batch, cpu=cpu)
        try:
            self.pool = Pool(self.backend, budget)
            self._body, self._head = self._prepared.graphs
            self._groups = group_states(self._body.states)
            self._drafts = DraftLayer(self.backend, self._prepared, self.batch)
            self._replay = Replay(self.backend, self._body, self._groups)
            self._prepared.w.check_zeros()
            if check_weights is not False:
                self.check_weights(everything=bool(check_weights))
        except BaseException:
            self.close()
            raise

    def check_weights(self, *, everything: bool) -> None:
        """Looks for weights that are not finite, once for all engines of a model; `everything`: of any size.

        Raises:
            FormatError: `engine.nan`.
        """
        self._prepared.w.check_finite(self.backend, everything=everything)

    @property
    def is_trimmable(self) -> bool:
        """Whether texts can be truncated to any position: there are neither windows nor recurrent layers."""
        return not self._groups.recurrent and not any(self._groups.windows)

    # ------------------------------------------------------------ texts

    def sequence(self, *, n_ctx: int | None = None, cache_type: str = "F16", drafts: bool = False) -> Text:
        """A new text.

        Args:
            n_ctx: Most tokens of it; default what the model was trained on, but not more than 4096.
            cache_type: How keys and values are kept: F32, F16 or Q8_0.
            drafts: The model's draft layer follows the text, so that `draft` can be asked; nothing happens where
                `drafts_off` says why that cannot be.

        Raises:
            UsageError: An argument makes no sense; `io.memory`: the state of such a text is beyond the engine's budget.
        """
        self._open()
        longest = self._prepared.h.most_context
        wanted = count_option(n_ctx, "n_ctx", min(self.n_context, DEFAULT_CONTEXT), MOST_TOKENS)
        if longest and wanted > longest:
            raise UsageError(
                f"a context of {wanted} tokens: beyond {longest} this model scales positions or queries in a way that"
                " is not supported",
                code="engine.context",
                field="n_ctx",
                hint=f"an n_ctx of at most {longest}",
            )
        layouts = self._layout(cache_type)
        if layouts.most_bytes(wanted) > self.pool.budget:
            raise UsageError(
                f"there is not enough memory for a context of {wanted} tokens: {layouts.most_bytes(wanted)} bytes of"
                f" {self.pool.budget}",
                code="io.memory",
                field="n_ctx",
                hint="a smaller n_ctx, or a smaller type of cache",
            )
        draft = self._drafts.layouts(cache_type) if drafts and self._drafts.off is None else None
        return Text(self, layouts, n_ctx=wanted, cache_type=cache_type, turns=self._turns, draft=draft)

    @property
    def drafts_off(self) -> str | None:
        """Why the model's draft layer cannot be used; None where it can."""
        return self._drafts.off

    def _layout(self, cache_type: str) -> Layouts:
        known = self._layouts.get(cache_type) if isinstance(cache_type, str) else None
        if known is None:
            if not isinstance(cache_type, str) or cache_type not in self.backend.cache_types:
                raise UsageError(
                    f"there is no cache of type {cache_type!r}",
                    code="usage",
                    field="cache_type",
                    hint=", ".join(self.backend.cache_types),
                )
            groups, backend = self._groups, self.backend
            blocks = tuple(backend.key_value_layout(states, cache_type) for states in groups.key_values)
            recurrent = backend.recurrent_layout(groups.recurrent) if groups.recurrent else None
            made = Layouts(blocks, groups.windows, recurrent, self.batch)
            known = self._layouts.setdefault(cache_type, made)
        return known

    # ------------------------------------------------------------ steps

    def step(self, chunks: Sequence[Chunk], *, hidden: bool = False, copy: bool = True) -> StepResult:
        """Appends tokens to texts, all in one run.

        What concerns one text alone, its budget or values that are not finite, fails that text: its outcome tells, it
        is as it was, and the others are committed. Where no text could have room, that error is raised.

        Args:
            chunks: At most one for each text, and at most `batch` tokens in all.
            hidden: Also give the hidden states.
            copy: The logits are the caller's own. False: they may be the engine's memory, which its next step
                overwrites; that saves time where vocabularies are large.

        Raises:
            UsageError: `engine.batch`, `engine.sequence`, `engine.position`, `engine.context`, `engine.token`,
                `engine.budget`: nothing was computed, and all texts are as they were.
            KeyboardInterrupt: The caller was interrupted; all texts are at their last commit.
        """
        with self._turns.take():
            self._open()
            plans = planned(chunks, self, self.n_vocab, self.batch)
            self._make_room(plans)
            return self._run(plans, hidden, copy)

    def accept(self, counts: Sequence[tuple[OpenChunk, int]]) -> None:
        """Commits the first tokens of open chunks, and ends these: all, or none.

        The texts are then what they would be had a step had so many tokens, bit for bit; no layer runs again.

        Args:
            counts: Chunks of different texts, and how many of their tokens count; there may be none.

        Raises:
            UsageError: `engine.open`: a chunk can no longer be accepted; `engine.sequence`: its text belongs to
                another engine; `usage`: it does not have so many tokens.
            KeyboardInterrupt: The caller was interrupted; texts are at their last commit, their chunks void.
        """
        with self._turns.take():
            self._open()
            self._commit_states(self._replay.accepted(counts, self))

    def draft(self, wanted: Sequence[tuple[Text, int, int]]) -> list[list[int]]:
        """Guesses how texts go on, by the model's draft layer; the texts stay as they are.

        Args:
            wanted: Different texts that were made with `drafts`; of each its next token, and how many to guess after
                that.

        Returns:
            For each text at most so many tokens; none where the layer does not follow it, or cannot be used.

        Raises:
            UsageError: `engine.sequence`, `engine.token`: a text or a token is none of this engine's.
        """
        with self._turns.take():
            self._open()
            for text, token, _ in wanted:
                check_text(text, self)
                check_tokens([token], self.n_vocab)
            return self._drafts.draft(self.pool, wanted)

    def _make_room(self, plans: list[Plan]) -> None:
        for plan in plans:
            text = plan.chunk.sequence
            text.opened = None  # the step may write where its rows are
            try:
                if plan.chunk.open:
                    plan.kept = self._replay.room(self.pool, len(plan.tokens), text.writer)
                plan.state, plan.after = text.state.with_room(self.pool, len(plan.tokens), text.writer)
            except UsageError as error:
                plan.error = error.with_traceback(None)  # whose frames would keep the other texts' memory
        errors = [plan.error for plan in plans if plan.error is not None]
        if len(errors) == len(plans):
            raise errors[0]

    def _run(self, plans: list[Plan], wants_hidden: bool, copy: bool) -> StepResult:
        running = [plan for plan in plans if plan.state is not None]
        if len(running) > 1:
            running.sort(key=lambda plan: plan.chunk.sequence.cache_type)
        step, places = self._layout_step(running)
        states, made, finite = self.backend.run(self._program(step), step)
        self._check_files()
        n_logits = sum([plan.n_logits for plan in plans])
        if places == list(range(n_logits)):
            logits = made.copy() if copy else made
        else:
            logits = np.zeros((n_logits, self.n_vocab), self.backend.dtype)
            logits[places] = made
        if not finite:
            for plan in running:
                self._check_finite(plan, states, logits)
        well = [plan for plan in running if plan.error is None]
        for plan in well:
            if plan.state is not None and plan.state.draft is not None:
                plan.seeds = states[plan.first_row : plan.first_row + len(plan.tokens), self._prepared.seeds].copy()
        self._commit([plan for plan in well if not plan.chunk.open])
        for plan in well:
            if plan.chunk.open and plan.state is not None:
                text = plan.chunk.sequence
                text.opened = plan.opened = OpenChunk(
                    text, tuple(plan.tokens), text.state, plan.state, plan.after, plan.kept, plan.seeds
                )
        self._drafts.follow(self.pool, [plan.chunk.sequence for plan in well if plan.seeds is not None])
        outcomes = tuple([self._outcome(plan, logits, states if wants_hidden else None) for plan in plans])
        return StepResult(logits, outcomes)

    def _layout_step(self, running: list[Plan]) -> tuple[Step, list[int]]:
        """The step, and for each of its wanted rows the row of the result's logits."""
        segments: list[Segment] = []
        wanted: list[int] = []
        places: list[int] = []
        row, history = 0, self._body.history
        for plan in running:
            state, count, text = plan.state, len(plan.tokens), plan.chunk.sequence
            assert state is not None
            plan.first_row = row
            read = 0 if state.recurrent is None else state.recurrent.id
            tables = tuple(table.ids for table in state.tables)
            write = 0 if plan.after is None else plan.after.id
            keep = 0 if plan.kept is None else plan.kept.id
            previous = text.last(history) if history else ()
            segments.append(Segment(row, count, state.position, text.cache_type, tables, read, write, keep, previous))
            row += count
            wanted += range(row - plan.n_logits, row)
            places += range(plan.first_logits, plan.first_logits + plan.n_logits)
        tokens = np.array([token for plan in running for token in plan.tokens], np.int32)
        return Step(tokens, segments, np.array(wanted, np.int32)), places

    def _program(self, step: Step) -> Any:
        return self.lower(*sorted({segment.cache_type for segment in step.segments}))

    def lower(self, *cache_types: str) -> Any:
        """The program for steps of texts of these types of cache, made when it is first needed.

        Raises:
            UsageError: `io.memory`: there is not enough memory for a batch.
            UnsupportedError: As `Backend.lower`.
        """
        kinds = cache_types
        program = self._programs.get(kinds)
        if program is None:
            try:
                program = self.backend.lower(self._body, self._head, self._groups, kinds)
            except MemoryError as error:
                raise UsageError(
                    f"there is not enough memory for steps of {self.batch} rows",
                    code="io.memory",
                    field="batch",
                    hint="a smaller batch",
                ) from error
            self._programs[kinds] = program
        return program

    def lower_drafts(self, cache_type: str) -> None:
        """Makes the draft layer's program for texts of a type of cache, which is else made with the first draft."""
        if self._drafts.off is None:
            with self._turns.take():
                self._drafts.lower({cache_type})

    def _check_finite(self, plan: Plan, states: npt.NDArray[Any], logits: npt.NDArray[Any]) -> None:
        rows = states[plan.first_row : plan.first_row + len(plan.tokens)]
        read = logits[plan.first_logits : plan.first_logits + plan.n_logits]
        if not is_finite(rows) or not is_finite(read):
            plan.error = self._explain(plan.chunk.sequence.position)

    def _explain(self, position: int) -> GpackError:
        try:
            self._prepared.w.check_finite(self.backend, everything=True)
        except GpackError as error:
            return error
        return FormatError(
            f"what comes after position {position} is not finite, though all weights are: values overflowed",
            code="engine.nan",
            path=self._prepared.path,
        )

    def _commit(self, plans: list[Plan]) -> None:
        """All texts of the step, or none: an interrupt in between is raised when all are done."""
        commits = []
        for plan in plans:
            if plan.state is not None:
                plan.chunk.sequence.note(plan.tokens)
                state = plan.state.advanced(len(plan.tokens), plan.after, plan.seeds)
                commits.append((plan.chunk.sequence, state))
        self._commit_states(commits)

    @staticmethod
    def _commit_states(commits: list[tuple[Text, TextState]]) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                for text, state in commits:
                    text.commit(state)
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _outcome(self, plan: Plan, logits: npt.NDArray[Any], states: npt.NDArray[Any] | None) -> Outcome:
        rows = None
        if states is not None and plan.state is not None:
            rows = states[plan.first_row : plan.first_row + len(plan.tokens), : self.n_embd].copy()
        return Outcome(logits[plan.first_logits : plan.first_logits + plan.n_logits], rows, plan.error, plan.opened)

    # ------------------------------------------------------------ end

    def _open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed", code="usage")

    def close(self) -> None:
        """Ends the threads and frees the engine's memory; a second call does nothing."""
        self._closed = True
        self.backend.close()
        self._programs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
