"""Texts that a scheduler carries on together: each is the text that a session of its own writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import toy_qwen4exp
from engine.test_draft_layer import with_draft_layer
from markov import tiny as tiny_tokenizer

from gpack.errors import GpackError, UsageError
from gpack.generate.sampling import GREEDY, Sampling
from gpack.generate.text import generate
from gpack.model import GuildModel

from .serving import Bed, open_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuildModel]:
    with open_model(tmp_path_factory.mktemp("served")) as opened:
        yield opened


def prompts(count: int, most: int = 90) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 250, rng.integers(1, most)).tolist() for _ in range(count)]


def samplings(count: int) -> list[Sampling]:
    return [GREEDY if number % 3 == 0 else Sampling(seed=number, temperature=1.2) for number in range(count)]


def alone(model: GuildModel, prompt: list[int], sampling: Sampling, count: int = 12) -> list[int]:
    """What a session writes: another way through the engine, one text at a time."""
    options: dict[str, Any] = {"n_ctx": 200, "threads": 1, "cpu": "portable", "draft": "off"}
    found = generate(model, prompt, max_tokens=count, sampling=sampling, **options)
    ids: list[int] = found.ids  # type: ignore[union-attr]
    return ids


@pytest.mark.parametrize("draft", ["off", "auto", 1, 3])
def test_texts_together_are_those_that_they_are_alone(model: GuildModel, draft: str | int) -> None:
    given = list(zip(prompts(10), samplings(10), strict=True))
    expected = [alone(model, prompt, sampling) for prompt, sampling in given]
    with Bed(model, draft=draft) as bed:
        told = [bed.ask(prompt, sampling=sampling) for prompt, sampling in given]
        assert [one.result().ids for one in told] == expected
        again = [bed.ask(prompt, sampling=sampling) for prompt, sampling in given]  # from states that were kept
        assert [one.result().ids for one in again] == expected
        assert bed.scheduler.counters.reused_tokens > 0


def test_texts_that_are_put_back_are_the_same(model: GuildModel) -> None:
    given = list(zip(prompts(6, 60), samplings(6), strict=True))
    expected = [alone(model, prompt, sampling, 100) for prompt, sampling in given]
    with Bed(model) as bed:
        block = bed.engine.sequence(n_ctx=64)
        one = block.state.layouts.most_bytes(64)
        block.close()
    with Bed(model, state_bytes=7 * one, draft="off") as bed:  # each takes up to 3 blocks, 4 run together
        told = [bed.ask(prompt, sampling=sampling, max_tokens=100) for prompt, sampling in given]
        assert [one.result().ids for one in told] == expected
        assert bed.scheduler.counters.put_back > 0


def test_a_prompt_that_was_read_is_not_read_again(model: GuildModel) -> None:
    prompt = prompts(1, 60)[0] + list(range(3, 103))
    with Bed(model) as bed:
        bed.ask(prompt).result()
        before = bed.scheduler.counters.read_tokens
        assert bed.ask(prompt).result().timings.cached_tokens == len(prompt) - 1
        assert bed.scheduler.counters.read_tokens == before + 1
        follower = bed.ask([*prompt, 9, 8, 7]).result()
        assert follower.timings.cached_tokens >= len(prompt)


def test_answers_to_one_prompt_read_it_once(model: GuildModel) -> None:
    prompt = list(range(3, 123))
    with Bed(model) as bed:
        first = bed.make(prompt, sampling=Sampling(seed=1))
        others = [bed.make(prompt, after=first, sampling=Sampling(seed=seed)) for seed in (2, 3)]
        bed.scheduler.submit(first.job, *[other.job for other in others])
        found = [told.result().ids for told in (first, *others)]
        assert found == [alone(model, prompt, Sampling(seed=seed)) for seed in (1, 2, 3)]
        assert bed.scheduler.counters.read_tokens == len(prompt) + 2


def test_a_short_prompt_does_not_wait_for_a_long_one(model: GuildModel) -> None:
    with Bed(model, n_ctx=256, batch=32) as bed:
        long = bed.ask(list(range(3, 203)), max_tokens=5)
        short = bed.ask([5, 6], max_tokens=1)
        short.result()
        assert not long.done.is_set()
        long.result()


def test_a_client_that_leaves_frees_everything(model: GuildModel) -> None:
    with Bed(model, kept_bytes=0) as bed:
        told = bed.ask([5, 6, 7], max_tokens=190)
        while not told.events:
            time.sleep(0.001)
        bed.scheduler.cancel(told.job)
        assert bed.ask([5]).result().ids  # the steps go on
        assert told.job.is_done
        assert not told.done.is_set()
        assert bed.scheduler.running == 0
        assert bed.engine.pool.used == 0


@pytest.mark.parametrize(("prompt", "code"), [([*range(3, 203), 5], "engine.context"), ([5, 100_000], "engine.token")])
def test_what_can_never_run_is_refused_at_once(model: GuildModel, prompt: list[int], code: str) -> None:
    with Bed(model) as bed, pytest.raises(GpackError) as caught:
        bed.ask(prompt)
    assert caught.value.code == code


class Broken:
    """Rules that fail after some tokens, as a library may."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def masked(self, logits: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("no grammar")
        return logits

    def take(self, token: int) -> None:
        pass


