"""SentencePiece-style vocabularies (`tokenizer.ggml.model` = `llama`): merging by score, and byte fallback.

The rule is llama.cpp's (`llm_tokenizer_spm`): the text is a chain of characters; of all neighbours that together are a
token, the pair with the highest score becomes one, the leftmost where scores are equal; until no pair is left. A
character that is no token becomes the tokens of its UTF-8 bytes. Spaces are written U+2581.

Two things make that fast without changing any id. A pair can merge only where some token holds its two inner
characters side by side; where no token does, the text is cut, and the parts are independent. And a part that was
seen before is looked up. What is left costs n log n in the length of the longest part. Compiled code, which is linear,
takes over where numba is installed and it pays (`switching`); both give the same ids.

Unlike llama.cpp, and like SentencePiece, control, unknown and byte tokens are no outcome of merging: typed text never
becomes a control token. Which of them are parsed in a text is decided before it comes here.
"""

from __future__ import annotations

import heapq
import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import FormatError
from .switching import LONGEST, SCORES, cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from ..sections.tokenizer import TokenizerTable
    from .spm_compiled import CompiledSpm

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6  # GGUF's token types; 4 is user-defined
SPACE = "\u2581"
_SPACE_BYTES = SPACE.encode()
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")
_SEPARATOR = "\0"  # between tokens when pairs are looked for: a pair with it cuts too little, never too much
_SHORT = 24  # symbols up to which looking at every pair beats a heap
_LONG_PART = 64  # characters from which a part is cut at all pairs that no token holds
_CACHED_LENGTH = 48  # characters of a part that is remembered
_CACHED_PARTS = 1 << 16
_NEVER = float("-inf")


