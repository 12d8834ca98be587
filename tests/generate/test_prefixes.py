"""Kept states: which one a prompt goes on from, what they may take, and how few rows a second turn has."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine import toy_qwen4exp, toy_recurrent
from engine.test_draft_layer import with_draft_layer
from markov import Model, ids_of, script
from markov import tiny as tiny_tokenizer
from tiny_models import TinyModel, text, tiny

from gpack.generate.drafting import Drafter, MtpDrafter, NgramDrafter
from gpack.generate.prefixes import PrefixStore, common
from gpack.generate.text import Request, TextGenerator, encode, turn_end


@dataclass
class State:
    """A state of some tokens, which holds some pieces of memory."""

    tokens: array[int]
    kind: object = None
    pieces: dict[int, int] = field(default_factory=dict)
    trims: bool = False

    @property
    def position(self) -> int:
        return len(self.tokens)

    def can_reach(self, position: int) -> bool:
        return self.trims or position in (0, self.position)

    def parts(self) -> dict[int, int]:
        return self.pieces


def state(tokens: list[int], **options: Any) -> State:
    return State(array("i", tokens), **{"pieces": {hash(tuple(tokens)): 10}, **options})


def test_the_longest_state_that_a_prompt_begins_with() -> None:
    store, kind, other = PrefixStore(1000), object(), object()
    for tokens in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 9, 9, 9], [5]):
        assert store.keep(state(tokens, kind=kind))
    store.keep(state([1, 2, 3, 4, 5, 6], kind=other))

    def found(tokens: list[int]) -> tuple[list[int], int] | None:
        at = store.find(tokens, kind)
        return None if at is None else (at[0].tokens.tolist(), at[1])

    assert found([1, 2, 3, 4, 5, 6]) == ([1, 2, 3, 4], 4)
    assert found([1, 2, 3, 9]) == ([1, 2], 2)
    assert found([1, 2, 3, 4]) == ([1, 2, 3, 4], 4)
    assert found([2, 2]) is None
    assert found([]) is None
    # A state that can be cut serves every prompt that begins alike.
    store.keep(state([1, 2, 3, 9, 9, 9, 9], kind=kind, trims=True))
    assert found([1, 2, 3, 9, 8]) == ([1, 2, 3, 9, 9, 9, 9], 4)


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    store = PrefixStore(35)
    for number in (1, 2, 3):
        assert store.keep(state([number]))
    assert store.find([1, 7], None) is not None
    assert store.keep(state([4]))
    assert [store.find([number], None) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert (len(store), store.nbytes) == (3, 30)
    assert not store.keep(state([9], pieces={1: 36}))
    assert not store.keep(state([]))
    assert store.forget()
    assert len(store) == 2
    store.clear()
    assert not store.forget()


def test_memory_that_states_share_counts_once() -> None:
    store = PrefixStore(50)
    for end in range(1, 9):
        assert store.keep(state(list(range(end)), pieces={0: 30, end: 2}))
    assert (len(store), store.nbytes) == (8, 46)
    store.keep(state([1], pieces={100: 10}))
    assert store.nbytes <= 50
    store.keep(state([1], pieces={100: 10}))  # the same again
    assert store.find([1], None) is not None


@pytest.mark.parametrize("length", [0, 1, 2, 3, 64, 65])
def test_how_much_is_common(length: int) -> None:
    one = list(range(65))
    for other in (one[:length], [*one[:length], -1], [*one[:length], -1, *one]):
        assert common(one, other) == common(array("i", one), array("i", other)) == length


def test_threads_keep_and_find(tmp_path: Path) -> None:
    store, faults = PrefixStore(200), []

    def work(number: int) -> None:
        try:
            for turn in range(300):
                tokens = [number, turn % 7, turn]
                store.keep(state(tokens))
                found = store.find(tokens, None)
                assert found is None or list(found[0].tokens) == tokens
                if turn % 50 == 0:
                    store.forget()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert store.nbytes <= 200


# ---------------------------------------------------------------- turns

MODELS: dict[str, Callable[[], TinyModel]] = {
    "delta nets": toy_recurrent.qwen35moe,
    "delta nets and a draft layer": with_draft_layer,
    "streams, n-grams and a draft layer": toy_qwen4exp.with_draft_layer,
    "recurrent layers and windows": toy_recurrent.toy,
    "attention": tiny,
}


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with toy_recurrent.registered():
        yield


def generator(model: Any, *, keeps: bool, **options: Any) -> TextGenerator:
    session = model.session(**options)
    drafter: Callable[[], Drafter] = partial(MtpDrafter, session) if options.get("drafts") else NgramDrafter
    made = TextGenerator(session, tiny_tokenizer(), draft=2, drafter=drafter)
    if keeps:
        made.keep_prefixes()
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_second_turn_computes_its_new_tokens_alone(tmp_path: Path, name: str) -> None:
    ids, new = text(150), text(11, seed=5)
    options = {"n_ctx": 512, "drafts": "draft layer" in name}
    with MODELS[name]().open(tmp_path / "m.gguf") as model:
        with generator(model, keeps=True, **options) as kept:
            first = kept.generate(Request(ids=ids, max_tokens=20, keep_at=[140]))
            assert (first.timings.prompt_tokens, first.timings.cached_tokens) == (150, 0)
            # The answer as it was said; its last token was chosen and not computed.
            longer = Request(ids=[*ids, *first.ids, *new], max_tokens=20, keep_at=[175])
            second = kept.generate(longer)
            assert second.timings.prompt_tokens == len(new) + 1
            # The template changed the answer: all after the end of the turn is read again.
            changed = Request(ids=[*ids[:140], 3, 4, 5, *first.ids[6:], *new], max_tokens=20)
            third = kept.generate(changed)
            exact = kept.session.is_trimmable
            assert third.timings.prompt_tokens == len(changed.ids) - (140 if not exact else common(ids, changed.ids))
            again = kept.generate(longer)  # the turn that was left is still there
            assert again.timings.prompt_tokens == (1 if exact else len(longer.ids) - 175)
        for request, found in ((longer, second), (changed, third), (longer, again)):
            with generator(model, keeps=False, **options) as plain:
                assert plain.generate(request).ids == found.ids


def test_states_go_where_memory_ends_and_no_text_fails(tmp_path: Path) -> None:
    with toy_recurrent.qwen35moe().open(tmp_path / "m.gguf") as model, generator(model, keeps=True) as kept:
        pool = kept.session._engine.pool  # type: ignore[attr-defined]
        for number in range(6):
            kept.generate(Request(ids=text(100, seed=number), max_tokens=3, keep_at=[90]))
        assert kept.prefixes is not None
        before = len(kept.prefixes)
        assert before == 12
        pool.budget = pool.used  # nothing more but what is given back
        found = kept.generate(Request(ids=text(200, seed=9), max_tokens=3))
        assert 0 < len(kept.prefixes) < before
        with generator(model, keeps=False) as plain:
            pool.budget *= 4
            assert plain.generate(Request(ids=text(200, seed=9), max_tokens=3)).ids == found.ids


def test_sessions_of_one_engine_share_a_store(tmp_path: Path) -> None:
    with toy_recurrent.qwen35moe().open(tmp_path / "m.gguf") as model:
        with generator(model, keeps=True) as one, generator(model, keeps=False) as two:
            two.prefixes = one.prefixes
            one.generate(Request(ids=text(100), max_tokens=1, keep_at=[90]))
            found = two.generate(Request(ids=[*text(100)[:90], 1, 2, 3], max_tokens=5))
            assert found.timings.prompt_tokens == 3
        with generator(model, keeps=False, cache_type="F32") as other:  # of another kind
            other.prefixes = one.prefixes
            assert other.generate(Request(ids=text(100), max_tokens=1)).timings.prompt_tokens == 100


def test_where_a_turn_ends() -> None:
    model = Model(script(ids_of("hello")))
    messages = [{"role": "user", "content": "Hi there"}]
    ids = encode(model, messages)
    end = turn_end(model, messages, ids)
    assert model.tokenizer.decode(ids[end:]) == "<|im_start|>assistant\n"
    assert 0 < end < len(ids)