def test_what_goes_wrong_with_one_text_fails_that_text_alone(model: GuildModel) -> None:
    prompt = prompts(1)[0]
    with Bed(model) as bed:
        good = bed.ask(prompt, sampling=GREEDY)
        bad = bed.ask([5, 6], rules=Broken(3))
        with pytest.raises(GpackError) as caught:
            bad.result()
        assert caught.value.code == "internal"
        assert good.result().ids == alone(model, prompt, GREEDY)


def test_prompts_are_read_however_many_texts_are_written(model: GuildModel) -> None:
    with Bed(model, parallel=40, n_ctx=120, draft="off") as bed:
        bed.scheduler._pace.row = 1.0  # as of a model so slow that a step may not even have a row
        told = [bed.ask([number + 5], max_tokens=100) for number in range(30)]
        late = bed.ask([3, 4, 5, 6], max_tokens=1)
        late.result()
        assert sum(one.done.is_set() for one in told) < 30
        for one in told:
            one.result()


def test_one_text_makes_room_for_two(model: GuildModel) -> None:
    """Two texts of three lack memory in one step: one of them is put back, none fails."""
    with Bed(model) as bed:
        text = bed.engine.sequence(n_ctx=64)
        one = text.state.layouts.most_bytes(64)
        text.close()
    with Bed(model, state_bytes=4 * one, kept_bytes=0, draft="off") as bed:
        told = [bed.ask(list(range(5, 64)), max_tokens=60, sampling=Sampling(seed=seed)) for seed in range(3)]
        found = [each.result().ids for each in told]
        assert found == [alone(model, list(range(5, 64)), Sampling(seed=seed), 60) for seed in range(3)]


def test_a_full_queue_refuses_and_closing_ends(model: GuildModel) -> None:
    with Bed(model, parallel=1, queue=1) as bed:
        first, second = bed.ask([5], max_tokens=150), bed.ask([6], max_tokens=150)
        with pytest.raises(UsageError) as caught:
            bed.ask([7])
        assert caught.value.code == "serve.busy"
        assert bed.scheduler.close() in (1, 2)
        with pytest.raises(UsageError) as caught:
            second.result()
        assert caught.value.code == "serve.closing"
        with pytest.raises(UsageError) as caught:
            bed.ask([7])
        assert caught.value.code == "serve.closing"
        assert first.done.is_set()


def test_a_text_that_does_not_fit_alone_fails_alone(model: GuildModel) -> None:
    with Bed(model) as bed:
        block = bed.engine.sequence(n_ctx=64)
        size = block.state.layouts.most_bytes(200)
        block.close()
    with Bed(model, state_bytes=size, draft="off") as bed:
        assert bed.ask([5], max_tokens=150).result().ids
        assert bed.scheduler.running == 0


def test_texts_that_repeat_themselves_are_drafted_together(model: GuildModel) -> None:
    """With drafts of a fixed length every text that has an idea gets them; the same bytes come in fewer steps."""
    given = [(prompt, Sampling(seed=number, temperature=0.01)) for number, prompt in enumerate(prompts(4, 30))]
    expected = [alone(model, prompt, sampling, 80) for prompt, sampling in given]
    steps = []
    for draft in ("off", 4):
        with Bed(model, draft=draft) as bed:
            told = [bed.ask(prompt, sampling=sampling, max_tokens=80) for prompt, sampling in given]
            assert [one.result().ids for one in told] == expected
            steps.append(bed.scheduler.counters.steps)
            drafted = bed.scheduler.counters.drafted, bed.scheduler.counters.accepted
    assert drafted[0] > drafted[1] > 0
    assert steps[1] < steps[0]


@pytest.mark.parametrize("build", [with_draft_layer, toy_qwen4exp.with_draft_layer], ids=["qwen35moe", "qwen4exp"])
def test_drafts_of_the_models_own_layer(build: Any, tmp_path: Path) -> None:
    """Several texts of a hybrid are drafted by one run of its layer; each is what it is without, kept prefixes too."""
    tokenizer = tiny_tokenizer()
    with build().open(tmp_path / "m.gguf") as model:
        n_vocab = min(250, int(model.tensors["token_embd.weight"].dims[1]))
        rng = np.random.default_rng(3)
        given = [rng.integers(3, n_vocab, 20 + 9 * number).tolist() for number in range(4)]
        found = []
        for draft in ("off", 3, "auto"):
            layer = draft != "off"
            with Bed(model, draft=draft, layer=layer, n_ctx=120, tokenizer=tokenizer) as bed:
                told = [
                    bed.ask(prompt, sampling=Sampling(seed=number, temperature=0.7), max_tokens=24, ignore_end=True)
                    for number, prompt in enumerate(given)
                ]
                first = [one.result().ids for one in told]
                again = bed.ask([*given[1], *first[1]], sampling=Sampling(seed=9), max_tokens=8, ignore_end=True)
                found.append((first, again.result().ids))
                if draft == 3:
                    assert bed.scheduler.counters.drafted > 0
        assert found[0] == found[1] == found[2]
