"""The state machine: what may happen to the texts of an engine, in any order, and what must hold after each of it.

What is drawn never depends on what texts there are, so that a run that an interrupt changed does not confuse
hypothesis: an action that finds nothing to act on makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpack.engine.engine import Chunk, Engine
from gpack.errors import FormatError, GpackError, UsageError

from . import interrupts
from .alone import Alone
from .world import CACHE_TYPES, N_CTX, N_TOKENS, World, poisoned

FEW, MANY = (1, 1, 2, 3, 5, 8), (1, 9, 33, 64, 100, 130)  # tokens of a chunk


@dataclass
class Setting:
    """Where a machine runs.

    Attributes:
        name: Of the model, with the options.
        engine: Whose texts act.
        alone: Says what texts are alone, with one thread and the same kernels.
        stranger: Another engine.
    """

    name: str
    engine: Engine
    alone: Alone
    stranger: Engine


class Counts:
    """What machines did: actions, and which followed which."""

    def __init__(self) -> None:
        self.actions: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.failed = self.interrupted = 0

    def __str__(self) -> str:
        return (
            f"{self.actions.total()} steps, {len(self.pairs)} of {len(ACTIONS) ** 2} pairs of actions,"
            f" {self.interrupted} interrupted steps, {self.failed} texts without memory"
        )


class EngineMachine(RuleBasedStateMachine):
    """Texts of one engine. A subclass has the setting and the counts."""

    setting: ClassVar[Setting]
    counts: ClassVar[Counts]

    @initialize(number=st.integers(0, 2**32))
    def begin(self, number: int) -> None:
        if number == 0:
            reject()  # hypothesis begins with the simplest of all runs: one action again and again
        self.world = World(self.setting.engine, self.setting.alone)
        for kind in CACHE_TYPES:
            self.world.new(kind)
        self.last = ""

    @rule(
        action=st.deferred(lambda: st.sampled_from([*ACTIONS, *OFTEN])),
        who=st.integers(0, 41),
        seed=st.integers(0, 2**20),
        amount=st.integers(0, 2**16),
    )
    def act(self, action: str, who: int, seed: int, amount: int) -> None:
        """One action, on a text or some; `seed` says which chunks, `amount` how far, when, or how much."""
        self.counts.actions[action] += 1
        if self.last:
            self.counts.pairs[self.last, action] += 1
        self.last = action
        ACTIONS[action](self, who, seed, amount)

    @invariant()
    def texts_are_what_they_are_alone(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    # ------------------------------------------------------------ texts grow

    def together(self, _who: int, seed: int, _amount: int) -> None:
        self.world.step(self.world.chunks(seed, 7, FEW if seed % 2 else MANY))

    def prompt(self, who: int, seed: int, _amount: int) -> None:
        """Of one text; one of six is long."""
        if seed % 6:
            self.world.step(self.world.chunks(seed, 1, MANY))
        else:
            self.world.lengthen(self.world.pick(who), seed)

    def token(self, who: int, seed: int, _amount: int) -> None:
        mirror = self.world.pick(who)
        if mirror.room:
            chunk = Chunk(mirror.text, [seed % N_TOKENS], ("last", "all", "none")[seed % 3])
            self.world.step([(mirror, chunk)])

    def open(self, _who: int, seed: int, amount: int) -> None:
        """Chunks stay open, some beside others that do not; what else happens may make them void."""
        chunks = self.world.chunks(seed, 4, FEW)
        which = np.random.default_rng(amount).random(len(chunks)) < 0.8
        made = zip(chunks, which.tolist(), strict=True)
        self.world.step([(mirror, replace(chunk, open=is_open)) for (mirror, chunk), is_open in made])

    def accept(self, _who: int, seed: int, amount: int) -> None:
        self.world.accept(np.random.default_rng((seed, amount)), lambda call: (call(), False))

    def accept_some(self, who: int, seed: int, amount: int) -> None:
        """At once, and sometimes interrupted."""
        self.open(who, seed, amount)
        draws = np.random.default_rng((seed, amount))
        if amount % 3:
            self.world.accept(draws, lambda call: (call(), False))
            return
        kind, number = int(draws.integers(2)), int(draws.integers(1 << 20))
        if kind:
            self.world.accept(draws, lambda call: self._counted(interrupts.at_point(number % 120, call)))
        else:
            self.world.accept(draws, lambda call: self._counted(interrupts.late(number % 20, call)))

    def draft(self, _who: int, seed: int, amount: int) -> None:
        self.world.draft(np.random.default_rng((seed, amount)))

    def new(self, who: int, _seed: int, _amount: int) -> None:
        self.world.new(CACHE_TYPES[who % 3])

    # ------------------------------------------------------------ texts branch, go back and end

    def fork(self, who: int, _seed: int, _amount: int) -> None:
        self.world.fork(who)

    def truncate(self, who: int, seed: int, amount: int) -> None:
        mirror = self.world.pick(who)
        position = max(0, len(mirror.tokens) - amount % (N_CTX if seed % 2 else 8))
        if mirror.text.can_truncate(position):
            mirror.text.truncate(position)
            del mirror.tokens[position:]
            return
        assert not self.setting.engine.is_trimmable, "a text that keeps everything cannot be truncated"
        assert position not in (0, len(mirror.tokens)), "a text cannot be truncated to nothing, or to itself"
        with pytest.raises(UsageError) as caught:
            mirror.text.truncate(position)
        assert caught.value.code == "engine.position", caught.value.code

    def checkpoint(self, who: int, _seed: int, _amount: int) -> None:
        mirror = self.world.pick(who)
        made = mirror.text.checkpoint()
        assert made.position == len(mirror.tokens), "a checkpoint has another position"
        mirror.checkpoints = [*mirror.checkpoints[-2:], (made, [*mirror.tokens])]

    def restore(self, who: int, seed: int, amount: int) -> None:
        mirror = self.world.pick(who)
        if not mirror.checkpoints:
            self.checkpoint(who, seed, amount)
        checkpoint, tokens = mirror.checkpoints[amount % len(mirror.checkpoints)]
        mirror.text.restore(checkpoint)
        mirror.tokens = [*tokens]

    def rewind(self, who: int, _seed: int, amount: int) -> None:
        mirror = self.world.pick(who)
        position = max(0, len(mirror.tokens) - amount % N_CTX)
        is_near = mirror.text.can_truncate(position)
        before = [
            len(tokens)
            for _, tokens in mirror.checkpoints
            if len(tokens) <= position and tokens == mirror.tokens[: len(tokens)]
        ]
        reached = mirror.text.rewind(position, *(known for known, _ in mirror.checkpoints))
        wanted = position if is_near else max(before, default=0)
        assert reached == wanted, f"rewind({position}) reached {reached}, not {wanted}"
        del mirror.tokens[reached:]

    def branch(self, who: int, seed: int, amount: int) -> None:
        """A fork stays as it is; the text itself goes back a little and on in another way."""
        mirror = self.world.pick(who)
        self.world.fork(who)
        if mirror in self.world.texts:
            self.rewind(self.world.texts.index(mirror), seed, amount % 6)
            tokens = [(seed + number) % N_TOKENS for number in range(1 + seed % 4)]
            if mirror.room >= len(tokens):
                self.world.step([(mirror, Chunk(mirror.text, tokens, "all"))])

    def close(self, who: int, _seed: int, _amount: int) -> None:
        self.world.pick(who)
        self.world.close(who)

    # ------------------------------------------------------------ what goes wrong

    def interrupt(self, _who: int, seed: int, amount: int) -> None:
        """Where Python looks for signals: at any such point, or in any function, however few it has."""
        chunks = self.world.chunks(seed, 4, FEW if seed % 2 else MANY, least=2)
        draws = np.random.default_rng((seed, amount))  # hypothesis likes small numbers, of which few would do
        kind, number, point = (int(number) for number in draws.integers(0, (3, 1 << 20, 1 << 20)))

        def run(call: Callable[[], Any]) -> tuple[Any, bool]:
            if kind == 0:
                return self._counted(interrupts.at_point(number % 700, call))
            if kind == 1:
                return self._counted(interrupts.in_function(number % 30, point % 4, call))
            return self._counted(interrupts.late(number % 60, call))

        self.world.interrupted(chunks, run)

    def signal(self, _who: int, seed: int, amount: int) -> None:
        """After some microseconds; a step takes about a thousand."""
        chunks = self.world.chunks(seed, 4, MANY)
        self.world.interrupted(chunks, lambda call: self._counted(interrupts.after(amount % 2000 * 1e-6 + 1e-6, call)))

    def _counted(self, outcome: tuple[Any, bool]) -> tuple[Any, bool]:
        self.counts.interrupted += outcome[1]
        return outcome

    def starve(self, _who: int, seed: int, amount: int) -> None:
        """The device has memory for few more blocks."""
        chunks = self.world.chunks(seed, 4, MANY)
        with self.world.without_memory(amount % 3):
            self.counts.failed += self.world.failing(chunks)

    def exhaust(self, _who: int, seed: int, amount: int) -> None:
        """The budget allows few more bytes."""
        chunks = self.world.chunks(seed, 4, MANY)
        with self.world.budget(amount):
            self.counts.failed += self.world.failing(chunks)

    def poison(self, who: int, seed: int, _amount: int) -> None:
        """One text meets values that are not finite; the others go on."""
        chunks = self.world.chunks(seed, 4, FEW)
        if not chunks:
            return
        chunks, ill = poisoned(chunks, who), who % len(chunks)
        result = self.setting.engine.step([chunk for _, chunk in chunks], hidden=True)
        errors = [outcome.error for outcome in result]
        error = errors.pop(ill)
        assert isinstance(error, FormatError), f"a poisoned text did not fail: {error}"
        assert error.code == "engine.nan", error.code
        assert errors == [None] * (len(chunks) - 1), f"others than the poisoned text failed: {errors}"
        self.world.account(chunks, result)

    def misuse(self, who: int, seed: int, amount: int) -> None:
        """One chunk of a step makes no sense: nothing is computed, no text changes."""
        text, engine, position = self.world.pick(who).text, self.setting.engine, self.world.pick(who).text.position
        chunks = [chunk for _, chunk in self.world.chunks(seed, 4, FEW) if chunk.sequence is not text]
        closed = engine.sequence()
        closed.close()
        with self.setting.stranger.sequence(n_ctx=8) as foreign:
            beyond = [1] * (engine.batch + 1)
            bad, code = [
                (Chunk(closed, [1]), "engine.sequence"),
                (Chunk(foreign, [1]), "engine.sequence"),
                (Chunk(text, [1], position=position + 1), "engine.position"),
                (Chunk(text, [1], position=position - 1), "engine.position"),
                (Chunk(text, [N_TOKENS + 1]), "engine.token"),
                (Chunk(text, [-1]), "engine.token"),
                (Chunk(text, [1] * (N_CTX - position + 1)), "engine.context"),
                (Chunk(text, beyond), "engine.batch" if position + len(beyond) <= N_CTX else "engine.context"),
                (Chunk(text, []), "usage"),
            ][amount % 9]
            chunks.insert(who % (len(chunks) + 1), bad)
            with pytest.raises(GpackError) as caught:
                engine.step(chunks)
            assert caught.value.code == code, f"{caught.value.code} for {code}"


ACTIONS: dict[str, Callable[[EngineMachine, int, int, int], None]] = {
    action.__name__: action
    for action in (
        EngineMachine.together,
        EngineMachine.prompt,
        EngineMachine.token,
        EngineMachine.open,
        EngineMachine.accept,
        EngineMachine.accept_some,
        EngineMachine.draft,
        EngineMachine.new,
        EngineMachine.fork,
        EngineMachine.truncate,
        EngineMachine.checkpoint,
        EngineMachine.restore,
        EngineMachine.rewind,
        EngineMachine.branch,
        EngineMachine.close,
        EngineMachine.interrupt,
        EngineMachine.signal,
        EngineMachine.starve,
        EngineMachine.exhaust,
        EngineMachine.poison,
        EngineMachine.misuse,
    )
}
OFTEN: tuple[str, ...] = ("fork", "interrupt", "interrupt")  # what faults are most often found by
