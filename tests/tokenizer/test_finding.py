"""Special tokens in texts, against llama.cpp's own procedure: each token in order through all pieces that are left."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpack.errors import FormatError
from gpack.generated.constants import GbtFlags
from gpack.generated.structs import GbtHeaderV1
from gpack.sections.tokenizer import TokenizerTable, assemble
from gpack.tokenizer import Tokenizer, finding
from gpack.tokenizer.finding import TokenSet, find_tokens

Tokens = Sequence[tuple[str, int]]


def by_pieces(text: str, tokens: Tokens, *, free: Tokens = (), mask: bytes | None = None) -> list[tuple[int, int, int]]:
    """What llama.cpp does: tokens by falling length in bytes and rising id, each from the left in every free piece."""
    kinds = [(-len(token.encode()), token_id, token, False) for token, token_id in tokens]
    kinds += [(-len(token.encode()), token_id, token, True) for token, token_id in free]
    pieces, found = [(0, len(text))], []
    for _, token_id, token, always in sorted(kinds):
        left = []
        for begin, end in pieces:
            at = start = begin
            while token and (at := text.find(token, at, end)) >= 0:
                stop = at + len(token)
                if mask is not None and not always and 0 in mask[at:stop]:
                    at += 1
                    continue
                found.append((at, stop, token_id))
                if at > start:
                    left.append((start, at))
                start = at = stop
            if start < end:
                left.append((start, end))
        pieces = left
    return sorted(found)


def token_set(tokens: Tokens) -> TokenSet:
    return TokenSet((token.encode(), token_id) for token, token_id in tokens)


def some(rng: random.Random, alphabet: str, count: int, longest: int) -> list[tuple[str, int]]:
    texts = {"".join(rng.choices(alphabet, k=rng.randint(1, longest))) for _ in range(count)}
    ids = rng.sample(range(1000), len(texts))
    return list(zip(sorted(texts), ids, strict=True))


@pytest.mark.parametrize("few", [0, 32])  # both ways of looking for beginnings
@pytest.mark.parametrize("alphabet", ["a", "ab", "abc", "a€", "é🙂-]^\\"])
def test_the_tokens_are_those_of_the_plain_procedure(alphabet: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_FEW", few)
    rng = random.Random(len(alphabet) + few)
    for _ in range(300):
        tokens = some(rng, alphabet, rng.randint(1, 9), rng.choice([2, 5, 12]))
        text = "".join(rng.choices(alphabet + rng.choice(["", "x"]), k=rng.randint(0, 40)))
        assert find_tokens(text, ((token_set(tokens), None),)) == by_pieces(text, tokens)


def test_masks() -> None:
    rng = random.Random(5)
    for _ in range(500):
        tokens = some(rng, "ab", 6, 5)
        free = tokens[: rng.randint(0, 3)]
        text = "".join(rng.choices("ab", k=30))
        mask = bytes(rng.choices([0, 1], [1, 4], k=30))
        found = find_tokens(text, ((token_set(free), None), (token_set(tokens), mask)))
        assert found == by_pieces(text, tokens[len(free) :], free=free, mask=mask)


def test_of_equal_tokens_the_lowest_id_counts_and_what_is_no_text_never_does() -> None:
    tokens = TokenSet([(b"<a>", 7), (b"<a>", 3), (b"\xff\xfe", 1), (b"", 0)])
    assert find_tokens("x<a>\xff<a>", ((tokens, None),)) == [(1, 4, 3), (5, 8, 3)]
    assert find_tokens("text", ((TokenSet([]), None),)) == []


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["a" * n for n in range(1, 1200)], "a" * 4000),
        (["a" * n for n in range(1, 1200)], "aab" * 1300),
        (["ab" * n for n in range(1, 600)] + ["b" * n for n in range(1, 600)], "abbabab" * 600),
        ([chr(0x4E00 + n // 90) + chr(33 + n % 90) for n in range(20_000)], "中" * 4000),
        (["a" * n + "b" for n in range(1200)], "a" * 4000 + "b"),
    ],
    ids=["every length", "gaps", "mixed", "many beginnings", "ends"],
)
def test_the_work_grows_with_the_text_whatever_the_vocabulary(
    tokens: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    longest = TokenSet.longest

    def count(self: TokenSet, searched: str, at: int, room: int) -> int:
        nonlocal calls
        calls += 1
        return longest(self, searched, at, room)

    monkeypatch.setattr(TokenSet, "longest", count)
    chosen = token_set([(token, index) for index, token in enumerate(tokens)])
    found = find_tokens(text, ((chosen, None),))
    assert all(text[at:end] in tokens for at, end, _ in found[:50])
    assert calls <= 3 * len(text)  # the old way looked at 1,199 lengths at each of 4,000 places


def test_a_walk_along_a_chain_takes_few_steps() -> None:
    chosen = token_set([("a" * n, n) for n in range(1, 3001)])
    steps = 0

    class Lengths(list[str]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal steps
            steps += 1
            return super().__getitem__(index)

    chosen.texts = Lengths(chosen.texts)
    for length in range(3001):
        steps = 0
        assert chosen._ancestor(2999, length) == length - 1
        assert steps <= 6 * 12  # log2(3000) is 11.6


def run_back(vocab: int, blob: int) -> bytes:
    """A section whose offsets run back, so that every second token is the whole blob."""
    header = GbtHeaderV1(vocab_size=vocab, vocab_blob_bytes=blob)
    offsets = np.where(np.arange(vocab + 1) % 2, blob, 0)
    offsets[-1] = blob
    arrays = {
        "offsets": offsets,
        "token_types": np.full(vocab, 4, np.uint8),
        "vocab_blob": np.full(blob, ord("a"), np.uint8),
        "triples": np.zeros(0, np.int32),
        "chat_template": np.zeros(0, np.uint8),
    }
    return assemble(header, arrays)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("ready", [False, True])
def test_tokens_that_share_the_bytes_of_a_blob_are_not_copied(model: str, ready: bool) -> None:
    """Each of 2,001 tokens would be a megabyte: two gigabytes from a file of one."""
    data = run_back(4001, 1 << 20)
    if ready:  # with every index, as a hostile writer would make them
        view = GbtHeaderV1.decode(data)
        view.flags, view.n_special = GbtFlags.SPECIAL_TOKENS | GbtFlags.TOKEN_ORDER | GbtFlags.BYTE_TOKENS, 4001
        arrays = {**TokenizerTable(data).arrays(), "special_tokens": np.arange(4001), "token_order": np.arange(4001)}
        data = assemble(view, {**arrays, "byte_tokens": np.zeros(256, np.int32)})
    settings = {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": "gpt-2"}

    def encode() -> None:
        tokenizer = Tokenizer(data, settings.get, scores=lambda: np.zeros(4001, np.float32))
        tokenizer.encode("a" * (1 << 20), parse_special=True)

    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            encode()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code == "tokenizer.offsets"