class SpmEncoder:
    """Encodes text without special tokens, and tells the bytes of each token.

    Args:
        table: The vocabulary; tokens are UTF-8 with U+2581 for a space.
        scores: Score of each token; any sequence of floats, float32 [vocab_size] as a GGUF has it.
        add_space_prefix: Put a space in front of a text that begins the prompt or follows a special token
            (`tokenizer.ggml.add_space_prefix`).
        unknown_id: The token for bytes that the vocabulary cannot tell; None: such a byte is an error.

    Raises:
        FormatError: `tokenizer.scores` where there is not one finite score for each token.
    """

    def __init__(
        self,
        table: TokenizerTable,
        scores: Sequence[float] | npt.NDArray[np.float32],
        *,
        add_space_prefix: bool = True,
        unknown_id: int | None = None,
    ) -> None:
        values = scores.tolist() if hasattr(scores, "tolist") else list(scores)
        if len(values) != len(table):
            raise FormatError(
                f"there are {len(values)} scores for {len(table)} tokens", code="tokenizer.scores", section="metadata"
            )
        if any(map(math.isnan, values)):
            raise FormatError("a score is not a number", code="tokenizer.scores", section="metadata")
        self.add_space_prefix = add_space_prefix
        self._unknown_id = unknown_id
        self._scores: list[float] = values
        self._types: bytes = table.token_types.tobytes()
        self._tokens = table.tokens()
        self._ids, self._byte_ids = self._lookup()
        # Characters that stand before a space within some token: a text is not cut between them and a space.
        joined = _SEPARATOR.join(self._ids)
        self._before_space = {pair[0] for pair in re.findall(f"[^{_SEPARATOR}]{SPACE}", joined)}
        kept = "".join(map(re.escape, sorted(self._before_space)))
        self._cut = re.compile(f"(?<=[^{kept}])(?={SPACE})" if kept else f"(?<=.)(?={SPACE})", re.DOTALL)
        self._pairs: set[tuple[str, str]] | None = None
        self._cache: dict[str, list[int]] = {}
        self._compiled: CompiledSpm | None = None

    def _lookup(self) -> tuple[dict[str, int], dict[int, int]]:
        """Ids of the tokens that merging may give, by text, and of the byte tokens, by byte."""
        ids: dict[str, int] = {}
        byte_ids: dict[int, int] = {}
        hidden = (UNKNOWN, CONTROL)
        for token_id, (token, token_type) in enumerate(zip(self._tokens, self._types, strict=True)):
            if token_type == BYTE:
                match = _BYTE_TOKEN.fullmatch(token)
                if match:
                    byte_ids[int(match[1], 16)] = token_id
            elif token_type not in hidden and token:
                try:
                    ids[token.decode()] = token_id  # as in llama.cpp, the last of equal tokens counts
                except UnicodeDecodeError:
                    continue  # no text can hold it
        return ids, byte_ids

    def encode_text(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of a text that holds no special tokens, by the way that pays; arguments and errors as `encode`."""
        return self.encode(text, at_start=at_start) or []

    def encode(self, text: str, *, at_start: bool, way: str = "auto") -> list[int] | None:
        """The ids of a text that holds no special tokens.

        Args:
            text: The text; lone surrogates stand for bytes that are not UTF-8 (`surrogateescape`).
            at_start: It begins the prompt or follows a special token.
            way: `auto`, `plain` Python, or `compiled`, which gives None where there is no compiled code.

        Raises:
            FormatError: `tokenizer.no_byte` where the vocabulary has no token for one of its bytes.
        """
        if not text:
            return []
        if at_start and self.add_space_prefix:
            text = " " + text
        text = text.replace(" ", SPACE)
        if way == "compiled":
            return self._encode_compiled(text)
        # Of long texts the length decides, before they are cut.
        if way == "auto" and SCORES.pays(len(text)):
            ids = self._encode_compiled(text)
            if ids is not None:
                return ids
        parts = self._cut.split(text)
        if way == "auto" and not SCORES.loaded:
            price = cost(text, parts)
            if price > len(text) and SCORES.pays(price):
                ids = self._encode_compiled(text)
                if ids is not None:
                    return ids
            SCORES.spent += price
        return self._encode_parts(parts)

    def _encode_parts(self, parts: list[str]) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for part in parts:
            known = cache.get(part)
            if known is None:
                known = self._encode_part(part)
                if len(part) <= _CACHED_LENGTH:
                    if len(cache) >= _CACHED_PARTS:
                        cache.clear()
                    cache[part] = known
            ids += known
        return ids

    def _encode_compiled(self, text: str) -> list[int] | None:
        """None where there is no compiled code, the text has lone surrogates, or a byte has no token."""
        if self._compiled is None:
            if not SCORES.possible:
                return None
            try:
                from .spm_compiled import CompiledSpm
            except ImportError:
                SCORES.possible = False
                return None
            found = [self._byte_id(byte) for byte in range(256)]
            byte_ids = [-1 if token_id is None else token_id for token_id in found]
            self._compiled = CompiledSpm(self._tokens, list(self._ids.values()), self._scores, byte_ids)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        if len(data) >= LONGEST:
            return None
        ids = self._compiled.encode(data)
        SCORES.loaded = True
        return ids

    def forget(self) -> None:
        """Forgets all parts that it remembers."""
        self._cache.clear()

    def decode_token(self, token_id: int) -> bytes:
        """The bytes that a token stands for; nothing for an unused one, as in llama.cpp.

        Raises:
            IndexError: There is no such token.
        """
        if not 0 <= token_id < len(self._tokens):
            raise IndexError(f"there are {len(self._tokens)} tokens, there is no token {token_id}")
        token, token_type = self._tokens[token_id], self._types[token_id]
        if token_type == NORMAL:
            return token.replace(_SPACE_BYTES, b" ")
        if token_type == BYTE:
            match = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(match[1], 16)]) if match else token
        return b"" if token_type == UNUSED else token

    # ------------------------------------------------------------ merging

    def _encode_part(self, part: str) -> list[int]:
        whole = self._ids.get(part) if len(part) == 1 else None
        if whole is not None:
            return [whole]
        if len(part) <= _LONG_PART:
            return self._merged(list(part))
        pairs = self._all_pairs()
        ids: list[int] = []
        start = 0
        for at, pair in enumerate(pairwise(part), 1):
            if pair not in pairs:
                ids += self._merged(list(part[start:at]))
                start = at
        return ids + self._merged(list(part[start:]))

    def _all_pairs(self) -> set[tuple[str, str]]:
        """Characters that stand side by side in some token."""
        if self._pairs is None:
            joined = _SEPARATOR.join(self._ids)
            self._pairs = set(pairwise(joined))
        return self._pairs

    def _merged(self, symbols: list[str]) -> list[int]:
        if len(symbols) > 1:
            symbols = self._merge_few(symbols) if len(symbols) <= _SHORT else self._merge_many(symbols)
        ids: list[int] = []
        for symbol in symbols:
            token_id = self._ids.get(symbol)
            if token_id is None:
                ids += self._bytes(symbol)
            else:
                ids.append(token_id)
        return ids

    def _score(self, text: str) -> float:
        token_id = self._ids.get(text)
        return _NEVER if token_id is None else self._scores[token_id]

    def _merge_few(self, symbols: list[str]) -> list[str]:
        """Merges by looking at all pairs each time."""
        known = self._ids
        score = self._score
        joined = [left + right for left, right in pairwise(symbols)]
        scores = [score(text) for text in joined]
        while scores:
            best = max(scores)
            if best == _NEVER and not any(text in known for text in joined):
                break
            at = next(i for i, text in enumerate(joined) if scores[i] == best and text in known)
            symbols[at : at + 2] = [joined[at]]
            del joined[at], scores[at]
            if at:
                joined[at - 1] = symbols[at - 1] + symbols[at]
                scores[at - 1] = score(joined[at - 1])
            if at < len(joined):
                joined[at] = symbols[at] + symbols[at + 1]
                scores[at] = score(joined[at])
        return symbols

    def _merge_many(self, symbols: list[str]) -> list[str]:  # noqa: C901 - one loop over two kinds of heaps
        """Merges with a heap of scores and, for each, a heap of places; what is out of date there is passed over."""
        joins: dict[tuple[str, str], tuple[float, str] | None] = {}
        places: dict[float, list[int]] = {}  # by negated score
        ranks: list[float] = []

        def offer(at: int, left: str, right: str) -> None:
            """Notes the pair whose left part stands at a place, if it is a token."""
            pair = (left, right)
            if pair in joins:
                found = joins[pair]
            else:
                token_id = self._ids.get(left + right)
                found = joins[pair] = None if token_id is None else (-self._scores[token_id], left + right)
            if found is None:
                return
            waiting = places.get(found[0])
            if waiting is None:
                waiting = places[found[0]] = []
                heapq.heappush(ranks, found[0])
            heapq.heappush(waiting, at)

        following = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        for at, (one, two) in enumerate(pairwise(symbols)):
            offer(at, one, two)
        while ranks:
            waiting = places[ranks[0]]
            if not waiting:
                del places[heapq.heappop(ranks)]
                continue
            left = heapq.heappop(waiting)
            right = following[left]
            if right < 0 or not symbols[left]:
                continue
            # Any pair of this score at this place counts: if it is not the one that was noted, it was noted itself.
            found = joins[symbols[left], symbols[right]]
            if found is None or found[0] != ranks[0]:
                continue
            symbols[left], symbols[right] = found[1], ""
            after = following[left] = following[right]
            if after >= 0:
                before[after] = left
                offer(left, found[1], symbols[after])
            if before[left] >= 0:
                offer(before[left], symbols[before[left]], found[1])
        return [symbol for symbol in symbols if symbol]

    def _bytes(self, character: str) -> list[int]:
        """The tokens of a character's UTF-8 bytes."""
        ids = []
        for byte in character.encode("utf-8", "surrogateescape"):
            token_id = self._byte_id(byte)
            if token_id is None:
                raise FormatError(
                    f"the vocabulary has no token for the byte 0x{byte:02X}",
                    code="tokenizer.no_byte",
                    section="TokenizerBin",
                )
            ids.append(token_id)
        return ids

    def _byte_id(self, byte: int) -> int | None:
        """The token of a byte, the unknown one, or None."""
        token_id = self._byte_ids.get(byte, self._ids.get(chr(byte)) if byte < 0x80 else None)
        return self._unknown_id if token_id is None else token_id
