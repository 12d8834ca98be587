"""Merging by score in compiled code: the same ids as plain Python, whatever the vocabulary and the text."""

from __future__ import annotations

import random
import time

import pytest
from tokenizer.vocabularies import oracle, rows

from gpack.errors import FormatError
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.spm import SpmEncoder

from .test_spm import BYTE, CONTROL, NORMAL, UNUSED, WORDS, encoder, naive

pytest.importorskip("numba", reason="compiled code needs numba")

LETTERS = "ab▁cé中🙂"


def compiled(spm: SpmEncoder, text: str) -> list[int] | None:
    return spm.encode(text, at_start=False, way="compiled")


def plain(spm: SpmEncoder, text: str) -> list[int] | None:
    return spm.encode(text, at_start=False, way="plain")


def vocabulary(chance: random.Random) -> list[tuple[str, float, int]]:
    """Some letters are tokens, some only parts of tokens; few scores, so that many are equal; all kinds of types."""
    words = [("<unk>", 0.0, 2)]
    words += [(letter, -chance.random(), NORMAL) for letter in LETTERS if chance.random() < 0.7]
    made = ["".join(chance.choices(LETTERS, k=chance.randint(2, 6))) for _ in range(chance.randint(5, 80))]
    scores = [float(-chance.randint(0, chance.choice((2, 1000)))) for _ in made]
    scores[0] = chance.choice((float("-inf"), float("inf"), -0.0))
    kinds = chance.choices((NORMAL, CONTROL, UNUSED, 4), (20, 1, 1, 1), k=len(made))
    words += list(zip(made, scores, kinds, strict=True))  # with equal ones
    words += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256) if chance.random() < 0.8]
    return words


@pytest.mark.parametrize("seed", range(60))
def test_same_ids_as_plain_python(seed: int) -> None:
    chance = random.Random(seed)
    words = vocabulary(chance)
    spm = encoder(words, add_space_prefix=False)
    for length in (1, 2, 5, 31, 32, 33, 34, 100, 700):
        letters = "".join(chance.sample(LETTERS.replace("▁", " ") + "zÿ\0", chance.randint(1, 10)))
        text = "".join(chance.choices(letters, k=length))
        assert compiled(spm, text) == plain(spm, text)


@pytest.mark.parametrize("seed", range(20))
def test_the_rule_as_it_is_told(seed: int) -> None:
    chance = random.Random(seed)
    words = [(letter, 0.0, NORMAL) for letter in LETTERS]
    made = {"".join(chance.choices(LETTERS[:4], k=chance.randint(2, 6))) for _ in range(60)}
    words += [(word, float(-chance.randint(1, 12)), NORMAL) for word in sorted(made)]
    spm = encoder(words, add_space_prefix=False)
    for length in (3, 32, 33, 300):
        text = "".join(chance.choices("ab c", k=length))
        ids = compiled(spm, text)
        assert ids is not None
        assert [words[token_id][0] for token_id in ids] == naive(words, text.replace(" ", "▁"))


@pytest.mark.parametrize("unit", ["a", " ", "ab", "a ", "é", "<s>", "z"])
@pytest.mark.parametrize("count", [1, 2, 3, 31, 32, 33, 1000])
def test_runs(unit: str, count: int) -> None:
    spm = encoder(add_space_prefix=False)
    assert compiled(spm, unit * count) == plain(spm, unit * count)


def test_nothing_to_merge() -> None:
    spm = encoder([("<unk>", 0.0, 2)], add_space_prefix=False)
    assert compiled(spm, "") == []
    assert compiled(spm, "aé") == [0, 0, 0]


def test_a_byte_without_token_is_left_to_plain_python() -> None:
    spm = encoder(WORDS, unknown_id=None, add_space_prefix=False)
    assert compiled(spm, "ab😀") is None
    with pytest.raises(FormatError, match="0xF0"):
        spm.encode("ab😀", at_start=False)


def test_lone_surrogates_are_left_to_plain_python() -> None:
    assert compiled(encoder(add_space_prefix=False), "a\udcc3") is None


def test_llama_cpp_ids() -> None:
    golden = rows(oracle("vocab/ggml-vocab-llama-spm.tokens.json"))
    with Tokenizer.from_gguf(oracle("vocab/ggml-vocab-llama-spm.gguf")) as tokenizer:
        for row in golden:
            ids = tokenizer.encode_compiled(
                row["text"], add_special=row["add_special"], parse_special=row["parse_special"]
            )
            assert ids == row["ids"], row["text"]


def test_a_long_run_takes_linear_time() -> None:
    """Generous: eight times as much may take twenty times as long; n squared would take 64 times."""
    spm = encoder(add_space_prefix=False)
    compiled(spm, "a" * 100)
    times = []
    for count in (50_000, 400_000):
        started = time.process_time()
        for text in ("a" * count, " " * count, "ab " * (count // 3)):
            compiled(spm, text)
        times.append(time.process_time() - started)
    assert times[1] < 20 * max(times[0], 0.01)
