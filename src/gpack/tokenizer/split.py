"""Where a text splits before byte pairs are merged: one function for each rule, over code points and their classes.

The rules are the regular expressions of the models' own tokenisers, written out as matchers without backtracking, so
that every one of them is linear. The same source runs as plain Python and, compiled by numba (`compiled`), on arrays:
the functions use integers and indexing alone. `points[i]` is a code point, `classes[i]` its byte in the table of
`characters`: the class in the low four bits.

Every matcher looks at `start <= i < end` and returns the end of the match that begins at `i`, or `-k` where none
begins before `k`. What no match covers stays as it is, a piece of its own between the matches.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Classes; codegen/unicode_classes.py has the same numbers.
UPPER, LOWER, LETTER, MARK, NUMBER, PUNCTUATION, SYMBOL, SPACE = 1, 2, 3, 4, 5, 6, 7, 8
CLASS = 0x0F
LISTED = 0x10  # deepseek-llm's own list of letters

# Rules; `pretokenizers` says which models use which, in which order.
(
    GPT2,
    LLAMA3,
    QWEN2,
    QWEN35,
    GPT4O,
    TEKKEN,
    DEEPSEEK3,
    NEWLINE,
    LISTED_WORD,
    LISTED_SIGNS,
    LAST_SPACES,
    WORD,
    SIGNS,
    IDEOGRAPHS,
    KANA,
    DIGIT,
    DIGITS,
    THREE_DIGITS,
    ASCII_THOUSAND,
    FALCON_SIGNS,
    DEFAULT_SIGNS,
) = range(21)


def contraction(points: Any, i: int, end: int) -> int:
    """Length of `'s 't 'm 'd 're 've 'll` in any case (`'ſ` too, as case folding has it) at an apostrophe; else 0."""
    if i + 1 >= end:
        return 0
    first = points[i + 1]
    if first in (0x73, 0x53, 0x17F, 0x74, 0x54, 0x6D, 0x4D, 0x64, 0x44):
        return 2
    if i + 2 >= end:
        return 0
    first, second = first | 0x20, points[i + 2] | 0x20
    if points[i + 1] > 0x7F or points[i + 2] > 0x7F:
        return 0
    if (first in (0x72, 0x76) and second == 0x65) or (first == 0x6C and second == 0x6C):
        return 3
    return 0


def spaces(points: Any, classes: Any, i: int, end: int, newlines: bool) -> int:
    r"""`\s*[\r\n]+` (where `newlines`), else `\s+(?!\S)`, else `\s+`."""
    j, last = i, -1
    while j < end and classes[j] & CLASS == SPACE:
        if points[j] in (10, 13):
            last = j
        j += 1
    if newlines and last >= 0:
        return last + 1
    if j == end or j - i == 1:
        return j if j > i else -(i + 1)
    return j - 1


def match_gpt2(points: Any, classes: Any, i: int, end: int) -> int:
    r"""`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`."""
    if points[i] == 0x27 and i + 1 < end:
        first = points[i + 1]
        if first in (0x73, 0x74, 0x6D, 0x64):
            return i + 2
        if i + 2 < end:
            second = points[i + 2]
            if (first in (0x72, 0x76) and second == 0x65) or (first == 0x6C and second == 0x6C):
                return i + 3
    j = i + 1 if points[i] == 0x20 and i + 1 < end else i
    kind = classes[j] & CLASS
    if kind == SPACE:
        return spaces(points, classes, i, end, False)
    letters, numbers = UPPER <= kind <= LETTER, kind == NUMBER
    while j < end:
        kind = classes[j] & CLASS
        if kind == SPACE or (UPPER <= kind <= LETTER) != letters or (kind == NUMBER) != numbers:
            break
        j += 1
    return j


def match_words(points: Any, classes: Any, i: int, end: int, digits: int, marks: bool) -> int:
    r"""Llama 3's and Qwen's rule.

    `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
    \s+(?!\S)|\s+`; where `marks`, with `[\p{L}\p{M}]` in the second part and `\p{M}` among the third's exceptions.
    """
    point, kind = points[i], classes[i] & CLASS
    last = MARK if marks else LETTER
    if point == 0x27:
        length = contraction(points, i, end)
        if length:
            return i + length
    if kind != NUMBER and point not in (10, 13):
        j = i + 1
        if UPPER <= kind <= last or (j < end and UPPER <= classes[j] & CLASS <= last):
            while j < end and UPPER <= classes[j] & CLASS <= last:
                j += 1
            return j
    if kind == NUMBER:
        j = i + 1
        while j < end and j - i < digits and classes[j] & CLASS == NUMBER:
            j += 1
        return j
    j = i + 1 if point == 0x20 else i
    k = j
    while k < end:
        kind = classes[k] & CLASS
        if kind in (SPACE, NUMBER) or UPPER <= kind <= last:
            break
        k += 1
    if k > j:
        while k < end and points[k] in (10, 13):
            k += 1
        return k
    return spaces(points, classes, i, end, True)


def cased_word(classes: Any, i: int, end: int) -> int:
    r"""The end of `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`; else minus that of the upper-case run.

    The two classes share letters without case and marks. The first part takes all that it can; where nothing of the
    second follows, it gives back down to the last letter that they share.
    """
    j, shared = i, -1
    while j < end:
        kind = classes[j] & CLASS
        if LETTER <= kind <= MARK:
            shared = j
        elif kind != UPPER:
            break
        j += 1
    if j < end and classes[j] & CLASS == LOWER:
        while j < end and LOWER <= classes[j] & CLASS <= MARK:
            j += 1
        return j
    return shared + 1 if shared >= 0 else -j


def match_cased(points: Any, classes: Any, i: int, end: int, digits: int, contractions: bool) -> int:
    r"""GPT-4o's and Tekken's rule: words split where lower case turns to upper case.

    `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`, or the
    same with `+` and `*`, then `\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
    """
    point, kind = points[i], classes[i] & CLASS
    j = i
    if UPPER <= kind <= LETTER:
        j = abs(cased_word(classes, i, end))
    elif kind != NUMBER and point not in (10, 13):
        word = cased_word(classes, i + 1, end)
        if word > 0:
            j = word
        elif kind == MARK:
            j = i + 1  # the prefix is optional: a mark alone is a word of the first form
        elif -word > i + 1:
            j = -word
    if j > i:
        if contractions and j < end and points[j] == 0x27:
            j += contraction(points, j, end)
        return j
    if kind == NUMBER:
        j = i + 1
        while j < end and j - i < digits and classes[j] & CLASS == NUMBER:
            j += 1
        return j
    j = i + 1 if point == 0x20 else i
    k = j
    while k < end:
        kind = classes[k] & CLASS
        if kind in (SPACE, NUMBER) or UPPER <= kind <= LETTER:
            break
        k += 1
    if k > j:
        while k < end and points[k] in (10, 13, 0x2F):
            k += 1
        return k
    return spaces(points, classes, i, end, True)


def match_deepseek3(points: Any, classes: Any, i: int, end: int) -> int:
    r"""`[ASCII sign][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`."""
    point, kind = points[i], classes[i] & CLASS
    j = i + 1
    if point < 0x80 and PUNCTUATION <= kind <= SYMBOL:
        while j < end and points[j] < 0x80 and UPPER <= classes[j] & CLASS <= LOWER:
            j += 1
        if j > i + 1:
            return j
    following = classes[j] & CLASS if j < end else 0
    if UPPER <= kind <= MARK or (
        UPPER <= following <= MARK and not PUNCTUATION <= kind <= SYMBOL and point not in (10, 13)
    ):
        while j < end and UPPER <= classes[j] & CLASS <= MARK:
            j += 1
        return j
    j = k = i + 1 if point == 0x20 else i
    while k < end and PUNCTUATION <= classes[k] & CLASS <= SYMBOL:
        k += 1
    if k > j:
        while k < end and points[k] in (10, 13):
            k += 1
        return k
    if kind == SPACE:
        return spaces(points, classes, i, end, True)
    return -(i + 1)


def belongs(rule: int, point: int, value: int) -> bool:
    """Whether a code point is of the class that a run-of-one-class rule repeats."""
    kind = value & CLASS
    if rule == WORD:
        return UPPER <= kind <= LETTER
    if rule == SIGNS:
        return kind == PUNCTUATION
    if rule in (DIGIT, DIGITS, THREE_DIGITS):
        return kind == NUMBER
    if rule == LISTED_WORD:
        return value & LISTED != 0
    if rule == LISTED_SIGNS:  # !-/ :-~ and their full-width forms, quotes, ideographic space and comma and stop
        return (
            0x21 <= point <= 0x2F
            or 0x3A <= point <= 0x7E
            or 0xFF01 <= point <= 0xFF0F
            or 0xFF1A <= point <= 0xFF5E
            or 0x2018 <= point <= 0x201F
            or 0x3000 <= point <= 0x3002
        )
    if rule == IDEOGRAPHS:
        return 0x0800 <= point <= 0x9FA5 or 0xAC00 <= point <= 0xD7FF
    if rule == KANA:
        return 0x4E00 <= point <= 0x9FA5 or 0x3040 <= point <= 0x30FF
    if rule in (FALCON_SIGNS, DEFAULT_SIGNS):  # \p{P} and $ + < = > ^ ~ | and, for Falcon, `
        if kind == PUNCTUATION or point in (0x24, 0x2B, 0x3C, 0x3D, 0x3E, 0x5E, 0x7E, 0x7C):
            return True
        return rule == FALCON_SIGNS and point == 0x60
    return point in (10, 13)


def match_run(rule: int, points: Any, classes: Any, i: int, end: int) -> int:
    """The rules that repeat one class, some after an optional space."""
    if rule == LAST_SPACES:
        j = i
        while j < end and classes[j] & CLASS == SPACE:
            j += 1
        return j if j == end and j > i else -max(j, i + 1)
    if rule == ASCII_THOUSAND:
        found = i + 3 <= end and 0x30 <= points[i] <= 0x39 and 0x30 <= points[i + 1] <= 0x39
        return i + 3 if found and 0x30 <= points[i + 2] <= 0x39 else -(i + 1)
    j = i
    spaced = rule in (LISTED_WORD, LISTED_SIGNS, WORD, SIGNS)
    if spaced and classes[i] & CLASS == SPACE and i + 1 < end and belongs(rule, points[i + 1], classes[i + 1]):
        j = i + 1
    longest = end
    if rule in (NEWLINE, DIGIT):
        longest = min(end, i + 1)
    elif rule == THREE_DIGITS:
        longest = min(end, i + 3)
    k = j
    while k < longest and belongs(rule, points[k], classes[k]):
        k += 1
    if k > j:
        return k
    k = i + 1
    while k < end and not belongs(rule, points[k], classes[k]) and not (spaced and classes[k] & CLASS == SPACE):
        k += 1
    return -k


def match(rule: int, points: Any, classes: Any, i: int, end: int) -> int:
    """The end of the rule's match that begins at `i`, or minus the next place where one can begin."""
    if rule == QWEN35:
        return match_words(points, classes, i, end, 1, True)
    if rule == QWEN2:
        return match_words(points, classes, i, end, 1, False)
    if rule == LLAMA3:
        return match_words(points, classes, i, end, 3, False)
    if rule == GPT2:
        return match_gpt2(points, classes, i, end)
    if rule == GPT4O:
        return match_cased(points, classes, i, end, 3, True)
    if rule == TEKKEN:
        return match_cased(points, classes, i, end, 1, False)
    if rule == DEEPSEEK3:
        return match_deepseek3(points, classes, i, end)
    return match_run(rule, points, classes, i, end)


def apply(rule: int, points: Any, classes: Any, ends: Any, count: int, found: Any) -> int:
    """Splits each of `count` pieces, given by their ends, by one rule; writes the new ends and returns their number."""
    made, start = 0, 0
    for piece in range(count):
        end = ends[piece]
        i, gap = start, start
        while i < end:
            j = match(rule, points, classes, i, end)
            if j > i:
                if i > gap:
                    found[made] = i
                    made += 1
                found[made] = j
                made += 1
                i = gap = j
            else:
                i = -j
        if end > gap:
            found[made] = end
            made += 1
        start = end
    return made
