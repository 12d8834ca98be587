"""Drafts: no text depends on them, what they save is steps, and the length that is chosen gains or is none."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import toy_qwen4exp, toy_recurrent
from engine.test_draft_layer import with_draft_layer
from gguf_maker import TINY_TOKENS
from markov import Model, Session, chain, ids_of, script
from markov import tiny as tiny_tokenizer
from tiny_models import TinyModel, text, tiny

from gpack.errors import UsageError
from gpack.generate.drafting import AutoLength, Drafter, DraftStats, FixedLength, MtpDrafter, NgramDrafter, draft_option
from gpack.generate.sampling import Sampling
from gpack.generate.text import Generation, Request, TextGenerator

N = 40  # tokens of the models
LENGTHS: tuple[Any, ...] = (1, 5, 31, "auto")
MODELS: dict[str, Callable[[], TinyModel]] = {
    "delta nets with experts": toy_recurrent.qwen35moe,
    "recurrent layers and windows": toy_recurrent.toy,
    "attention": tiny,
}
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.9, seed=3),
    "sampled, with penalties": Sampling(temperature=1.3, seed=4, repeat_penalty=1.3, presence_penalty=0.2),
}


class Oracle:
    """Knows how a text goes on, but for some places where it lies."""

    name = "oracle"

    def __init__(self, whole: Sequence[int], share: float) -> None:
        self.whole, self.share = whole, share
        self.random = np.random.default_rng(5)

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        following = self.whole[len(tokens) : len(tokens) + most]
        return [token if self.random.random() < self.share else (token + 1) % N for token in following]


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        stack.enter_context(toy_recurrent.registered())
        yield stack.enter_context(MODELS[name]().open(folder / "m.gguf"))


def generator(model: Any, draft: Any, drafter: Callable[[], Drafter] = NgramDrafter, **options: Any) -> TextGenerator:
    return TextGenerator(model.session(**options), tiny_tokenizer(), draft=draft, drafter=drafter)


def same(one: Generation, other: Generation) -> bool:
    facts = [(found.ids, found.text, found.finish_reason, found.ended_by, found.logprobs) for found in (one, other)]
    return facts[0] == facts[1]


# ---------------------------------------------------------------- texts do not depend on drafts


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("name", MODELS)
def test_a_text_is_the_same_with_and_without_drafts(tmp_path: Path, name: str, how: str) -> None:
    requests = [
        Request(ids=text(30), max_tokens=40, sampling=SAMPLINGS[how], logprobs=2),
        Request(ids=text(7, seed=2) * 3, sampling=SAMPLINGS[how]),  # until the context is full
    ]
    with opened(name, tmp_path) as model:
        for request in requests:
            with generator(model, "off", n_ctx=64) as plain:
                wanted = plain.generate(request)
                after = plain.session.decode([1]) if plain.session.position < 64 else None
            assert len(wanted.ids) >= 34
            whole = [*request.ids, *wanted.ids]
            for length in LENGTHS:
                for share in (0.0, 0.6, 1.0):
                    with generator(model, length, partial(Oracle, whole, share), n_ctx=64) as drafting:
                        found = drafting.generate(request)
                        assert same(found, wanted), (length, share)
                        assert drafting.session.position == len(whole) - 1
                        if after is not None:
                            assert drafting.session.decode([1]).tobytes() == after.tobytes(), (length, share)
                        if share == 1.0 and length == 5:
                            assert found.timings.drafts is not None
                            assert found.timings.drafts.windows <= len(wanted.ids) / 6 + 2
            with generator(model, 4, n_ctx=64) as drafting:
                assert same(drafting.generate(request), wanted)


@pytest.mark.parametrize("name", MODELS)
def test_stop_strings_and_streams_that_are_left(tmp_path: Path, name: str) -> None:
    ids = text(20)
    with opened(name, tmp_path) as model:
        with generator(model, "off") as plain:
            free = plain.generate(Request(ids=ids, max_tokens=30))
            stop = [free.text[9:12]]
            wanted = plain.generate(Request(ids=ids, max_tokens=30, stop=stop))
            assert wanted.finish_reason == "stop"
            next_ = plain.generate(Request(ids=[*ids, *free.ids[:4], 1, 2], max_tokens=5))
        for length in (1, 3, 8):
            with generator(model, length, lambda: Oracle([*ids, *free.ids], 1.0)) as drafting:
                assert same(drafting.generate(Request(ids=ids, max_tokens=30, stop=stop)), wanted)
                for leave_after in (1, 2, 5, 6):
                    stream: Any = drafting.stream(Request(ids=ids, max_tokens=30))
                    pieces = [next(stream) for _ in range(leave_after)]
                    stream.close()
                    assert [piece.token for piece in pieces] == free.ids[:leave_after]
                    assert drafting.last is not None
                    assert (drafting.last.ids, drafting.last.finish_reason) == (free.ids[:leave_after], "interrupted")
                    assert drafting.session.position == len(ids) + leave_after - 1
            with generator(model, length, lambda: Oracle([*ids, *free.ids], 1.0)) as drafting:
                stream = drafting.stream(Request(ids=ids, max_tokens=30))
                assert [next(stream).token for _ in range(4)] == free.ids[:4]
                stream.close()
                assert same(drafting.generate(Request(ids=[*ids, *free.ids[:4], 1, 2], max_tokens=5)), next_)


def test_an_interrupt_in_the_middle_of_a_window(tmp_path: Path) -> None:
    ids = text(20)
    with opened("delta nets with experts", tmp_path) as model:
        with generator(model, "off") as plain:
            free = plain.generate(Request(ids=ids, max_tokens=30))
        for call in ("propose", "accept"):
            with generator(model, 4, lambda: Oracle([*ids, *free.ids], 0.7)) as drafting:
                session: Any = drafting.session
                real, turn = getattr(session, call), iter(range(100))

                def interrupted(argument: Any, real: Any = real, turn: Any = turn) -> Any:
                    if next(turn) == 2:
                        raise KeyboardInterrupt
                    return real(argument)

                setattr(session, call, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    drafting.generate(Request(ids=ids, max_tokens=30))
                assert drafting.last is not None
                said = drafting.last.ids
                assert said == free.ids[: len(said)]
                assert drafting._cached == session._text.tokens == [*ids, *said][: session.position]
                setattr(session, call, real)
                assert same(drafting.generate(Request(ids=ids, max_tokens=30)), free)


def test_texts_that_are_decoded_beside_one_another(tmp_path: Path) -> None:
    prompts = [text(10 + 7 * number, seed=number) for number in range(4)]
    with opened("delta nets with experts", tmp_path) as model:
        wanted = []
        for ids in prompts:
            with generator(model, "off") as plain:
                wanted.append(plain.generate(Request(ids=ids, max_tokens=40, sampling=SAMPLINGS["sampled"])))
        found: dict[int, Generation] = {}

        def run(number: int) -> None:
            whole = [*prompts[number], *wanted[number].ids]
            with generator(model, 1 + number, lambda: Oracle(whole, 0.6)) as drafting:
                request = Request(ids=prompts[number], max_tokens=40, sampling=SAMPLINGS["sampled"])
                found[number] = drafting.generate(request)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(same(found[number], wanted[number]) for number in range(len(prompts)))


# ---------------------------------------------------------------- the model's own draft layer


@pytest.mark.parametrize("build", [with_draft_layer, toy_qwen4exp.with_draft_layer], ids=["qwen35moe", "qwen4exp"])
@pytest.mark.parametrize("how", SAMPLINGS)
def test_a_text_is_the_same_with_and_without_the_draft_layer(
    tmp_path: Path, how: str, build: Callable[[], TinyModel]
) -> None:
    requests = [Request(ids=text(30), max_tokens=40, sampling=SAMPLINGS[how], logprobs=2), Request(ids=text(9))]
    with build().open(tmp_path / "m.gguf") as model:
        for request in requests:
            with generator(model, "off", n_ctx=64) as plain:
                wanted = plain.generate(request)
            for length in (1, 3, "auto"):
                session = model.session(n_ctx=64, drafts=True)
                with TextGenerator(
                    session, tiny_tokenizer(), draft=length, drafter=partial(MtpDrafter, session)
                ) as drafting:
                    for _ in range(2):  # the second time the prompt is there already
                        assert same(drafting.generate(request), wanted), length
                    assert drafting.last is not None
                    assert drafting.last.timings.drafts is not None
                    assert (drafting.last.timings.drafts.by, drafting.last.timings.drafts.left_out) == ("mtp", None)
                    assert length == "auto" or drafting.last.timings.drafts.windows > 5


def test_a_draft_layer_that_knows_the_model_is_nearly_always_right(tmp_path: Path) -> None:
    """A layer that gives its token's embedding to the head, of a model that says the same token after each."""
    made, width = with_draft_layer(), 32
    rng = np.random.default_rng(2)
    embeddings = rng.standard_normal((N, width)).astype(np.float32)
    following = rng.permutation(N)
    made.tensors["token_embd.weight"] = embeddings
    made.tensors["output.weight"] = embeddings[np.argsort(following)]  # the row of what follows is that of the token
    for name, values in made.tensors.items():  # layers add nothing
        if any(part in name for part in ("ssm_out", "attn_output", "down")):
            values[:] = 0
    made.tensors["output_norm.weight"][:] = made.tensors["blk.3.nextn.shared_head_norm.weight"][:] = 1
    made.tensors["blk.3.nextn.enorm.weight"][:] = 1
    made.tensors["blk.3.nextn.eh_proj.weight"] = np.eye(width, 2 * width, dtype=np.float32)
    with made.open(tmp_path / "m.gguf") as model:
        with generator(model, "off") as plain:
            wanted = plain.generate(Request(ids=[1, 2, 3], max_tokens=60))
        assert all(following[a] == b for a, b in pairwise([3, *wanted.ids]))
        session = model.session(drafts=True)
        with TextGenerator(session, tiny_tokenizer(), draft=3, drafter=partial(MtpDrafter, session)) as drafting:
            found = drafting.generate(Request(ids=[1, 2, 3], max_tokens=60))
            assert same(found, wanted)
            assert found.timings.drafts is not None
            assert found.timings.drafts.accepted == found.timings.drafts.tried == [15, 15, 14]


