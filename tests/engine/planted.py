"""Faults that an engine could have, planted for a while: the state machine must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpack.engine.backends.base import StepOutput
from gpack.engine.backends.cpu.backend import CpuBackend
from gpack.engine.engine import Engine
from gpack.engine.state import states
from gpack.engine.state.pool import Pool
from gpack.engine.state.sequence import OpenChunk

Fault = Callable[[pytest.MonkeyPatch], None]


def commits_before_the_step_has_run(patch: pytest.MonkeyPatch) -> None:
    """What is interrupted, or not finite, counts nevertheless."""
    run = Engine._run

    def early(engine: Engine, plans: Any, *arguments: Any, **options: Any) -> Any:
        engine._commit([plan for plan in plans if plan.state is not None])
        return run(engine, plans, *arguments, **options)

    patch.setattr(Engine, "_run", early)


def commits_one_text_after_the_other(patch: pytest.MonkeyPatch) -> None:
    """An interrupt in between leaves some texts of a step at its end, others at its beginning."""

    def one_by_one(engine: Engine, plans: Any) -> None:
        for plan in plans:
            plan.chunk.sequence.note(plan.tokens)
            plan.chunk.sequence.commit(plan.state.advanced(len(plan.tokens), plan.after))

    patch.setattr(Engine, "_commit", one_by_one)


def writes_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    """A fork goes on in the block that it shares."""
    patch.setattr(Pool, "copy", lambda _pool, block, _writer: block)


def forgets_what_is_shared(patch: pytest.MonkeyPatch) -> None:
    """A text that was truncated writes over what its forks and checkpoints still see."""
    patch.setattr(states.TextState, "shared", lambda state: state)


def writes_recurrent_states_in_place(patch: pytest.MonkeyPatch) -> None:
    """A step that fails leaves the recurrent states that it made."""
    with_room = states.TextState.with_room

    def in_place(state: Any, *arguments: Any) -> Any:
        made, after = with_room(state, *arguments)
        return made, after if made.recurrent is None else made.recurrent

    patch.setattr(states.TextState, "with_room", in_place)


def begins_with_what_another_text_left(patch: pytest.MonkeyPatch) -> None:
    """The recurrent states of a new text are whatever lies in the memory that it gets."""
    layout_step = Engine._layout_step

    def dirty(engine: Engine, running: Any) -> Any:
        step, *others = layout_step(engine, running)
        segments = [replace(segment, read=segment.read or segment.write) for segment in step.segments]
        return replace(step, segments=segments), *others

    patch.setattr(Engine, "_layout_step", dirty)


def keeps_the_state_after_refused_tokens(patch: pytest.MonkeyPatch) -> None:
    """Recurrent layers stay where the whole chunk brought them."""
    patch.setattr(CpuBackend, "replay", lambda *_: None)


def accepts_what_a_later_step_wrote_over(patch: pytest.MonkeyPatch) -> None:
    """A chunk stays open, whatever happens to its text."""
    patch.setattr(OpenChunk, "is_void", False)


def sums_by_threads(patch: pytest.MonkeyPatch) -> None:
    """A sum is cut into as many parts as there are threads, and the parts are added."""
    run = CpuBackend.run

    def cut(backend: CpuBackend, program: Any, step: Any) -> Any:
        hidden, logits, is_finite = run(backend, program, step)
        norms = np.zeros(len(step.wanted), np.float32)
        for part in np.array_split(np.arange(hidden.shape[1]), backend._team.threads):
            for row, number in enumerate(step.wanted):
                norms[row] += np.float32(sum(hidden[number, part].tolist()))
        return StepOutput(hidden, logits + norms[:, None], is_finite)

    patch.setattr(CpuBackend, "run", cut)


FAULTS: tuple[Fault, ...] = (
    commits_before_the_step_has_run,
    commits_one_text_after_the_other,
    writes_shared_blocks,
    forgets_what_is_shared,
    writes_recurrent_states_in_place,
    begins_with_what_another_text_left,
    keeps_the_state_after_refused_tokens,
    accepts_what_a_later_step_wrote_over,
    sums_by_threads,
)
