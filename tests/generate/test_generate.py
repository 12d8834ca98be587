"""Texts of made-up models whose next token is known: how they end, what is held back, what the cache keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import TINY_TOKENS
from markov import END, Model, Session, chain, ids_of, script, tiny
from tiny_models import ORACLE

import gpack
from gpack.errors import FormatError, GpackError, MissingError, UsageError
from gpack.generate.ending import StopStrings, end_tokens
from gpack.generate.sampling import Sampling
from gpack.generate.text import Generation, Piece, Request, TextGenerator, encode, generate
from gpack.model import GuildModel, ModelPaths

A, B, C = (TINY_TOKENS.index(letter) for letter in "abc")
PROMPT = [A]


def said(text: str) -> Model:
    """A model that says this."""
    return Model(script(ids_of(text)))


def whole(model: Model, prompt: Any = "x", **options: Any) -> Generation:
    found = generate(model, prompt, **options)
    assert isinstance(found, Generation)
    return found


def streamed(model: Model, prompt: Any = "x", **options: Any) -> list[Piece]:
    found = generate(model, prompt, stream=True, **options)
    assert isinstance(found, Iterator)
    return list(found)


# ---------------------------------------------------------------- ends


def test_the_model_ends_the_text() -> None:
    model = said("the rain")
    found = whole(model)
    assert (found.text, found.finish_reason, found.ended_by) == ("the rain", "eos", "<|im_end|>")
    assert found.ids == ids_of("the rain")
    assert found.prompt_tokens == 1
    assert (found.seed, found.logprobs) == (None, None)
    assert model.sessions[0].closed == 1


def test_most_tokens() -> None:
    found = whole(said("abcdef"), max_tokens=3)
    assert (found.text, found.finish_reason, found.ended_by) == ("abc", "length", None)
    # The last token is not computed: nobody asks what follows.
    model = said("abcdef")
    whole(model, max_tokens=3)
    assert model.sessions[0].decoded == [ids_of("x"), [A], [B]]
    assert whole(said("abc"), max_tokens=0).finish_reason == "length"
    assert whole(said("abc"), max_tokens=0).ids == []
    assert whole(said("abc"), max_tokens=4).finish_reason == "eos"


def test_the_context_is_full() -> None:
    # 4 places: two of the prompt, two more tokens, and one that needs no place any more.
    found = whole(Model(script(ids_of("abcdef")), n_ctx=4), "xy")
    assert (found.text, found.finish_reason) == ("abc", "context")
    found = whole(Model(script(ids_of("abcdef")), n_ctx=2), "xy")
    assert (found.text, found.finish_reason) == ("a", "context")
    with pytest.raises(UsageError, match="the prompt has 3 tokens, the context holds 2") as caught:
        whole(Model(script(ids_of("abcdef")), n_ctx=2), "xyz")
    assert caught.value.code == "engine.context"


def test_the_end_may_be_ignored() -> None:
    rule = chain({A: {END: 1.0}, END: {A: 1.0}})
    found = whole(Model(rule), [A], ignore_end=True, max_tokens=4)
    assert (found.ids, found.text, found.finish_reason) == ([END, A, END, A], "aa", "length")


def test_end_tokens_by_metadata_and_by_name() -> None:
    tokenizer = tiny()
    text_end = TINY_TOKENS.index("<|endoftext|>")
    assert end_tokens(tokenizer, lambda key: None) == {END, text_end}
    named = {"tokenizer.ggml.eot_token_id": A, "tokenizer.ggml.eom_token_id": B}
    assert end_tokens(tokenizer, named.get) == {END, text_end, A, B}
    # Ids that no token has, and other types, are none.
    assert end_tokens(tokenizer, {"tokenizer.ggml.eot_token_id": 10**6}.get) == {END, text_end}
    assert end_tokens(tokenizer, {"tokenizer.ggml.eot_token_id": "7"}.get) == {END, text_end}


# ---------------------------------------------------------------- stop strings


@pytest.mark.parametrize(
    ("text", "stop", "expected", "ended"),
    [
        ("one two three", ["two"], "one ", "two"),
        ("one two three", ["e t"], "on", "e t"),  # across tokens
        ("one two three", ["xx", "three", "two"], "one ", "two"),  # the first in the text, not in the list
        ("abcabd", ["abd"], "abc", "abd"),  # a false start
        ("aaab", ["aab"], "a", "aab"),  # a start within a start
        ("abcd", ["bc", "bcd"], "a", "bc"),  # complete first
        ("one", ["one"], "", "one"),
        ("ab", ["abc"], "ab", None),  # only a beginning: it is text after all
        ("ab", [], "ab", None),
        ("ünïcödé", ["cö"], "ünï", "cö"),
    ],
)
def test_stop_strings(text: str, stop: list[str], expected: str, ended: str | None) -> None:
    pieces = streamed(said(text), stop=stop)
    last = pieces[-1].generation
    assert last is not None
    assert last.text == "".join(piece.text for piece in pieces) == expected
    assert (last.ended_by, last.finish_reason) == ((ended, "stop") if ended else ("<|im_end|>", "eos"))


def test_what_may_be_a_stop_string_is_held_back() -> None:
    pieces = streamed(said("abcxbcd"), stop=["bcd"])
    assert [piece.text for piece in pieces] == ["a", "", "", "bcx", "", "", "", ""]


def test_of_two_that_begin_together_the_longer_one() -> None:
    strings = StopStrings(["ab", "abc"])
    assert (strings.push("xabcd"), strings.found) == ("x", "abc")
    assert strings.push("more") == ""
    assert strings.flush() == ""


def test_an_empty_stop_string() -> None:
    with pytest.raises(UsageError):
        whole(said("a"), stop=[""])


def test_one_string_is_one_string() -> None:
    assert whole(said("abc"), stop="bc").text == "a"


# ---------------------------------------------------------------- text


def test_a_character_over_several_tokens_appears_whole() -> None:
    pieces = streamed(said("é€"))  # bytes: 2 and 3
    assert [piece.text for piece in pieces] == ["", "é", "", "", "€", ""]


def test_a_character_that_is_never_completed() -> None:
    pieces = streamed(Model(script(ids_of("é")[:1])))
    assert [piece.text for piece in pieces] == ["", "\ufffd"]
    assert pieces[-1].generation is not None
    assert pieces[-1].generation.text == "\ufffd"


def test_pieces_carry_their_tokens() -> None:
    pieces = streamed(said("abc"))
    assert [piece.token for piece in pieces] == [A, B, C, None]
    assert all(piece.generation is None for piece in pieces[:-1])


def test_rows_beyond_the_vocabulary_stand_for_nothing() -> None:
    model = Model(chain({A: {500: 1.0}, 500: {B: 1.0}, B: {END: 1.0}}))
    model.session = lambda **_: Session(model.rule, 512, 64)  # type: ignore[method-assign]
    found = whole(model, [A])
    assert (found.text, found.ids) == ("b", [500, B])


# ---------------------------------------------------------------- sampling


def test_a_chain_is_followed_with_its_probabilities() -> None:
    rows = {A: {A: 0.2, B: 0.8}, B: {A: 0.5, C: 0.5}, C: {B: 1.0}}
    how = Sampling(temperature=1, top_k=0, top_p=1, min_p=0, seed=4)
    ids = [A, *whole(Model(chain(rows), n_ctx=6000), [A], max_tokens=5000, sampling=how).ids]
    for state, row in rows.items():
        after = [b for a, b in pairwise(ids) if a == state]
        assert set(after) == set(row)
        for token, p in row.items():
            assert abs(after.count(token) - len(after) * p) <= 4 * math.sqrt(len(after) * p * (1 - p))


def test_the_same_seed_gives_the_same_text() -> None:
    rule = chain({token: {A: 0.3, B: 0.3, C: 0.4} for token in range(len(TINY_TOKENS))})
    texts = [whole(Model(rule), max_tokens=60, sampling=Sampling(seed=seed)) for seed in (1, 1, 2)]
    assert texts[0].text == texts[1].text != texts[2].text
    assert texts[0].seed == 1
    unseeded = whole(Model(rule), max_tokens=60, sampling=Sampling())
    assert whole(Model(rule), max_tokens=60, sampling=Sampling(seed=unseeded.seed)).text == unseeded.text


def test_the_prompt_counts_as_repeated() -> None:
    rule = chain({A: {A: 0.5, B: 0.3, C: 0.2}, B: {A: 0.4, B: 0.3, C: 0.3}, C: {END: 1.0}})
    found = whole(Model(rule), [A], max_tokens=3, sampling=Sampling(temperature=0, presence_penalty=9.0))
    assert found.ids == [B, C]


def test_logprobs_of_every_token() -> None:
    rule = chain({A: {A: 0.25, B: 0.75}, B: {END: 1.0}})
    pieces = streamed(Model(rule), [A], logprobs=2)
    told = pieces[0].logprobs
    assert told is not None
    assert told.token == B
    assert told.logprob == pytest.approx(math.log(0.75))
    assert [(token, round(math.exp(value), 4)) for token, value in told.top] == [(B, 0.75), (A, 0.25)]
    assert pieces[-1].generation is not None
    assert pieces[-1].generation.logprobs == [told]


def test_logits_that_are_no_numbers() -> None:
    model = said("abc")
    real = model.session

    def broken(**options: Any) -> Any:
        session = real(**options)
        session.decode = lambda ids: np.full(session.n_vocab, np.nan, np.float32)  # type: ignore[method-assign]
        return session

    model.session = broken  # type: ignore[method-assign]
    with pytest.raises(FormatError) as caught:
        whole(model)
    assert caught.value.code == "engine.nan"
    assert model.sessions[0].closed == 1


# ---------------------------------------------------------------- the cache


def test_what_prompts_share_is_computed_once() -> None:
    model = said("bc")
    with TextGenerator.of(model) as generator:
        first = generator.generate(Request(ids=[9, 8, 7]))
        assert (first.timings.prompt_tokens, first.timings.cached_tokens) == (3, 0)
        assert generator.session.position == 5  # the answer too: both its tokens were followed by another
        # A conversation: the prompt, the answer, the next turn.
        second = generator.generate(Request(ids=[9, 8, 7, B, C, END, 6]))
        assert (second.timings.prompt_tokens, second.timings.cached_tokens) == (2, 5)
        # Another one: only the beginning is shared.
        third = generator.generate(Request(ids=[9, 8, 1]))
        assert (third.timings.prompt_tokens, third.timings.cached_tokens) == (1, 2)
        # The same again: the last token is computed, for its logits.
        fourth = generator.generate(Request(ids=[9, 8, 1]))
        assert (fourth.timings.prompt_tokens, fourth.timings.cached_tokens) == (1, 2)
        assert first.text == second.text == third.text == fourth.text == "bc"
    assert model.sessions[0].closed == 1


def test_an_interrupted_text_leaves_a_cache_that_can_be_used() -> None:
    model = said("abcdef")
    with TextGenerator.of(model) as generator:
        session = model.sessions[0]

        def interrupt() -> None:
            if session.position == 4:
                raise KeyboardInterrupt

        session.before = interrupt
        pieces = []
        with pytest.raises(KeyboardInterrupt):
            pieces += list(generator.stream(Request(ids=[9, 8])))
        assert generator.last is not None
        assert (generator.last.text, generator.last.finish_reason) == ("abc", "interrupted")
        session.before = lambda: None
        again = generator.generate(Request(ids=[9, 8]))
        assert (again.text, again.timings.cached_tokens) == ("abcdef", 1)
        follow = generator.generate(Request(ids=[9, 8, A, B, C, 5]))
        assert follow.timings.cached_tokens == 5


def test_a_stream_that_is_left_early() -> None:
    model = said("abcdef")
    with TextGenerator.of(model) as generator:
        stream = generator.stream(Request(ids=[9, 8]))
        next(stream)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
        assert generator.last is not None
        assert (generator.last.text, generator.last.finish_reason) == ("ab", "interrupted")
    own = generate(model, "x", stream=True)
    next(own)  # type: ignore[arg-type]
    own.close()  # type: ignore[union-attr]
    assert [session.closed for session in model.sessions] == [1, 1]


def test_timings_tell_what_was_computed() -> None:
    found = whole(said("abc"), "xyz").timings
    assert (found.prompt_tokens, found.decoded_tokens) == (3, 2)
    assert found.first_token_seconds is not None
    assert found.first_token_seconds >= found.prompt_seconds
    assert set(found.to_dict()) >= {"prompt_rate", "decode_rate", "first_token_seconds"}
    assert whole(said("a"), "xyz", max_tokens=1).timings.decode_rate is None


# ---------------------------------------------------------------- prompts


def test_prompts_of_every_kind() -> None:
    model = said("a")
    assert encode(model, "the in") == ids_of("the in")
    assert encode(model, [1, 2]) == [1, 2]
    assert encode(model, np.array([3, 4])) == [3, 4]  # type: ignore[arg-type]
    messages = [{"role": "user", "content": "<|im_end|>"}]
    ids = encode(model, messages)
    assert ids.count(END) == 1  # the template's, not the user's
    assert tiny().decode(ids) == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert END in encode(model, "<|im_end|>", parse_special=True)
    assert END not in encode(model, "<|im_end|>")
    assert encode(model, messages, add_generation_prompt=False)[-2:] == [END, ids_of("\n")[0]]


@pytest.mark.parametrize("prompt", ["", [], [1, "a"], [{"role": "user"}, 1]])
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(UsageError) as caught:
        whole(said("a"), prompt)
    assert caught.value.code == "engine.prompt"


@pytest.mark.parametrize("ids", [[-1], [272], [1, 10**9]])
def test_tokens_that_do_not_exist(ids: Sequence[int]) -> None:
    with pytest.raises(UsageError, match="the vocabulary has 272") as caught:
        whole(said("a"), ids)
    assert caught.value.code == "engine.token"


def test_messages_without_a_template() -> None:
    with pytest.raises(MissingError) as caught:
        whole(Model(script([A]), template=False), [{"role": "user", "content": "x"}])
    assert caught.value.code == "chat.no_template"


@pytest.mark.parametrize("options", [{"max_tokens": -1}, {"logprobs": -1}])
def test_numbers_that_make_no_sense(options: dict[str, int]) -> None:
    with pytest.raises(GpackError):
        whole(said("a"), **options)


# ---------------------------------------------------------------- a real engine


def test_a_golden_model_generates_its_golden_tokens(tmp_path: Path) -> None:
    """The pack and its GGUF, whole and streamed: the tokens that llama.cpp gave, float32 throughout."""
    source = ORACLE / "models" / "llama.gguf"
    if not source.exists():
        pytest.skip("no golden models: set GPACK_ORACLE")
    with np.load(source.with_suffix(".npz")) as stored:
        prompt, golden = stored["prompt"].tolist(), stored["greedy"].tolist()
    gpack.convert_gguf(source, tmp_path / "m.gpack")
    how: dict[str, Any] = {"max_tokens": len(golden), "ignore_end": True, "compute": "f32", "cache_type": "F32"}
    for paths in (ModelPaths(tmp_path / "m.gpack"), ModelPaths(None, source)):
        with GuildModel.load(paths) as model:
            assert model.generate(prompt, **how).ids == golden
            pieces = list(model.generate(prompt, stream=True, **how))
            assert [piece.token for piece in pieces] == [*golden, None]
            assert "".join(piece.text for piece in pieces) == model.tokenizer.decode(golden, skip_special=True)
            text = model.tokenizer.decode(prompt)
            assert model.generate(text, **how).prompt_tokens == len(model.tokenizer.encode(text))
            # What was generated is the beginning of a longer prompt: only the rest is computed, and nothing changes.
            with TextGenerator.of(model, compute="f32", cache_type="F32") as generator:
                first = generator.generate(Request(ids=prompt, max_tokens=8, ignore_end=True))
                second = generator.generate(Request(ids=prompt + first.ids, max_tokens=8, ignore_end=True))
                assert first.ids + second.ids == golden
                assert second.timings.prompt_tokens == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"logprobs": "1"}, "logprobs"),
        ({"stop": [3]}, "stop"),
        ({"sampling": {"temperature": 1}}, "sampling"),
    ],
)
def test_a_request_of_other_types(options: Any, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        Request(ids=[1], **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "options", [{"temperature": "hot"}, {"seed": 1.5}, {"top_k": 2.5}, {"temperature": None}, {"repeat_window": "all"}]
)
def test_sampling_of_other_types(options: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Sampling(**options)
    assert (caught.value.code, caught.value.field) == ("engine.sampling", next(iter(options)))


@pytest.mark.parametrize("prompt", [None, 5])
def test_a_prompt_that_is_none(prompt: Any) -> None:
    with pytest.raises(UsageError) as caught:
        encode(None, prompt)
    assert caught.value.code == "engine.prompt"