def test_who_drafts(tmp_path: Path) -> None:
    """The model's own layer where it can be used, else n-grams, with the reason."""

    class Loaded:
        def __init__(self, model: Any) -> None:
            self.session, self.metadata, self.tokenizer = model.session, model.metadata, tiny_tokenizer()

    whole, damaged = with_draft_layer(), with_draft_layer()
    del damaged.tensors["blk.3.nextn.eh_proj.weight"]
    cases: Any = ((whole, "auto", "mtp"), (damaged, 2, "ngram"), (whole, "off", None))
    for made, draft, by in cases:
        with made.open(tmp_path / f"{by}.gguf") as model, TextGenerator.of(Loaded(model), draft=draft) as drafting:
            drafts = drafting.generate(Request(ids=[1, 2, 3], max_tokens=5)).timings.drafts
            assert (None if drafts is None else drafts.by) == by
            if made is damaged:
                assert drafts is not None
                assert drafts.left_out is not None
                assert "nextn.eh_proj" in drafts.left_out


# ---------------------------------------------------------------- n-grams


def test_what_followed_the_last_three_tokens() -> None:
    assert NgramDrafter().draft([1, 2, 3, 4, 5, 9, 1, 2, 3], 2) == [4, 5]
    assert NgramDrafter().draft([1, 2, 3, 4, 5, 9, 8, 2, 3], 2) == []
    assert NgramDrafter().draft([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [5]  # where they stood last
    assert NgramDrafter().draft([1, 2], 5) == []
    assert NgramDrafter().draft([1, 2, 3], 5) == []
    assert NgramDrafter().draft([7, 7, 7, 7], 4) == [7, 7, 7, 7]  # a loop goes on
    assert NgramDrafter().draft([9, 5, 6, 7, 5, 6, 7], 5) == [5, 6, 7, 5, 6]


def test_a_text_that_grows_is_learnt_once() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 3, 300).tolist()
    grown = NgramDrafter()
    for end in range(1, len(tokens)):
        if end % 3 == 0:
            assert grown.draft(tokens[:end], 6) == NgramDrafter().draft(tokens[:end], 6)


def test_an_answer_that_quotes_takes_fewer_steps() -> None:
    quoted = "the rain in spain stays mainly in the plain"
    model = Model(script(ids_of(quoted)))
    prompt = [*ids_of(f"say {quoted} now"), TINY_TOKENS.index("x")]
    with TextGenerator.of(model, draft=8) as drafting:
        found = drafting.generate(Request(ids=prompt, max_tokens=100))
    session = model.sessions[0]
    assert found.text == quoted
    assert found.finish_reason == "eos" or found.ids == ids_of(quoted)
    steps = len(session.decoded) + len(session.proposed)
    assert steps < len(found.ids) / 3
    assert session.tokens == [*prompt, *found.ids][: session.position]


# ---------------------------------------------------------------- the length


def simulate(
    chances: Sequence[float], row: float, steps: int = 256, seed: int = 1, noise: float = 0.0
) -> tuple[float, AutoLength]:
    """How many times as fast a text of `steps` tokens is; by the chance of each place, and the cost of a row."""
    rng, length = np.random.default_rng(seed), AutoLength(15)
    tokens, seconds = 0, 0.0
    while tokens < steps:
        drafts = length.choose(31)
        right = 0
        while right < drafts and rng.random() < chances[min(right, len(chances) - 1)]:
            right += 1
        took = (1 + row * drafts) * (1 + noise * rng.exponential())
        length.note(drafts, right, took, refused=right < drafts)
        tokens, seconds = tokens + 1 + right, seconds + took
    return tokens / seconds, length


def test_the_length_that_gains_most_is_found() -> None:
    for chance, row in ((0.8, 0.1), (0.9, 0.2), (1.0, 0.1), (0.6, 0.05)):
        best = max(sum(chance**place for place in range(n + 1)) / (1 + n * row) for n in range(16))
        gains = [simulate([chance], row, 2000, seed)[0] for seed in range(4)]
        assert np.mean(gains) > 0.85 * best, (chance, row, gains, best)


def test_drafts_that_are_never_right_cost_next_to_nothing_and_say_why_they_are_off() -> None:
    for row in (0.1, 0.25, 0.5, 1.0):
        gain, length = simulate([0.0], row)
        assert gain >= 0.97, row
        assert length.off is not None
        assert "% of first drafts right" in length.off
    # The machine is disturbed: the second of two runs takes half as long again, at random.
    gains = [simulate([0.8], 0.2, 2000, seed, noise=0.5)[0] for seed in range(4)]
    assert np.mean(gains) > 0.8 * (1 - 0.8**4) / 0.2 / 1.6 / 1.5, gains
    gain, length = simulate([0.9], 1.5)  # right, but rows cost more than steps
    assert gain >= 0.97
    assert length.off is not None


def test_drafts_come_back_when_they_are_right_again() -> None:
    length = AutoLength(15)
    for _ in range(2):
        length.note(0, 0, 1.0, refused=False)
    for _ in range(100):
        drafts = length.choose(31)
        length.note(drafts, 0, 1 + 0.2 * drafts, refused=drafts > 0)
    assert length.off is not None
    chosen = []
    for _ in range(600):
        drafts = length.choose(31)
        chosen.append(drafts)
        length.note(drafts, drafts, 1 + 0.2 * drafts, refused=False)
    assert max(chosen[-20:]) > 4
    assert str(length.off) == "None"


def test_a_fixed_length_is_no_longer_than_there_is_room() -> None:
    assert [FixedLength(3).choose(most) for most in (1, 2, 3, 9)] == [1, 2, 3, 3]


def test_counts_by_place() -> None:
    stats = DraftStats("ngram")
    stats.note(2, refused=True)
    stats.note(0, refused=True)
    stats.note(1, refused=False)
    assert (stats.windows, stats.tried, stats.accepted) == (3, [3, 1, 1], [2, 1, 0])


@pytest.mark.parametrize("value", ["auto", "off", 1, 31])
def test_options(value: Any) -> None:
    assert draft_option(value) == value


@pytest.mark.parametrize("value", ["on", -1, 32, 1.5, True, None, "3"])
def test_options_that_make_no_sense(value: Any) -> None:
    with pytest.raises(UsageError, match="draft is"):
        draft_option(value)


def test_none_is_off() -> None:
    assert draft_option(0) == "off"
    model = Model(chain({token: {token: 1.0} for token in range(len(TINY_TOKENS))}))
    with TextGenerator.of(model, draft="off") as plain:
        found = plain.generate(Request(ids=[70, 70, 70, 70], max_tokens=9))
    assert isinstance(model.sessions[0], Session)
    assert model.sessions[0].proposed == []
    assert found.timings.drafts is None
    assert math.isfinite(found.timings.decode_seconds)
