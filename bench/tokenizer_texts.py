"""Texts for tokenisers: random strings that look for trouble, and megabytes of ordinary and of one-sided text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

SURROGATES = range(0xD800, 0xE000)

_WORDS = (
    "the The THE hello Hello world it's IT'S we'LL you'Ve i'm they're don't O'Neil 'tis HTTPServer camelCase snake_case "
    "parseJSON 3.14 1,000,000 2024-01-31 0xFF foo() {bar} [baz] <tag> </tag> a+b x==y -> => != // /* */ # @user $100 50% "
    "naïve café Zürich señor Москва Київ Ελλάδα שלום مرحبا नमस्ते ไทย 中文 日本語 カタカナ 한국어 ქართული አማርኛ தமிழ் বাংলা "
    "Straße ŒUVRE ǅ ﬁ ½ Ⅷ ² ٣ ३ ๓ 一二三 ① 👍 👩‍💻 🏳️‍🌈 🇩🇪 ☃️ ∑ ≠ € ₹ ™ © … — “quoted” ‘x’ 、 。 「」 ！ ？ ～ － Ａ１"
).split()
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\u0085",
    "\v",
    "\f",
    "\x1c",
)
_CONTRACTIONS = (
    "'s",
    "'S",
    "'t",
    "'T",
    "'re",
    "'RE",
    "'Re",
    "'ve",
    "'VE",
    "'m",
    "'M",
    "'ll",
    "'LL",
    "'lL",
    "'d",
    "'D",
    "’s",
    "'ſ",
)
_MARKS = (
    "\u0300\u0301\u0308\u0316\u0327\u0345\u05b0\u064b\u093f\u0e33\u0e38\u200c\u200d\ufe0f\u20e3\u3099\u1100\u1161\u11a8"
)
_CONTROLS = (
    "\x00\x01\x07\x08\x0e\x1b\x1f\x7f\x80\x9f\u00ad\u061c\u200b\u200e\u200f\u202a\u202e\u2060\u2066\ufeff\ufffd\uffff"
)
_BLOCKS = (
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x250, 0x370),
    (0x370, 0x530),
    (0x530, 0x750),
    (0x900, 0xE00),
    (0xE00, 0x1100),
    (0x1100, 0x1200),
    (0x1E00, 0x2000),
    (0x2000, 0x2C00),
    (0x2C00, 0x3000),
    (0x3000, 0x3400),
    (0x4E00, 0x9FFF),
    (0xA000, 0xAC00),
    (0xAC00, 0xD7B0),
    (0xF900, 0x10000),
    (0x10000, 0x11000),
    (0x11000, 0x12000),
    (0x1D400, 0x1D800),
    (0x1F000, 0x1FB00),
    (0x20000, 0x2A6E0),
)


def random_texts(count: int, seed: int, specials: tuple[str, ...] = ()) -> Iterator[str]:
    """Strings of every kind: words, whitespace runs, contractions in all cases, marks, ZWJ, right-to-left, controls.

    Args:
        specials: Texts of special tokens, some of which are strewn in.
    """
    chance = random.Random(seed)
    kinds = (_phrase, _block_mix, _marked, _spaced, _any, _digits, _noise)
    for _ in range(count):
        text = chance.choice(kinds)(chance)
        if specials and chance.random() < 0.1:
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(specials) + text[at:]
        yield text


def _phrase(chance: random.Random) -> str:
    parts: list[str] = []
    for _ in range(chance.randrange(1, 12)):
        word = chance.choice(_WORDS)
        if chance.random() < 0.3:
            word = chance.choice((str.upper, str.lower, str.title, str.swapcase))(word)
        parts += [word, chance.choice(_CONTRACTIONS) if chance.random() < 0.2 else "", _gap(chance)]
    return "".join(parts)


def _gap(chance: random.Random) -> str:
    return " " if chance.random() < 0.7 else "".join(chance.choices(_SPACES, k=chance.randrange(4)))


def _block_mix(chance: random.Random) -> str:
    made = []
    for _ in range(chance.randrange(1, 5)):
        first, end = chance.choice(_BLOCKS)
        made += [chr(chance.randrange(first, end)) for _ in range(chance.randrange(1, 9))]
        made.append(_gap(chance))
    return "".join(made)


def _marked(chance: random.Random) -> str:
    base = "aeiouAEIOUnsזاकกあ中\u1100e "
    return "".join(
        chance.choice(base) + "".join(chance.choices(_MARKS, k=chance.randrange(4)))
        for _ in range(chance.randrange(1, 12))
    )


def _spaced(chance: random.Random) -> str:
    return "".join(
        chance.choice(_SPACES) * chance.randrange(1, 4) + chance.choice(("", "", "x", "1", ".", "é", "'s", "/"))
        for _ in range(chance.randrange(1, 10))
    )


def _any(chance: random.Random) -> str:
    return "".join(chr(_point(chance, 0x110000)) for _ in range(chance.randrange(1, 20)))


def _point(chance: random.Random, limit: int) -> int:
    point = chance.randrange(limit)
    return 0x2603 if point in SURROGATES else point


def _digits(chance: random.Random) -> str:
    return "".join(
        chance.choice(("0123456789", "٠١٢٣", "०१२", "½¼²³", "一二三", ".,-+ ", "abc"))[: chance.randrange(1, 11)]
        for _ in range(chance.randrange(1, 8))
    )


def _noise(chance: random.Random) -> str:
    letters = "aB zéЖ中1 '\n\t.,!?-_/\\|~`^$+<=>(){}[]\"" + _CONTROLS + _MARKS
    return "".join(chance.choices(letters, k=chance.randrange(1, 30)))


def mixed_text(size: int) -> str:
    """About `size` bytes of prose, Python and Chinese, Japanese and Korean, the same every time.

    The Python is this package's own source; prose and the rest are drawn word by word from lists with the frequencies
    of natural text (Zipf's law), so that a cache of words helps as much as it does there, and no more.
    """
    chance = random.Random(4)
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("../src/**/*.py")))
    made: list[str] = []
    length, at = 0, 0
    while length < size:
        if at + 2000 > len(code):
            at = 0
        block = [_prose(chance), code[at : at + 2000], _ideographs(chance)]
        at += 2000
        for part in block:
            made.append(part)
            length += len(part.encode())
    text = "\n".join(made).encode()[:size]
    return text.decode("utf-8", "ignore")


_SYLLABLES = "ta re on in st er an the ing ed ly con pro de com ma li no se ra ti ve ment al ous im un for per".split()


def _prose(chance: random.Random) -> str:
    sentences = []
    for _ in range(18):
        words = [_word(chance) for _ in range(chance.randrange(5, 25))]
        sentences.append(" ".join(words).capitalize() + chance.choice((".", ".", "?", "!", ",")))
    return " ".join(sentences)


_COMMON = "the of and to in a is that it for was on are as with his they at be this from have or by one had not but what all were when we there can an your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been its who now people my made over did down only way find use may water long little very after words called just where most know".split()


def _word(chance: random.Random) -> str:
    if chance.random() < 0.65:
        rank = int(len(_COMMON) ** chance.random()) - 1
        return _COMMON[rank]
    return "".join(chance.choices(_SYLLABLES, k=chance.randrange(1, 5)))


def _ideographs(chance: random.Random) -> str:
    made = []
    for _ in range(12):
        first, count = chance.choice(((0x4E00, 3000), (0x4E00, 3000), (0x3042, 80), (0xAC00, 2000)))
        made.append("".join(chr(first + int(count ** chance.random()) - 1) for _ in range(chance.randrange(4, 30))))
    return "，".join(made) + "。"
