"""SentencePiece-style vocabularies: small ones worked out by hand, and llama.cpp's ids on a real one."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import write_gguf

from gpack.errors import FormatError
from gpack.sections.tokenizer import TokenizerTable, build_tokenizer
from gpack.sections.values import Value
from gpack.tokenizer import Tokenizer
from gpack.tokenizer.spm import SpmEncoder

ORACLE = Path(__file__).parents[2].parent / "shared" / "oracle" / "vocab"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

# Token, score, type. The score is a rank: merges with higher ones happen first.
WORDS: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    ("<0x0A>", 0.0, BYTE),
    ("<0xC3>", 0.0, BYTE),
    ("<0xA9>", 0.0, BYTE),
    ("ab", -1.0, NORMAL),  # 6
    ("bc", -2.0, NORMAL),  # 7
    ("abc", -3.0, NORMAL),  # 8
    ("▁a", -4.0, NORMAL),  # 9
    ("▁ab", -5.0, NORMAL),  # 10
    ("▁▁", -6.0, NORMAL),  # 11
    ("a", -7.0, NORMAL),  # 12
    ("b", -8.0, NORMAL),  # 13
    ("c", -9.0, NORMAL),  # 14
    ("▁", -10.0, NORMAL),  # 15
    ("s", -11.0, NORMAL),  # 16
    ("<", -12.0, NORMAL),  # 17
    (">", -13.0, NORMAL),  # 18
    ("<s", -14.0, NORMAL),  # 19
    ("zz", -15.0, UNUSED),  # 20
]


def table(words: Sequence[tuple[Any, float, int]]) -> TokenizerTable:
    raw = [word.encode() if isinstance(word, str) else word for word, _, _ in words]
    packed = b"".join(len(word).to_bytes(8, "little") + word for word in raw)
    types = np.array([kind for _, _, kind in words], "<i4").tobytes()
    built = build_tokenizer(
        {
            "tokenizer.ggml.tokens": Value("tokenizer.ggml.tokens", 9, 8, len(raw), packed),
            "tokenizer.ggml.token_type": Value("tokenizer.ggml.token_type", 9, 5, len(raw), types),
        }
    )
    assert built is not None
    return TokenizerTable(built.data)


def encoder(words: Sequence[tuple[Any, float, int]] = WORDS, **options: Any) -> SpmEncoder:
    options.setdefault("unknown_id", 0)
    return SpmEncoder(table(words), [score for _, score, _ in words], **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        # "ab" (-1) merges before "bc" (-2); then "abc" (-3).
        ("abc", [8]),
        # ▁ab: first "ab" (-1), then "▁ab" (-5).
        ("ab ab", [6, 10]),
        # a|bc would need "bc" before "ab"; with "b" taken away there is none.
        ("cab", [14, 6]),
        ("bcab", [7, 6]),
        # Of three spaces the leftmost two merge.
        ("   ", [11, 15]),
        # "▁a" (-4) stands; "▁▁" (-6) comes too late for the second space.
        ("  a", [15, 9]),
        # U+00E9 is no token: the tokens of its two bytes.
        ("é", [4, 5]),
        ("a\nb", [12, 3, 13]),
        # A byte that has no token is the unknown one.
        ("d", [0]),
        # Merging would give the control token <s>: it does not count, "<s" and ">" stay.
        ("<s>", [19, 18]),
        # The text of a byte token is no byte.
        ("<0x0A>", [17, 0, 0, 0, 0, 18]),
    ],
)
def test_worked_out_by_hand(text: str, expected: list[int]) -> None:
    assert encoder(add_space_prefix=False).encode_text(text, at_start=True) == expected


def test_the_space_in_front() -> None:
    spm = encoder()
    assert spm.encode_text("ab", at_start=True) == [10]
    assert spm.encode_text("ab", at_start=False) == [6]
    assert spm.encode_text("", at_start=True) == []


def test_equal_scores_merge_from_the_left() -> None:
    words = [("a", 0.0, NORMAL), ("aa", -1.0, NORMAL), ("b", 0.0, NORMAL), ("ba", -1.0, NORMAL)]
    spm = encoder(words, add_space_prefix=False)
    assert spm.encode_text("aaa", at_start=False) == [1, 0]
    assert spm.encode_text("baa", at_start=False) == [3, 0]  # "ba" stands left of "aa"


def test_a_score_of_minus_infinity_still_merges() -> None:
    words = [("a", 0.0, NORMAL), ("aa", float("-inf"), NORMAL)]
    assert encoder(words, add_space_prefix=False).encode_text("aa", at_start=False) == [1]


def test_the_last_of_equal_tokens_counts() -> None:
    words = [("a", 0.0, NORMAL), ("b", 0.0, NORMAL), ("a", 0.0, NORMAL)]
    assert encoder(words, add_space_prefix=False).encode_text("ab", at_start=False) == [2, 1]


def test_pieces() -> None:
    spm = encoder()
    assert [spm.decode_token(token_id) for token_id in (10, 3, 1, 20)] == [b" ab", b"\n", b"<s>", b""]
    for token_id in (-1, len(WORDS)):
        with pytest.raises(IndexError):
            spm.decode_token(token_id)


def test_no_token_for_a_byte() -> None:
    with pytest.raises(FormatError, match="0xF0") as caught:
        encoder(unknown_id=None).encode_text("😀", at_start=False)
    assert caught.value.code == "tokenizer.no_byte"


@pytest.mark.parametrize("scores", [[0.0], [float("nan")] * len(WORDS)])
def test_bad_scores(scores: list[float]) -> None:
    with pytest.raises(FormatError) as caught:
        SpmEncoder(table(WORDS), scores)
    assert caught.value.code == "tokenizer.scores"


def test_tokens_that_are_no_text() -> None:
    words = [(b"\xff\xfe", 0.0, NORMAL), ("a", 0.0, NORMAL), ("", 0.0, NORMAL)]
    spm = encoder(words, add_space_prefix=False)
    assert spm.encode_text("a", at_start=False) == [1]
    assert spm.decode_token(0) == b"\xff\xfe"


def naive(words: Sequence[tuple[str, float, int]], text: str) -> list[str]:
    """The rule as it is told: over and over the best pair of neighbours, the leftmost of the best."""
    scores = {word: score for word, score, kind in words if kind in (NORMAL, USER, UNUSED)}
    symbols = list(text)
    while True:
        pairs = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@pytest.mark.parametrize("seed", range(40))
def test_cuts_heap_and_memory_change_nothing(seed: int) -> None:
    """Random vocabularies and texts, long enough for every way of merging, against the plain rule."""
    chance = random.Random(seed)
    alphabet = "ab▁c"
    made = {"".join(chance.choices(alphabet, k=chance.randint(2, 6))) for _ in range(60)}
    words: list[tuple[str, float, int]] = [(letter, 0.0, NORMAL) for letter in alphabet]
    words += [(word, float(-chance.randint(1, 12)), NORMAL) for word in sorted(made)]
    spm = encoder(words, add_space_prefix=False)
    for length in (1, 2, 20, 30, 70, 300):
        text = "".join(chance.choices("ab c", k=length))
        expected = naive(words, text.replace(" ", "▁"))
        for _ in range(2):  # the second time from memory
            ids = spm.encode_text(text, at_start=False)
            assert [words[token_id][0] for token_id in ids] == expected


def test_through_the_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "spm.gguf",
        [
            ("general.architecture", "str", "llama"),
            ("tokenizer.ggml.model", "str", "llama"),
            ("tokenizer.ggml.tokens", "[str]", [word for word, _, _ in WORDS]),
            ("tokenizer.ggml.scores", "[f32]", [score for _, score, _ in WORDS]),
            ("tokenizer.ggml.token_type", "[i32]", [kind for _, _, kind in WORDS]),
        ],
    )
    with Tokenizer.from_gguf(path) as tokenizer:
        # <s> is added; the parsed </s> is one token and the text after it gets its own space.
        assert tokenizer.encode("ab</s>ab", parse_special=True) == [1, 10, 2, 10]
        assert tokenizer.encode("a<s>", parse_special=False) == [1, 9, 19, 18]
        assert tokenizer.decode([1, 10, 3, 6]) == "<s> ab\nab"


@pytest.mark.skipif(not ORACLE.is_dir(), reason=f"llama.cpp's ids are not at {ORACLE}")
def test_llama_cpp_ids() -> None:
    rows = json.loads((ORACLE / "ggml-vocab-llama-spm.tokens.json").read_text())
    with Tokenizer.from_gguf(ORACLE / "ggml-vocab-llama-spm.gguf") as tokenizer:
        wrong = [
            row["text"]
            for row in rows
            if tokenizer.encode(row["text"], add_special=row["add_special"], parse_special=row["parse_special"])
            != row["ids"]
        ]
    assert len(rows) == 536
    assert wrong == []
