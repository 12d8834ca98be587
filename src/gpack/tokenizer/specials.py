"""Where special tokens stand in a text, in llama.cpp's order: the longest first, then by id, each from left to right."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sections.gbt import GbtView

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


class Specials:
    """The special tokens of a vocabulary, read when a text is long enough to hold one."""

    def __init__(self, view: GbtView) -> None:
        self._view = view
        self._ids = view.special_tokens if view.special_tokens is not None else ()
        self._all: _Finder | None = None
        self._user_defined: _Finder | None = None
        self._shortest = len(view.token(view.checked(self._ids[-1], "special_tokens"))) if len(self._ids) else 0

    def partition(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """The text in order: pieces of text, not empty, and ids of special tokens.

        User-defined tokens are found in every text, control tokens and the unknown token only where the caller says.
        """
        if not text:
            return iter(())
        # A character has at most four bytes: a text that is too short for the shortest token needs no search.
        if not self._shortest or 4 * len(text) < self._shortest or (text.isascii() and len(text) < self._shortest):
            return iter((text,))
        return self._finder(parse_special).partition(text)

    def _finder(self, parse_special: bool) -> _Finder:
        if parse_special:
            if self._all is None:
                self._all = _Finder(self._texts((UNKNOWN, CONTROL, USER_DEFINED)))
            return self._all
        if self._user_defined is None:
            self._user_defined = _Finder(self._texts((USER_DEFINED,)))
        return self._user_defined

    def _texts(self, types: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        """Texts and ids of the special tokens of these types, in order; no text holds one that is not UTF-8."""
        view = self._view
        for token_id in self._ids:
            token = view.token(view.checked(token_id, "special_tokens"))
            if view.token_types[token_id] in types and token:
                try:
                    yield token.decode(), token_id
                except UnicodeDecodeError:
                    continue


class _Finder:
    """Finds some tokens' texts: all that share their first characters are looked for at once."""

    def __init__(self, tokens: Iterator[tuple[str, int]]) -> None:
        self._tokens: dict[str, tuple[int, int]] = {}
        for order, (text, token_id) in enumerate(tokens):
            self._tokens.setdefault(text, (order, token_id))
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._groups = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}

    def partition(self, text: str) -> Iterator[str | int]:
        """The text in order, pieces and ids."""
        start = 0
        for at, end, token_id in self._chosen(text):
            if at > start:
                yield text[start:at]
            yield token_id
            start = end
        if start < len(text):
            yield text[start:]

    def _chosen(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and id of the tokens that count, by place: none overlaps one that comes before it in order."""
        found = self._candidates(text)
        if len(found) < 2:
            return [(at, end, token_id) for _, at, end, token_id in found]
        taken = bytearray(len(text))
        chosen = []
        for _, at, end, token_id in sorted(found):
            if 1 not in taken[at:end]:
                taken[at:end] = b"\1" * (end - at)
                chosen.append((at, end, token_id))
        chosen.sort()
        return chosen

    def _candidates(self, text: str) -> list[tuple[int, int, int, int]]:
        tokens, found = self._tokens, []
        for prefix, lengths in self._groups.items():
            at = text.find(prefix)
            while at >= 0:
                for length in lengths:
                    piece = text[at : at + length]
                    known = tokens.get(piece) if len(piece) == length else None
                    if known is not None:
                        found.append((known[0], at, at + length, known[1]))
                at = text.find(prefix, at + 1)
        return found
