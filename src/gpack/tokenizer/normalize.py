"""Unicode normalisation form C, in time linear in the text but for a logarithm."""

from __future__ import annotations

from unicodedata import combining, is_normalized, normalize

_RUN = 32  # combining marks in a row from which they are sorted here


def nfc(text: str) -> str:
    """The text in normalisation form C, by the Unicode version of the Python that runs.

    `unicodedata` orders a run of combining marks in quadratic time, so long runs are ordered before.
    """
    if is_normalized("NFC", text):
        return text
    return normalize("NFC", _ordered(text))


def _ordered(text: str) -> str:
    """With every long run of combining marks sorted by class, which changes nothing else."""
    if len(text) <= _RUN:
        return text
    made: list[str] = []
    start = kept = 0
    for at, character in enumerate(text):
        if character >= "\u0300" and combining(character):
            continue
        if at - start > _RUN:
            made += [text[kept:start], *sorted(text[start:at], key=combining)]
            kept = at
        start = at + 1
    if len(text) - start > _RUN:
        made += [text[kept:start], *sorted(text[start:], key=combining)]
        kept = len(text)
    return "".join([*made, text[kept:]]) if made else text
