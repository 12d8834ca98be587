"""Pre-tokenisers: pieces worked out by hand, and those of the regular expressions themselves."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.errors import UnsupportedError
from gpack.sources.hf_pretokenizer import _DEEPSEEK3, _GPT2, _GPT4O, _LLAMA3, _QWEN2, _QWEN35, _TEKKEN
from gpack.tokenizer import split
from gpack.tokenizer.characters import table
from gpack.tokenizer.pretokenizers import ALIASES, RULES, pieces, rules_of

SIGNS = r"[\p{P}\$\+<=>\^~\|%s]+"
PATTERNS = {
    "gpt-2": [_GPT2],
    "llama-bpe": [_LLAMA3],
    "qwen2": [_QWEN2],
    "qwen35": [_QWEN35],
    "gpt-4o": [_GPT4O],
    "tekken": [_TEKKEN],
    "smollm": [r"\p{N}", _GPT2],
    "starcoder": [r"\p{N}", _GPT2],
    "falcon": [SIGNS % "`", _GPT2, "[0-9][0-9][0-9]"],
    "default": [SIGNS % "", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK3],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
}
# Characters that the patterns tell apart, often enough to meet.
TROUBLE = st.text(
    st.sampled_from(
        "aB sSſtTrReEvVlLmMdD'’ \n\r\t09٣½.,!?/$`|~<éÉǅʰ漢あ가\u0301\u093f\u200d\u00a0\u3000\u2028\u0085\x00\x1c🙂。！ｆ０א€"
    ),
    max_size=24,
)
TEXTS = st.one_of(TROUBLE, st.text(st.characters(exclude_categories=["Cs"]), max_size=24))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "Don't stop  now", ["Don", "'t", " stop", " ", " now"]),
        ("gpt-2", "DON'T 123", ["DON", "'", "T", " 123"]),
        ("llama-bpe", "I'LL pay 12345\n\n", ["I", "'LL", " pay", " ", "123", "45", "\n\n"]),
        ("qwen2", "x=42;\r\n y", ["x", "=", "4", "2", ";\r\n", " y"]),
        ("qwen2", "cafe\u0301s", ["cafe", "\u0301s"]),
        ("qwen35", "cafe\u0301s", ["cafe\u0301s"]),
        ("gpt-4o", "parseHTTPResponse it's", ["parse", "HTTPResponse", " it's"]),
        ("tekken", "it's 12", ["it", "'s", " ", "1", "2"]),
        ("smollm", "v10", ["v", "1", "0"]),
        ("falcon", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("deepseek-v3", "12345中文abc.foo", ["123", "45", "中文", "abc", ".foo"]),
        ("deepseek-coder", "if x:\n\t12", ["if", " x", ":", "\n", "\t", "1", "2"]),
        ("deepseek-llm", "Hi 你好  ", ["Hi", " ", "你好", "  "]),
        ("gpt-2", "", []),
    ],
)
def test_by_hand(name: str, text: str, expected: list[str]) -> None:
    assert pieces(text, rules_of(name)) == expected


@pytest.mark.parametrize("name", RULES)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_pieces_are_the_text(name: str, text: str) -> None:
    found = pieces(text, rules_of(name))
    assert "".join(found) == text
    assert all(found)


@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_as_the_regular_expressions(name: str, text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the patterns are run by tokenizers")
    expected = [text] if text else []
    for pattern in PATTERNS[name]:
        step = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        expected = [piece for part in expected for piece, _ in step.pre_tokenize_str(part)]
    assert pieces(text, rules_of(name)) == expected


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnsupportedError) as caught:
        rules_of("qwen99")
    assert caught.value.code == "tokenizer.pre"
    assert all(name in caught.value.message for name in (*RULES, *ALIASES))


def test_every_alias_leads_to_rules() -> None:
    assert set(ALIASES.values()) <= set(RULES)


def test_classes_are_those_of_unicode() -> None:
    """Where this Python's older tables know a character, ours say the same."""
    groups = {
        split.UPPER: ("Lu", "Lt"),
        split.LOWER: ("Ll",),
        split.LETTER: ("Lm", "Lo"),
        split.MARK: ("Mn", "Mc", "Me"),
        split.NUMBER: ("Nd", "Nl", "No"),
        split.PUNCTUATION: ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"),
        split.SYMBOL: ("Sm", "Sc", "Sk", "So"),
    }
    expected = {category: number for number, categories in groups.items() for category in categories}
    classes = table()
    for point in range(0x110000):
        category = unicodedata.category(chr(point))
        if category == "Cn":
            continue
        found = classes.blocks[classes.index[point >> 7] << 7 | point & 127] & split.CLASS
        if category in expected:
            assert found == expected[category], hex(point)
        else:
            assert found in (0, split.SPACE)
    spaces = [chr(p) for p in range(0x3001) if classes.blocks[classes.index[p >> 7] << 7 | p & 127] == split.SPACE]
    assert spaces == [
        character
        for character in map(chr, range(0x3001))
        if character.isspace() and character not in "\x1c\x1d\x1e\x1f"
    ]
