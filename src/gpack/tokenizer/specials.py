"""Where special tokens stand in a text, in llama.cpp's order: the longest first, then by id, each left to right."""

from __future__ import annotations

from .finding import TokenSet, find_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..sections.gbt import GbtView

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

# Tokens that llama.cpp takes for control tokens by their text, whatever type the file gives them.
CONTROL_NAMES = frozenset(
    name.encode()
    for name in (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    )
)
_SHORTEST_NAME = min(map(len, CONTROL_NAMES))


class Specials:
    """The special tokens of a vocabulary, read when a text is long enough to hold one.

    Args:
        view: The vocabulary.
        by_name: Tokens of `CONTROL_NAMES` are control tokens whatever their type.
        user_defined: Ids of tokens that are user-defined whatever their type.
        ways: Ids of tokens to the ways in which they are found (`settings.WAYS`).
    """

    def __init__(
        self,
        view: GbtView,
        *,
        by_name: bool,
        user_defined: frozenset[int] = frozenset(),
        ways: dict[int, str] | None = None,
    ) -> None:
        self._view = view
        self._ways = ways or {}
        self._set_user_defined = user_defined
        self._by_name = by_name
        self._ids = view.special_tokens if view.special_tokens is not None else memoryview(b"")
        self._all: TokenSet | None = None
        self._user_defined: TokenSet | None = None
        self._controls: frozenset[int] | None = None
        self._shortest = len(view.token(view.checked(self._ids[-1], "special_tokens"))) if len(self._ids) else 0

    def partition(self, text: str, *, parse_special: bool, mask: bytes | None = None) -> Iterable[str | int]:
        """The text in order: pieces of text, not empty, and ids of special tokens.

        User-defined tokens are found in every text, control tokens and the unknown token only where the caller says.

        Args:
            mask: With `parse_special`, control tokens only count where all their characters have a 1 here.
        """
        if not text:
            return ()
        shortest = self._shortest
        if parse_special and self._by_name:
            shortest = min(shortest or _SHORTEST_NAME, _SHORTEST_NAME)
        # A text that has fewer bytes than the shortest token needs no search.
        if not shortest or (4 * len(text) < shortest or (text.isascii() and len(text) < shortest)):
            return (text,)
        tokens = self._tokens(parse_special)
        if mask is None or not parse_special:
            found = find_tokens(text, ((tokens, None),))
        else:
            found = find_tokens(text, ((self._tokens(False), None), (tokens, mask)))
        return _pieces(text, _widened(text, found, self._ways) if self._ways else found)

    def is_control(self, token_id: int) -> bool:
        """Whether a token is left out where special tokens are skipped: a control token or the unknown one."""
        if token_id in self._set_user_defined:
            return False
        if self._view.token_types[token_id] in (UNKNOWN, CONTROL):
            return True
        if not self._by_name:
            return False
        if self._controls is None:
            self._controls = frozenset(self._named())
        return token_id in self._controls

    def _named(self) -> Iterator[int]:
        """Ids of the tokens that are control tokens by their name."""
        found = (self._view.find(name) for name in CONTROL_NAMES)
        return (token_id for token_id in found if token_id >= 0)

    def _tokens(self, parse_special: bool) -> TokenSet:
        if parse_special:
            if self._all is None:
                self._all = TokenSet(self._view.tokens({*self._listed(), *(self._named() if self._by_name else ())}))
            return self._all
        if self._user_defined is None:
            types, sure = self._view.token_types, self._set_user_defined
            hidden = CONTROL_NAMES if self._by_name else ()
            chosen = {i for i in self._listed() if types[i] == USER_DEFINED or i in sure}
            tokens = self._view.tokens(chosen)
            self._user_defined = TokenSet(item for item in tokens if item[0] not in hidden or item[1] in sure)
        return self._user_defined

    def _listed(self) -> Iterator[int]:
        return (self._view.checked(token_id, "special_tokens") for token_id in self._ids)


def _widened(text: str, found: Iterable[tuple[int, int, int]], ways: dict[int, str]) -> Iterator[tuple[int, int, int]]:
    """The places of tokens with the spaces that belong to them, without those that are no words of their own."""
    before = 0
    for at, end, token_id in sorted(found):
        way = ways.get(token_id, "")
        if at < before or ("w" in way and (_is_word(text[at - 1 : at]) or _is_word(text[end : end + 1]))):
            continue
        start, stop = at, end
        if "l" in way:
            while start > before and text[start - 1].isspace():
                start -= 1
        if "r" in way:
            while stop < len(text) and text[stop].isspace():
                stop += 1
        yield start, stop, token_id
        before = stop


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _pieces(text: str, found: Iterable[tuple[int, int, int]]) -> Iterator[str | int]:
    """The text in order, pieces and ids."""
    start = 0
    for at, end, token_id in found:
        if at > start:
            yield text[start:at]
        yield token_id
        start = end
    if start < len(text):
        yield text[start:]
