"""Pre-tokenisers by their GGUF names: the rules that split a text, and what else the name decides in llama.cpp.

Names are those of `tokenizer.ggml.pre`. Where llama.cpp has several names for the same rules, all are known.
"""

from __future__ import annotations

from itertools import pairwise

from ..errors import UnsupportedError
from . import split
from .characters import table

_SMOLLM = (split.DIGIT, split.GPT2)

DEFAULT = "default"  # where the metadata name none

# Each name's rules, applied one after the other: each splits the pieces that the one before it left.
RULES: dict[str, tuple[int, ...]] = {
    DEFAULT: (split.DEFAULT_SIGNS, split.GPT2, split.DIGITS, split.ASCII_THOUSAND),
    "gpt-2": (split.GPT2,),
    "llama-bpe": (split.LLAMA3,),
    "qwen2": (split.QWEN2,),
    "qwen35": (split.QWEN35,),
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "deepseek-llm": (
        split.NEWLINE,
        split.LISTED_WORD,
        split.LISTED_SIGNS,
        split.LAST_SPACES,
        split.IDEOGRAPHS,
        split.DIGIT,
    ),
    "deepseek-coder": (split.NEWLINE, split.WORD, split.SIGNS, split.IDEOGRAPHS, split.DIGIT),
    "deepseek-v3": (split.THREE_DIGITS, split.KANA, split.DEEPSEEK3),
    "gpt-4o": (split.GPT4O,),
    "falcon": (split.FALCON_SIGNS, split.GPT2, split.ASCII_THOUSAND),
    "tekken": (split.TEKKEN,),
}

# Other names of the same rules; what a name decides beside the rules is below.
ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "falcon-h1": "llama-bpe",
    "pixtral": "llama-bpe",
    "midm-2.0": "llama-bpe",
    "lfm2": "llama-bpe",
    "dbrx": "llama-bpe",
    "smaug-bpe": "llama-bpe",
    "glm4": "llama-bpe",
    "chatglm-bpe": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
    "hunyuan": "qwen2",
    "megrez": "qwen2",
    "phi-2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "gigachat": "gpt-2",
    "modern-bert": "gpt-2",
    "trillion": "gpt-2",
    "refact": "smollm",
    "command-r": "smollm",
    "codeshell": "smollm",
    "exaone": "smollm",
    "minerva-7b": "smollm",
    "llama4": "gpt-4o",
    "minimax-m2": "gpt-4o",
    "hunyuan-dense": "deepseek-v3",
}

_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
# Names whose vocabularies take a piece that is a token whole, whatever the merges say.
IGNORE_MERGES = frozenset({*_LLAMA3, "glm4", "tekken"})
# Names whose models want their first token in front, where the metadata does not say.
ADD_BOS = frozenset({*_LLAMA3, "tekken"})
# Names whose text llama.cpp prints as it is; of others it drops the space before some signs.
KEEP_SPACES = frozenset(
    {
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "qwen2",
        "deepseek-r1-qwen",
        "hunyuan",
        "qwen35",
        "command-r",
        "tekken",
        "smollm",
        "gpt-4o",
        "llama4",
        "hunyuan-dense",
        "minimax-m2",
        "trillion",
    }
)


def rules_of(name: str) -> tuple[int, ...]:
    """The rules of a pre-tokeniser.

    Raises:
        UnsupportedError: `tokenizer.pre` where the name is not known; the message lists those that are.
    """
    rules = RULES.get(ALIASES.get(name, name))
    if rules is None:
        known = ", ".join(sorted({*RULES, *ALIASES}))
        raise UnsupportedError(
            f"the pre-tokeniser {name!r} is not known; known are {known}",
            code="tokenizer.pre",
            field="tokenizer.ggml.pre",
        )
    return rules


def pieces(text: str, rules: tuple[int, ...]) -> list[str]:
    """The text, split: the pieces whose bytes are merged each on its own."""
    points, classes = table().points(text)
    length = len(points)
    ends, count = [length], 1 if length else 0
    for rule in rules:
        found = [0] * length
        count = split.apply(rule, points, classes, ends, count, found)
        ends = found
    bounds = [0, *ends[:count]]
    return [text[start:end] for start, end in pairwise(bounds)]
