"""Texts of one engine beside what they must be: the tokens of each, and the numbers that it has alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gpack.engine.backends.base import BLOCK, Segment, Step
from gpack.engine.engine import Chunk, Engine, Outcome, StepResult
from gpack.engine.state.sequence import Checkpoint, OpenChunk
from gpack.engine.state.sequence import Sequence as Text
from gpack.errors import GpackError, UsageError

from .alone import Alone, Row, is_same, rows_of

N_CTX = 620  # positions
LONG = 530  # positions that attention takes in three parts: their order shows in the bits
MOST_TEXTS = 7
CACHE_TYPES = ("F32", "F16", "Q8_0")
N_TOKENS = 39  # of a vocabulary of 40; the last one is POISON
POISON = 39  # its embedding is not a number


@dataclass(eq=False)
class Mirror:
    """A text and the tokens that it must have."""

    text: Text
    cache_type: str
    tokens: list[int] = field(default_factory=list)
    checkpoints: list[tuple[Checkpoint, list[int]]] = field(default_factory=list)
    opened: OpenChunk | None = None

    @property
    def room(self) -> int:
        return N_CTX - len(self.tokens)


class World:
    """An engine, its texts, and the checks.

    Attributes:
        texts: Those that are open.
    """

    def __init__(self, engine: Engine, alone: Alone) -> None:
        self.engine, self.alone = engine, alone
        self.texts: list[Mirror] = []
        gc.collect()
        self.unused = engine.pool.used

    # ------------------------------------------------------------ texts

    def new(self, cache_type: str) -> Mirror:
        self._make_place()
        made = Mirror(self.engine.sequence(n_ctx=N_CTX, cache_type=cache_type, drafts=True), cache_type)
        self.texts.append(made)
        return made

    def fork(self, who: int) -> None:
        self._make_place()
        source = self.pick(who)
        made = Mirror(source.text.fork(), source.cache_type, [*source.tokens], [*source.checkpoints])
        self.texts.append(made)

    def close(self, who: int) -> None:
        mirror = self.pick(who)
        mirror.text.close()
        mirror.text.close()
        assert mirror.text.is_closed, "a closed text says that it is not"
        self.texts = [known for known in self.texts if known is not mirror]

    def pick(self, who: int) -> Mirror:
        if not self.texts:
            self.new(CACHE_TYPES[who % 3])
        return self.texts[who % len(self.texts)]

    def _make_place(self) -> None:
        if len(self.texts) == MOST_TEXTS:
            self.close(0)

    # ------------------------------------------------------------ steps

    def chunks(self, seed: int, most: int, sizes: Sequence[int], *, least: int = 1) -> list[tuple[Mirror, Chunk]]:
        """Chunks of some texts in any order, which together are no more than the batch."""
        rng = np.random.default_rng(seed)
        self.pick(0)
        order = rng.permutation(len(self.texts))[: int(rng.integers(least, most + 1))]
        made, rows = [], 0
        for number in order:
            mirror = self.texts[int(number)]
            count = min(int(rng.choice(sizes)), mirror.room, self.engine.batch - rows)
            if count < 1:
                continue
            rows += count
            wanted = ("last", "all", "none")[int(rng.integers(3))]
            position = len(mirror.tokens) if rng.random() < 0.5 else None
            tokens = rng.integers(0, N_TOKENS, count).tolist()
            made.append((mirror, Chunk(mirror.text, tokens, wanted, position)))  # type: ignore[arg-type]
        return made

    def lengthen(self, mirror: Mirror, seed: int) -> None:
        """Steps until a text is long."""
        rng = np.random.default_rng(seed)
        while (left := LONG - len(mirror.tokens)) > 0:
            tokens = rng.integers(0, N_TOKENS, min(left, self.engine.batch)).tolist()
            self.step([(mirror, Chunk(mirror.text, tokens, "last"))])

    def step(self, chunks: Sequence[tuple[Mirror, Chunk]]) -> StepResult | None:
        """A step in which nothing may fail."""
        if not chunks:
            return None
        result = self.engine.step([chunk for _, chunk in chunks], hidden=True)
        result.raise_error()
        self.account(chunks, result)
        return result

    def account(self, chunks: Sequence[tuple[Mirror, Chunk]], result: StepResult) -> None:
        """Notes what was committed, and compares what came of it."""
        for (mirror, chunk), outcome in zip(chunks, result, strict=True):
            if outcome.error is None:
                tokens = [*mirror.tokens, *chunk.tokens]
                if chunk.open:
                    assert outcome.opened is not None, "a chunk was to stay open"
                    mirror.opened = outcome.opened
                else:
                    mirror.tokens = tokens
                self._compare(mirror, tokens, chunk, outcome)

    def _compare(self, mirror: Mirror, tokens: list[int], chunk: Chunk, outcome: Outcome) -> None:
        count = len(chunk.tokens)
        expected = self.alone.rows(tokens, mirror.cache_type, len(tokens) - count)
        n_logits = {"last": 1, "all": count, "none": 0}[chunk.logits]
        assert outcome.hidden is not None, "there are no hidden states"
        assert (len(outcome.hidden), len(outcome.logits)) == (count, n_logits), "there are more rows, or fewer"
        for made, (wanted, _) in zip(outcome.hidden, expected, strict=True):
            assert is_same(made, wanted), "hidden states are not those that the text has alone"
        for made, (_, wanted) in zip(outcome.logits, expected[count - n_logits :], strict=True):
            assert is_same(made, wanted), "logits are not those that the text has alone"

    def accept(self, draws: np.random.Generator, run: Callable[[Callable[[], Any]], tuple[Any, bool]]) -> None:
        """Some tokens of all open chunks count; those of chunks that are void cannot."""
        mirrors = [mirror for mirror in self.texts if mirror.opened is not None]
        for mirror in [mirror for mirror in mirrors if mirror.opened is not None and mirror.opened.is_void]:
            mirrors.remove(mirror)
            assert mirror.opened is not None
            with pytest.raises(UsageError) as caught:
                self.engine.accept([(mirror.opened, 1)])
            assert caught.value.code == "engine.open"
            mirror.opened = None
        counts = []
        for mirror in mirrors:
            assert mirror.opened is not None
            counts.append((mirror, mirror.opened, int(draws.integers(0, len(mirror.opened.tokens) + 1))))
            mirror.opened = None
        _, was_interrupted = run(lambda: self.engine.accept([(opened, count) for _, opened, count in counts]))
        moved = {mirror.text.position != len(mirror.tokens) for mirror, _, count in counts if count}
        assert len(moved) < 2, "some chunks of an interrupted call were accepted, others not"
        if moved == {True}:
            for mirror, opened, count in counts:
                mirror.tokens += opened.tokens[:count]
        else:
            assert was_interrupted or not moved, "nothing was accepted"

    def draft(self, draws: np.random.Generator) -> None:
        """The draft layer guesses how some texts go on; the texts stay as they are."""
        chosen = [mirror for mirror in self.texts if draws.random() < 0.5]
        wanted = [(mirror.text, int(draws.integers(N_TOKENS)), int(draws.integers(5))) for mirror in chosen]
        guesses = self.engine.draft(wanted)
        assert len(guesses) == len(wanted)
        for (text, _, most), found in zip(wanted, guesses, strict=True):
            assert len(found) <= most, "there are more guesses than were asked for"
            assert not found or text.position, "there are guesses of a text without tokens"
            assert all(0 <= token < N_TOKENS + 1 for token in found), found
        assert self.engine.drafts_off is None or not any(guesses), "guesses without a layer"

    def interrupted(
        self, chunks: Sequence[tuple[Mirror, Chunk]], run: Callable[[Callable[[], Any]], tuple[Any, bool]]
    ) -> None:
        """A step that is interrupted somewhere: all of its texts went on, or none did."""
        if not chunks:
            return
        result, was_interrupted = run(lambda: self.engine.step([chunk for _, chunk in chunks], hidden=True))
        if not was_interrupted:
            result.raise_error()
            self.account(chunks, result)
            return
        moved = {mirror.text.position != len(mirror.tokens) for mirror, _ in chunks}
        assert len(moved) == 1, "some texts of an interrupted step were committed, others not"
        if moved == {True}:
            for mirror, chunk in chunks:
                mirror.tokens += chunk.tokens

    def failing(self, chunks: Sequence[tuple[Mirror, Chunk]]) -> int:
        """A step of which some texts may have no memory: how many."""
        if not chunks:
            return 0
        try:
            result = self.engine.step([chunk for _, chunk in chunks], hidden=True)
        except GpackError as error:
            if error.code != "engine.budget":
                raise
            return len(chunks)
        self.account(chunks, result)
        errors = [outcome.error for outcome in result if outcome.error is not None]
        assert {error.code for error in errors} <= {"engine.budget"}, errors
        return len(errors)

    @contextmanager
    def without_memory(self, after: int) -> Iterator[None]:
        """The device gives memory so many times more, and the pool has none left."""
        left, allocate = after, self.engine.backend.allocate

        def refuse(layout: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise MemoryError
            return allocate(layout)

        with self.budget(0):  # gives back all that is free
            pass
        self.engine.backend.allocate = refuse  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.engine.backend.allocate

    @contextmanager
    def budget(self, more: int) -> Iterator[None]:
        """The budget is what is in use, and so many bytes."""
        pool = self.engine.pool
        gc.collect()
        before = pool.budget
        pool.budget = pool.used + more
        try:
            yield
        finally:
            pool.budget = before

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """Every text is what it must be; a further token gives what it gives alone, and the texts stay as they are."""
        for mirror in self.texts:
            assert mirror.text.position == len(mirror.tokens), "a text has another length"
            assert mirror.text.tokens == mirror.tokens, "a text has other tokens"
        probes = [(mirror, probe_of(mirror.tokens)) for mirror in self.texts if mirror.room]
        if not probes:
            return
        probes.sort(key=lambda probe: probe[0].cache_type)
        expected = [
            self.alone.rows([*mirror.tokens, token], mirror.cache_type, len(mirror.tokens)) for mirror, token in probes
        ]
        for first in range(0, len(probes), self.engine.batch):
            found = self._probe(probes[first : first + self.engine.batch])
            for number, row in enumerate(found, start=first):
                same = all(map(is_same, row, expected[number][0]))
                assert same, f"text {self.texts.index(probes[number][0])} is not what it must be"

    def _probe(self, probes: Sequence[tuple[Mirror, int]]) -> list[Row]:
        """Runs one token of each text on the backend; what would be written to goes to copies."""
        backend, segments, kept = self.engine.backend, [], []
        for number, (mirror, _) in enumerate(probes):
            state, tables = mirror.text.state, []
            for table, layout in zip(state.tables, state.layouts.blocks, strict=True):
                last = state.position // BLOCK
                memory = backend.allocate(layout)
                kept.append(memory)
                block = table.blocks[last] if last < len(table.blocks) else None
                if block is not None:
                    backend.copy(layout, block.memory, memory)
                tables.append(np.append(table.ids[:last], memory.id))
            read = write = 0
            if state.layouts.recurrent is not None:
                kept.append(backend.allocate(state.layouts.recurrent))
                read, write = 0 if state.recurrent is None else state.recurrent.id, kept[-1].id
            segments.append(
                Segment(
                    number,
                    1,
                    state.position,
                    mirror.cache_type,
                    tuple(tables),
                    read,
                    write,
                    previous=mirror.tokens[-2:],  # no test's model reads more of them
                )
            )
        program = self.engine.lower(*sorted({segment.cache_type for segment in segments}))
        count = len(probes)
        step = Step(np.array([token for _, token in probes], np.int32), segments, np.arange(count, dtype=np.int32))
        made, logits = backend.run(program, step)[:2]
        return rows_of(made[:, : self.engine.n_embd], logits)

    def end(self) -> None:
        """All texts end; all memory is given back."""
        self.check()
        while self.texts:
            self.close(0)
        gc.collect()
        used = self.engine.pool.used
        assert used == self.unused, f"{used} bytes are in use, {self.unused} were when no text was there"


def probe_of(tokens: Sequence[int]) -> int:
    """A token that follows from a text."""
    return (7 * len(tokens) + sum(tokens)) % N_TOKENS


def poisoned(chunks: Sequence[tuple[Mirror, Chunk]], number: int) -> list[tuple[Mirror, Chunk]]:
    """The same chunks, one of which ends with the token that has no embedding."""
    made = list(chunks)
    mirror, chunk = made[number % len(made)]
    made[number % len(made)] = mirror, replace(chunk, tokens=[*chunk.tokens[:-1], POISON])
    return made
