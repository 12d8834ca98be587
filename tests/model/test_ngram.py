"""The n-gram hash: constants that published models have, and rows worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpack import errors
from gpack.model.ngram import NgramHash, derive_multipliers, derive_offsets, derive_vocab_sizes, ngram_rows

# What the metadata of the published model says (vocabulary 248,320; three places; 16 heads).
MULTIPLIERS = [23703573157769, 20109073645365, 8052911324071]
SIZES = [
    20000003,
    20000023,
    20000033,
    20000047,
    20000059,
    20000063,
    20000069,
    20000077,
    20000081,
    20000093,
    20000107,
    20000147,
    20000153,
    20000159,
    20000161,
    20000171,
]
EOS = 248044

# A hash that fits on paper: multipliers 3, 5, 7; one head to a length; 11 rows from 0 on, 13 rows from 11 on; end 9.
SMALL = NgramHash(3, 1, (3, 5, 7), (0, 11), (11, 13), 9)


def test_the_constants_of_the_published_model_can_be_derived() -> None:
    assert derive_multipliers(248320, 3) == MULTIPLIERS
    assert derive_vocab_sizes(16, 19_999_999) == SIZES
    assert sum(SIZES) == 320_001_446
    offsets = derive_offsets(SIZES)
    assert (offsets[:3], offsets[-1]) == ([0, 20000003, 40000026], 320_001_446 - 20000171)


def test_rows_worked_out_by_hand() -> None:
    # Tokens 1, 2, 4. Before the start stands the end token 9.
    # 1: 1*3 ^ 9*5 = 3 ^ 45 = 46, 46 mod 11 = 2; 46 ^ 9*7 = 46 ^ 63 = 17, 17 mod 13 = 4, + 11 = 15.
    # 2: 2*3 ^ 1*5 = 6 ^ 5 = 3;                  3 ^ 63 = 60, 60 mod 13 = 8, + 11 = 19.
    # 4: 4*3 ^ 2*5 = 12 ^ 10 = 6;                6 ^ 1*7 = 1, + 11 = 12.
    assert SMALL.rows([1, 2, 4]).tolist() == [[2, 15], [3, 19], [6, 12]]


def test_an_end_token_cuts_what_is_older_but_not_itself() -> None:
    # 9 after 1: 9*3 ^ 1*5 = 27 ^ 5 = 30, mod 11 = 8;  30 ^ 9*7 = 30 ^ 63 = 33, mod 13 = 7, + 11 = 18.
    # 2 after 9: 2*3 ^ 9*5 = 6 ^ 45 = 43, mod 11 = 10; the token before counts as 9 too: 43 ^ 63 = 20, mod 13 = 7, + 11.
    # 4 after 2: 12 ^ 10 = 6; before 2 stands 9: 6 ^ 63 = 57, mod 13 = 5, + 11 = 16.
    assert SMALL.rows([1, 9, 2, 4])[1:].tolist() == [[8, 18], [10, 18], [6, 16]]


def test_the_context_crosses_chunks() -> None:
    tokens = np.random.default_rng(1).integers(0, 10, 200)
    whole = SMALL.rows(tokens)
    for cut in (1, 2, 3, 77, 199):
        parts = [SMALL.rows(tokens[:cut]), SMALL.rows(tokens[cut:], previous=tokens[:cut])]
        assert np.array_equal(np.concatenate(parts), whole)
    one_by_one = [SMALL.rows([token], previous=tokens[:place]) for place, token in enumerate(tokens)]
    assert np.array_equal(np.concatenate(one_by_one), whole)
    assert SMALL.rows([]).shape == (0, 2)


def test_every_row_is_one_of_its_head_and_products_wrap() -> None:
    hashed = NgramHash(3, 8, tuple(MULTIPLIERS), tuple(derive_offsets(SIZES)), tuple(SIZES), EOS)
    tokens = np.random.default_rng(2).integers(0, 248_320, 5000)
    rows = hashed.rows(tokens)
    assert rows.shape == (5000, 16)
    assert hashed.row_count == 320_001_446
    for head, (start, size) in enumerate(zip(hashed.head_offsets, SIZES, strict=True)):
        assert rows[:, head].min() >= start
        assert rows[:, head].max() < start + size
    # The same in Python's own integers, with the wrap written out.
    for place in (0, 1, 2, 4999):
        context = [int(tokens[place - back]) if place >= back else EOS for back in range(3)]
        for back in (1, 2):
            if context[back] == EOS:
                context[back:] = [EOS] * (3 - back)
        mix = 0
        for back in range(3):
            mix ^= context[back] * MULTIPLIERS[back] % (1 << 64)
            if back:
                heads = range((back - 1) * 8, back * 8)
                assert [int(rows[place, head]) for head in heads] == [
                    mix % SIZES[head] + hashed.head_offsets[head] for head in heads
                ]


def test_multipliers_beyond_63_bits_wrap() -> None:
    big = (1 << 64) - 1  # times 3: 2^64 - 3
    rows = ngram_rows(
        [3], multipliers=[big, 1], head_offsets=[0], head_vocab_sizes=[1000], heads_per_ngram=1, eos_token_id=0
    )
    assert rows.tolist() == [[((1 << 64) - 3) % 1000]]


KEYS: dict[str, Any] = {
    "qwen4exp.ple.ngram_size": 3,
    "qwen4exp.ple.heads_per_ngram": 1,
    "qwen4exp.ple.layer_multipliers": [3, 5, 7],
    "qwen4exp.ple.head_offsets": [0, 11],
    "qwen4exp.ple.head_vocab_sizes": [11, 13],
    "qwen4exp.ple.eos_token_id": 9,
}


def test_the_hash_comes_from_the_metadata() -> None:
    assert NgramHash.from_metadata(KEYS.get) == SMALL


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ngram_size", None),
        ("ngram_size", 4),
        ("ngram_size", 1),
        ("heads_per_ngram", 2),
        ("heads_per_ngram", True),
        ("layer_multipliers", [3, 5]),
        ("layer_multipliers", [3.0, 5.0, 7.0]),
        ("layer_multipliers", [3, 5, -7]),
        ("layer_multipliers", [3, 5, 1 << 64]),
        ("head_offsets", "0"),
        ("head_offsets", [0, -11]),
        ("head_vocab_sizes", [11, 0]),
        ("eos_token_id", "9"),
    ],
)
def test_constants_that_do_not_fit_are_refused(key: str, value: object) -> None:
    with pytest.raises(errors.FormatError) as caught:
        NgramHash.from_metadata((KEYS | {f"qwen4exp.ple.{key}": value}).get)
    assert caught.value.code == "ple.hash"


def test_tokens_that_are_none() -> None:
    for tokens in ([-1], [[1]]):
        with pytest.raises(errors.UsageError):
            SMALL.rows(tokens)  # type: ignore[arg-type]
